//! A DNS server that resolves one name.

use std::net::{Ipv4Addr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Maximum number of loopback addresses on which the server tries port 53.
const ATTEMPTS: u8 = 20;
/// Length of the header of a DNS message.
const HEADER_BYTES: usize = 12;
/// The record type of an IPv4 address (RFC 1035, section 3.2.2).
const TYPE_A: [u8; 2] = [0, 1];

/// A server on port 53 of a loopback address. It runs until the test process ends.
pub(super) struct Server {
    pub(super) address: Ipv4Addr,
    questions: Arc<AtomicUsize>,
}

impl Server {
    /// Starts a server that resolves `name` to `target`. Returns `None` if no port is free.
    pub(super) fn start(name: &str, target: Ipv4Addr) -> Option<Server> {
        let process = std::process::id().to_be_bytes();
        let (address, socket) = (1..=ATTEMPTS).find_map(|attempt| {
            let address = Ipv4Addr::new(127, process[2], process[3], attempt);
            Some((address, UdpSocket::bind((address, 53)).ok()?))
        })?;
        let encoded = encode_name(name);
        let questions = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&questions);
        std::thread::spawn(move || {
            let mut message = [0; 512];
            while let Ok((length, client)) = socket.recv_from(&mut message) {
                let response = respond(&message[..length], &encoded, target);
                counter.fetch_add(1, Ordering::Relaxed);
                let _ = socket.send_to(&response, client);
            }
        });
        Some(Server { address, questions })
    }

    /// Returns the number of questions so far.
    pub(super) fn questions(&self) -> usize {
        self.questions.load(Ordering::Relaxed)
    }
}

/// Encodes a name as labels with their lengths.
fn encode_name(name: &str) -> Vec<u8> {
    let mut encoded = Vec::new();
    for label in name.split('.') {
        encoded.push(u8::try_from(label.len()).unwrap());
        encoded.extend_from_slice(label.as_bytes());
    }
    encoded.push(0);
    encoded
}

/// Returns the response to a message with one question. Only questions for an IPv4 address of the
/// known name have an answer.
fn respond(message: &[u8], name: &[u8], target: Ipv4Addr) -> Vec<u8> {
    let end =
        HEADER_BYTES + message[HEADER_BYTES..].iter().position(|byte| *byte == 0).unwrap() + 1;
    let is_known = message[HEADER_BYTES..end] == *name;
    let has_answer = is_known && message[end..end + 2] == TYPE_A;
    let mut response = message[..2].to_vec();
    // Flags: this is a response, and recursion is available. The code 3 means that the name does
    // not exist.
    response.extend_from_slice(&[0x81, if is_known { 0x80 } else { 0x83 }]);
    response.extend_from_slice(&[0, 1, 0, u8::from(has_answer), 0, 0, 0, 0]);
    response.extend_from_slice(&message[HEADER_BYTES..end + 4]);
    if has_answer {
        // The name as a pointer to the question, type A, class IN, a TTL of 60 s, and the length of
        // the address, which is four bytes.
        response.extend_from_slice(&[0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4]);
        response.extend_from_slice(&target.octets());
    }
    response
}
