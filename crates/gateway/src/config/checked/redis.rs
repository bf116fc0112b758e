//! The part of the check that is about `[redis]`.

use std::path::Path;

use super::super::fault::Report;
use super::super::field::{REDIS, ZONE};
use super::super::file::{Entry, Written};
use super::super::{Cache, Limit, Redis, RedisTls, Zone, tls};
use super::limits::meet;
use super::{is_near, refuse};

/// What wants it.
pub(super) struct Uses<'a> {
    pub(super) cache: &'a Cache,
    pub(super) zones: &'a [Zone],
    pub(super) limits: &'a [Limit],
    pub(super) quotas_shared: bool,
}

/// The Redis that gateways share; `None` where it is not asked for, or not well.
pub(super) fn check(
    written: &Written,
    folder: &Path,
    uses: &Uses<'_>,
    report: &mut Report<'_>,
) -> Option<Redis> {
    let redis = written.once(&REDIS);
    let Uses { cache, zones, limits, quotas_shared } = *uses;
    let zones_shared = zones.iter().any(|zone| zone.shared);
    let shared = zones_shared || quotas_shared;
    if zones_shared && redis.set("url").is_none() {
        for entry in written.all(&ZONE).zip(zones).filter(|(_, zone)| zone.shared) {
            let message = "there is no redis to share it through";
            refuse(report, entry.0, "shared", message, "redis.url");
        }
    }
    // Without a table there is no tier; a url that could not be read is told already.
    redis.span.as_ref()?;
    let Some(url) = redis.chosen("url") else {
        if !report.has_faults() {
            refuse(report, &redis, "url", "there is no url", "redis.url");
        }
        return None;
    };
    let url = url.redis_url();
    let ca = redis.chosen("tls_ca").map(|file| folder.join(file.text()));
    let mut client = None;
    if url.tls() {
        match tls::plain_client(ca.as_deref()) {
            Ok(built) => client = Some(RedisTls { client: built }),
            Err(message) => {
                let key = if ca.is_some() { "tls_ca" } else { "url" };
                refuse(report, &redis, key, &message, "a file of pem certificates");
            }
        }
    } else {
        if ca.is_some() {
            let message = "certificates are only for rediss://";
            refuse(report, &redis, "tls_ca", message, "rediss://, or no tls_ca");
        }
        if url.hosts().iter().any(|host| !is_near(host)) {
            let span = redis.set("url").and_then(|set| set.span.clone());
            let message = "answers and the password go over the network in clear text";
            report.warn(span.as_ref(), redis.key("url"), message, "rediss://");
        }
    }
    if shared {
        limits_fit(&redis, url.is_cluster(), zones, limits, report);
    }
    let wanted = redis.value("answers").switch();
    if wanted && !cache.enabled {
        let message = "it is a tier of the cache, which is off";
        report.warn(redis.span.as_ref(), "redis".to_owned(), message, "cache.enabled = true");
    }
    let answers = wanted && cache.enabled;
    if !answers && !shared {
        if !wanted {
            let message = "no answers are kept there and nothing is shared, so it is not used";
            report.warn(redis.span.as_ref(), redis.key("answers"), message, "answers = true");
        }
        return None;
    }
    Some(Redis {
        url,
        answers,
        gateways: redis.chosen("gateways").map_or(1, |count| count.count()),
        tls: client,
        prefix: redis.value("prefix").text().into(),
        timeout: redis.value("timeout").duration(),
        read_replicas: redis.value("read_replicas").switch(),
        compress_bytes_min: redis.value("compress_bytes_min").size(),
        entry_bytes_max: redis.value("entry_bytes_max").size(),
        ttl_max: redis.value("ttl_max").duration(),
        failures_max: redis.value("failures_max").count() as u32,
        backoff: redis.value("backoff").duration(),
        tell_reorgs: redis.value("tell_reorgs").switch(),
    })
}

/// Whether shared zones can be kept there.
fn limits_fit(
    redis: &Entry,
    is_cluster: bool,
    zones: &[Zone],
    limits: &[Limit],
    report: &mut Report<'_>,
) {
    if redis.set("gateways").is_none() {
        let message = "zones or quotas are shared: each gateway has to know its part for when redis \
                       is away";
        refuse(report, redis, "gateways", message, "how many gateways share it");
    }
    if !is_cluster {
        return;
    }
    // All keys of one script must lie on one node of a cluster.
    let used: Vec<&Limit> =
        limits.iter().filter(|limit| zones[limit.zone].shared && !limit.dry_run).collect();
    for (at, one) in used.iter().enumerate() {
        let mut others = used[at + 1..].iter();
        if let Some(other) = others.find(|other| other.zone != one.zone && meet(one, other)) {
            let message = format!(
                "a call may count in both shared zones {} and {}, whose keys lie on different nodes \
                 of a cluster",
                zones[one.zone].name, zones[other.zone].name
            );
            refuse(report, redis, "url", &message, "one shared zone for each call, or no cluster");
            return;
        }
    }
}
