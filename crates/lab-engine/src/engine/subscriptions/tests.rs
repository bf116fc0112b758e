//! Goal: notifications are counted exactly, the ends of connections are counted by reason, and a
//! hostile server can neither block the run nor grow its memory. Method: servers in this process
//! with scripted notifications. The first argument of `frame` is the first byte of a WebSocket
//! frame: the FIN bit 0x80 and the opcode (1 text, 8 close, 9 ping, 10 pong).

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use lab_model::plan::{NodeUrl, Plan, Subscription, SubscriptionKind};
use lab_model::results::subscription::SubscriptionRow;
use lab_model::samples;
use parking_lot::Mutex;

use super::Subscriptions;
use super::heads::{HeadEvent, HeadTracker};
use super::logs::{LogTable, LogTracker};
use crate::engine::websocket::tests::server::{Peer, Server, frame};

/// Maximum number of reports from a server's thread that the test has not read.
const CHANNEL_MAX: usize = 1024;

/// Returns a plan with subscriptions. A subscription is a server, a kind and a number of
/// connections.
fn plan(servers: &[(&Server, SubscriptionKind, usize)]) -> Plan {
    let mut plan = samples::open(1.0, 1, &["eth_blockNumber"]);
    for (server, kind, connections) in servers {
        let mut target = plan.target.clone();
        target.url = NodeUrl::parse(&format!("ws://{}/ws", server.address)).unwrap();
        target.connect_timeout = Duration::from_secs(10);
        target.timeout = Duration::from_secs(10);
        plan.subscriptions.push(Subscription {
            name: format!("subscription-{}", plan.subscriptions.len() + 1),
            target,
            kind: *kind,
            connections: *connections,
            addresses: Vec::new(),
            thresholds: Vec::new(),
        });
    }
    plan
}

/// Runs subscriptions until the servers have sent `times` messages to `done`.
fn run(plan: Plan, servers: &[&Server], done: &Receiver<()>, times: usize) -> Vec<SubscriptionRow> {
    let addresses = servers.iter().map(|server| vec![server.address]).collect();
    let subscriptions =
        Subscriptions::start(&Arc::new(plan), addresses, Instant::now()).unwrap().unwrap();
    for _ in 0..times {
        done.recv_timeout(Duration::from_secs(30)).unwrap();
    }
    subscriptions.finish().unwrap()
}

fn head(number: u64, hash: &str) -> String {
    notification(&format!("{{\"number\":\"0x{number:x}\",\"hash\":\"{hash}\"}}"))
}

fn log(block: u64, index: u64, is_removed: bool) -> String {
    notification(&format!(
        "{{\"blockNumber\":\"0x{block:x}\",\"blockHash\":\"0xb{block}\",\"logIndex\":\"0x{index:x}\",\
         \"removed\":{is_removed}}}"
    ))
}

fn notification(result: &str) -> String {
    format!(
        "{{\"jsonrpc\":\"2.0\",\"method\":\"eth_subscription\",\"params\":{{\"subscription\":\"0x1\",\
         \"result\":{result}}}}}"
    )
}

const CONFIRMED: &str = r#"{"jsonrpc":"2.0","id":1,"result":"0x1"}"#;

/// Opens the WebSocket and confirms the subscription.
fn confirm(peer: &mut Peer) -> io::Result<String> {
    peer.open()?;
    let call = peer.read()?;
    peer.text(CONFIRMED)?;
    Ok(call)
}

/// Sends a ping and waits for its pong, which shows that the client has read everything. Then
/// reports to the test.
fn report(peer: &mut Peer, done: &Mutex<SyncSender<()>>) -> io::Result<()> {
    peer.send(&frame(0x89, b"last"))?;
    while peer.read_frame()?.0 != 0x8a {}
    done.lock().send(()).unwrap();
    peer.wait();
    Ok(())
}

/// Returns a server. `script` returns the notifications that the server sends on the connection
/// with this number.
fn scripted(
    script: impl Fn(usize) -> Vec<String> + Send + Sync + 'static,
    done: &SyncSender<()>,
) -> Server {
    let done = Mutex::new(done.clone());
    Server::new(move |peer| {
        confirm(peer)?;
        for notification in script(peer.connection) {
            peer.text(&notification)?;
        }
        report(peer, &done)
    })
}

#[test]
fn heads_are_counted_exactly() {
    let (sender, done) = sync_channel(CHANNEL_MAX);
    let script = |_| {
        vec![
            head(10, "a"),
            head(11, "b"),
            head(11, "b"),
            // 12 and 13 are missing, and 13 arrives late.
            head(14, "e"),
            head(13, "d"),
            // A reorg replaces two blocks.
            head(13, "d2"),
            head(14, "e2"),
            head(15, "f"),
            // Three messages that are no valid notifications of this subscription.
            "not JSON".to_owned(),
            notification("{\"number\":1}"),
            notification("{\"number\":\"0x10\",\"hash\":\"g\"}").replace("0x1\"", "0x2\""),
        ]
    };
    let server = scripted(script, &sender);
    let plan = plan(&[(&server, SubscriptionKind::Heads, 3)]);
    // Each of the three connections receives 8 valid notifications, of which one is a duplicate.
    let rows = run(plan, &[&server], &done, 3);
    let row = &rows[0];
    assert_eq!((row.connections, row.subscribed, row.open), (3, 3, 3), "{row:?}");
    assert_eq!((row.notifications, row.duplicates), (3 * 8, 3), "{row:?}");
    assert_eq!((row.missing, row.connections_missing), (Some(3), 3), "{row:?}");
    assert_eq!((row.out_of_order, row.reorged, row.unreadable), (3, 6, 9), "{row:?}");
    assert_eq!((row.notifications_min, row.notifications_max), (8, 8));
    assert!(row.ended.is_empty(), "{row:?}");
    assert_eq!((row.delay.count, row.subscribe_time.count), (3 * 7, 3), "{row:?}");
}

#[test]
fn notifications_in_the_warm_up_are_not_counted() {
    let (sender, done) = sync_channel(CHANNEL_MAX);
    let server = scripted(|_| vec![head(1, "a"), head(3, "c")], &sender);
    let mut plan = plan(&[(&server, SubscriptionKind::Heads, 1)]);
    plan.warmup = Duration::from_secs(600);
    let rows = run(plan, &[&server], &done, 1);
    assert_eq!((rows[0].subscribed, rows[0].notifications, rows[0].missing), (1, 0, Some(0)));
}

#[test]
fn a_log_is_missing_if_another_connection_received_it() {
    let (sender, done) = sync_channel(CHANNEL_MAX);
    // The second connection lacks both logs of block 2, the log of block 3 and one log of block 4.
    // It also lacks logs of its first and its last block, which do not count as missing.
    let script = |connection| match connection {
        0 => vec![
            log(1, 0, false),
            log(1, 1, false),
            log(2, 0, false),
            log(2, 1, false),
            log(3, 0, false),
            log(4, 0, false),
            log(4, 1, false),
            log(5, 0, false),
            log(5, 1, false),
            // A reorg withdraws the log of block 3.
            log(3, 0, true),
        ],
        _ => vec![log(1, 1, false), log(4, 1, false), log(4, 1, false), log(5, 0, false)],
    };
    let server = scripted(script, &sender);
    let other = scripted(move |_| script(1), &sender);
    let plan = plan(&[(&server, SubscriptionKind::Logs, 1), (&other, SubscriptionKind::Logs, 1)]);
    let rows = run(plan, &[&server, &other], &done, 2);
    assert_eq!((rows[0].missing, rows[1].missing), (Some(0), Some(3)), "{rows:?}");
    assert_eq!((rows[0].notifications, rows[0].reorged), (10, 1), "{rows:?}");
    assert_eq!((rows[1].notifications, rows[1].duplicates), (4, 1), "{rows:?}");
}

#[test]
fn delays_are_within_two_percent_of_those_of_the_servers() {
    const HEADS: usize = 20;
    const DELAY: Duration = Duration::from_millis(200);
    let (sender, done) = sync_channel(CHANNEL_MAX);
    let (sent_sender, sent) = sync_channel(CHANNEL_MAX);
    let (delays_sender, delays) = sync_channel(CHANNEL_MAX);
    let first_done = Mutex::new(sender.clone());
    let first = Server::new(move |peer| {
        confirm(peer)?;
        for number in 0..HEADS {
            peer.text(&head(number as u64, &number.to_string()))?;
            sent_sender.send((number, Instant::now())).unwrap();
            std::thread::park_timeout(DELAY / 2); // Sleeps: the time between two blocks.
        }
        report(peer, &first_done)
    });
    let (sent, second_done) = (Mutex::new(sent), Mutex::new(sender));
    let second = Server::new(move |peer| {
        confirm(peer)?;
        for (number, sent) in sent.lock().iter().take(HEADS) {
            let delay = (sent + DELAY).saturating_duration_since(Instant::now());
            std::thread::park_timeout(delay); // Sleeps: the planted delay.
            peer.text(&head(number as u64, &number.to_string()))?;
            delays_sender.send(sent.elapsed()).unwrap();
        }
        report(peer, &second_done)
    });
    let kind = SubscriptionKind::Heads;
    let rows = run(plan(&[(&first, kind, 1), (&second, kind, 1)]), &[&first, &second], &done, 2);
    // The server measures its own delays, because a busy machine prolongs them.
    let mut delays: Vec<Duration> = delays.try_iter().collect();
    delays.sort_unstable();
    let expected_ms = delays[HEADS / 2 - 1].as_secs_f64() * 1e3;
    let delay = &rows[1].delay;
    assert_eq!(delay.count, HEADS as u64);
    assert!((delay.p50_ms / expected_ms - 1.0).abs() < 0.02, "{expected_ms} ms: {delay:?}");
    assert_eq!(rows[0].delay.max_ms, 0.0);
}

#[test]
fn missing_logs_of_one_connection_are_unknown() {
    let (sender, done) = sync_channel(CHANNEL_MAX);
    let server = scripted(|_| vec![log(1, 0, false), log(9, 0, false)], &sender);
    let rows = run(plan(&[(&server, SubscriptionKind::Logs, 1)]), &[&server], &done, 1);
    assert_eq!((rows[0].notifications, rows[0].missing), (2, None));
}

#[test]
fn the_end_of_a_connection_is_counted_by_reason() {
    /// The server's actions on a connection, and the reason that the client counts.
    type Case = (fn(&mut Peer) -> io::Result<()>, &'static str);
    const CASES: [Case; 9] = [
        (
            |peer| {
                confirm(peer)?;
                peer.send(&frame(0x88, &1001u16.to_be_bytes()))
            },
            "closed by the server: code 1001",
        ),
        (|peer| confirm(peer).map(drop), "connection lost"),
        (
            |peer| {
                confirm(peer)?;
                peer.send(&frame(0x88, b""))
            },
            "closed by the server: no code",
        ),
        (
            |peer| peer.send(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n"),
            "handshake refused: HTTP 403",
        ),
        (|peer| peer.send(b"SSH-2.0-OpenSSH_9\r\n\r\n"), "handshake invalid"),
        (
            |peer| {
                peer.open()?;
                peer.read()?;
                peer.text(r#"{"jsonrpc":"2.0","id":1,"error":{"code":-32601,"message":"no"}}"#)
            },
            "subscription refused: code -32601",
        ),
        (
            |peer| {
                confirm(peer)?;
                peer.send(b"\xff\xff\xff\xff garbage")
            },
            "invalid frame",
        ),
        (
            // A frame that announces 2^62 bytes and never ends.
            |peer| {
                confirm(peer)?;
                peer.send(&[0x81, 127, 0x40, 0, 0, 0, 0, 0, 0, 0])?;
                loop {
                    peer.send(&[b'x'; 4096])?;
                }
            },
            "message too long",
        ),
        (
            // A message of endless fragments.
            |peer| {
                confirm(peer)?;
                peer.send(&frame(0x01, b"x"))?;
                loop {
                    peer.send(&frame(0x00, &[b'x'; 100]))?;
                }
            },
            "message too long",
        ),
    ];
    let (sender, done) = sync_channel(CHANNEL_MAX);
    let sender = Mutex::new(sender);
    let server = Server::new(move |peer| {
        // An error means that the client has ended the connection.
        let _ended = CASES[peer.connection % CASES.len()].0(peer);
        peer.shut_down();
        peer.wait();
        sender.lock().send(()).unwrap();
        Ok(())
    });
    let plan = plan(&[(&server, SubscriptionKind::Heads, CASES.len())]);
    let rows = run(plan, &[&server], &done, CASES.len());
    let mut expected = std::collections::BTreeMap::<String, u64>::new();
    CASES.iter().for_each(|(_, reason)| *expected.entry((*reason).to_owned()).or_default() += 1);
    assert_eq!(rows[0].ended, expected.into_iter().collect::<Vec<_>>());
    assert_eq!((rows[0].open, rows[0].subscribed), (0, 6), "{rows:?}");
}

#[test]
fn a_server_that_never_responds_times_out() {
    let (sender, done) = sync_channel(CHANNEL_MAX);
    let (silent_done, mute_done) = (Mutex::new(sender.clone()), Mutex::new(sender));
    let silent = Server::new(move |peer| {
        peer.wait();
        silent_done.lock().send(()).unwrap();
        Ok(())
    });
    let mute = Server::new(move |peer| {
        confirm_nothing(peer)?;
        peer.wait();
        mute_done.lock().send(()).unwrap();
        Ok(())
    });
    let kind = SubscriptionKind::Heads;
    let mut plan = plan(&[(&silent, kind, 1), (&mute, kind, 1)]);
    plan.subscriptions[0].target.connect_timeout = Duration::from_millis(300);
    plan.subscriptions[1].target.timeout = Duration::from_millis(300);
    let rows = run(plan, &[&silent, &mute], &done, 2);
    assert_eq!(rows[0].ended, [("handshake timed out".to_owned(), 1)]);
    assert_eq!(rows[1].ended, [("subscription timed out".to_owned(), 1)]);
}

/// Opens the WebSocket and does not respond to the call.
fn confirm_nothing(peer: &mut Peer) -> io::Result<()> {
    peer.open()?;
    peer.read().map(drop)
}

#[test]
fn a_large_jump_of_heights_is_one_gap() {
    let mut tracker = HeadTracker::default();
    // The arguments are the height and the id of a block.
    assert_eq!(tracker.add(5, 1), HeadEvent::Next(0));
    assert_eq!(tracker.add(u64::MAX, 2), HeadEvent::Next(u64::MAX - 6));
    assert_eq!(tracker.add(u64::MAX - 1, 3), HeadEvent::OutOfOrder { is_ignored: false });
    assert_eq!(tracker.add(6, 4), HeadEvent::Reorg, "too far below to be known");
    assert_eq!(tracker.add(0, 5), HeadEvent::Reorg, "below the first");
}

#[test]
fn a_block_that_fills_a_gap_of_the_warm_up_reduces_no_count() {
    let mut tracker = HeadTracker::default();
    [1, 3].into_iter().for_each(|number| _ = tracker.add(number, number));
    tracker.ignore_gaps();
    assert_eq!(tracker.add(5, 5), HeadEvent::Next(1));
    assert_eq!(tracker.add(2, 2), HeadEvent::OutOfOrder { is_ignored: true });
    assert_eq!(tracker.add(4, 4), HeadEvent::OutOfOrder { is_ignored: false });
}

#[test]
fn gaps_are_found_across_the_whole_window() {
    let mut tracker = HeadTracker::default();
    let (mut skipped, mut found) = (0, 0);
    for number in 0..=10_000 {
        if number % 7 == 3 {
            skipped += 1;
        } else if let HeadEvent::Next(missing) = tracker.add(number, number) {
            found += missing;
        }
    }
    assert_eq!(found, skipped);
    // A block at a skipped height within the window can still arrive.
    assert_eq!(tracker.add(9_992, 1 << 40), HeadEvent::OutOfOrder { is_ignored: false });
}

#[test]
fn logs_that_leave_the_table_are_settled() {
    let mut table = LogTable::default();
    let (mut complete, mut incomplete) = (LogTracker::default(), LogTracker::default());
    let (mut expected_missing, mut missing) = (0, 0);
    for number in 0..20_000 {
        let (now, is_measured) = (0, true);
        let (entry, settled) = table.find_or_add(number, number, now, is_measured);
        if let Some(settled) = settled {
            assert!(!complete.settle(&settled));
            missing += u64::from(incomplete.settle(&settled));
        }
        assert!(complete.add(&entry));
        // One connection lacks every ninth log.
        if number % 9 == 4 { expected_missing += 1 } else { assert!(incomplete.add(&entry)) }
    }
    missing += table.entries().filter(|entry| incomplete.settle(entry)).count() as u64;
    assert_eq!(missing, expected_missing);
}
