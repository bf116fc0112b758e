//! Goal: a reload keeps exactly the state that is still valid. Method: successive configurations in
//! text, without sockets.

use std::path::Path;
use std::sync::Arc;

use super::Snapshot;
use crate::config::Config;

fn config(text: &str) -> Config {
    let text = format!("[server]\nthreads = 1\n{text}");
    Config::from_text("test", &text, Path::new("/"), &|_| None)
        .unwrap_or_else(|faults| panic!("{faults}"))
}

fn start(text: &str) -> Arc<Snapshot> {
    Snapshot::new(config(text), Vec::new())
}

fn upstream(name: &str, keys: &str) -> String {
    format!("[[upstream]]\nname = \"{name}\"\nurl = \"http://{name}.local:1\"\n{keys}\n")
}

#[test]
fn only_a_restart_changes_addresses_and_threads() {
    let previous = start(&upstream("a", ""));
    let mut new_config = config(&upstream("a", ""));
    new_config.server.listen = Some("127.0.0.1:1".parse().unwrap());
    new_config.server.threads = 7;
    let reloaded = previous.reload(new_config);
    assert_eq!(reloaded.config.server.listen, previous.config.server.listen);
    assert_eq!((reloaded.config.server.threads, reloaded.counters.len()), (1, 1));
}

#[test]
fn new_cache_settings_keep_the_entries_unless_they_turn_the_cache_off() {
    let previous = start(&format!("[cache]\nbytes_max = \"8MiB\"\n{}", upstream("a", "")));
    let validity = crate::policy::cacheable::ValidityTag {
        binding: crate::policy::cacheable::Binding::Free,
        generation: 0,
        is_null: false,
    };
    let cache = previous.cache.as_ref().unwrap();
    let (is_error, expires_at, doubted_since) = (false, None, None);
    let bytes = bytes::Bytes::from_static(b"1");
    let entry = crate::cache::memory::Entry {
        bytes,
        is_error,
        upstream: 0,
        validity,
        expires_at,
        doubted_since,
    };
    assert!(cache.put(b"key", entry));
    let reloaded =
        previous.reload(config(&format!("[cache]\nbytes_max = \"4MiB\"\n{}", upstream("b", ""))));
    assert!(reloaded.cache.as_ref().unwrap().get(b"key").is_some());
    let off = reloaded.reload(config(&format!("[cache]\nenabled = false\n{}", upstream("b", ""))));
    assert!(off.cache.is_none());
}
