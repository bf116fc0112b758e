//! Goal: a serving thread never waits, lost records are counted, and a moved file is reopened.
//! Method: a writer thread with a file in a temporary folder, which the tests poll.

use super::*;
use crate::config::access_log::format::Format;

fn config(target: LogTarget, queue_lines: usize) -> AccessLog {
    let format = Format::parse("$rpc_method").unwrap();
    AccessLog { target, format, per_call: false, sample: 1.0, errors_always: true, queue_lines }
}

fn record(method: &str) -> Record {
    use super::record::CallRecord;
    let call = CallRecord {
        method: method.into(),
        chain: "eth".into(),
        error: None,
        cache: None,
        upstream: None,
        bytes: 0,
        duration: Duration::ZERO,
        upstream_time: None,
    };
    Record { call: Some(call), ..Record::without_head("::1".parse().unwrap(), "HTTP/1.1") }
}

fn wait_for(path: &Path, expected: &str) {
    let give_up = Instant::now() + Duration::from_secs(20);
    while std::fs::read_to_string(path).unwrap_or_default() != expected {
        assert!(Instant::now() < give_up, "{:?}", std::fs::read_to_string(path));
        // Sleeps: another thread writes by the clock.
        std::thread::park_timeout(Duration::from_millis(5));
    }
}

#[test]
fn a_full_queue_drops_records() {
    let (queue_lines, threads) = (4, 2);
    let queues = RecordQueues::new(config(LogTarget::Stdout, queue_lines), &[], threads);
    let queued = (0..10).filter(|_| queues.push(1, record("m"))).count();
    assert_eq!(queued, 2);
    assert!(queues.push(0, record("m")), "threads do not share a queue");
}

#[test]
fn a_moved_file_is_reopened_and_the_stop_writes_the_rest() {
    let folder = tempfile::tempdir().unwrap();
    let (path, moved) = (folder.path().join("a.log"), folder.path().join("a.log.1"));
    let queues = Arc::new(RecordQueues::new(config(LogTarget::File(path.clone()), 100), &[], 2));
    let writer = start(Arc::clone(&queues)).unwrap();
    assert!(queues.push(0, record("one")));
    wait_for(&path, "one\n");
    std::fs::rename(&path, &moved).unwrap();
    wait_for(&path, "");
    let give_up = Instant::now() + Duration::from_secs(20);
    while !path.exists() {
        assert!(Instant::now() < give_up, "it is not opened anew");
        // Sleeps: another thread opens by the clock.
        std::thread::park_timeout(Duration::from_millis(5));
    }
    assert!(queues.push(1, record("two\nlines")));
    writer.stop();
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "two\\x0Alines\n");
    assert_eq!(std::fs::read_to_string(&moved).unwrap(), "one\n");
    assert_eq!(queues.unwritten.load(Ordering::Relaxed), 0);
}

#[test]
fn lines_that_cannot_be_written_are_counted() {
    let full = LogTarget::File("/dev/full".into());
    let queues = Arc::new(RecordQueues::new(config(full, 100), &[], 1));
    let writer = start(Arc::clone(&queues)).unwrap();
    assert!(queues.push(0, record("one")));
    writer.stop();
    assert_eq!(queues.unwritten.load(Ordering::Relaxed), 1);
    let nowhere = LogTarget::File("/nowhere/a.log".into());
    let queues = RecordQueues::new(config(nowhere, 100), &[], 1);
    assert!(start(Arc::new(queues)).is_err());
}
