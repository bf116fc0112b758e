//! Who is woken, who is not left waiting.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::{Queue, WAITING_MAX};

/// Most jobs of a test.
const JOBS: u32 = 20_000;

/// A reader that says who it is and what it got.
fn reader(queue: &Arc<Queue<u32>>, name: u32) -> (JoinHandle<()>, Receiver<(u32, u32)>) {
    let (said, heard) = sync_channel(JOBS as usize);
    let own = Arc::clone(queue);
    let thread = std::thread::spawn(move || {
        while let Some(job) = own.next() {
            said.send((name, job)).unwrap();
        }
    });
    (thread, heard)
}

fn rest(queue: &Queue<u32>, wanted: usize) {
    let until = Instant::now() + Duration::from_secs(20);
    while queue.inner.lock().resting.len() != wanted {
        assert!(Instant::now() < until, "not {wanted} readers rest");
        std::thread::yield_now();
    }
}

#[test]
fn who_rested_last_is_woken_first() {
    let queue = Arc::new(Queue::default());
    queue.join();
    let (first, heard_first) = reader(&queue, 1);
    rest(&queue, 1);
    let (second, heard_second) = reader(&queue, 2);
    rest(&queue, 2);
    for job in 0..100 {
        queue.put(job);
        assert_eq!(heard_second.recv().unwrap(), (2, job));
        rest(&queue, 2);
    }
    queue.close();
    first.join().unwrap();
    second.join().unwrap();
    assert!(heard_first.try_recv().is_err(), "the first was woken for nothing");
}

#[test]
fn nothing_is_lost_between_many() {
    let queue = Arc::new(Queue::default());
    queue.join();
    let readers: Vec<_> = (0..4).map(|name| reader(&queue, name)).collect();
    for job in 0..JOBS {
        while queue.inner.lock().waiting.len() == WAITING_MAX {
            std::thread::yield_now();
        }
        queue.put(job);
    }
    queue.close();
    let mut got: Vec<u32> = Vec::new();
    for (thread, heard) in readers {
        thread.join().unwrap();
        got.extend(heard.iter().map(|(_, job)| job));
    }
    got.sort_unstable();
    assert_eq!(got, (0..JOBS).collect::<Vec<_>>());
}

#[test]
fn nobody_waits_for_readers_that_are_not_there() {
    let queue: Queue<Arc<()>> = Queue::default();
    let job = Arc::new(());
    queue.put(Arc::clone(&job));
    assert_eq!(Arc::strong_count(&job), 1, "kept though nobody can read");
    queue.join();
    for _ in 0..WAITING_MAX + 5 {
        queue.put(Arc::clone(&job));
    }
    assert_eq!(Arc::strong_count(&job), 1 + WAITING_MAX);
    queue.leave();
    assert_eq!(Arc::strong_count(&job), 1, "the last reader left them waiting");
}

#[test]
fn who_cannot_read_hears_of_the_end() {
    let queue: Arc<Queue<u32>> = Arc::new(Queue::default());
    assert!(!queue.closes_within(Duration::from_millis(1)));
    let own = Arc::clone(&queue);
    let thread = std::thread::spawn(move || own.closes_within(Duration::from_secs(60)));
    queue.close();
    assert!(thread.join().unwrap());
}
