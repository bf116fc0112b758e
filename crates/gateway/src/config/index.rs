//! `[index]`: an index of a chain as a tier of the cache.

use std::path::Path;

use settings::Report;
use settings::value::{Bool, Count, Database, DatabaseAddress};
use wire::family::Family;

use super::chain::{self, Chain};
use super::upstream::UpstreamTable;
use super::values::{GIB, Name, Size};

settings::choice! {
    /// How closely synced blocks are verified.
    pub enum Verify {
        /// Not at all.
        "off" => Off,
        /// The hash of each header.
        "headers" => Headers,
        /// Also the roots of transactions and receipts.
        "full" => Full,
        /// Also the senders of transactions.
        "senders" => Senders,
    }
}

settings::table! {
    /// A file or database of `weir index` as a further tier of the cache: blocks, transactions,
    /// receipts and logs of the past are served from it, byte for byte as upstreams write them.
    /// Only what is final is, or what is on the chain as the gateway sees it. Whatever it does not
    /// hold goes to the upstreams, and a range of logs that it holds in part is split.
    pub struct IndexTable {
        /// The file, or the database of PostgreSQL, whose parameters are in
        /// [The index](chain-index.md#postgresql). A password is written as `${VAR}` or
        /// `${file:PATH}`, or is taken from the environment, `PGPASSWORD`. With `follow` the file,
        /// or the schema in the database, is created if it does not exist.
        db: DatabaseAddress = follows "there is no index";
        /// Which of the chains it is of.
        chain: Name = follows "the only chain";
        /// Whether the gateway itself syncs it from the upstreams of the chain and continues with
        /// each new block. Otherwise `weir index sync` does, beside it.
        follow: Bool = "false";
        /// How closely synced blocks are verified, as for `weir index sync --verify`. Blocks of a
        /// Harmony chain cannot be verified.
        verify: Verify = "full";
        /// Threads that read it, each over a connection of its own.
        readers: Count<1, 64, usize> = "2";
        /// Pages of a file that each of them, and the sync, keeps in memory.
        page_cache: Size<{ 64 << 10 }, { 1024 * GIB }> = "64MiB";
        /// How much of a file they map into memory instead of reading it: quicker, and all share
        /// the memory. A disk that fails, or a file that is cut short, then ends the process, where
        /// reading would only leave the call to an upstream.
        mmap: Size<0, { 1024 * GIB }> = "0B";
        /// Most logs of one response. What selects more is left to the upstreams, which have limits
        /// of their own.
        logs_max: Count<1, 10_000_000> = "100000";
    }
}

/// An index of a chain, as a tier of the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Index {
    /// Where it is stored.
    pub db: Database,
    /// Which chain it is of.
    pub chain: usize,
    /// True if the gateway syncs it.
    pub follow: bool,
    /// How closely synced blocks are verified.
    pub verify: Verify,
    /// Threads that read it, each over a connection of its own.
    pub readers: usize,
    /// Bytes of pages that each connection keeps.
    pub page_cache: usize,
    /// Bytes of a file that readers map.
    pub mmap: usize,
    /// Most logs of one response.
    pub logs_max: u64,
}

/// `None` if there is none, or something is wrong with it.
pub(super) fn check(
    table: &IndexTable,
    upstreams: &[UpstreamTable],
    folder: &Path,
    chains: &[Chain],
    report: &mut Report<'_>,
) -> Option<Index> {
    table.at.table.as_ref()?;
    let Some(db) = &*table.db else {
        if !table.db.is_set() {
            report.error(&table.db, "there is no file and no database", "index.db = \"FILE\"");
        }
        return None;
    };
    let names = || chain::names(chains).join(", ");
    let chain = match &*table.chain {
        Some(name) => {
            let found = chains.iter().position(|chain| *chain.name == **name);
            if found.is_none() {
                report.error(&table.chain, format!("there is no chain {name}"), names());
            }
            found?
        }
        None if chains.len() == 1 => 0,
        None => {
            report.error(&table.chain, "there are several chains", names());
            return None;
        }
    };
    let is_verified = table.verify.is_set() && *table.verify != Verify::Off;
    if is_verified && chains[chain].family == Family::Harmony {
        let message =
            "blocks of a Harmony chain cannot be verified, as it hashes them in its own way";
        report.error(&table.verify, message, "off, or no such line");
    }
    let db = db.clone().within(folder);
    if matches!(db, Database::Url(_)) {
        for key in [&table.page_cache, &table.mmap].into_iter().filter(|key| key.is_set()) {
            let message = "a server of a database has a cache of its own";
            report.error(key, message, "no such line");
        }
    }
    if *table.follow {
        names_of_upstreams(upstreams, &chains[chain].name, report);
    }
    Some(Index {
        db,
        chain,
        follow: *table.follow,
        verify: *table.verify,
        readers: *table.readers,
        page_cache: *table.page_cache,
        mmap: *table.mmap,
        logs_max: *table.logs_max,
    })
}

/// The sync connects to upstreams by the names in their addresses, and trusts none without a
/// certificate.
fn names_of_upstreams(upstreams: &[UpstreamTable], chain: &str, report: &mut Report<'_>) {
    let message = "the sync of [index] does not go by this: it asks the host of the url for its own \
                   certificate";
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
