//! Goal: each signed transaction is sent once and in order, and its inclusion in a block is
//! measured correctly. Method: the test signs transactions and sends them to a geth with one block
//! per second, and to a simulated chain with planted times and faults.

#![allow(clippy::unwrap_used)]

#[path = "transactions/server.rs"]
mod server;

use std::sync::Arc;
use std::time::{Duration, Instant};

use lab::run::{RunFault, Stop, run};
use lab_model::plan::read;
use lab_model::results::run::RunResult;
use lab_model::results::transactions::TransactionsRow;
use test_support::geth::Geth;
use test_support::signing::{Account, hex};

use server::{Fate, Server};

/// Chain id of geth's development chain, and of the simulated chain.
const CHAIN_ID: u64 = 1337;

/// Returns a line of a transaction file: a signed transfer from an account.
fn line(account: u8, nonce: u64) -> String {
    hex(&Account::numbered(account).transfer(CHAIN_ID, nonce, Account::numbered(99).address))
}

/// Runs a plan that sends transactions for at most 30 s. `tables` has further tables of the plan.
fn send(address: &str, lines: &[String], rate: u32, tables: &str) -> Result<RunResult, RunFault> {
    send_for(30, address, lines, rate, tables)
}

/// Runs a plan that sends transactions for at most `seconds`.
fn send_for(
    seconds: u32,
    address: &str,
    lines: &[String],
    rate: u32,
    tables: &str,
) -> Result<RunResult, RunFault> {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("txs"), lines.join("\n")).unwrap();
    let text = format!(
        "[target]\nurl = \"http://{address}\"\n\
         [[scenario]]\nname = \"send\"\nmix = \"own\"\nworkers_max = 10\n\
         stages = [{{ duration = \"{seconds}s\", rate = {rate} }}]\n\
         [mix.own]\ntransactions = \"txs\"\n{tables}"
    );
    let name = folder.path().join("plan.toml");
    let plan = read(&text, name.to_str().unwrap(), &[]).unwrap_or_else(|faults| panic!("{faults}"));
    Ok(run(&Arc::new(plan), &Stop::new(), &mut |_| ())?.result)
}

fn transactions(result: &RunResult) -> &TransactionsRow {
    result.transactions.as_ref().unwrap()
}

/// Returns the numbers of sent, accepted, refused, included and pending transactions.
fn counts(result: &RunResult) -> [u64; 5] {
    let row = transactions(result);
    let inclusion = row.inclusion.as_ref().unwrap();
    [row.sent, row.accepted, row.refused, inclusion.included, inclusion.pending]
}

/// Returns true for each threshold that was kept.
fn kept(result: &RunResult) -> Vec<bool> {
    result.thresholds.iter().map(|threshold| threshold.kept).collect()
}

#[test]
fn a_real_node_includes_what_was_sent() {
    const SENDERS: u8 = 4;
    let Some(geth) = Geth::start_dev(SENDERS) else { return };
    // Each sender's nonces are in reverse order in the file.
    let lines: Vec<_> = (0..10)
        .rev()
        .flat_map(|nonce| (0..SENDERS).map(move |sender| line(sender, nonce)))
        .collect();
    let thresholds = "[inclusion]\nwait = \"20s\"\n[thresholds]\ninclusion_time = [\"p(95)<15000\", \"min>0\"]\n\
                      included = \"count==40\"\npending = \"count==0\"\nfailed = \"rate<=0\"\n";
    let result = send(&geth.address, &lines, 20, thresholds).unwrap();
    assert_eq!(counts(&result), [40, 40, 0, 40, 0], "{:?}", result.transactions);
    assert_eq!(kept(&result), [true; 5], "{:?}", result.thresholds);
    assert!(result.duration < 25.0, "the load went on without transactions: {}", result.duration);
    let row = transactions(&result);
    assert_eq!((row.total, row.senders, row.unanswered), (40, 4, 0));
    let time = row.inclusion.as_ref().unwrap().time;
    assert_eq!(time.count, 40);
    // Sends last two seconds, so one of them comes just after a block and waits for the next block.
    assert!((500.0..15_000.0).contains(&time.max_ms), "{time:?}");
    assert!(time.min_ms < time.max_ms, "{time:?}");
    for sender in 0..SENDERS {
        let params = format!(r#"["{}","latest"]"#, Account::numbered(sender).address);
        assert_eq!(geth.call("eth_getTransactionCount", &params), "0xa");
    }

    // If the same file is sent again, every nonce is already used.
    let again = send(&geth.address, &lines, 100, "").unwrap_err().to_string();
    assert!(again.contains("10 of 10 transactions of 0x"), "{again}");
    assert!(again.contains("its next nonce is 10, and the file begins with 0"), "{again}");
}

#[test]
fn a_real_node_refuses_and_would_hold_back() {
    let Some(geth) = Geth::start_dev(2) else { return };
    // The node would hold back transactions whose first nonces are missing.
    let gap = send(&geth.address, &[line(0, 0), line(1, 5)], 20, "").unwrap_err().to_string();
    assert!(gap.contains("begin with nonce 5, but its next nonce is 0"), "{gap}");
    // The third sender has no ether.
    let lines = [line(0, 0), line(2, 0), line(0, 1), line(2, 1)];
    let tables = "[inclusion]\nwait = \"4s\"\n[thresholds]\npending = \"count==0\"\n\
                failed = \"rate<0.1\"\nincluded = \"count==2\"\n";
    let result = send(&geth.address, &lines, 20, tables).unwrap();
    assert_eq!(counts(&result), [4, 2, 2, 2, 0], "{:?}", result.transactions);
    assert_eq!(kept(&result), [true, false, true], "{:?}", result.thresholds);
    let row = transactions(&result);
    assert_eq!(row.refusals.len(), 1, "{:?}", row.refusals);
    assert!(row.refusals[0].0.starts_with("insufficient funds"), "{:?}", row.refusals);
    let findings = result.findings.join("\n");
    assert!(findings.contains("2 of 4 sent transactions were refused"), "{findings}");
    assert!(!findings.contains("the load ended before"), "{findings}");
}

#[test]
fn transactions_of_another_chain_are_not_sent() {
    let server = Server::start(false, Box::new(|_| Fate::Included(Duration::ZERO)));
    let other = hex(&Account::numbered(0).transfer(5, 0, Account::numbered(1).address));
    let fault = send(&format!("127.0.0.1:{}", server.port), &[other], 1, "").unwrap_err();
    let message = fault.to_string();
    assert!(message.contains("are for chain 5, but it serves chain 1337"), "{message}");
    assert_eq!(server.arrived(), [] as [String; 0]);
}

#[test]
fn inclusion_times_are_those_of_the_chain() {
    // The times of a result are rounded to three digits: 700.1 ms is in the bucket from 699.92 ms.
    const AFTER: Duration = Duration::from_millis(701);
    let server = Server::start(false, Box::new(|_| Fate::Included(AFTER)));
    let lines: Vec<_> = (0..5).flat_map(|nonce| [line(0, nonce), line(1, nonce)]).collect();
    let tables = "[inclusion]\ninterval = \"20ms\"\nwait = \"20s\"\n[thresholds]\n\
                inclusion_time = [\"min>=700\", \"max<700\"]\npending = \"count==0\"\n";
    let result = send(&format!("127.0.0.1:{}", server.port), &lines, 50, tables).unwrap();
    assert_eq!(counts(&result), [10, 10, 0, 10, 0], "{:?}", result.transactions);
    assert_eq!(server.arrived(), lines, "each once, in order");
    assert_eq!(kept(&result), [true, false, true], "{:?}", result.thresholds);
    let time = transactions(&result).inclusion.as_ref().unwrap().time;
    // The load lasts 0.2 s, so all transactions are included after it.
    assert!((700.0..5_000.0).contains(&time.min_ms) && time.count == 10, "{time:?}");
}

#[test]
fn the_wait_ends_and_the_rest_is_pending() {
    let server = Server::start(
        false,
        Box::new(|nth| match nth {
            0..=3 => Fate::Included(Duration::ZERO),
            4 => Fate::Refused("already known"),
            _ => Fate::Pending,
        }),
    );
    let lines: Vec<_> = (0..8).map(|nonce| line(0, nonce)).collect();
    let started = Instant::now();
    let tables =
        "[inclusion]\ninterval = \"20ms\"\nwait = \"1s\"\n[thresholds]\npending = \"count<3\"\n";
    let result = send(&format!("127.0.0.1:{}", server.port), &lines, 50, tables).unwrap();
    assert_eq!(counts(&result), [8, 7, 1, 4, 3], "{:?}", result.transactions);
    assert_eq!(kept(&result), [false], "{:?}", result.thresholds);
    assert_eq!(result.thresholds[0].observed, Some(3.0));
    assert_eq!(transactions(&result).refusals, [("already known".to_owned(), 1)]);
    assert!(started.elapsed() < Duration::from_secs(20));
}

#[test]
fn blocks_that_cannot_be_read_are_a_warning_and_all_count_as_pending() {
    let server = Server::start(true, Box::new(|_| Fate::Included(Duration::ZERO)));
    let tables = "[thresholds]\npending = \"count==0\"\ninclusion_time = \"p(95)<1000\"\n";
    let address = format!("127.0.0.1:{}", server.port);
    let result = send(&address, &[line(0, 0), line(1, 0)], 50, tables).unwrap();
    assert_eq!(transactions(&result).inclusion, None);
    assert_eq!(transactions(&result).accepted, 2);
    assert_eq!(kept(&result), [false, false], "{:?}", result.thresholds);
    let warnings = result.warnings.join("\n");
    assert!(warnings.contains("the inclusion of transactions was not measured"), "{warnings}");
}

#[test]
fn a_load_that_ends_before_the_file_says_so() {
    let server = Server::start(false, Box::new(|_| Fate::Included(Duration::ZERO)));
    let lines: Vec<_> = (0..100).map(|nonce| line(0, nonce)).collect();
    let address = format!("127.0.0.1:{}", server.port);
    let result = send_for(2, &address, &lines, 10, "").unwrap();
    assert_eq!(transactions(&result).sent, 20);
    let findings = result.findings.join("\n");
    let fact = "20 of 100 transactions were sent: the load ended before the file";
    assert!(findings.contains(fact), "{findings}");
}
