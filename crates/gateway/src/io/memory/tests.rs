//! Goal: reservations are released exactly, one connection cannot hold much, and an account reports
//! how long its bytes wait.

use super::*;

fn budget(max: usize) -> Arc<Budget> {
    let budget = Arc::<Budget>::default();
    budget.set_max(max);
    budget
}

#[test]
fn reservations_are_released() {
    let budget = budget(1 << 20);
    let mut reservation = Reservation::new(&budget, Purpose::Upstream);
    reservation.set(UNCOUNTED_BYTES_MAX).unwrap();
    assert_eq!(budget.bytes_held(), [0, 0, 0]);
    reservation.set(200 << 10).unwrap();
    reservation.set(100 << 10).unwrap();
    assert_eq!(budget.bytes_held(), [0, 100 << 10, 0]);
    assert_eq!(reservation.set(300 << 10), Err(BudgetExhausted), "a quarter is for upstreams");
    assert_eq!((budget.bytes_held()[1], budget.refused(Purpose::Upstream)), (100 << 10, 1));
    drop(reservation);
    assert_eq!(budget.bytes_held(), [0, 0, 0]);
}

#[test]
fn a_connection_holds_an_eighth_and_one_buffer_may_be_larger() {
    let budget = budget(8 << 20);
    let account = Rc::<Account>::default();
    let mut first = Reservation::for_connection(&budget, Purpose::Response, &account);
    first.set(4 << 20).expect("the largest response can be sent");
    let mut other = Reservation::for_connection(&budget, Purpose::Response, &account);
    assert_eq!(other.set(8 << 10), Err(BudgetExhausted));
    first.set(512 << 10).unwrap();
    other.set(512 << 10).unwrap();
    assert_eq!(other.set(513 << 10), Err(BudgetExhausted));
    drop((first, other));
    assert_eq!((budget.bytes_held(), account.bytes()), ([0, 0, 0], 0));
}

#[tokio::test(start_paused = true)]
async fn only_bytes_that_wait_for_the_client_make_a_connection_slow() {
    let budget = budget(8 << 20);
    let account = Rc::<Account>::default();
    let mut reservation = Reservation::for_connection(&budget, Purpose::Request, &account);
    assert_eq!(account.as_slow_connection(0, Instant::now()), None);
    reservation.set(1 << 20).unwrap();
    tokio::time::advance(Duration::from_secs(3)).await;
    let slow = SlowConnection { index: 0, age: Duration::from_secs(3), bytes: 1 << 20 };
    assert_eq!(account.as_slow_connection(0, Instant::now()), Some(slow));
    reservation.set_waiting(false);
    assert_eq!(account.as_slow_connection(0, Instant::now()), None);
}
