//! Goal: the gateway passes the scenarios of public test suites, rewritten for it. Method: every
//! group of scenarios names the test that covers it, or says why it does not apply. The tests at
//! the end of this file check the numbers in the table, and that the named tests exist.
//!
//! Sources: `uNetworking/h1spec` at 30d2938a, `dropseed/h1spec` at 05ac50cc (and a7d21a2a, where
//! files did not change since), `nginx/nginx-tests` as of 2026. A scenario is an assertion of the
//! source. The files of nginx declare their number of assertions in `plan`. The rows of nginx
//! without `.t` are scenarios from its documentation. No code of these suites is copied.
//!
//! | source | scenarios | here | elsewhere | do not apply |
//! | --- | --: | --: | --: | --: |
//! | `uNetworking/h1spec` | 32 | 32 | 0 | 0 |
//! | `dropseed/h1spec` | 33 | 33 | 0 | 0 |
//! | `limit_req.t` | 8 | 8 | 0 | 0 |
//! | `limit_req2.t` | 14 | 14 | 0 | 0 |
//! | `limit_req_delay.t` | 4 | 4 | 0 | 0 |
//! | `limit_req_dry_run.t` | 6 | 6 | 0 | 0 |
//! | `h2_limit_req.t` | 7 | 7 | 0 | 0 |
//! | `limit_conn.t` | 10 | 9 | 0 | 1 |
//! | `limit_conn_complex.t` | 4 | 4 | 0 | 0 |
//! | `limit_conn_dry_run.t` | 6 | 5 | 0 | 1 |
//! | `proxy_next_upstream.t` | 14 | 10 | 0 | 4 |
//! | `proxy_next_upstream_tries.t` | 8 | 6 | 0 | 2 |
//! | `proxy_next_upstream, by kind` | 14 | 14 | 0 | 0 |
//! | `realip.t` | 8 | 5 | 0 | 3 |
//! | `realip_hostname.t` | 4 | 0 | 0 | 4 |
//! | `realip_remote_addr.t` | 4 | 0 | 0 | 4 |
//! | `realip_remote_port.t` | 4 | 2 | 0 | 2 |
//! | `realip, PROXY protocol` | 1 | 0 | 1 | 0 |
//! | `proxy_cache.t` | 15 | 6 | 0 | 9 |
//! | `proxy_cache_bypass.t` | 8 | 4 | 4 | 0 |
//! | `proxy_cache_chunked.t` | 2 | 2 | 0 | 0 |
//! | `proxy_cache_control.t` | 22 | 22 | 0 | 0 |
//! | `proxy_cache_convert_head.t` | 8 | 0 | 0 | 8 |
//! | `proxy_cache_error.t` | 1 | 0 | 0 | 1 |
//! | `proxy_cache_lock.t` | 17 | 5 | 12 | 0 |
//! | `proxy_cache_lock_age.t` | 4 | 0 | 0 | 4 |
//! | `proxy_cache_lock_ssi.t` | 2 | 0 | 0 | 2 |
//! | `proxy_cache_manager.t` | 3 | 0 | 0 | 3 |
//! | `proxy_cache_max_range_offset.t` | 8 | 2 | 0 | 6 |
//! | `proxy_cache_min_free.t` | 2 | 0 | 0 | 2 |
//! | `proxy_cache_path.t` | 6 | 0 | 0 | 6 |
//! | `proxy_cache_range.t` | 7 | 0 | 0 | 7 |
//! | `proxy_cache_revalidate.t` | 23 | 0 | 0 | 23 |
//! | `proxy_cache_use_stale.t` | 34 | 0 | 0 | 34 |
//! | `proxy_cache_valid.t` | 12 | 0 | 4 | 8 |
//! | `proxy_cache_variables.t` | 8 | 6 | 1 | 1 |
//! | `proxy_cache_vary.t` | 42 | 2 | 0 | 40 |
//! | `proxy_cache_key` | 6 | 6 | 0 | 0 |
//! | `proxy_cache, stale while all are down` | 1 | 0 | 1 | 0 |
//!
//! Floods and slow clients over HTTP/2 are in `floods`. The tests of the public JSON parsing suite
//! are in `crates/wire/src/json/scanner/tests/suite.rs`.

mod addresses;
mod caching;
mod floods;
mod frames;
mod h1spec;
mod limits;
mod upstreams;

use std::collections::BTreeMap;
use std::path::Path;

/// Scenarios of one source that the same test covers, or that do not apply for the same reason.
struct Group {
    source: &'static str,
    scenarios: usize,
    /// What the scenarios have in common.
    what: &'static str,
    coverage: Coverage,
}

/// Where scenarios are tested, or why they are not.
#[derive(Clone, Copy)]
enum Coverage {
    /// A test in a submodule of `conformance`.
    Here { module: &'static str, test: &'static str },
    /// A test in another file, by its path from the repository's root.
    Elsewhere { file: &'static str, test: &'static str },
    /// The scenarios do not apply, for this reason.
    NotApplicable(&'static str),
}

impl Group {
    const fn new(
        source: &'static str,
        scenarios: usize,
        what: &'static str,
        coverage: Coverage,
    ) -> Group {
        Group { source, scenarios, what, coverage }
    }
}

impl Coverage {
    const fn here(module: &'static str, test: &'static str) -> Coverage {
        Coverage::Here { module, test }
    }
}

fn groups() -> impl Iterator<Item = &'static Group> {
    let all: [&'static [Group]; 5] = [
        &h1spec::GROUPS,
        &limits::GROUPS,
        &upstreams::GROUPS,
        &addresses::GROUPS,
        &caching::GROUPS,
    ];
    all.into_iter().flatten()
}

/// The four numbers of scenarios for each source: all, tested here, tested elsewhere, and not
/// applicable.
fn counts() -> BTreeMap<&'static str, [usize; 4]> {
    let mut counts: BTreeMap<&str, [usize; 4]> = BTreeMap::new();
    for group in groups() {
        let column = match group.coverage {
            Coverage::Here { .. } => 1,
            Coverage::Elsewhere { .. } => 2,
            Coverage::NotApplicable(_) => 3,
        };
        let row = counts.entry(group.source).or_default();
        row[0] += group.scenarios;
        row[column] += group.scenarios;
    }
    counts
}

#[test]
fn the_table_above_counts_every_scenario() {
    let table: BTreeMap<&str, [usize; 4]> = include_str!("conformance.rs")
        .lines()
        .filter_map(|line| line.strip_prefix("//! | `"))
        .map(|row| {
            let (source, rest) = row.split_once('`').unwrap();
            let numbers: Vec<usize> =
                rest.split('|').filter_map(|cell| cell.trim().parse().ok()).collect();
            (source, numbers.try_into().unwrap())
        })
        .collect();
    assert!(table.len() > 30, "the table has {} rows", table.len());
    assert_eq!(counts(), table);
}

#[test]
fn every_scenario_names_a_test_or_a_reason() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    for group in groups() {
        let (file, test) = match group.coverage {
            Coverage::Here { module, test } => {
                (format!("crates/weir/tests/gateway/conformance/{module}.rs"), test)
            }
            Coverage::Elsewhere { file, test } => (file.to_owned(), test),
            Coverage::NotApplicable(reason) => {
                assert!(reason.len() > 20, "{}: {reason}", group.what);
                continue;
            }
        };
        let text = std::fs::read_to_string(root.join(&file)).unwrap();
        let named = format!("#[test]\nfn {test}()");
        assert!(
            text.contains(&named),
            "{}, {}: {file} has no test {test}",
            group.source,
            group.what
        );
    }
}
