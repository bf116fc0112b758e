//! The status page: status and history as one self-contained HTML document.
//!
//! The gateway renders the page, so the page works without scripts. A script only updates the page
//! in place. The page contains no text from clients or upstreams, and names from the configuration
//! are escaped. The content security policy admits only the page's own style and script.
//! `page/style.css` styles the page, `page/draw.rs` draws lines and bars, and `page/format.rs`
//! formats numbers.
//!
//! In the macro `html!` (maud), `p.small { "text" }` is an element with a CSS class, and `(value)`
//! inserts an escaped value. `@if`, `@for`, `@let` and `@match` work as in Rust.

use maud::{DOCTYPE, Markup, PreEscaped, Render, html};

use super::history::{History, Series};
use super::status::{
    ChainStatus, GroupStatus, HealthStatus, KeyStatus, MethodStatus, RefusedMethodStatus, Status,
    UpstreamStatus, ZoneStatus,
};

mod draw;
mod format;

#[cfg(test)]
mod tests;

use draw::{Plot, draw_bar, draw_plot};
use format::{
    format_bytes, format_decimal, format_duration, format_integer, format_millis, format_percent,
    format_times,
};

/// The style sheet of the page.
pub(super) const STYLE: &str = include_str!("page/style.css");
/// The script that updates the page in place.
pub(super) const SCRIPT: &str = include_str!("page/live.js");

/// The text shown for an unknown value.
const NONE: &str = "–";

/// Returns the content security policy of the page. `nonce` marks the style and the script.
pub(crate) fn content_security_policy(nonce: &str) -> String {
    format!(
        "default-src 'none'; style-src 'nonce-{nonce}'; script-src 'nonce-{nonce}'; \
         connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
}

/// Renders the page. `unready` holds the reasons why the gateway is not ready; empty if it is
/// ready.
pub(crate) fn render_page(
    status: &Status,
    history: &History,
    unready: &[String],
    nonce: &str,
) -> String {
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
                    (render_readiness(status, unready))
                    div.tiles {
                        (render_calls_tile(status, history))
                        (render_cache_tile(status))
                        (render_upstreams_tile(status))
                        (render_clients_tile(status))
                    }
                    @for chain in &status.chains { (render_chain(chain, history)) }
                    (render_access(status))
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

fn render_readiness(status: &Status, unready: &[String]) -> Markup {
    html! {
        p {
            @if unready.is_empty() {
                span.badge.good { "ready" } " "
            } @else {
                span.badge.bad { "not ready" } " " (unready.join("; ")) " "
            }
            span.soft { "up for " (format_duration(status.uptime_seconds)) }
        }
    }
}

/// Renders a tile of the overview: a title, one large value with its unit, and further content.
fn render_tile(title: &str, value: &str, unit: &str, content: &Markup) -> Markup {
    html! {
        section.sheet.tile {
            h2 { (title) }
            p.big { (value) " " small { (unit) } }
            (content)
        }
    }
}

fn render_calls_tile(status: &Status, history: &History) -> Markup {
    let (calls, spared) = (history.calls_per_second(), history.spared_per_second());
    let now = calls.last().copied().flatten();
    let highest_rate = format_decimal(find_highest(&calls));
    let label = format!(
        "Calls per second over the last two minutes: now {}, highest {highest_rate}. The green part was \
         answered without an upstream.",
        format_decimal(now.unwrap_or_default()),
    );
    let value = now.map_or_else(|| NONE.to_owned(), format_decimal);
    let chart =
        draw_plot(&Plot { class: "plot", label: &label, line: &calls, part: Some(&spared) });
    let total = format_integer(status.totals.calls);
    let content = html! {
        (chart)
        p.small.soft { "highest " (highest_rate) "; " (total) " calls in all; green: without an upstream" }
    };
    render_tile("Calls", &value, "per second", &content)
}

fn render_cache_tile(status: &Status) -> Markup {
    let cache = &status.cache;
    let ratio = cache.hit_ratio.map_or_else(|| NONE.to_owned(), format_percent);
    let unit = if cache.enabled { "hits" } else { "hits (cache is off)" };
    let parts = [
        ("hit", cache.hits),
        ("coalesced", cache.coalesced),
        ("miss", cache.misses),
        ("bypass", cache.bypasses),
    ];
    let label = parts.map(|(word, count)| format!("{word} {}", format_integer(count))).join(", ");
    let content = html! {
        (draw_bar(&format!("Calls by cache: {label}"), &parts))
        ul.legend.small {
            @for (word, count) in parts {
                li {
                    svg.key viewBox="0 0 1 1" aria-hidden="true" {
                        rect class=(word) width="1" height="1" {}
                    }
                    (word) " " (format_integer(count))
                }
            }
        }
        p.small.soft {
            (format_integer(cache.entries)) " entries, "
            (format_bytes(cache.bytes)) " of " (format_bytes(cache.bytes_max))
        }
        @if let Some(redis) = &status.redis {
            p.small.soft {
                "Redis " (redis.url) ": " (format_integer(redis.hits)) " hits, "
                (format_integer(redis.misses)) " misses, "
                (render_problem_count(redis.failed)) " failed"
                @if redis.breakers_open > 0 { " " span.badge.bad { "not reachable" } }
            }
        }
        @if let Some(index) = &status.index {
            p.small.soft {
                "index " (index.db) ": " (format_integer(index.hits)) " hits, "
                (format_integer(index.parts)) " parts, " (format_integer(index.misses)) " misses, "
                (render_problem_count(index.failed)) " failed"
            }
        }
    };
    render_tile("Cache", &ratio, unit, &content)
}

fn render_upstreams_tile(status: &Status) -> Markup {
    let upstreams = || status.chains.iter().flat_map(|chain| &chain.upstreams);
    let healthy = upstreams().filter(|upstream| upstream.state == HealthStatus::Healthy).count();
    let totals = &status.totals;
    let unit = format!("of {} healthy", upstreams().count());
    let content = html! {
        dl.small {
            dt { "attempts in flight" } dd { (format_integer(totals.in_flight)) }
            dt { "retries" } dd { (format_integer(totals.retries)) }
            dt { "hedges" }
            dd { (format_integer(totals.hedges)) " (" (format_integer(totals.hedges_won)) " won)" }
            dt { "calls no upstream answered" } dd { (render_problem_count(totals.failed)) }
        }
    };
    render_tile("Upstreams", &healthy.to_string(), &unit, &content)
}

fn render_clients_tile(status: &Status) -> Markup {
    let totals = &status.totals;
    let refused = totals.refused.iter().filter(|refused| refused.requests > 0);
    let by_status: Vec<String> = refused
        .map(|refused| format!("{}: {}", refused.status, format_integer(refused.requests)))
        .collect();
    let refused = totals.refused.iter().map(|refused| refused.requests).sum();
    let content = html! {
        dl.small {
            dt { "requests" } dd { (format_integer(totals.requests)) }
            dt { "of these batches" } dd { (format_integer(totals.batches)) }
            dt { "requests refused" }
            dd {
                (format_integer(refused))
                @if !by_status.is_empty() { " (" (by_status.join(", ")) ")" }
            }
            dt { "malformed calls" } dd { (format_integer(totals.calls_refused)) }
            dt { "connections refused" } dd { (format_integer(totals.connections_refused)) }
        }
    };
    render_tile("Clients", &format_integer(totals.connections_open), "connections", &content)
}

fn render_chain(chain: &ChainStatus, history: &History) -> Markup {
    let head = chain.head.as_ref();
    let reorgs = match chain.reorgs {
        0 => "none".to_owned(),
        count => {
            format!("{}, deepest {}", format_integer(count), format_integer(chain.reorg_depth_max))
        }
    };
    let head_number = head.map(|head| format_integer(head.number)).or_else(|| {
        let last_head = chain.last_head.as_ref()?;
        let age = format_duration(last_head.seconds_ago);
        Some(format!("none; the last was {}, {age} ago", format_integer(last_head.number)))
    });
    let head_hash =
        head.map(|head| html! { code title=(head.hash) { (shorten_hash(&head.hash)) "…" } });
    let last_change = chain.head_age_seconds.map(|age| format_duration(age) + " ago");
    let stall = chain.head_stall.as_ref().map(|stall| {
        let number = format_integer(stall.number);
        format!("; stands still: {} reports {number}, but {}", stall.upstream, stall.reason)
    });
    let last_change = last_change.map(|change| change + &stall.unwrap_or_default());
    let facts = [
        ("head", render_or_none(head_number)),
        ("hash", render_or_none(head_hash)),
        ("last change", render_or_none(last_change)),
        ("finalized", render_or_none(chain.finalized.map(format_integer))),
        ("reorgs", render_or_none(Some(reorgs))),
    ];
    html! {
        section.sheet.chain {
            div.title { h2 { (chain.name) } span.soft { (chain.family) } }
            dl.facts {
                @for (name, value) in facts { div { dt { (name) } dd { (value) } } }
            }
            (render_upstreams(chain, history))
            p.small.soft {
                @for (index, group) in chain.groups.iter().enumerate() {
                    @if index > 0 { br; }
                    (render_group(group))
                }
            }
            (render_methods(&chain.methods))
        }
    }
}

/// Renders a table with a title. Each row contains its complete cells.
fn render_table(title: &str, columns: &[&str], rows: &[Markup]) -> Markup {
    // The columns whose cells are aligned to the left.
    const LEFT: [&str; 3] = ["state", "mean latency, 2 min", "refused by"];
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

fn render_upstreams(chain: &ChainStatus, history: &History) -> Markup {
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
        render_upstream(upstream, &history.upstream_latency_ms(upstream.index))
    };
    render_table("Upstreams", &COLUMNS, &chain.upstreams.iter().map(row).collect::<Vec<_>>())
}

/// Renders the row of an upstream. `latency` is its mean latency per interval.
fn render_upstream(upstream: &UpstreamStatus, latency: &Series) -> Markup {
    let address = (upstream.address != upstream.name).then_some(&*upstream.address);
    // The default transport is not shown.
    let is_default = upstream.transports == ["http"];
    let transports = upstream.transports.iter().copied().filter(|_| !is_default);
    let details = address.into_iter().chain(transports).chain(upstream.backup.then_some("backup"));
    let limits = upstream.history.iter();
    let limits =
        limits.map(|limit| format!("{} of {} blocks", limit.data, format_integer(limit.blocks)));
    let log_range = upstream.log_range_blocks_max;
    let log_range = log_range.map(|blocks| format!("logs of {} at a time", format_integer(blocks)));
    let details = details.map(str::to_owned).chain(limits).chain(log_range);
    let details: Vec<String> = details.collect();
    let label = format!(
        "Mean latency of attempts at {} over the last two minutes: now {}, highest {}.",
        upstream.name,
        format_millis(latency.last().copied().flatten()),
        format_millis(Some(find_highest(latency))),
    );
    html! {
        th scope="row" {
            (upstream.name)
            @if !details.is_empty() { span.below.soft.small { (details.join(", ")) } }
        }
        td.left {
            span class={ "badge " (badge_class(upstream.state)) } { (upstream.state.as_str()) }
            @match upstream.state_ends_seconds {
                Some(remaining) if remaining <= 0.0 && upstream.state == HealthStatus::Ejected => {
                    " " span.soft.small { "probe due" }
                }
                Some(remaining) => { " " span.soft.small { "for " (format_duration(remaining)) } }
                None => {}
            }
            @if let Some(cordon) = &upstream.cordon {
                span.below {
                    span class="badge warn" { "cordoned" }
                    " " span.soft.small {
                        "for " (format_duration(cordon.ends_seconds))
                        @if let Some(reason) = &cordon.reason { ", " (reason) }
                    }
                }
            }
            @if let Some(fault) = &upstream.fault {
                span.below.small {
                    (fault.reason) ", since " (format_duration(fault.since_seconds))
                }
            } @else if upstream.head.is_some() && !upstream.consistent {
                span.below.soft.small { "branch not confirmed" }
            }
        }
        @for number in [upstream.head, upstream.lag] {
            td { (render_or_none(number.map(format_integer))) }
        }
        @for count in [upstream.in_flight, upstream.attempts] { td { (format_integer(count)) } }
        td { (render_problem_count(upstream.failed)) }
        td { (format_integer(upstream.rate_limited)) }
        td { (format_times(upstream.ejections)) }
        @for ms in [upstream.latency_p50_ms, upstream.latency_p99_ms] { td { (format_millis(ms)) } }
        td.left { (draw_plot(&Plot { class: "spark", label: &label, line: latency, part: None })) }
    }
}

/// Renders a line about a group. It mentions the queue only if calls were queued or shed.
fn render_group(group: &GroupStatus) -> Markup {
    html! {
        "Group " (group.name) ", " (group.balance) ": " (group.candidates.join(", "))
        @if group.shed > 0 || group.queued > 0 {
            "; " (group.in_flight) " of " (group.in_flight_limit.unwrap_or_default())
            " calls in flight, " (format_integer(group.queued)) " queued, "
            (format_integer(group.shed)) " shed"
        }
    }
}

fn render_methods(methods: &[MethodStatus]) -> Markup {
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
                td { (format_integer(count)) }
            }
            td { (render_problem_count(method.failed)) }
            @for ms in [method.latency_p50_ms, method.latency_p99_ms] { td { (format_millis(ms)) } }
        }
    };
    render_table("Methods", &COLUMNS, &methods.iter().map(row).collect::<Vec<_>>())
}

/// Renders the keys with their quotas, the request limits and the refused methods. Renders nothing
/// if there is none of them.
fn render_access(status: &Status) -> Markup {
    const KEY_COLUMNS: [&str; 3] = ["key", "calls", "used of this month's quota"];
    const ZONE_COLUMNS: [&str; 6] =
        ["zone", "keys held", "passed", "delayed", "refused", "judged by"];
    const REFUSED_COLUMNS: [&str; 3] = ["method", "refused by", "calls"];
    let key_row = |key: &KeyStatus| {
        html! {
            th scope="row" { (key.name) }
            td { (format_integer(key.calls)) }
            td {
                @if let Some(quota) = &key.quota {
                    span class=[(quota.used >= quota.units).then_some("loss")] {
                        (format_integer(quota.used))
                    }
                    " of " (format_integer(quota.units))
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
            td { (format_integer(zone.keys)) " of " (format_integer(zone.keys_max)) }
            @for count in [zone.passed, zone.delayed, zone.rejected] {
                td { (format_integer(count)) }
            }
            td { (judge) }
        }
    };
    let refused_row = |refused: &RefusedMethodStatus| {
        html! {
            th scope="row" { code { (refused.method) } }
            td.left { (refused.refused_by) }
            td { (format_integer(refused.calls)) }
        }
    };
    let refused = &status.refused_methods;
    html! {
        @if !status.keys.is_empty() || !status.zones.is_empty() || !refused.is_empty() {
            section.sheet.chain {
                div.title { h2 { "Access" } }
                @if !status.keys.is_empty() {
                    @let rows: Vec<_> = status.keys.iter().map(key_row).collect();
                    (render_table("Keys", &KEY_COLUMNS, &rows))
                }
                @if !status.zones.is_empty() {
                    @let rows: Vec<_> = status.zones.iter().map(zone_row).collect();
                    (render_table("Request limits", &ZONE_COLUMNS, &rows))
                }
                @if !refused.is_empty() {
                    @let rows: Vec<_> = refused.iter().map(refused_row).collect();
                    (render_table("Refused methods", &REFUSED_COLUMNS, &rows))
                }
            }
        }
    }
}

fn render_or_none(value: Option<impl Render>) -> Markup {
    value.map_or_else(|| NONE.render(), |value| value.render())
}

/// Returns the CSS class that colours the state of an upstream.
fn badge_class(state: HealthStatus) -> &'static str {
    match state {
        HealthStatus::Healthy => "good",
        HealthStatus::Lagging | HealthStatus::Probing | HealthStatus::Paused => "warn",
        HealthStatus::Ejected | HealthStatus::Foreign => "bad",
    }
}

/// Returns the first digits of a hash. They suffice to compare two hashes by eye.
fn shorten_hash(hash: &str) -> &str {
    hash.get(..12).unwrap_or(hash)
}

fn find_highest(series: &Series) -> f64 {
    series.iter().flatten().fold(0.0, |highest, value| highest.max(*value))
}

/// Renders a count of problems. Highlights the count if it is not zero.
fn render_problem_count(count: u64) -> Markup {
    html! {
        @if count == 0 { (format_integer(0)) } @else { span.loss { (format_integer(count)) } }
    }
}
