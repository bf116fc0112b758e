//! Goal: an upstream that declines HTTP/2 gets HTTP/1.1 until HTTP/2 is offered again. Method: an
//! in-memory upstream that never negotiates HTTP/2, in virtual time.

use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

use super::*;
use crate::io::random::Random;
use crate::process::Process;

const TEXT: &str = "[server]\nthreads = 1\n\
     [[upstream]]\nname = \"n\"\nurl = \"https://node.local\"\nhttp2 = true\n";

#[tokio::test(start_paused = true)]
async fn http2_is_offered_again_after_the_retry_interval() {
    let config = Config::from_text("test", TEXT, Path::new("/"), &|_| None);
    let config = config.unwrap_or_else(|faults| panic!("{faults}"));
    let dialed = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&dialed);
    let connector = Connector::Memory(Arc::new(move || {
        count.fetch_add(1, Ordering::Relaxed);
        Ok(tokio::io::duplex(1).0)
    }));
    let thread = ThreadResources::new(&Process::new(), Random::new(1, 0));
    let upstream = &config.upstreams[0];
    let http2 = Http2::new(&thread, &config, upstream, &connector, &Arc::default()).unwrap();
    let declines = async || {
        let connection = http2.acquire(Instant::now() + Duration::from_secs(1)).await;
        assert!(matches!(connection, Err(NoConnection::Declined)));
        dialed.load(Ordering::Relaxed)
    };
    assert_eq!((declines().await, declines().await), (1, 1));
    tokio::time::advance(HTTP2_RETRY_INTERVAL - Duration::from_millis(1)).await;
    assert_eq!(declines().await, 1);
    tokio::time::advance(Duration::from_millis(1)).await;
    assert_eq!((declines().await, declines().await), (2, 2));
}
