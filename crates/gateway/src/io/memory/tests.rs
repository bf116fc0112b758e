//! Goal: what is counted is given back exactly, one connection cannot hold much, and the account
//! names the connection that waits longest.

use super::*;

fn budget(max: usize) -> Arc<Budget> {
    let budget = Arc::<Budget>::default();
    budget.set_max(max);
    budget
}

#[test]
fn bytes_are_counted_and_given_back() {
    let budget = budget(1 << 20);
    let mut hold = Hold::new(&budget, Purpose::Upstream);
    hold.set(FREE_BYTES).unwrap();
    assert_eq!(budget.held(), [0, 0, 0]);
    hold.set(200 << 10).unwrap();
    hold.set(100 << 10).unwrap();
    assert_eq!(budget.held(), [0, 100 << 10, 0]);
    assert_eq!(hold.set(300 << 10), Err(Full), "a quarter is for upstreams");
    assert_eq!((budget.held()[1], budget.refused(Purpose::Upstream)), (100 << 10, 1));
    drop(hold);
    assert_eq!(budget.held(), [0, 0, 0]);
}

#[test]
fn a_connection_holds_an_eighth_and_one_buffer_may_be_larger() {
    let budget = budget(8 << 20);
    let account = Rc::<Account>::default();
    let mut one = Hold::of(&budget, Purpose::Response, &account);
    one.set(4 << 20).expect("the largest response can be sent");
    let mut other = Hold::of(&budget, Purpose::Response, &account);
    assert_eq!(other.set(8 << 10), Err(Full));
    one.set(512 << 10).unwrap();
    other.set(512 << 10).unwrap();
    assert_eq!(other.set(513 << 10), Err(Full));
    drop((one, other));
    assert_eq!((budget.held(), account.bytes()), ([0, 0, 0], 0));
}

#[tokio::test(start_paused = true)]
async fn only_bytes_that_wait_for_the_client_make_a_connection_slow() {
    let budget = budget(8 << 20);
    let account = Rc::<Account>::default();
    let mut hold = Hold::of(&budget, Purpose::Request, &account);
    assert_eq!(account.slow(0, Instant::now()), None);
    hold.set(1 << 20).unwrap();
    tokio::time::advance(Duration::from_secs(3)).await;
    let slow = Slow { index: 0, age: Duration::from_secs(3), bytes: 1 << 20 };
    assert_eq!(account.slow(0, Instant::now()), Some(slow));
    hold.set_waiting(false);
    assert_eq!(account.slow(0, Instant::now()), None);
}
