//! The part of the check that is about `[index]`.

use std::path::Path;

use wire::method::FamilyName;

use super::super::fault::Report;
use super::super::field::{INDEX, NODE};
use super::super::file::{Entry, Written};
use super::super::{Chain, Database, Index};
use super::refuse;

/// The file with a chain's past; `None` where it is not asked for, or not well.
pub(super) fn check(
    written: &Written,
    folder: &Path,
    chains: &[Chain],
    report: &mut Report<'_>,
) -> Option<Index> {
    let index = written.once(&INDEX);
    index.span.as_ref()?;
    let Some(db) = index.chosen("db") else {
        if !index.has_unread(&["db"]) {
            refuse(report, &index, "db", "there is no file and no database", "index.db = \"FILE\"");
        }
        return None;
    };
    let names = || chains.iter().map(|chain| &*chain.name).collect::<Vec<_>>().join(", ");
    let chain = match index.chosen("chain").map(|name| name.text()) {
        Some(name) => {
            let found = chains.iter().position(|chain| *chain.name == *name);
            if found.is_none() {
                let message = format!("there is no chain {name}");
                refuse(report, &index, "chain", &message, &names());
            }
            found?
        }
        None if chains.len() == 1 => 0,
        None => {
            refuse(report, &index, "chain", "there are several chains", &names());
            return None;
        }
    };
    let level = index.chosen("verify").map(|level| level.choice()).filter(|level| *level != "off");
    if level.is_some() && chains[chain].family == FamilyName::Harmony {
        let message =
            "blocks of a Harmony chain cannot be verified, as it hashes them in its own way";
        refuse(report, &index, "verify", message, "off, or no such line");
    }
    let db = db.database().within(folder);
    for key in ["page_cache", "mmap"] {
        if matches!(db, Database::Url(_)) && index.chosen(key).is_some() {
            let message = "a server of a database has a cache of its own";
            refuse(report, &index, key, message, "no such line");
        }
    }
    if index.value("follow").switch() {
        names_of_nodes(written, &chains[chain].name, report);
    }
    Some(Index {
        db,
        chain,
        follow: index.value("follow").switch(),
        verify: index.value("verify").choice(),
        readers: index.value("readers").count() as usize,
        page_cache: index.value("page_cache").size(),
        mmap: index.value("mmap").size(),
        logs_max: index.value("logs_max").count(),
    })
}

/// Who follows asks nodes by the names in their addresses, and believes nobody without a certificate.
fn names_of_nodes(written: &Written, chain: &str, report: &mut Report<'_>) {
    let own = |entry: &&Entry| entry.chosen("chain").is_none_or(|name| *name.text() == *chain);
    for node in written.all(&NODE).filter(own) {
        let unverified = node.chosen("tls_verify").is_some_and(|verify| !verify.switch());
        let keys = [
            ("tls_server_name", node.chosen("tls_server_name").is_some()),
            ("tls_verify", unverified),
        ];
        for (key, _) in keys.into_iter().filter(|(_, set)| *set) {
            let span = node.set(key).and_then(|set| set.span.as_ref());
            let message = "the sync of [index] does not go by this: it asks the host of the url for its own certificate";
            report.warn(span, node.key(key), message, "tls_ca, and the certificate's name in url");
        }
    }
}
