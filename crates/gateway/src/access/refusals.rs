//! The refused methods, for the log and the status page: which methods clients call in vain, and
//! which configuration key refuses them.

use parking_lot::Mutex;

/// Maximum number of entries. Clients choose the names of unknown methods freely, so further ones
/// are only counted in `weir_access_denied`.
const ENTRIES_MAX: usize = 64;

/// A method that one configuration key refuses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RefusedMethod {
    /// The method's name.
    pub(crate) method: Box<str>,
    /// The configuration key that refuses the method, for example `access.node_methods`.
    pub(crate) refused_by: &'static str,
    /// Number of refused calls.
    pub(crate) calls: u64,
}

/// The refused methods since the start of the process.
#[derive(Debug, Default)]
pub(crate) struct Refusals {
    entries: Mutex<Vec<RefusedMethod>>,
}

impl Refusals {
    /// Counts a refused call. Logs a line for the first call of each method and key.
    pub(crate) fn record(&self, method: &str, refused_by: &'static str) {
        let mut entries = self.entries.lock();
        let is_same =
            |entry: &&mut RefusedMethod| *entry.method == *method && entry.refused_by == refused_by;
        if let Some(entry) = entries.iter_mut().find(is_same) {
            entry.calls += 1;
            return;
        }
        if entries.len() == ENTRIES_MAX {
            return;
        }
        entries.push(RefusedMethod { method: method.into(), refused_by, calls: 1 });
        let is_full = entries.len() == ENTRIES_MAX;
        drop(entries);
        tracing::info!(method, refused_by, "method refused; further calls of it are not logged");
        if is_full {
            tracing::info!("{ENTRIES_MAX} methods were refused; further methods are not logged");
        }
    }

    /// Returns the refused methods, the most called first.
    pub(crate) fn by_calls(&self) -> Vec<RefusedMethod> {
        let mut entries = self.entries.lock().clone();
        entries.sort_by_key(|entry| std::cmp::Reverse(entry.calls));
        entries
    }
}

#[cfg(test)]
mod tests {
    //! Goal: refusals are counted by method and key, within a bound.

    use super::*;

    #[test]
    fn refusals_are_counted_by_method_and_key_within_a_bound() {
        let refusals = Refusals::default();
        refusals.record("eth_sign", "access.node_methods");
        refusals.record("eth_call", "access.methods_deny");
        refusals.record("eth_call", "access.methods_deny");
        refusals.record("eth_call", "key.methods_deny");
        let entry = |method: &str, refused_by, calls| RefusedMethod {
            method: method.into(),
            refused_by,
            calls,
        };
        let expected = [
            entry("eth_call", "access.methods_deny", 2),
            entry("eth_sign", "access.node_methods", 1),
            entry("eth_call", "key.methods_deny", 1),
        ];
        assert_eq!(refusals.by_calls(), expected);
        for number in 0..100 {
            refusals.record(&format!("admin_{number}"), "access.node_methods");
        }
        refusals.record("eth_sign", "access.node_methods");
        let entries = refusals.by_calls();
        assert_eq!(entries.len(), ENTRIES_MAX);
        assert!(entries.contains(&entry("eth_sign", "access.node_methods", 2)), "{entries:?}");
    }
}
