//! Finds host names of upstreams that resolve to several addresses, such as the name of a headless
//! service of Kubernetes.
//!
//! The gateway resolves a name for each new connection and uses the first address that accepts
//! (`crates/gateway/src/upstream/connector.rs`). All addresses of one name count as one upstream.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::sync_channel;
use std::time::{Duration, Instant};

use gateway::config::Config;
use settings::url::{NodeUrl, Transport};

/// Timeout of all lookups together. An unresolved name causes no warning, because operators often
/// check a file on a machine that does not know the names.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(2);
/// Number of threads that resolve names. A lookup blocks its thread.
const LOOKUP_THREADS: usize = 8;
/// Maximum number of addresses that a warning lists.
const LISTED_ADDRESSES_MAX: usize = 8;

/// Addresses by host name.
type Addresses = BTreeMap<String, BTreeSet<IpAddr>>;

/// Resolves the host names of all upstreams and returns a warning for each name of an upstream that
/// has several addresses.
pub(super) fn find_warnings(config: &Config) -> Vec<String> {
    let names: BTreeSet<&str> = list_hosts(config).map(|(_, host)| host).collect();
    let addresses = resolve_all(names.into_iter().map(str::to_owned).collect());
    describe_hosts(list_hosts(config), &addresses)
}

/// Returns each upstream's name with the host names of its URLs.
fn list_hosts(config: &Config) -> impl Iterator<Item = (&str, &str)> {
    config.upstreams.iter().flat_map(|upstream| {
        let urls = std::iter::once(&upstream.url).chain(upstream.ws_url.as_ref());
        let names: BTreeSet<&str> = urls.filter_map(host_name).collect();
        names.into_iter().map(|name| (&*upstream.name, name))
    })
}

/// Returns the host of a URL; `None` if it is a local socket or an IP address.
fn host_name(url: &NodeUrl) -> Option<&str> {
    let is_name = url.transport() != Transport::Ipc && url.host().parse::<IpAddr>().is_err();
    is_name.then(|| url.host())
}

/// Resolves names on several threads. Omits names that are not resolved in time.
fn resolve_all(names: Vec<String>) -> Addresses {
    let deadline = Instant::now() + LOOKUP_TIMEOUT;
    let threads = names.len().min(LOOKUP_THREADS);
    let (names, next_index) = (Arc::<[String]>::from(names), Arc::new(AtomicUsize::new(0)));
    let (sender, receiver) = sync_channel(LOOKUP_THREADS);
    for _ in 0..threads {
        let (names, next_index, sender) =
            (Arc::clone(&names), Arc::clone(&next_index), sender.clone());
        // The threads are not joined. A lookup that outlasts the timeout ends with the process.
        std::thread::spawn(move || {
            while let Some(name) = names.get(next_index.fetch_add(1, Ordering::Relaxed)) {
                if sender.send((name.clone(), resolve(name))).is_err() {
                    return;
                }
            }
        });
    }
    drop(sender);
    let mut resolved = Addresses::new();
    while let Some(remaining) = deadline.checked_duration_since(Instant::now())
        && let Ok((name, addresses)) = receiver.recv_timeout(remaining)
    {
        resolved.insert(name, addresses);
    }
    resolved
}

/// Returns the addresses of a name. The set is empty if the name cannot be resolved.
fn resolve(name: &str) -> BTreeSet<IpAddr> {
    // The call needs a port, but any port returns the same addresses.
    let addresses = (name, 80).to_socket_addrs().into_iter().flatten();
    addresses.map(|address| address.ip().to_canonical()).collect()
}

/// Returns the warnings for upstreams and their host names.
fn describe_hosts<'a>(
    hosts: impl Iterator<Item = (&'a str, &'a str)>,
    addresses: &Addresses,
) -> Vec<String> {
    let describe_host = |(upstream, host): (&str, &str)| {
        let addresses = addresses.get(host)?;
        // One IPv4 and one IPv6 address usually belong to one machine, as for `localhost`.
        let ipv4_count = addresses.iter().filter(|address| address.is_ipv4()).count();
        let ipv6_count = addresses.len() - ipv4_count;
        if ipv4_count < 2 && ipv6_count < 2 {
            return None;
        }
        let listed: Vec<String> =
            addresses.iter().take(LISTED_ADDRESSES_MAX).map(IpAddr::to_string).collect();
        let omitted = if addresses.len() > listed.len() { ", …" } else { "" };
        Some(format!(
            "upstream {upstream}: {host} resolves to {} addresses ({}{omitted}), which count as one \
             upstream; each new connection uses the first address that accepts; if they are \
             separate nodes, list each of them as an upstream",
            addresses.len(),
            listed.join(", ")
        ))
    };
    hosts.filter_map(describe_host).collect()
}

#[cfg(test)]
mod tests {
    //! Goal: only names with several addresses of one family cause a warning.

    use std::path::Path;

    use super::*;

    const FILE: &str = "\
        [[upstream]]\nname = \"pods\"\nurl = \"http://nodes.default.svc:8545\"\n\
        ws_url = \"ws://nodes.default.svc:8546\"\n\
        [[upstream]]\nname = \"dual\"\nurl = \"http://dual.example\"\n\
        [[upstream]]\nname = \"unknown\"\nurl = \"http://unknown.example\"\n\
        [[upstream]]\nname = \"address\"\nurl = \"http://127.0.0.1:8545\"\n\
        [[upstream]]\nname = \"socket\"\nurl = \"ipc:/run/geth.ipc\"\n";

    fn config(text: &str) -> Config {
        Config::from_text("test", text, Path::new("/"), &|_| None).unwrap()
    }

    #[test]
    fn a_name_with_several_addresses_causes_one_warning() {
        let config = config(FILE);
        let hosts = || list_hosts(&config);
        let expected = [
            ("pods", "nodes.default.svc"),
            ("dual", "dual.example"),
            ("unknown", "unknown.example"),
        ];
        assert_eq!(hosts().collect::<Vec<_>>(), expected);
        let addresses = |list: &[&str]| list.iter().map(|text| text.parse().unwrap()).collect();
        let resolved = Addresses::from([
            ("nodes.default.svc".to_owned(), addresses(&["10.0.0.2", "10.0.0.1"])),
            ("dual.example".to_owned(), addresses(&["192.0.2.1", "2001:db8::1"])),
        ]);
        let warnings = describe_hosts(hosts(), &resolved);
        assert_eq!(warnings.len(), 1, "{warnings:?}");
        let expected =
            "upstream pods: nodes.default.svc resolves to 2 addresses (10.0.0.1, 10.0.0.2), which";
        assert!(warnings[0].starts_with(expected), "{warnings:?}");
    }

    #[test]
    fn long_lists_are_cut() {
        let many = (1..=20).map(|last| IpAddr::from([10, 0, 0, last])).collect();
        let resolved = Addresses::from([("many".to_owned(), many)]);
        let warnings = describe_hosts([("u", "many")].into_iter(), &resolved);
        assert!(warnings[0].contains("20 addresses (10.0.0.1, "), "{warnings:?}");
        assert!(warnings[0].contains("10.0.0.8, …)"), "{warnings:?}");
    }

    #[test]
    fn names_are_resolved_by_the_system() {
        let names = vec!["localhost".to_owned(), "unknown.invalid".to_owned()];
        let resolved = resolve_all(names);
        assert!(resolved["localhost"].iter().all(IpAddr::is_loopback), "{resolved:?}");
        assert!(!resolved["localhost"].is_empty());
        let unknown = resolved.get("unknown.invalid");
        assert!(unknown.is_none_or(BTreeSet::is_empty), "{resolved:?}");
    }
}
