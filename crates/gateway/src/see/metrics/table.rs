//! A table of equal entries: every metric of the gateway, in the order of `/metrics` and of
//! `docs/metrics.md`.
//!
//! To add one, add an entry; nothing else lists them.

use super::Kind::{Counter, Gauge, Histogram, Info};
use super::{Metric, Scrape, Series};
use crate::front::answer::Mark;
use crate::front::arrive::ProxyRefusal;
use crate::front::tls::HandshakeFault;
use crate::limits::LimitOutcome;
use crate::rules::access::Denial;
use crate::rules::overload::{Class, Shed};
use crate::see::counters::TLS_VERSIONS;
use crate::see::status::NodeState;

const NODE: &[&str] = &["chain", "node"];
const GROUP: &[&str] = &["chain", "group"];
const METHOD: &[&str] = &["chain", "method"];

/// Every metric.
pub(super) const METRICS: &[Metric] = &[
    Metric {
        name: "weir_build",
        kind: Info,
        unit: "",
        labels: &["version"],
        help: "Which build serves.",
        samples: |scrape, series| series.info(&[scrape.status.version]),
    },
    Metric {
        name: "weir_uptime_seconds",
        kind: Gauge,
        unit: "seconds",
        labels: &[],
        help: "Time since the start.",
        samples: |scrape, series| series.gauge_real(&[], scrape.status.uptime_seconds),
    },
    Metric {
        name: "weir_config_generation",
        kind: Gauge,
        unit: "",
        labels: &[],
        help: "Counts configurations from 1, the one that the process was started with.",
        samples: |scrape, series| series.gauge(&[], scrape.status.config.generation),
    },
    Metric {
        name: "weir_reloads",
        kind: Counter,
        unit: "",
        labels: &["outcome"],
        help: "Reloads of the configuration; one that is refused leaves the old one in use.",
        samples: |scrape, series| {
            let config = &scrape.status.config;
            series.count(&["applied"], config.reloads_applied)?;
            series.count(&["refused"], config.reloads_refused)
        },
    },
    Metric {
        name: "weir_reload_last_applied",
        kind: Gauge,
        unit: "",
        labels: &[],
        help: "1 if the last reload was applied, 0 if it was refused; missing before the first.",
        samples: |scrape, series| match &scrape.status.config.last_reload {
            Some(reload) => series.gauge(&[], u64::from(reload.applied)),
            None => Ok(()),
        },
    },
    Metric {
        name: "weir_reload_last_timestamp_seconds",
        kind: Gauge,
        unit: "seconds",
        labels: &[],
        help: "When the last reload ended, in seconds since 1970; missing before the first.",
        samples: |scrape, series| match &scrape.status.config.last_reload {
            Some(reload) => series.gauge_real(&[], reload.unix_seconds),
            None => Ok(()),
        },
    },
    Metric {
        name: "weir_connections_open",
        kind: Gauge,
        unit: "",
        labels: &[],
        help: "Client connections that are open.",
        samples: |scrape, series| series.gauge(&[], scrape.tally.connections_open),
    },
    Metric {
        name: "weir_connections_accepted",
        kind: Counter,
        unit: "",
        labels: &[],
        help: "Client connections that were accepted.",
        samples: |scrape, series| series.count(&[], scrape.tally.connections_accepted),
    },
    Metric {
        name: "weir_connections_refused",
        kind: Counter,
        unit: "",
        labels: &[],
        help: "Client connections closed at once, because the most that are allowed were open.",
        samples: |scrape, series| series.count(&[], scrape.tally.connections_refused),
    },
    Metric {
        name: "weir_memory_max_bytes",
        kind: Gauge,
        unit: "bytes",
        labels: &[],
        help: "Bytes that bodies, responses and queues of all connections may take together.",
        samples: |scrape, series| series.gauge(&[], scrape.status.memory.bytes_max),
    },
    Metric {
        name: "weir_memory_held_bytes",
        kind: Gauge,
        unit: "bytes",
        labels: &["purpose"],
        help: "Bytes that bodies, responses and queues take: of requests, of responses that \
               upstreams are sending, and of responses that clients have not read.",
        samples: |scrape, series| {
            let mut purposes = scrape.status.memory.purposes.iter();
            purposes.try_for_each(|own| series.gauge(&[own.name], own.bytes))
        },
    },
    Metric {
        name: "weir_memory_refusals",
        kind: Counter,
        unit: "",
        labels: &["purpose"],
        help: "Requests and responses for which there was no memory left.",
        samples: |scrape, series| {
            let mut purposes = scrape.status.memory.purposes.iter();
            purposes.try_for_each(|own| series.count(&[own.name], own.refused))
        },
    },
    Metric {
        name: "weir_memory_connections_closed",
        kind: Counter,
        unit: "",
        labels: &[],
        help: "Connections of slow clients that were closed because too many bytes were held.",
        samples: |scrape, series| series.count(&[], scrape.status.memory.connections_closed),
    },
    Metric {
        name: "weir_websockets_open",
        kind: Gauge,
        unit: "",
        labels: &[],
        help: "Client connections that are open as WebSockets.",
        samples: |scrape, series| series.gauge(&[], scrape.tally.websockets_open),
    },
    Metric {
        name: "weir_websockets_opened",
        kind: Counter,
        unit: "",
        labels: &[],
        help: "Client connections that went on as WebSockets.",
        samples: |scrape, series| series.count(&[], scrape.tally.websockets_opened),
    },
    Metric {
        name: "weir_subscriptions_open",
        kind: Gauge,
        unit: "",
        labels: &[],
        help: "Subscriptions of clients that are open.",
        samples: |scrape, series| series.gauge(&[], scrape.tally.subscriptions_open),
    },
    Metric {
        name: "weir_subscription_notices",
        kind: Counter,
        unit: "",
        labels: &[],
        help: "Messages to clients that have subscribed to something.",
        samples: |scrape, series| series.count(&[], scrape.tally.notices_sent),
    },
    Metric {
        name: "weir_proxy_refused",
        kind: Counter,
        unit: "",
        labels: &["reason"],
        help: "Client connections closed for their PROXY protocol header: from a peer that is not \
               trusted, malformed, or not in time.",
        samples: |scrape, series| {
            let mut refused = ProxyRefusal::ALL.iter().zip(scrape.tally.proxy_refused);
            refused.try_for_each(|(reason, count)| series.count(&[reason.as_str()], count))
        },
    },
    Metric {
        name: "weir_tls_handshakes",
        kind: Counter,
        unit: "",
        labels: &["version", "handshake"],
        help: "TLS handshakes with clients that were completed, in full or by resuming a session.",
        samples: |scrape, series| {
            let mut versions = TLS_VERSIONS.iter().zip(scrape.tally.tls_done);
            versions.try_for_each(|(version, [full, resumed])| {
                series.count(&[version, "full"], full)?;
                series.count(&[version, "resumed"], resumed)
            })
        },
    },
    Metric {
        name: "weir_tls_handshakes_failed",
        kind: Counter,
        unit: "",
        labels: &["reason"],
        help: "TLS handshakes with clients that failed.",
        samples: |scrape, series| {
            let mut failed = HandshakeFault::CLASSES.iter().zip(scrape.tally.tls_failed);
            failed.try_for_each(|(reason, count)| series.count(&[reason], count))
        },
    },
    Metric {
        name: "weir_requests",
        kind: Counter,
        unit: "",
        labels: &[],
        help: "HTTP requests whose body was looked at; a batch is one.",
        samples: |scrape, series| series.count(&[], scrape.tally.requests),
    },
    Metric {
        name: "weir_requests_refused",
        kind: Counter,
        unit: "",
        labels: &["status"],
        help: "HTTP requests refused as a whole; statuses that are not listed count as 500.",
        samples: |scrape, series| {
            let mut refused = scrape.tally.refused.iter();
            refused.try_for_each(|(status, count)| series.count(&[&status.to_string()], *count))
        },
    },
    Metric {
        name: "weir_batches",
        kind: Counter,
        unit: "",
        labels: &[],
        help: "HTTP requests that were batches.",
        samples: |scrape, series| series.count(&[], scrape.tally.batches),
    },
    Metric {
        name: "weir_notifications",
        kind: Counter,
        unit: "",
        labels: &[],
        help: "Calls that asked for no answer.",
        samples: |scrape, series| series.count(&[], scrape.tally.notifications),
    },
    Metric {
        name: "weir_calls_refused",
        kind: Counter,
        unit: "",
        labels: &[],
        help: "Calls and bodies refused for their form, with a JSON-RPC error.",
        samples: |scrape, series| series.count(&[], scrape.tally.calls_refused),
    },
    Metric {
        name: "weir_access_denied",
        kind: Counter,
        unit: "",
        labels: &["reason"],
        help: "Requests and calls that their sender may not make.",
        samples: |scrape, series| {
            let mut denials = Denial::ALL.iter();
            denials.try_for_each(|denial| {
                series.count(&[denial.as_str()], scrape.tally.denied[denial.index()])
            })
        },
    },
    Metric {
        name: "weir_key_calls",
        kind: Counter,
        unit: "",
        labels: &["key"],
        help: "Calls under a key, or under tokens of an issuer; those that were denied too.",
        samples: |scrape, series| {
            let called =
                scrape.keys.iter().zip(&scrape.tally.keys).filter(|(_, calls)| **calls > 0);
            called.into_iter().try_for_each(|(key, calls)| series.count(&[key], *calls))
        },
    },
    Metric {
        name: "weir_quota_used_units",
        kind: Gauge,
        unit: "units",
        labels: &["key"],
        help: "Units that a key with a quota has used this month.",
        samples: |scrape, series| {
            let mut keys = scrape.quotas.iter().flat_map(|quotas| &quotas.keys);
            keys.try_for_each(|stand| series.gauge(&[&stand.key], stand.used))
        },
    },
    Metric {
        name: "weir_quota_limit_units",
        kind: Gauge,
        unit: "units",
        labels: &["key"],
        help: "Units that it may use in a month.",
        samples: |scrape, series| {
            let mut keys = scrape.quotas.iter().flat_map(|quotas| &quotas.keys);
            keys.try_for_each(|stand| series.gauge(&[&stand.key], stand.units))
        },
    },
    Metric {
        name: "weir_quota_refused",
        kind: Counter,
        unit: "",
        labels: &[],
        help: "Calls refused because the quota of their key is used up.",
        samples: |scrape, series| match &scrape.quotas {
            Some(quotas) => series.count(&[], quotas.refused),
            None => Ok(()),
        },
    },
    Metric {
        name: "weir_quota_alone",
        kind: Gauge,
        unit: "",
        labels: &[],
        help: "1 while shared quotas are judged by this gateway's part of what was left, because Redis \
               is away.",
        samples: |scrape, series| match &scrape.quotas {
            Some(quotas) => series.gauge(&[], u64::from(quotas.alone)),
            None => Ok(()),
        },
    },
    Metric {
        name: "weir_quota_write_failures",
        kind: Counter,
        unit: "",
        labels: &[],
        help: "Times that the file of quotas could not be written.",
        samples: |scrape, series| match &scrape.quotas {
            Some(quotas) => series.count(&[], quotas.write_failures),
            None => Ok(()),
        },
    },
    Metric {
        name: "weir_rule_calls",
        kind: Counter,
        unit: "",
        labels: &["rule"],
        help: "Calls that a rule fitted.",
        samples: |scrape, series| {
            let mut rules = scrape.rules.iter().zip(&scrape.tally.rules);
            rules.try_for_each(|(rule, calls)| series.count(&[rule], *calls))
        },
    },
    Metric {
        name: "weir_access_log_lines",
        kind: Counter,
        unit: "",
        labels: &[],
        help: "Lines handed to the access log.",
        samples: |scrape, series| series.count(&[], scrape.tally.log_lines),
    },
    Metric {
        name: "weir_access_log_dropped",
        kind: Counter,
        unit: "",
        labels: &[],
        help: "Lines of the access log that were lost: its queue was full, or its file took nothing.",
        samples: |scrape, series| {
            series.count(&[], scrape.tally.log_dropped + scrape.log_unwritten)
        },
    },
    Metric {
        name: "weir_calls",
        kind: Counter,
        unit: "",
        labels: &["chain", "method", "cache"],
        help: "Calls answered, each of a batch by itself, by how the cache took part.",
        samples: |scrape, series| {
            scrape.methods().try_for_each(|(chain, method, tally)| {
                let mut marks = Mark::ALL.iter();
                marks.try_for_each(|mark| {
                    series.count(&[chain, method, mark.as_str()], tally.answered[mark.index()])
                })
            })
        },
    },
    Metric {
        name: "weir_call_errors",
        kind: Counter,
        unit: "",
        labels: METHOD,
        help: "Calls answered with a JSON-RPC error of a node.",
        samples: |scrape, series| {
            let mut methods = scrape.methods();
            methods.try_for_each(|(chain, name, tally)| series.count(&[chain, name], tally.errors))
        },
    },
    Metric {
        name: "weir_call_failures",
        kind: Counter,
        unit: "",
        labels: METHOD,
        help: "Calls that no node answered.",
        samples: |scrape, series| {
            let mut methods = scrape.methods();
            methods.try_for_each(|(chain, name, tally)| series.count(&[chain, name], tally.failed))
        },
    },
    Metric {
        name: "weir_call_duration_seconds",
        kind: Histogram,
        unit: "seconds",
        labels: METHOD,
        help: "Time from the decoded call to its answer, hits included.",
        samples: |scrape, series| {
            let mut methods = scrape.methods();
            methods
                .try_for_each(|(chain, name, tally)| series.spread(&[chain, name], &tally.latency))
        },
    },
    Metric {
        name: "weir_group_in_flight_limit",
        kind: Gauge,
        unit: "",
        labels: GROUP,
        help: "Calls that may be under way at the nodes of a group; missing where they are not \
               limited.",
        samples: |scrape, series| {
            let mut limited = scrape.groups().filter_map(|(chain, group, _)| {
                group.in_flight_limit.map(|limit| (chain, group, limit))
            });
            limited.try_for_each(|(chain, group, limit)| {
                series.gauge(&[chain, &group.name], u64::from(limit))
            })
        },
    },
    Metric {
        name: "weir_group_in_flight",
        kind: Gauge,
        unit: "",
        labels: GROUP,
        help: "Calls under way at the nodes of a group, as far as they count against its limit.",
        samples: |scrape, series| {
            scrape.groups().try_for_each(|(chain, group, tally)| {
                series.gauge(&[chain, &group.name], tally.in_flight)
            })
        },
    },
    Metric {
        name: "weir_group_queued",
        kind: Gauge,
        unit: "",
        labels: GROUP,
        help: "Calls that wait for a place at the nodes of a group.",
        samples: |scrape, series| {
            scrape.groups().try_for_each(|(chain, group, tally)| {
                series.gauge(&[chain, &group.name], tally.queued)
            })
        },
    },
    Metric {
        name: "weir_group_shed",
        kind: Counter,
        unit: "",
        labels: &["chain", "group", "class", "reason"],
        help: "Calls that were told to come back later, because the nodes had no room for them.",
        samples: |scrape, series| {
            scrape.groups().try_for_each(|(chain, group, tally)| {
                Class::ALL.iter().zip(&tally.shed).try_for_each(|(class, reasons)| {
                    Shed::ALL.iter().zip(reasons).try_for_each(|(reason, count)| {
                        let labels = [chain, &group.name, class.as_str(), reason.as_str()];
                        series.count(&labels, *count)
                    })
                })
            })
        },
    },
    Metric {
        name: "weir_group_queue_duration_seconds",
        kind: Histogram,
        unit: "seconds",
        labels: &["chain", "group", "class"],
        help: "How long calls waited for a place that got one; those that need not wait are not in it.",
        samples: |scrape, series| {
            scrape.groups().try_for_each(|(chain, group, tally)| {
                let mut classes = Class::ALL.iter().zip(&tally.waited);
                classes.try_for_each(|(class, waited)| {
                    series.spread(&[chain, &group.name, class.as_str()], waited)
                })
            })
        },
    },
    Metric {
        name: "weir_limit_calls",
        kind: Counter,
        unit: "",
        labels: &["zone", "outcome"],
        help: "Calls judged by request limits, by zone. A call that is refused counts only where it \
               was; one that waits counts as delayed in the zone that asked for the longest wait.",
        samples: |scrape, series| {
            let zones = scrape.status.zones.iter().zip(&scrape.tally.zones);
            zones.into_iter().try_for_each(|(zone, counts)| {
                let mut outcomes = LimitOutcome::ALL.iter().zip(counts);
                outcomes.try_for_each(|(outcome, count)| {
                    series.count(&[&zone.name, outcome.as_str()], *count)
                })
            })
        },
    },
    Metric {
        name: "weir_limit_waiting",
        kind: Gauge,
        unit: "",
        labels: &[],
        help: "Calls that wait for their turn by a limit.",
        samples: |scrape, series| series.gauge(&[], scrape.tally.calls_waiting),
    },
    Metric {
        name: "weir_limit_shared_calls",
        kind: Counter,
        unit: "",
        labels: &["by"],
        help: "Calls judged by zones that gateways share, by who has judged them.",
        samples: |scrape, series| {
            if !scrape.shared_zones {
                return Ok(());
            }
            let tally = &scrape.tally.shared_zones;
            series.count(&["redis"], tally.by_redis)?;
            series.count(&["share"], tally.by_share)?;
            series.count(&["memory"], tally.from_memory)
        },
    },
    Metric {
        name: "weir_limit_shared_failures",
        kind: Counter,
        unit: "",
        labels: &["reason"],
        help: "Calls that Redis was asked to judge and did not: each was judged by the share.",
        samples: |scrape, series| {
            if !scrape.shared_zones {
                return Ok(());
            }
            series.count(&["error"], scrape.tally.shared_zones.errors)?;
            series.count(&["timeout"], scrape.tally.shared_zones.timeouts)
        },
    },
    Metric {
        name: "weir_limit_shared_duration_seconds",
        kind: Histogram,
        unit: "seconds",
        labels: &[],
        help: "Time of one judgement in Redis, the way there and back included.",
        samples: |scrape, series| match scrape.shared_zones {
            true => series.spread(&[], &scrape.tally.shared_zones.latency),
            false => Ok(()),
        },
    },
    Metric {
        name: "weir_limit_shared_breakers_opened",
        kind: Counter,
        unit: "",
        labels: &[],
        help: "Times that a thread began to judge by the share alone, after failures in a row.",
        samples: |scrape, series| match scrape.shared_zones {
            true => series.count(&[], scrape.tally.shared_zones.opened),
            false => Ok(()),
        },
    },
    Metric {
        name: "weir_zone_away_threads",
        kind: Gauge,
        unit: "",
        labels: &["zone"],
        help: "Threads that judge a shared zone by this gateway's share now, because Redis is away or \
               not yet connected; 0 when all is well, missing for zones that are not shared.",
        samples: |scrape, series| {
            let mut zones = scrape.status.zones.iter().filter(|zone| zone.shared);
            zones.try_for_each(|zone| series.gauge(&[&zone.name], scrape.tally.shared_zones.open))
        },
    },
    Metric {
        name: "weir_zone_keys",
        kind: Gauge,
        unit: "",
        labels: &["zone"],
        help: "Keys that a zone holds.",
        samples: |scrape, series| {
            let mut zones = scrape.status.zones.iter();
            zones.try_for_each(|zone| series.gauge(&[&zone.name], zone.keys))
        },
    },
    Metric {
        name: "weir_zone_max_keys",
        kind: Gauge,
        unit: "",
        labels: &["zone"],
        help: "Keys that a zone can hold.",
        samples: |scrape, series| {
            let mut zones = scrape.status.zones.iter();
            zones.try_for_each(|zone| series.gauge(&[&zone.name], zone.keys_max))
        },
    },
    Metric {
        name: "weir_zone_evictions",
        kind: Counter,
        unit: "",
        labels: &["zone"],
        help: "Keys that a full zone has forgotten for new ones.",
        samples: |scrape, series| {
            let mut zones = scrape.status.zones.iter();
            zones.try_for_each(|zone| series.count(&[&zone.name], zone.evicted))
        },
    },
    Metric {
        name: "weir_retries",
        kind: Counter,
        unit: "",
        labels: &[],
        help: "Further attempts after one that failed.",
        samples: |scrape, series| series.count(&[], scrape.tally.retries),
    },
    Metric {
        name: "weir_second_opinions",
        kind: Counter,
        unit: "",
        labels: &[],
        help: "Further attempts after a response that may lack logs or receipts.",
        samples: |scrape, series| series.count(&[], scrape.tally.second_opinions),
    },
    Metric {
        name: "weir_hedges",
        kind: Counter,
        unit: "",
        labels: &[],
        help: "Second nodes asked before the first had answered.",
        samples: |scrape, series| series.count(&[], scrape.tally.hedges),
    },
    Metric {
        name: "weir_hedges_won",
        kind: Counter,
        unit: "",
        labels: &[],
        help: "Second nodes that answered first.",
        samples: |scrape, series| series.count(&[], scrape.tally.hedges_won),
    },
    Metric {
        name: "weir_flights",
        kind: Gauge,
        unit: "",
        labels: &[],
        help: "Calls to nodes under way that equal calls may join; brought up to date each second.",
        samples: |scrape, series| series.gauge(&[], scrape.tally.flights),
    },
    Metric {
        name: "weir_cache_enabled",
        kind: Gauge,
        unit: "",
        labels: &[],
        help: "1 if answers are kept.",
        samples: |scrape, series| series.gauge(&[], u64::from(scrape.status.cache.enabled)),
    },
    Metric {
        name: "weir_cache_entries",
        kind: Gauge,
        unit: "",
        labels: &[],
        help: "Answers held in memory.",
        samples: |scrape, series| series.gauge(&[], scrape.status.cache.entries),
    },
    Metric {
        name: "weir_cache_bytes",
        kind: Gauge,
        unit: "bytes",
        labels: &[],
        help: "Bytes held by the cache, keys and bookkeeping included.",
        samples: |scrape, series| series.gauge(&[], scrape.status.cache.bytes),
    },
    Metric {
        name: "weir_cache_max_bytes",
        kind: Gauge,
        unit: "bytes",
        labels: &[],
        help: "Bytes that the cache may hold.",
        samples: |scrape, series| series.gauge(&[], scrape.status.cache.bytes_max),
    },
    Metric {
        name: "weir_cache_fills",
        kind: Counter,
        unit: "",
        labels: &[],
        help: "Answers put into the cache.",
        samples: |scrape, series| series.count(&[], scrape.tally.fills),
    },
    Metric {
        name: "weir_cache_fills_refused",
        kind: Counter,
        unit: "",
        labels: &[],
        help: "Answers that could be kept by their method but were not: too large, or outdated by a \
               reorg or a new head while they came.",
        samples: |scrape, series| series.count(&[], scrape.tally.fills_refused),
    },
    Metric {
        name: "weir_index_lookups",
        kind: Counter,
        unit: "",
        labels: &["outcome"],
        help: "Calls that the index was asked for: those that neither memory nor Redis could answer, and \
               ranges of logs. `part`: it had some of the blocks of a range; `failed`: it could not be \
               read, had too much to do, or did not answer in time.",
        samples: |scrape, series| {
            if !scrape.has_index {
                return Ok(());
            }
            let index = &scrape.tally.index;
            series.count(&["hit"], index.hits)?;
            series.count(&["part"], index.parts)?;
            series.count(&["miss"], index.misses)?;
            series.count(&["failed"], index.failed)
        },
    },
    Metric {
        name: "weir_redis_lookups",
        kind: Counter,
        unit: "",
        labels: &["outcome"],
        help: "Keys looked up in Redis, one for each call that memory could not answer.",
        samples: |scrape, series| {
            if scrape.redis.is_none() {
                return Ok(());
            }
            let redis = &scrape.tally.redis;
            series.count(&["hit"], redis.hits)?;
            series.count(&["miss"], redis.misses)?;
            series.count(&["stale"], redis.stale)?;
            series.count(&["refused"], redis.refused)?;
            series.count(&["error"], redis.errors)?;
            series.count(&["timeout"], redis.timeouts)?;
            series.count(&["skipped"], redis.skipped)
        },
    },
    Metric {
        name: "weir_redis_lookup_duration_seconds",
        kind: Histogram,
        unit: "seconds",
        labels: &[],
        help: "Time of one exchange with Redis; lookups of one moment share an exchange.",
        samples: |scrape, series| match scrape.redis {
            Some(_) => series.spread(&[], &scrape.tally.redis.latency),
            None => Ok(()),
        },
    },
    Metric {
        name: "weir_redis_stores",
        kind: Counter,
        unit: "",
        labels: &["outcome"],
        help: "Answers that were to be stored in Redis.",
        samples: |scrape, series| {
            if scrape.redis.is_none() {
                return Ok(());
            }
            let redis = &scrape.tally.redis;
            series.count(&["ok"], redis.stores)?;
            series.count(&["failed"], redis.stores_failed)?;
            series.count(&["dropped"], redis.stores_dropped)
        },
    },
    Metric {
        name: "weir_redis_stores_unproved",
        kind: Gauge,
        unit: "",
        labels: &[],
        help: "Answers that wait for the next poll of their node before they are stored.",
        samples: |scrape, series| match scrape.redis {
            Some(_) => series.gauge(&[], scrape.tally.redis.unproved),
            None => Ok(()),
        },
    },
    Metric {
        name: "weir_redis_breakers_open",
        kind: Gauge,
        unit: "",
        labels: &[],
        help: "Connections to Redis, of all threads, that are left alone or not yet made.",
        samples: |scrape, series| match scrape.redis {
            Some(_) => series.gauge(&[], scrape.tally.redis.open),
            None => Ok(()),
        },
    },
    Metric {
        name: "weir_redis_breakers_opened",
        kind: Counter,
        unit: "",
        labels: &[],
        help: "Times that a connection was left alone after failures in a row.",
        samples: |scrape, series| match scrape.redis {
            Some(_) => series.count(&[], scrape.tally.redis.opened),
            None => Ok(()),
        },
    },
    Metric {
        name: "weir_redis_messages",
        kind: Counter,
        unit: "",
        labels: &["direction"],
        help: "Messages to and from other gateways: reorgs, and generations that were replaced.",
        samples: |scrape, series| match scrape.redis {
            Some((sent, heard)) => {
                series.count(&["sent"], sent)?;
                series.count(&["heard"], heard)
            }
            None => Ok(()),
        },
    },
    Metric {
        name: "weir_chain_head",
        kind: Gauge,
        unit: "",
        labels: &["chain"],
        help: "Height of the served head; missing while there is none.",
        samples: |scrape, series| {
            each_chain(scrape, series, |chain| chain.head.as_ref().map(|head| head.number as f64))
        },
    },
    Metric {
        name: "weir_chain_head_age_seconds",
        kind: Gauge,
        unit: "seconds",
        labels: &["chain"],
        help: "Time since the served head last changed; missing while there is none.",
        samples: |scrape, series| each_chain(scrape, series, |chain| chain.head_age_seconds),
    },
    Metric {
        name: "weir_chain_finalized",
        kind: Gauge,
        unit: "",
        labels: &["chain"],
        help: "Height that no reorg may undo; missing while it is unknown.",
        samples: |scrape, series| {
            each_chain(scrape, series, |chain| chain.finalized.map(|number| number as f64))
        },
    },
    Metric {
        name: "weir_chain_reorgs",
        kind: Counter,
        unit: "",
        labels: &["chain"],
        help: "Reorgs of the served chain.",
        samples: |scrape, series| {
            let mut chains = scrape.status.chains.iter();
            chains.try_for_each(|chain| series.count(&[&chain.name], chain.reorgs))
        },
    },
    Metric {
        name: "weir_chain_reorg_depth_max_blocks",
        kind: Gauge,
        unit: "blocks",
        labels: &["chain"],
        help: "Blocks dropped by the deepest reorg since the start.",
        samples: |scrape, series| {
            each_chain(scrape, series, |chain| Some(chain.reorg_depth_max as f64))
        },
    },
    Metric {
        name: "weir_group_candidates",
        kind: Gauge,
        unit: "",
        labels: &["chain", "group"],
        help: "Nodes of the group that may be chosen now.",
        samples: |scrape, series| {
            let chains = &scrape.status.chains;
            let mut groups = chains
                .iter()
                .flat_map(|chain| chain.groups.iter().map(|group| (&chain.name, group)));
            groups.try_for_each(|(chain, group)| {
                series.gauge(&[chain, &group.name], group.candidates.len() as u64)
            })
        },
    },
    Metric {
        name: "weir_node_state",
        kind: Gauge,
        unit: "",
        labels: &["chain", "node", "state"],
        help: "1 for the state that the node is in, 0 for the others.",
        samples: |scrape, series| {
            scrape.nodes().try_for_each(|(chain, node)| {
                NodeState::ALL.iter().try_for_each(|state| {
                    let is = u64::from(node.state == *state);
                    series.gauge(&[chain, &node.name, state.as_str()], is)
                })
            })
        },
    },
    Metric {
        name: "weir_node_head",
        kind: Gauge,
        unit: "",
        labels: NODE,
        help: "Height of the node's own head; missing while it was never seen.",
        samples: |scrape, series| {
            let mut nodes =
                scrape.nodes().filter_map(|(chain, node)| Some((chain, node, node.head?)));
            nodes.try_for_each(|(chain, node, head)| series.gauge(&[chain, &node.name], head))
        },
    },
    Metric {
        name: "weir_node_lag_blocks",
        kind: Gauge,
        unit: "blocks",
        labels: NODE,
        help: "Blocks that the node is behind the served head; missing while its head was never seen.",
        samples: |scrape, series| {
            let mut nodes =
                scrape.nodes().filter_map(|(chain, node)| Some((chain, node, node.lag?)));
            nodes.try_for_each(|(chain, node, lag)| series.gauge(&[chain, &node.name], lag))
        },
    },
    Metric {
        name: "weir_node_at_head",
        kind: Gauge,
        unit: "",
        labels: NODE,
        help: "1 if the node is fit for reads at the head.",
        samples: |scrape, series| {
            let mut nodes = scrape.nodes();
            nodes.try_for_each(|(chain, node)| {
                series.gauge(&[chain, &node.name], u64::from(node.at_head))
            })
        },
    },
    Metric {
        name: "weir_node_in_flight",
        kind: Gauge,
        unit: "",
        labels: NODE,
        help: "Attempts at the node under way.",
        samples: |scrape, series| {
            let mut nodes = scrape.nodes();
            nodes.try_for_each(|(chain, node)| series.gauge(&[chain, &node.name], node.in_flight))
        },
    },
    Metric {
        name: "weir_node_attempts",
        kind: Counter,
        unit: "",
        labels: &["chain", "node", "outcome"],
        help: "Attempts at the node that ended.",
        samples: |scrape, series| {
            scrape.nodes().try_for_each(|(chain, node)| {
                let ok = node.attempts.saturating_sub(node.failed + node.rate_limited);
                let outcomes =
                    [("ok", ok), ("failed", node.failed), ("rate_limited", node.rate_limited)];
                outcomes.into_iter().try_for_each(|(outcome, count)| {
                    series.count(&[chain, &node.name, outcome], count)
                })
            })
        },
    },
    Metric {
        name: "weir_node_attempt_duration_seconds",
        kind: Histogram,
        unit: "seconds",
        labels: NODE,
        help: "Time from an attempt's start, with the wait for a connection, to its end.",
        samples: |scrape, series| {
            let mut nodes = scrape.nodes();
            nodes.try_for_each(|(chain, node)| {
                let tally = &scrape.tally.nodes[node.index];
                series.spread(&[chain, &node.name], &tally.latency)
            })
        },
    },
    Metric {
        name: "weir_node_connects",
        kind: Counter,
        unit: "",
        labels: NODE,
        help: "Connections to the node that were begun for calls.",
        samples: |scrape, series| {
            let mut nodes = scrape.nodes();
            nodes.try_for_each(|(chain, node)| series.count(&[chain, &node.name], node.connects))
        },
    },
    Metric {
        name: "weir_node_multiplexed",
        kind: Counter,
        unit: "",
        labels: NODE,
        help: "Attempts at the node over a WebSocket, local socket or HTTP/2, which carries many \
               calls at a time.",
        samples: |scrape, series| {
            let mut nodes = scrape.nodes();
            nodes.try_for_each(|(chain, node)| series.count(&[chain, &node.name], node.multiplexed))
        },
    },
    Metric {
        name: "weir_node_batches",
        kind: Counter,
        unit: "",
        labels: NODE,
        help: "Batches that were gathered from several calls and sent to the node as one request.",
        samples: |scrape, series| {
            let mut nodes = scrape.nodes();
            nodes.try_for_each(|(chain, node)| series.count(&[chain, &node.name], node.batches))
        },
    },
    Metric {
        name: "weir_node_batched",
        kind: Counter,
        unit: "",
        labels: NODE,
        help: "Attempts at the node that left in such batches.",
        samples: |scrape, series| {
            let mut nodes = scrape.nodes();
            nodes.try_for_each(|(chain, node)| series.count(&[chain, &node.name], node.batched))
        },
    },
    Metric {
        name: "weir_node_trunks",
        kind: Gauge,
        unit: "",
        labels: &["chain", "node", "transport"],
        help: "WebSockets or local sockets to the node that are open for calls.",
        samples: |scrape, series| {
            let mut nodes = scrape.nodes();
            nodes.try_for_each(|(chain, node)| {
                let many = node.transports.first().filter(|way| **way != "http");
                many.map_or(Ok(()), |way| series.gauge(&[chain, &node.name, way], node.trunks_open))
            })
        },
    },
    Metric {
        name: "weir_node_trunks_lost",
        kind: Counter,
        unit: "",
        labels: NODE,
        help: "WebSockets or local sockets to the node that ended while they were in use; new ones \
               are opened.",
        samples: |scrape, series| {
            let mut nodes = scrape.nodes();
            nodes.try_for_each(|(chain, node)| series.count(&[chain, &node.name], node.trunks_lost))
        },
    },
    Metric {
        name: "weir_node_ejections",
        kind: Counter,
        unit: "",
        labels: NODE,
        help: "How often the node was taken out.",
        samples: |scrape, series| {
            let mut nodes = scrape.nodes();
            nodes.try_for_each(|(chain, node)| series.count(&[chain, &node.name], node.ejections))
        },
    },
    Metric {
        name: "weir_node_readmissions",
        kind: Counter,
        unit: "",
        labels: NODE,
        help: "How often the node was taken back.",
        samples: |scrape, series| {
            let mut nodes = scrape.nodes();
            nodes
                .try_for_each(|(chain, node)| series.count(&[chain, &node.name], node.readmissions))
        },
    },
];

/// One gauge per chain that has this value.
fn each_chain(
    scrape: &Scrape,
    series: &mut Series<'_>,
    value: impl Fn(&crate::see::status::ChainStatus) -> Option<f64>,
) -> std::fmt::Result {
    let mut chains = scrape.status.chains.iter();
    chains.try_for_each(|chain| match value(chain) {
        Some(value) => series.gauge_real(&[&chain.name], value),
        None => Ok(()),
    })
}
