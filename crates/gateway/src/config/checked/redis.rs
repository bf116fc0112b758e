//! The part of the check that is about `[redis]`.

use std::path::Path;

use super::super::fault::Report;
use super::super::field::REDIS;
use super::super::file::Written;
use super::super::{Cache, Redis, RedisTls, tls};
use super::{is_near, refuse};

/// The tier in Redis; `None` where it is not asked for, or not well.
pub(super) fn check(
    written: &Written,
    folder: &Path,
    cache: &Cache,
    report: &mut Report<'_>,
) -> Option<Redis> {
    let redis = written.once(&REDIS);
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
    if !cache.enabled {
        let message = "it is a tier of the cache, which is off";
        report.warn(redis.span.as_ref(), "redis".to_owned(), message, "cache.enabled = true");
        return None;
    }
    Some(Redis {
        url,
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
