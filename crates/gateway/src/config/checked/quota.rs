//! How the quotas of keys are kept.

use std::path::Path;
use std::sync::Arc;

use super::super::access::Access;
use super::super::fault::Report;
use super::super::field::{QUOTA, REDIS};
use super::super::file::Written;
use super::super::{Cost, Quota};
use super::refuse;
use crate::quota::file;

/// How quotas are kept, with what was kept; none where no key has one.
pub(super) fn check(
    written: &Written,
    folder: &Path,
    access: &Access,
    report: &mut Report<'_>,
) -> Option<Quota> {
    let entry = written.once(&QUOTA);
    let Some(key) = access.keys.iter().find(|key| key.grant.quota.is_some()) else {
        if entry.span.is_some() {
            let message = "no key has a quota";
            report.warn(entry.span.as_ref(), "quota", message, "[[key]] with a quota");
        }
        return None;
    };
    let Some(name) = entry.chosen("file") else {
        if !entry.has_unread(&["file"]) {
            let message =
                format!("key {} has a quota, and what it uses is kept nowhere", key.grant.name);
            refuse(report, &entry, "file", &message, "name of a file that the gateway may write");
        }
        return None;
    };
    let file = folder.join(name.text());
    let kept = file::read(&file).unwrap_or_else(|why| {
        let message = format!("cannot be read: {why}");
        refuse(report, &entry, "file", &message, "what the gateway wrote, or no file yet");
        file::Kept::default()
    });
    let shared = entry.value("shared").switch();
    let redis = written.once(&REDIS);
    if shared && redis.set("url").is_none() {
        let message = "there is no redis to share quotas through";
        refuse(report, &entry, "shared", message, "redis.url");
    }
    let cost = match entry.value("cost").choice() {
        "call" => Cost::Call,
        _ => Cost::Weight,
    };
    Some(Quota { file, cost, shared, kept: Arc::new(kept) })
}
