//! Goal: readers wake in the documented order, no job is lost, and jobs without a reader are
//! dropped. Method: threads that read from a queue of numbers.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::{QUEUE_MAX, Queue};

/// Largest number of jobs in a test.
const JOBS: u32 = 20_000;

/// Starts a reader that sends its name and each job that it gets.
fn start_reader(queue: &Arc<Queue<u32>>, name: u32) -> (JoinHandle<()>, Receiver<(u32, u32)>) {
    let (sender, received) = sync_channel(JOBS as usize);
    let queue = Arc::clone(queue);
    let thread = std::thread::spawn(move || {
        while let Some(job) = queue.next() {
            sender.send((name, job)).unwrap();
        }
    });
    (thread, received)
}

fn wait_until_idle(queue: &Queue<u32>, readers: usize) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while queue.inner.lock().idle.len() != readers {
        assert!(Instant::now() < deadline, "not {readers} readers are idle");
        std::thread::yield_now();
    }
}

#[test]
fn last_idle_reader_is_woken_first() {
    let queue = Arc::new(Queue::default());
    queue.add_reader();
    let (first, received_first) = start_reader(&queue, 1);
    wait_until_idle(&queue, 1);
    let (second, received_second) = start_reader(&queue, 2);
    wait_until_idle(&queue, 2);
    for job in 0..100 {
        queue.put(job);
        assert_eq!(received_second.recv().unwrap(), (2, job));
        wait_until_idle(&queue, 2);
    }
    queue.close();
    first.join().unwrap();
    second.join().unwrap();
    assert!(received_first.try_recv().is_err(), "the first was woken for nothing");
}

#[test]
fn no_job_is_lost_between_many_readers() {
    let queue = Arc::new(Queue::default());
    queue.add_reader();
    let readers: Vec<_> = (0..4).map(|name| start_reader(&queue, name)).collect();
    for job in 0..JOBS {
        while queue.inner.lock().queued.len() == QUEUE_MAX {
            std::thread::yield_now();
        }
        queue.put(job);
    }
    queue.close();
    let mut received_jobs: Vec<u32> = Vec::new();
    for (thread, received) in readers {
        thread.join().unwrap();
        received_jobs.extend(received.iter().map(|(_, job)| job));
    }
    received_jobs.sort_unstable();
    assert_eq!(received_jobs, (0..JOBS).collect::<Vec<_>>());
}

#[test]
fn jobs_without_a_reader_are_dropped() {
    let queue: Queue<Arc<()>> = Queue::default();
    let job = Arc::new(());
    queue.put(Arc::clone(&job));
    assert_eq!(Arc::strong_count(&job), 1, "kept though nobody can read");
    queue.add_reader();
    for _ in 0..QUEUE_MAX + 5 {
        queue.put(Arc::clone(&job));
    }
    assert_eq!(Arc::strong_count(&job), 1 + QUEUE_MAX);
    queue.remove_reader();
    assert_eq!(Arc::strong_count(&job), 1, "the last reader left them queued");
}

#[test]
fn close_wakes_readers_that_wait_to_reopen() {
    let queue: Arc<Queue<u32>> = Arc::new(Queue::default());
    assert!(!queue.wait_closed(Duration::from_millis(1)));
    let thread_queue = Arc::clone(&queue);
    let thread = std::thread::spawn(move || thread_queue.wait_closed(Duration::from_secs(60)));
    queue.close();
    assert!(thread.join().unwrap());
}
