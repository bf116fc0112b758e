//! Goal: messages survive encoding and decoding, and other bytes are refused.

use super::*;

#[test]
fn messages_round_trip() {
    for subject in [Subject::Reorg { fork: 17 }, Subject::Generation] {
        let message = Message { sender: 0xfeed, chain: "eth-main.1", subject };
        let text = message.to_string();
        assert_eq!(parse(text.as_bytes()), Some(message), "{text}");
    }
    let text = Message { sender: 1, chain: "eth", subject: Subject::Reorg { fork: 9 } }.to_string();
    assert_eq!(text, "weir1 0000000000000001 eth reorg 9");
}

#[test]
fn other_bytes_are_refused() {
    for bytes in [
        &b""[..],
        b"weir1",
        b"weir2 0000000000000001 eth reorg 9",
        b"weir1 1 eth reorg 9",
        b"weir1 000000000000000g eth reorg 9",
        b"weir1 0000000000000001  reorg 9",
        b"weir1 0000000000000001 eth reorg",
        b"weir1 0000000000000001 eth reorg -9",
        b"weir1 0000000000000001 eth reorg 9 9",
        b"weir1 0000000000000001 eth reorg 99999999999999999999999",
        b"weir1 0000000000000001 eth flood",
        b"\xff\xfe",
        &[b'w'; 1000],
    ] {
        assert_eq!(parse(bytes), None, "{}", String::from_utf8_lossy(bytes));
    }
}
