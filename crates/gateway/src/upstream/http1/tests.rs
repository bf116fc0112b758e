//! Goal: a response is read completely or rejected, wherever its bytes are split. Method: raw
//! responses over a connection in memory, whole and byte by byte.

use std::sync::Arc;

use tokio::io::AsyncWriteExt as _;

use super::*;
use crate::io::memory::Budget;
use crate::policy::memory::Purpose;

/// Sends `raw` as the response in pieces of `piece_bytes`, and reads it. Closes the connection
/// after the response if `closed` is true.
fn read_response(
    raw: &[u8],
    piece_bytes: usize,
    closed: bool,
) -> Result<HttpResponse, FailureKind> {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_all().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let (gateway_stream, mut upstream_stream) = tokio::io::duplex(1 << 20);
        let mut connection = Connection::new(Stream::Memory(gateway_stream), new_parsed_heads());
        let budget = Arc::<Budget>::default();
        budget.set_max(1 << 20);
        let mut reservation = Reservation::new(&budget, Purpose::Upstream);
        let deadline = Instant::now() + Duration::from_secs(1);
        let body_bytes_max = 1000;
        let exchanging =
            connection.exchange(b"request", deadline, body_bytes_max, &mut reservation);
        let responding = async {
            for piece in raw.chunks(piece_bytes) {
                upstream_stream.write_all(piece).await.unwrap();
                tokio::task::yield_now().await;
            }
            // The other end of an open connection must exist until the response was read.
            if closed { None } else { Some(upstream_stream) }
        };
        let (exchanged, _upstream_stream) = tokio::join!(exchanging, responding);
        exchanged.map_err(|error| error.kind)
    })
}

#[test]
fn responses_are_read_at_every_split() {
    let cases: [(&[u8], bool, &[u8], bool); 4] = [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", false, b"hello", true),
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n",
            false,
            b"hello",
            true,
        ),
        (b"HTTP/1.1 103 Early\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi", false, b"hi", true),
        (b"HTTP/1.0 200 OK\r\n\r\nhello", true, b"hello", false),
    ];
    for (raw, closed, body, reusable) in cases {
        for piece_bytes in 1..=raw.len() {
            let response = read_response(raw, piece_bytes, closed).unwrap();
            assert_eq!(
                (response.status, &response.body[..], response.reusable),
                (200, body, reusable)
            );
        }
    }
}

#[test]
fn truncated_and_malformed_responses_are_faults() {
    let truncated = b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nhello";
    assert!(matches!(read_response(truncated, 100, true), Err(FailureKind::Closed)));
    let long = b"HTTP/1.1 200 OK\r\nContent-Length: 5000\r\n\r\nhello";
    assert!(matches!(read_response(long, 100, true), Err(FailureKind::TooLarge)));
    let chunks = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1388\r\nhello";
    assert!(matches!(read_response(chunks, 100, true), Err(FailureKind::TooLarge)));
    let surplus = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhello";
    assert!(matches!(read_response(surplus, 100, true), Err(FailureKind::Malformed)));
    let gzip = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 1\r\n\r\nx";
    assert!(matches!(read_response(gzip, 100, true), Err(FailureKind::Malformed)));
    let noise = b"SSH-2.0-x\r\n\r\n";
    assert!(matches!(read_response(noise, 100, true), Err(FailureKind::Malformed)));
}

#[test]
fn close_and_retry_after_are_kept() {
    let raw = b"HTTP/1.1 429 x\r\nConnection: close\r\nRetry-After: 7\r\nContent-Length: 0\r\n\r\n";
    let response = read_response(raw, 1000, false).unwrap();
    assert_eq!((response.status, response.reusable), (429, false));
    assert_eq!(response.retry_after, Some(Duration::from_secs(7)));
}

#[test]
fn interim_responses_are_limited() {
    let response = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi";
    let with_interims = |interims: usize| "HTTP/1.1 100 \r\n\r\n".repeat(interims) + response;
    for piece_bytes in [1, 1000, 100_000] {
        assert_eq!(
            &read_response(with_interims(5).as_bytes(), piece_bytes, false).unwrap().body[..],
            b"hi"
        );
        // 4000 responses fit into one read, so parsing must not recurse.
        for interims in [6, 4000] {
            let fault =
                read_response(with_interims(interims).as_bytes(), piece_bytes, false).unwrap_err();
            assert!(matches!(fault, FailureKind::Malformed), "{fault:?}");
        }
    }
    let upgraded = read_response(b"HTTP/1.1 101 \r\n\r\n", 1000, false).unwrap_err();
    assert!(matches!(upgraded, FailureKind::Malformed), "{upgraded:?}");
}

#[test]
fn ambiguous_lengths_cost_the_connection() {
    let both = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n\
        2\r\nhi\r\n0\r\n\r\n";
    let response = read_response(both, 1000, false).unwrap();
    assert_eq!((&response.body[..], response.reusable), (&b"hi"[..], false));
    for length in ["+2", "2, 2", "0x2", "", "-1", "99999999999999999999"] {
        let raw = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\nhi");
        let fault = read_response(raw.as_bytes(), 1000, false).unwrap_err();
        assert!(matches!(fault, FailureKind::Malformed), "{length:?}: {fault:?}");
    }
}
