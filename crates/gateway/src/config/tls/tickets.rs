//! Session tickets, encrypted with keys from files that several replicas of the gateway share.
//!
//! A ticket is `name ‖ nonce ‖ sealed(time ‖ session) ‖ tag`, where `‖` joins byte strings:
//!
//! - The first 16 bytes of a key file are the public name of the key. HKDF-SHA256 derives the key
//!   from the remaining bytes.
//! - The cipher is AES-256-GCM-SIV (RFC 8452), with a nonce of 96 random bits. Replicas choose
//!   nonces for the same key independently, so two nonces can be equal. With this cipher, equal
//!   nonces reveal at most that two tickets are equal. With GCM, equal nonces would reveal the
//!   authentication key.
//! - Each ticket authenticates the name of its key and the settings of client verification. So a
//!   session that began under other settings is not resumed.
//! - The time is the creation time of the ticket. It limits the lifetime of the ticket, because
//!   keys from files do not expire.
//!
//! Without key files, the gateway uses rustls's ticketer, whose keys exist in memory for some
//! hours.

use std::fmt;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use aws_lc_rs::aead::{AES_256_GCM_SIV, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use aws_lc_rs::hkdf::{HKDF_SHA256, Salt};
use aws_lc_rs::rand;
use rustls::server::ProducesTickets;

/// Bytes of a key's public name, as in RFC 5077.
const NAME_BYTES: usize = 16;
/// Bytes of the creation time inside a ticket.
const TIME_BYTES: usize = 8;
/// Sizes of key files, as in nginx for AES-128 and for AES-256.
const FILE_BYTES: [usize; 2] = [48, 80];
/// Maximum bytes of a ticket. Its largest part is the client's certificates.
const TICKET_BYTES_MAX: usize = 64 * 1024;
/// Largest difference between the clocks of replicas, in seconds.
const SKEW_SECONDS_MAX: u64 = 60;

/// A key with its public name.
pub(crate) struct TicketKey {
    /// The public name, with which each ticket under this key begins.
    name: [u8; NAME_BYTES],
    key: LessSafeKey,
}

/// Encrypts tickets with the first key, and decrypts tickets of every key.
pub(crate) struct Tickets {
    keys: Vec<TicketKey>,
    /// Hash of the settings of client verification, which each ticket authenticates.
    context: [u8; 32],
    /// Maximum age of a ticket.
    age_max: Duration,
}

impl TicketKey {
    /// Reads a key file.
    ///
    /// # Errors
    ///
    /// A description of the error in the file.
    pub(crate) fn read(path: &Path) -> Result<TicketKey, String> {
        let bytes =
            std::fs::read(path).map_err(|error| format!("cannot read the file: {error}"))?;
        TicketKey::from_bytes(&bytes)
            .ok_or_else(|| format!("the file has {} bytes, 48 or 80 are needed", bytes.len()))
    }

    /// Derives the key from the content of a file; `None` if the size is wrong.
    fn from_bytes(bytes: &[u8]) -> Option<TicketKey> {
        if !FILE_BYTES.contains(&bytes.len()) {
            return None;
        }
        let (name, secret) = bytes.split_first_chunk::<NAME_BYTES>()?;
        let salt = Salt::new(HKDF_SHA256, b"weir tls session ticket v1");
        let extracted = salt.extract(secret);
        let key = extracted.expand(&[b"aes-256-gcm-siv"], &AES_256_GCM_SIV).ok()?;
        Some(TicketKey { name: *name, key: LessSafeKey::new(UnboundKey::from(key)) })
    }
}

impl Tickets {
    /// Creates a ticketer. `keys` must not be empty. Tickets that were sealed under another
    /// `context` are not resumed.
    pub(crate) fn new(keys: Vec<TicketKey>, context: &[u8; 32], age_max: Duration) -> Tickets {
        Tickets { keys, context: *context, age_max }
    }

    /// Returns the additional data that a ticket authenticates: the name of its key and the
    /// context.
    fn additional_data(&self, name: &[u8; NAME_BYTES]) -> Aad<[u8; NAME_BYTES + 32]> {
        let mut additional_data = [0; NAME_BYTES + 32];
        additional_data[..NAME_BYTES].copy_from_slice(name);
        additional_data[NAME_BYTES..].copy_from_slice(&self.context);
        Aad::from(additional_data)
    }

    /// Seals a session in a ticket. `now` is the time in Unix seconds. Each nonce must be used only
    /// once. Returns `None` if there is no key or the encryption fails.
    fn seal(&self, session: &[u8], now: u64, nonce: [u8; NONCE_LEN]) -> Option<Vec<u8>> {
        let key = self.keys.first()?;
        let start = NAME_BYTES + NONCE_LEN;
        let tag_bytes = AES_256_GCM_SIV.tag_len();
        let mut ticket = Vec::with_capacity(start + TIME_BYTES + session.len() + tag_bytes);
        ticket.extend_from_slice(&key.name);
        ticket.extend_from_slice(&nonce);
        ticket.extend_from_slice(&now.to_be_bytes());
        ticket.extend_from_slice(session);
        let nonce = Nonce::assume_unique_for_key(nonce);
        let aad = self.additional_data(&key.name);
        let tag = key.key.seal_in_place_separate_tag(nonce, aad, &mut ticket[start..]).ok()?;
        ticket.extend_from_slice(tag.as_ref());
        Some(ticket)
    }

    /// Opens a ticket of any replica and returns its session. `now` is the time in Unix seconds.
    /// Returns `None` if the ticket is too long, is not authentic, is too old, or comes from the
    /// future.
    fn open(&self, ticket: &[u8], now: u64) -> Option<Vec<u8>> {
        if ticket.len() > TICKET_BYTES_MAX {
            return None;
        }
        let (name, remaining) = ticket.split_first_chunk::<NAME_BYTES>()?;
        let (nonce, sealed) = remaining.split_first_chunk::<NONCE_LEN>()?;
        let key = self.keys.iter().find(|key| key.name == *name)?;
        let mut sealed = sealed.to_vec();
        let nonce = Nonce::assume_unique_for_key(*nonce);
        let opened = key.key.open_in_place(nonce, self.additional_data(name), &mut sealed).ok()?;
        let (time, session) = opened.split_first_chunk::<TIME_BYTES>()?;
        let time = u64::from_be_bytes(*time);
        let is_young = now.saturating_sub(time) <= self.age_max.as_secs();
        (is_young && time <= now.saturating_add(SKEW_SECONDS_MAX)).then(|| session.to_vec())
    }
}

impl ProducesTickets for Tickets {
    fn enabled(&self) -> bool {
        true
    }

    fn lifetime(&self) -> u32 {
        u32::try_from(self.age_max.as_secs()).unwrap_or(u32::MAX)
    }

    fn encrypt(&self, session: &[u8]) -> Option<Vec<u8>> {
        let mut nonce = [0; NONCE_LEN];
        rand::fill(&mut nonce).ok()?;
        self.seal(session, unix_now(), nonce)
    }

    fn decrypt(&self, cipher: &[u8]) -> Option<Vec<u8>> {
        self.open(cipher, unix_now())
    }
}

/// Omits the secrets.
impl fmt::Debug for Tickets {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Tickets").field("keys", &self.keys.len()).finish_non_exhaustive()
    }
}

fn unix_now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests;
