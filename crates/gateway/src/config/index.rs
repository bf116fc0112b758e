//! `[index]`: an index of a chain (a file or database of past blocks) as a tier of the cache.
//!
//! `config.rs` explains the syntax of `settings::table!`.

use std::ops::Deref;
use std::path::Path;

use settings::Report;
use settings::value::{Bool, Database, DatabaseAddress, Integer};
use wire::family::Family;

use super::chain::{self, Chain};
use super::upstream::UpstreamTable;
use super::values::{GIB, Name, Size};

settings::choice! {
    /// Which parts of synced blocks are verified.
    pub enum VerifyLevel {
        /// Blocks are not verified.
        "off" => Off,
        /// The hash of each header is verified.
        "headers" => Headers,
        /// The roots of transactions and receipts are verified too.
        "full" => Full,
        /// The senders of transactions are verified too.
        "senders" => Senders,
    }
}

settings::table! {
    /// A file or database of `weir index` as a further tier of the cache. It serves past blocks,
    /// transactions, receipts and logs, byte for byte as upstreams return them. It serves only
    /// blocks that are final, or that are on the chain as the gateway sees it. Everything else goes
    /// to the upstreams. If the index has only a part of a range of logs, the rest comes from the
    /// upstreams.
    pub struct IndexTable => pub IndexKeys {
        /// The file, or the PostgreSQL database, whose parameters are in [The
        /// index](chain-index.md#postgresql). Write a password as `${VAR}` or `${file:PATH}`, or
        /// set `PGPASSWORD` in the environment. With `follow` the file, or the schema in the
        /// database, is created if it does not exist.
        db: DatabaseAddress = described "there is no index";
        /// The chain of the index.
        chain: Name = described "the only chain";
        /// If true, the gateway syncs the index from the upstreams of the chain and follows new
        /// blocks. If false, run `weir index sync` beside the gateway.
        follow: Bool = "false";
        /// Level of verification of synced blocks, as for `weir index sync --verify`. Blocks of a
        /// Harmony chain cannot be verified.
        verify: VerifyLevel = "full";
        /// Threads that read the index, each with its own connection.
        readers: Integer<1, 64, usize> = "2";
        /// Bytes of memory in which each reader, and the sync, caches pages of the file.
        page_cache: Size<{ 64 << 10 }, { 1024 * GIB }> = "64MiB";
        /// Bytes of the file that readers map into memory instead of reading them. This is faster,
        /// and all readers share the memory. But if the disk fails or the file is truncated, a
        /// mapped read ends the process. After a failed normal read, the call only goes to an
        /// upstream.
        mmap: Size<0, { 1024 * GIB }> = "0B";
        /// Maximum number of logs in one response of the index. A call that selects more logs goes
        /// to the upstreams, which have limits of their own.
        logs_max: Integer<1, 10_000_000> = "100000";
    }
}

/// An index of a chain, as a tier of the cache. The struct dereferences to its configuration keys.
#[derive(Clone, Debug, PartialEq)]
pub struct Index {
    /// The file or database of the index.
    pub db: Database,
    /// Index of the chain in [`super::Config::chains`].
    pub chain: usize,
    keys: IndexKeys,
}

impl Deref for Index {
    type Target = IndexKeys;

    fn deref(&self) -> &IndexKeys {
        &self.keys
    }
}

/// Validates the table. Returns `None` if the table is not set, or if its database or chain is
/// missing or invalid.
pub(super) fn check(
    table: &IndexTable,
    upstreams: &[UpstreamTable],
    folder: &Path,
    chains: &[Chain],
    report: &mut Report<'_>,
) -> Option<Index> {
    table.location.table.as_ref()?;
    let Some(db) = &*table.db else {
        if !table.db.is_set() {
            report.error(&table.db, "neither a file nor a database is set", "index.db = \"FILE\"");
        }
        return None;
    };
    let chain = chain::find_or_only(&table.chain, chains, report)?;
    let is_verified = table.verify.is_set() && *table.verify != VerifyLevel::Off;
    if is_verified && chains[chain].family == Family::Harmony {
        let message = "blocks of a Harmony chain cannot be verified: its block hashes are computed differently";
        report.error(&table.verify, message, "off, or remove the line");
    }
    let db = db.clone().within(folder);
    if matches!(db, Database::Url(_)) {
        for key in [&table.page_cache, &table.mmap].into_iter().filter(|key| key.is_set()) {
            let message = "a database server has its own cache";
            report.error(key, message, "no such line");
        }
    }
    if *table.follow {
        warn_of_ignored_tls_keys(upstreams, &chains[chain].name, report);
    }
    Some(Index { db, chain, keys: table.values() })
}

/// Warns of TLS settings of upstreams that the sync of the index ignores. The sync verifies the
/// certificate of the host in the URL, and verification cannot be turned off.
fn warn_of_ignored_tls_keys(upstreams: &[UpstreamTable], chain: &str, report: &mut Report<'_>) {
    let message = "the sync of [index] ignores this key: it verifies the certificate of the url's \
                   host";
    let advice = "tls_ca, and the certificate's name in url";
    let is_of_chain =
        |upstream: &&UpstreamTable| upstream.chain.as_deref().is_none_or(|name| name == chain);
    for upstream in upstreams.iter().filter(is_of_chain) {
        if upstream.tls_server_name.is_set() {
            report.warn(&upstream.tls_server_name, message, advice);
        }
        if !*upstream.tls_verify {
            report.warn(&upstream.tls_verify, message, advice);
        }
    }
}
