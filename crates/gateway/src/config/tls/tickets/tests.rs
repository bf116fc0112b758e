//! Goal: a ticket opens only with its key, under the same settings and within its lifetime, and no
//! ticket from a client causes a panic. Method: explicit time and nonce.

use proptest::prelude::*;

use super::*;

const HOUR: Duration = Duration::from_secs(3600);
const NOW: u64 = 1_800_000_000;
const NONCE: [u8; NONCE_LEN] = [7; NONCE_LEN];

fn key(seed: u8, bytes: usize) -> TicketKey {
    let bytes: Vec<u8> = (0..bytes).map(|index| seed ^ index as u8).collect();
    TicketKey::from_bytes(&bytes).unwrap()
}

fn tickets(keys: &[u8], context: u8) -> Tickets {
    let keys = keys.iter().map(|seed| key(*seed, 80)).collect();
    Tickets::new(keys, &[context; 32], HOUR)
}

fn seal_with(keys: &[u8]) -> Vec<u8> {
    tickets(keys, 0).seal(b"session", NOW, NONCE).unwrap()
}

#[test]
fn a_replica_with_the_same_file_opens_a_ticket() {
    let ticket = seal_with(&[1]);
    assert_eq!(tickets(&[1], 0).open(&ticket, NOW).unwrap(), b"session");
    assert!(!ticket.windows(7).any(|part| part == b"session"), "it is sealed");
}

#[test]
fn keys_can_be_rotated() {
    let old = seal_with(&[1]);
    let new = seal_with(&[2, 1]);
    let both = tickets(&[2, 1], 0);
    assert!(both.open(&old, NOW).is_some() && both.open(&new, NOW).is_some());
    assert!(tickets(&[1], 0).open(&new, NOW).is_none(), "the first key makes tickets");
    assert!(tickets(&[2], 0).open(&old, NOW).is_none(), "a key that is gone opens nothing");
}

#[test]
fn a_ticket_is_refused_under_other_client_settings() {
    assert!(tickets(&[1], 1).open(&seal_with(&[1]), NOW).is_none());
}

#[test]
fn the_age_of_a_ticket_is_bounded() {
    let ticket = seal_with(&[1]);
    let tickets = tickets(&[1], 0);
    for (at, is_accepted) in [
        (NOW, true),
        (NOW + 3600, true),
        (NOW + 3601, false),
        (NOW - 60, true),
        (NOW - 61, false),
        (0, false),
        (u64::MAX, false),
    ] {
        assert_eq!(tickets.open(&ticket, at).is_some(), is_accepted, "at {at}");
    }
}

#[test]
fn key_files_have_one_of_two_sizes() {
    for bytes in [0, 16, 47, 49, 79, 81, 4096] {
        assert!(TicketKey::from_bytes(&vec![1; bytes]).is_none(), "{bytes}");
    }
    for bytes in FILE_BYTES {
        let tickets = Tickets::new(vec![key(3, bytes)], &[0; 32], HOUR);
        let ticket = tickets.encrypt(b"x").unwrap();
        assert_eq!(tickets.decrypt(&ticket).unwrap(), b"x");
        assert_ne!(ticket, tickets.encrypt(b"x").unwrap(), "every nonce is new");
    }
}

#[test]
fn a_ticket_with_one_changed_bit_is_refused() {
    let ticket = seal_with(&[1]);
    let tickets = tickets(&[1], 0);
    for at in 0..ticket.len() {
        for bit in 0..8 {
            let mut changed = ticket.clone();
            changed[at] ^= 1 << bit;
            assert!(tickets.open(&changed, NOW).is_none(), "byte {at} bit {bit}");
        }
        assert!(tickets.open(&ticket[..at], NOW).is_none(), "cut at {at}");
    }
    assert!(tickets.open(&vec![1; TICKET_BYTES_MAX + 1], NOW).is_none());
}

proptest! {
    #[test]
    fn no_input_panics(bytes in prop::collection::vec(any::<u8>(), 0..200), now: u64) {
        prop_assert_eq!(tickets(&[1], 0).open(&bytes, now), None);
    }
}
