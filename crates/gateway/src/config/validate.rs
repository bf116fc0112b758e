//! Checks and values that several tables of the configuration use.

use std::net::IpAddr;
use std::time::Duration;

use settings::value::format_duration;
use settings::{Key, Located, Location, Report};

/// Maximum bytes of a configuration file, or of a file with API keys. Some ten thousand API keys
/// fit.
pub(super) const TEXT_BYTES_MAX: usize = 16 << 20;

/// Adds a header to the headers that are stored with each request, unless the list already has it.
/// Returns the index of the header.
pub(super) fn add_header(used_headers: &mut Vec<Box<str>>, name: &str) -> usize {
    used_headers.iter().position(|header| **header == *name).unwrap_or_else(|| {
        used_headers.push(name.into());
        used_headers.len() - 1
    })
}

/// Returns the key of `keys` that the file sets. If the file sets several of them, reports an error
/// at the last of these and returns `None`. If the file sets none, reports an error at the first of
/// `keys` and returns `None`.
pub(super) fn require_one<'a>(
    keys: [&'a Location; 3],
    message: &str,
    allowed: &str,
    report: &mut Report<'_>,
) -> Option<&'a Location> {
    let set_keys: Vec<&Location> =
        keys.into_iter().filter(|location| location.is_written()).collect();
    match set_keys[..] {
        [only] => Some(only),
        _ => {
            report.error(*set_keys.last().unwrap_or(&keys[0]), message, allowed);
            None
        }
    }
}

/// Reports an error if `low` is longer than `high`. The error points to `low` if the file sets it,
/// otherwise to `high`.
pub(super) fn check_order(low: &Key<Duration>, high: &Key<Duration>, report: &mut Report<'_>) {
    if **low <= **high {
        return;
    }
    let (low_name, high_name) = (low.location.name(), high.location.name());
    if low.is_set() {
        let allowed = format!("at most {high_name}, {}", quote_duration(**high));
        report.error(low, format!("longer than {high_name}"), allowed);
    } else {
        let allowed = format!("at least {low_name}, {}", quote_duration(**low));
        report.error(high, format!("shorter than {low_name}"), allowed);
    }
}

/// Returns the index of a name in the list `known_names`. If the list lacks the name, reports an
/// error at `location` and returns `None`. `kind` describes the names in messages, such as "chain".
pub(super) fn find_name(
    known_names: &[&str],
    name: &str,
    kind: &str,
    location: &impl Located,
    report: &mut Report<'_>,
) -> Option<usize> {
    let index = known_names.iter().position(|known_name| *known_name == name);
    if index.is_none() {
        let (message, allowed) = settings::not_found_message(kind, name, known_names);
        report.error(location, message, allowed);
    }
    index
}

pub(super) fn quote_duration(duration: Duration) -> String {
    format!("\"{}\"", format_duration(duration))
}

/// Returns true if a host is this machine or in a private network. Connections to such hosts are
/// often unencrypted.
pub(super) fn is_local_host(host: &str) -> bool {
    match host.parse::<IpAddr>() {
        Ok(IpAddr::V4(ip)) => ip.is_loopback() || ip.is_private() || ip.is_link_local(),
        Ok(IpAddr::V6(ip)) => ip.is_loopback() || ip.is_unique_local(),
        // A name without a dot is local, as in a compose file.
        Err(_) => !host.contains('.') || host.ends_with(".local") || host.ends_with(".internal"),
    }
}
