//! Goal: a URL can express every topology of Redis (single server, sentinels, cluster), and its
//! secrets are never printed.

use super::*;

#[test]
fn topologies_are_parsed_and_secrets_are_masked() {
    let check = |text: &str, shown: &str, tls: bool, cluster: bool| {
        let url = RedisUrl::parse(text).unwrap_or_else(|why| panic!("{text}: {why}"));
        assert_eq!((url.tls(), url.is_cluster()), (tls, cluster), "{text}");
        assert_eq!(url.to_string(), shown);
        assert_eq!(format!("{url:?}"), shown);
        assert_eq!(mask_url(text).unwrap(), format!("\"{shown}\""));
    };
    check("redis://127.0.0.1:6379", "redis://127.0.0.1:6379", false, false);
    check("redis://cache.local", "redis://cache.local", false, false);
    check("redis://:sekrit@cache.local:6379/2", "redis://***@cache.local:6379/2", false, false);
    check("rediss://me:sekrit@cache.local/0", "rediss://***@cache.local/0", true, false);
    let cluster = "redis-cluster://me:sekrit@a:7000?node=b:7001&node=c:7002";
    check(cluster, "redis-cluster://***@a:7000?***", false, true);
    let sentinel = "redis-sentinel://a:26379?sentinelServiceName=main&sentinelPassword=sekrit";
    check(sentinel, "redis-sentinel://a:26379?***", false, false);
    let hosts = RedisUrl::parse(cluster).unwrap().hosts();
    assert!(["a", "b", "c"].iter().all(|host| hosts.iter().any(|known| known == host)));
}

#[test]
fn malformed_urls_are_rejected_and_masked() {
    for text in [
        "",
        "sekrit",
        "http://127.0.0.1:6379",
        "redis://",
        "redis://:6379",
        "redis://a:sekrit",
        "redis://a:99999999",
        "redis-sentinel://sekrit:26379",
        "redis+unix:///sekrit",
        "redis://a/sekrit",
        "redis://a#sekrit",
    ] {
        let parsed = RedisUrl::parse(text);
        assert!(parsed.as_ref().is_err_and(|why| !why.contains("sekrit")), "{text}: {parsed:?}");
        assert_eq!(mask_url(text).unwrap(), "\"***\"", "{text}");
    }
}
