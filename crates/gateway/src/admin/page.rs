//! The status page: status and history as one self-contained HTML document.
//!
//! The server renders the page, so it works without scripts. A script only updates it in place. The
//! page contains no text from clients or upstreams, and names from the configuration are escaped.
//! The content security policy admits only this page's own style and script. `page/style.css`
//! styles it, and `page/draw.rs` draws lines and bars.

use maud::{DOCTYPE, Markup, PreEscaped, Render, html};

use super::history::{History, Series};
use super::status::{
    ChainStatus, GroupStatus, HealthState, KeyStatus, MethodStatus, Status, UpstreamStatus,
    ZoneStatus,
};

mod draw;

#[cfg(test)]
mod tests;

use draw::{Plot, bar, plot};

pub(super) const STYLE: &str = include_str!("page/style.css");
pub(super) const SCRIPT: &str = include_str!("page/live.js");

/// Text for an unknown value.
const NONE: &str = "–";

/// Returns the content security policy for a page with this nonce.
pub(crate) fn policy(nonce: &str) -> String {
    format!(
        "default-src 'none'; style-src 'nonce-{nonce}'; script-src 'nonce-{nonce}'; \
         connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
}

/// Renders the page. `unready` holds the reasons why the gateway should get no traffic; it is empty
/// if the gateway is ready.
pub(crate) fn html(status: &Status, history: &History, unready: &[String], nonce: &str) -> String {
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                title { "Weir" }
                noscript { meta http-equiv="refresh" content="2"; }
                style nonce=(nonce) { (PreEscaped(STYLE)) }
            }
            body {
                header {
                    h1 { "Weir" }
                    span.soft { "version " (status.version) }
                    span #live .soft.small role="status" { "renewed every 2 s" }
                }
                main {
                    (readiness(status, unready))
                    div.tiles {
                        (calls_tile(status, history))
                        (cache_tile(status))
                        (upstreams_tile(status))
                        (clients_tile(status))
                    }
                    @for chain in &status.chains { (chain_section(chain, history)) }
                    (access_section(status))
                }
                footer.soft.small {
                    "Counts are since the start, lines show the last two minutes. The same as "
                    a href="/status" { "JSON" } " and as " a href="/metrics" { "metrics" } "."
                }
                script nonce=(nonce) { (PreEscaped(SCRIPT)) }
            }
        }
    };
    page.into_string()
}

fn readiness(status: &Status, unready: &[String]) -> Markup {
    html! {
        p {
            @if unready.is_empty() {
                span.badge.good { "ready" } " "
            } @else {
                span.badge.bad { "not ready" } " " (unready.join("; ")) " "
            }
            span.soft { "up for " (duration(status.uptime_seconds)) }
        }
    }
}

fn tile(title: &str, value: &str, unit: &str, content: &Markup) -> Markup {
    html! {
        section.sheet.tile {
            h2 { (title) }
            p.big { (value) " " small { (unit) } }
            (content)
        }
    }
}

fn calls_tile(status: &Status, history: &History) -> Markup {
    let (calls, spared) = (history.calls_per_second(), history.spared_per_second());
    let now = calls.last().copied().flatten();
    let highest_rate = decimal(highest(&calls));
    let label = format!(
        "Calls per second over the last two minutes: now {}, highest {highest_rate}. The green part was \
         answered without an upstream.",
        decimal(now.unwrap_or_default()),
    );
    let value = now.map_or_else(|| NONE.to_owned(), decimal);
    let chart = plot(&Plot { class: "plot", label: &label, line: &calls, part: Some(&spared) });
    let total = integer(status.totals.calls);
    let content = html! {
        (chart)
        p.small.soft { "highest " (highest_rate) "; " (total) " calls in all; green: without an upstream" }
    };
    tile("Calls", &value, "per second", &content)
}

fn cache_tile(status: &Status) -> Markup {
    let cache = &status.cache;
    let ratio = cache.hit_ratio.map_or_else(|| NONE.to_owned(), percent);
    let unit = if cache.enabled { "hits" } else { "hits (cache is off)" };
    let parts = [
        ("hit", cache.hits),
        ("coalesced", cache.coalesced),
        ("miss", cache.misses),
        ("bypass", cache.bypasses),
    ];
    let label = parts.map(|(word, count)| format!("{word} {}", integer(count))).join(", ");
    let content = html! {
        (bar(&format!("Calls by cache: {label}"), &parts))
        ul.legend.small {
            @for (word, count) in parts {
                li {
                    svg.key viewBox="0 0 1 1" aria-hidden="true" {
                        rect class=(word) width="1" height="1" {}
                    }
                    (word) " " (integer(count))
                }
            }
        }
        p.small.soft {
            (integer(cache.entries)) " entries, " (bytes(cache.bytes)) " of " (bytes(cache.bytes_max))
        }
        @if let Some(redis) = &status.redis {
            p.small.soft {
                "Redis " (redis.url) ": " (integer(redis.hits)) " hits, " (integer(redis.misses))
                " misses, " (problem_count(redis.failed)) " failed"
                @if redis.breakers_open > 0 { " " span.badge.bad { "not reachable" } }
            }
        }
        @if let Some(index) = &status.index {
            p.small.soft {
                "index " (index.db) ": " (integer(index.hits)) " hits, " (integer(index.parts))
                " parts, " (integer(index.misses)) " misses, " (problem_count(index.failed)) " failed"
            }
        }
    };
    tile("Cache", &ratio, unit, &content)
}

fn upstreams_tile(status: &Status) -> Markup {
    let upstreams = || status.chains.iter().flat_map(|chain| &chain.upstreams);
    let healthy = upstreams().filter(|upstream| upstream.state == HealthState::Healthy).count();
    let totals = &status.totals;
    let unit = format!("of {} healthy", upstreams().count());
    let content = html! {
        dl.small {
            dt { "attempts in flight" } dd { (integer(totals.in_flight)) }
            dt { "retries" } dd { (integer(totals.retries)) }
            dt { "hedges" } dd { (integer(totals.hedges)) " (" (integer(totals.hedges_won)) " won)" }
            dt { "calls no upstream answered" } dd { (problem_count(totals.failed)) }
        }
    };
    tile("Upstreams", &healthy.to_string(), &unit, &content)
}

fn clients_tile(status: &Status) -> Markup {
    let totals = &status.totals;
    let refused = totals.refused.iter().filter(|refused| refused.requests > 0);
    let by_status: Vec<String> = refused
        .map(|refused| format!("{}: {}", refused.status, integer(refused.requests)))
        .collect();
    let refused = totals.refused.iter().map(|refused| refused.requests).sum();
    let content = html! {
        dl.small {
            dt { "requests" } dd { (integer(totals.requests)) }
            dt { "of these batches" } dd { (integer(totals.batches)) }
            dt { "requests refused" }
            dd {
                (integer(refused))
                @if !by_status.is_empty() { " (" (by_status.join(", ")) ")" }
            }
            dt { "malformed calls" } dd { (integer(totals.calls_refused)) }
            dt { "connections refused" } dd { (integer(totals.connections_refused)) }
        }
    };
    tile("Clients", &integer(totals.connections_open), "connections", &content)
}

fn chain_section(chain: &ChainStatus, history: &History) -> Markup {
    let head = chain.head.as_ref();
    let reorgs = match chain.reorgs {
        0 => "none".to_owned(),
        count => format!("{}, deepest {}", integer(count), integer(chain.reorg_depth_max)),
    };
    let head_number = head.map(|head| integer(head.number)).or_else(|| {
        let last_head = chain.last_head.as_ref()?;
        let age = duration(last_head.seconds_ago);
        Some(format!("none; the last was {}, {age} ago", integer(last_head.number)))
    });
    let facts = [
        ("head", or_none(head_number)),
        (
            "hash",
            or_none(head.map(|head| html! { code title=(head.hash) { (short(&head.hash)) "…" } })),
        ),
        ("last change", or_none(chain.head_age_seconds.map(|age| duration(age) + " ago"))),
        ("finalized", or_none(chain.finalized.map(integer))),
        ("reorgs", or_none(Some(reorgs))),
    ];
    html! {
        section.sheet.chain {
            div.title { h2 { (chain.name) } span.soft { (chain.family) } }
            dl.facts {
                @for (name, value) in facts { div { dt { (name) } dd { (value) } } }
            }
            (upstreams_table(chain, history))
            p.small.soft {
                @for (index, group) in chain.groups.iter().enumerate() {
                    @if index > 0 { br; }
                    (group_line(group))
                }
            }
            (methods_table(&chain.methods))
        }
    }
}

fn table(title: &str, columns: &[&str], rows: &[Markup]) -> Markup {
    const LEFT: [&str; 2] = ["state", "mean latency, 2 min"];
    html! {
        h3 { (title) }
        div.scroll {
            table {
                thead {
                    tr {
                        @for column in columns {
                            th scope="col" class=[LEFT.contains(column).then_some("left")] {
                                (column)
                            }
                        }
                    }
                }
                tbody { @for row in rows { tr { (row) } } }
            }
        }
    }
}

fn upstreams_table(chain: &ChainStatus, history: &History) -> Markup {
    const COLUMNS: [&str; 12] = [
        "upstream",
        "state",
        "head",
        "behind",
        "in flight",
        "attempts",
        "failed",
        "rate limited",
        "ejections",
        "p50",
        "p99",
        "mean latency, 2 min",
    ];
    let row = |upstream: &UpstreamStatus| {
        upstream_row(upstream, &history.upstream_latency_ms(upstream.index))
    };
    table("Upstreams", &COLUMNS, &chain.upstreams.iter().map(row).collect::<Vec<_>>())
}

fn upstream_row(upstream: &UpstreamStatus, latency: &Series) -> Markup {
    let address = (upstream.address != upstream.name).then_some(&*upstream.address);
    // The default transport is not shown.
    let is_default = upstream.transports == ["http"];
    let transports = upstream.transports.iter().copied().filter(|_| !is_default);
    let details: Vec<&str> =
        address.into_iter().chain(transports).chain(upstream.backup.then_some("backup")).collect();
    let label = format!(
        "Mean latency of attempts at {} over the last two minutes: now {}, highest {}.",
        upstream.name,
        millis(latency.last().copied().flatten()),
        millis(Some(highest(latency))),
    );
    html! {
        th scope="row" {
            (upstream.name)
            @if !details.is_empty() { span.below.soft.small { (details.join(", ")) } }
        }
        td.left {
            span class={ "badge " (tone(upstream.state)) } { (upstream.state.as_str()) }
            @match upstream.state_ends_seconds {
                Some(remaining) if remaining <= 0.0 && upstream.state == HealthState::Ejected => {
                    " " span.soft.small { "probe due" }
                }
                Some(remaining) => { " " span.soft.small { "for " (duration(remaining)) } }
                None => {}
            }
            @if let Some(cordon) = &upstream.cordon {
                span.below {
                    span class="badge warn" { "cordoned" }
                    " " span.soft.small {
                        "for " (duration(cordon.ends_seconds))
                        @if let Some(reason) = &cordon.reason { ", " (reason) }
                    }
                }
            }
            @if upstream.head.is_some() && !upstream.consistent {
                span.below.soft.small { "branch not confirmed" }
            }
        }
        @for number in [upstream.head, upstream.lag] { td { (or_none(number.map(integer))) } }
        @for count in [upstream.in_flight, upstream.attempts] { td { (integer(count)) } }
        td { (problem_count(upstream.failed)) }
        td { (integer(upstream.rate_limited)) }
        td { (times(upstream.ejections)) }
        @for ms in [upstream.latency_p50_ms, upstream.latency_p99_ms] { td { (millis(ms)) } }
        td.left { (plot(&Plot { class: "spark", label: &label, line: latency, part: None })) }
    }
}

fn group_line(group: &GroupStatus) -> Markup {
    html! {
        "Group " (group.name) ", " (group.balance) ": " (group.candidates.join(", "))
        @if group.shed > 0 || group.queued > 0 {
            "; " (group.in_flight) " of " (group.in_flight_limit.unwrap_or_default())
            " calls in flight, " (integer(group.queued)) " queued, " (integer(group.shed)) " shed"
        }
    }
}

fn methods_table(methods: &[MethodStatus]) -> Markup {
    const COLUMNS: [&str; 10] = [
        "method",
        "calls",
        "hit",
        "coalesced",
        "miss",
        "bypass",
        "errors",
        "no response",
        "p50",
        "p99",
    ];
    if methods.is_empty() {
        return html! { p.soft { "No call yet." } };
    }
    let row = |method: &MethodStatus| {
        html! {
            th scope="row" { code { (method.name) } }
            @for count in [method.calls, method.hit, method.coalesced, method.miss, method.bypass, method.errors] {
                td { (integer(count)) }
            }
            td { (problem_count(method.failed)) }
            @for ms in [method.latency_p50_ms, method.latency_p99_ms] { td { (millis(ms)) } }
        }
    };
    table("Methods", &COLUMNS, &methods.iter().map(row).collect::<Vec<_>>())
}

/// Renders the keys with their quotas, and the request limits. Renders nothing if neither is
/// configured.
fn access_section(status: &Status) -> Markup {
    const KEY_COLUMNS: [&str; 3] = ["key", "calls", "used of this month's quota"];
    const ZONE_COLUMNS: [&str; 6] =
        ["zone", "keys held", "passed", "delayed", "refused", "judged by"];
    let key_row = |key: &KeyStatus| {
        html! {
            th scope="row" { (key.name) }
            td { (integer(key.calls)) }
            td {
                @if let Some(quota) = &key.quota {
                    span class=[(quota.used >= quota.units).then_some("loss")] { (integer(quota.used)) }
                    " of " (integer(quota.units))
                } @else {
                    (NONE)
                }
            }
        }
    };
    let zone_row = |zone: &ZoneStatus| {
        let judge = match zone.fallback_threads {
            None => "this gateway",
            Some(0) => "Redis",
            Some(_) => "this gateway's share: Redis does not answer",
        };
        html! {
            th scope="row" { (zone.name) }
            td { (integer(zone.keys)) " of " (integer(zone.keys_max)) }
            @for count in [zone.passed, zone.delayed, zone.rejected] { td { (integer(count)) } }
            td { (judge) }
        }
    };
    html! {
        @if !status.keys.is_empty() || !status.zones.is_empty() {
            section.sheet.chain {
                div.title { h2 { "Access" } }
                @if !status.keys.is_empty() {
                    (table("Keys", &KEY_COLUMNS, &status.keys.iter().map(key_row).collect::<Vec<_>>()))
                }
                @if !status.zones.is_empty() {
                    (table("Request limits", &ZONE_COLUMNS, &status.zones.iter().map(zone_row).collect::<Vec<_>>()))
                }
            }
        }
    }
}

fn or_none(value: Option<impl Render>) -> Markup {
    value.map_or_else(|| NONE.render(), |value| value.render())
}

fn tone(state: HealthState) -> &'static str {
    match state {
        HealthState::Healthy => "good",
        HealthState::Lagging | HealthState::Probing | HealthState::Paused => "warn",
        HealthState::Ejected | HealthState::Foreign => "bad",
    }
}

/// Returns the first digits of a hash. They suffice to compare two hashes by eye.
fn short(hash: &str) -> &str {
    hash.get(..12).unwrap_or(hash)
}

fn highest(series: &Series) -> f64 {
    series.iter().flatten().fold(0.0, |highest, value| highest.max(*value))
}

/// Renders a count that should be zero, highlighted if it is not.
fn problem_count(count: u64) -> Markup {
    html! {
        @if count == 0 { (integer(0)) } @else { span.loss { (integer(count)) } }
    }
}

fn times(count: u64) -> String {
    if count == 0 { "–".to_owned() } else { format!("{}×", integer(count)) }
}

/// Formats a whole number in groups of three digits.
fn integer(number: u64) -> String {
    let digits = number.to_string();
    let mut grouped = String::with_capacity(digits.len() * 2);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

fn decimal(number: f64) -> String {
    if number >= 10.0 || number == 0.0 {
        integer(number.round() as u64)
    } else {
        format!("{number:.1}")
    }
}

fn percent(ratio: f64) -> String {
    format!("{:.1}\u{202f}%", ratio * 100.0)
}

fn millis(ms: Option<f64>) -> String {
    match ms {
        None => "–".to_owned(),
        Some(ms) if ms >= 1000.0 => format!("{:.1}\u{202f}s", ms / 1000.0),
        Some(ms) if ms >= 10.0 => format!("{ms:.0}\u{202f}ms"),
        Some(ms) => format!("{ms:.2}\u{202f}ms"),
    }
}

fn bytes(number: u64) -> String {
    const UNITS: [&str; 4] = ["B", "KiB", "MiB", "GiB"];
    let mut amount = number as f64;
    let mut unit = 0;
    while amount >= 1024.0 && unit + 1 < UNITS.len() {
        amount /= 1024.0;
        unit += 1;
    }
    let digits = usize::from(unit > 0 && amount < 10.0);
    format!("{amount:.digits$}\u{202f}{}", UNITS[unit])
}

fn duration(seconds: f64) -> String {
    let whole_seconds = seconds as u64;
    let (days, hours, minutes) =
        (whole_seconds / 86_400, whole_seconds / 3600 % 24, whole_seconds / 60 % 60);
    match (days, hours, minutes) {
        (0, 0, 0) if seconds < 10.0 => format!("{seconds:.1}\u{202f}s"),
        (0, 0, 0) => format!("{whole_seconds}\u{202f}s"),
        (0, 0, minutes) => format!("{minutes} min {}\u{202f}s", whole_seconds % 60),
        (0, hours, minutes) => format!("{hours} h {minutes} min"),
        (days, hours, _) => format!("{days} d {hours} h"),
    }
}
