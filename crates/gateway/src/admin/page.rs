//! The status page: status and history as one self-contained HTML document.
//!
//! Drawn by the server, so that it works without scripts; with them it renews itself in place. No
//! text of a client or a node is on it, and names from the configuration are escaped all the same.
//! The content security policy admits only this page's own style and script. What is shown is
//! decided here; how it looks is `page/style.css`; lines and bars are `page/draw.rs`.

use std::fmt::{self, Display, Write};

use super::history::{History, Line};
use super::status::{ChainStatus, MemoryCache, MethodStatus, NodeState, NodeStatus, Status};

mod draw;

#[cfg(test)]
mod tests;

use draw::{Plot, bar, plot};

pub(super) const STYLE: &str = include_str!("page/style.css");
pub(super) const SCRIPT: &str = include_str!("page/live.js");

/// The policy that goes with a page made with this nonce.
pub(crate) fn policy(nonce: &str) -> String {
    format!(
        "default-src 'none'; style-src 'nonce-{nonce}'; script-src 'nonce-{nonce}'; \
         connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
}

/// The page. `unready` says why the gateway should get no traffic; empty when it should.
pub(crate) fn html(status: &Status, history: &History, unready: &[String], nonce: &str) -> String {
    let mut out = String::with_capacity(32 * 1024);
    let _ = write!(
        out,
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>Weir</title>\n<noscript><meta http-equiv=\"refresh\" content=\"2\"></noscript>\n\
         <style nonce=\"{nonce}\">{STYLE}</style>\n</head>\n<body>\n\
         <header><h1>Weir</h1><span class=\"soft\">version {}</span>\
         <span id=\"live\" class=\"soft small\" role=\"status\">renewed every 2 s</span></header>\n\
         <main>\n",
        Escaped(status.version),
    );
    readiness(&mut out, status, unready);
    tiles(&mut out, status, history);
    for chain in &status.chains {
        chain_section(&mut out, chain, history);
    }
    let _ = write!(
        out,
        "</main>\n<footer class=\"soft small\">Counts are since the start, lines show the last two \
         minutes. The same as <a href=\"/status\">JSON</a> and as <a href=\"/metrics\">metrics</a>.\
         </footer>\n<script nonce=\"{nonce}\">{SCRIPT}</script>\n</body>\n</html>\n",
    );
    out
}

/// Text between tags or in a quoted attribute, with the five characters that mean something there
/// replaced.
pub(super) struct Escaped<T>(pub(super) T);

impl<T: Display> Display for Escaped<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(Escaping(f), "{}", self.0)
    }
}

struct Escaping<'a, 'b>(&'a mut fmt::Formatter<'b>);

impl Write for Escaping<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for part in text.split_inclusive(['&', '<', '>', '"', '\'']) {
            let (plain, special) = match part.as_bytes().last() {
                Some(b'&') => (&part[..part.len() - 1], "&amp;"),
                Some(b'<') => (&part[..part.len() - 1], "&lt;"),
                Some(b'>') => (&part[..part.len() - 1], "&gt;"),
                Some(b'"') => (&part[..part.len() - 1], "&quot;"),
                Some(b'\'') => (&part[..part.len() - 1], "&#39;"),
                _ => (part, ""),
            };
            self.0.write_str(plain)?;
            self.0.write_str(special)?;
        }
        Ok(())
    }
}

fn readiness(out: &mut String, status: &Status, unready: &[String]) {
    let up = length(status.uptime_seconds);
    if unready.is_empty() {
        let _ = writeln!(
            out,
            "<p><span class=\"badge good\">ready</span> <span class=\"soft\">up for {up}</span></p>"
        );
        return;
    }
    let _ = writeln!(
        out,
        "<p><span class=\"badge bad\">not ready</span> {} \
         <span class=\"soft\">up for {up}</span></p>",
        Escaped(unready.join("; ")),
    );
}

fn tiles(out: &mut String, status: &Status, history: &History) {
    out.push_str("<div class=\"tiles\">\n");
    calls_tile(out, status, history);
    cache_tile(out, &status.cache);
    nodes_tile(out, status);
    clients_tile(out, status);
    out.push_str("</div>\n");
}

fn calls_tile(out: &mut String, status: &Status, history: &History) {
    let (calls, spared) = (history.calls_per_second(), history.spared_per_second());
    let now = calls.last().copied().flatten();
    let top = highest(&calls);
    let _ = write!(
        out,
        "<section class=\"sheet tile\"><h2>Calls</h2><p class=\"big\">{} <small>per second</small></p>",
        now.map_or_else(|| "–".to_owned(), real),
    );
    let label = format!(
        "Calls per second over the last two minutes: now {}, highest {}. The green part was \
         answered without asking a node.",
        real(now.unwrap_or_default()),
        real(top),
    );
    plot(out, &Plot { class: "plot", label: &label, line: &calls, part: Some(&spared) });
    let _ = writeln!(
        out,
        "<p class=\"small soft\">highest {}; {} calls in all; green: without asking a node</p>\
         </section>",
        real(top),
        whole(status.totals.calls),
    );
}

fn cache_tile(out: &mut String, cache: &MemoryCache) {
    let ratio = cache.hit_ratio.map_or_else(|| "–".to_owned(), percent);
    let _ = write!(
        out,
        "<section class=\"sheet tile\"><h2>Cache</h2><p class=\"big\">{ratio} \
         <small>hits{}</small></p>",
        if cache.enabled { "" } else { " (cache is off)" },
    );
    let marks = [
        ("hit", "hit", cache.hits),
        ("join", "join", cache.joins),
        ("miss", "miss", cache.misses),
        ("bypass", "bypass", cache.bypasses),
    ];
    let label = marks.map(|(_, word, count)| format!("{word} {}", whole(count))).join(", ");
    bar(out, &format!("Calls by cache: {label}"), &marks.map(|(class, _, count)| (class, count)));
    out.push_str("<ul class=\"legend small\">");
    for (class, word, count) in marks {
        let _ = write!(
            out,
            "<li><svg class=\"key\" viewBox=\"0 0 1 1\" aria-hidden=\"true\"><rect \
             class=\"{class}\" width=\"1\" height=\"1\"/></svg>{word} {}</li>",
            whole(count),
        );
    }
    let _ = writeln!(
        out,
        "</ul><p class=\"small soft\">{} entries, {} of {}</p></section>",
        whole(cache.entries),
        bytes(cache.bytes),
        bytes(cache.bytes_max),
    );
}

fn nodes_tile(out: &mut String, status: &Status) {
    let nodes = || status.chains.iter().flat_map(|chain| &chain.nodes);
    let healthy = nodes().filter(|node| node.state == NodeState::Healthy).count();
    let totals = &status.totals;
    let _ = write!(
        out,
        "<section class=\"sheet tile\"><h2>Nodes</h2><p class=\"big\">{healthy} \
         <small>of {} healthy</small></p>",
        nodes().count(),
    );
    facts_list(
        out,
        &[
            ("attempts under way", whole(totals.in_flight)),
            ("retries", whole(totals.retries)),
            ("hedges", format!("{} ({} won)", whole(totals.hedges), whole(totals.hedges_won))),
            ("calls no node answered", loss(totals.failed)),
        ],
    );
    out.push_str("</section>\n");
}

fn clients_tile(out: &mut String, status: &Status) {
    let totals = &status.totals;
    let refused: u64 = totals.refused.iter().map(|refused| refused.requests).sum();
    let by_status: Vec<String> = totals
        .refused
        .iter()
        .filter(|refused| refused.requests > 0)
        .map(|refused| format!("{}: {}", refused.status, whole(refused.requests)))
        .collect();
    let refused = if by_status.is_empty() {
        whole(refused)
    } else {
        format!("{} ({})", whole(refused), by_status.join(", "))
    };
    let _ = write!(
        out,
        "<section class=\"sheet tile\"><h2>Clients</h2><p class=\"big\">{} \
         <small>connections</small></p>",
        whole(totals.connections_open),
    );
    facts_list(
        out,
        &[
            ("requests", whole(totals.requests)),
            ("of these batches", whole(totals.batches)),
            ("requests refused", refused),
            ("malformed calls", whole(totals.calls_refused)),
            ("connections refused", whole(totals.connections_refused)),
        ],
    );
    out.push_str("</section>\n");
}

fn facts_list(out: &mut String, facts: &[(&str, String)]) {
    out.push_str("<dl class=\"small\">");
    for (name, value) in facts {
        let _ = write!(out, "<dt>{name}</dt><dd>{value}</dd>");
    }
    out.push_str("</dl>");
}

fn chain_section(out: &mut String, chain: &ChainStatus, history: &History) {
    let _ = write!(
        out,
        "<section class=\"sheet chain\">\n<div class=\"title\"><h2>{}</h2>\
         <span class=\"soft\">{}</span></div>\n<dl class=\"facts\">",
        Escaped(&chain.name),
        chain.family,
    );
    let none = || "–".to_owned();
    let head = chain.head.as_ref().map_or_else(none, |head| whole(head.number));
    let hash = chain.head.as_ref().map_or_else(none, |head| {
        format!("<code title=\"{0}\">{1}…</code>", Escaped(&head.hash), Escaped(short(&head.hash)))
    });
    let reorgs = match chain.reorgs {
        0 => "none".to_owned(),
        some => format!("{}, deepest {}", whole(some), whole(chain.reorg_depth_max)),
    };
    let facts = [
        ("head", head),
        ("hash", hash),
        (
            "last change",
            chain.head_age_seconds.map_or_else(none, |age| format!("{} ago", length(age))),
        ),
        ("finalized", chain.finalized.map_or_else(none, whole)),
        ("reorgs", reorgs),
    ];
    for (name, value) in facts {
        let _ = write!(out, "<div><dt>{name}</dt><dd>{value}</dd></div>");
    }
    out.push_str("</dl>\n");
    nodes_table(out, chain, history);
    groups_list(out, chain);
    methods_table(out, &chain.methods);
    out.push_str("</section>\n");
}

fn nodes_table(out: &mut String, chain: &ChainStatus, history: &History) {
    out.push_str(
        "<h3>Nodes</h3>\n<div class=\"scroll\"><table>\n<thead><tr><th scope=\"col\">node</th>\
         <th scope=\"col\" class=\"left\">state</th><th scope=\"col\">head</th>\
         <th scope=\"col\">behind</th><th scope=\"col\">under way</th>\
         <th scope=\"col\">attempts</th><th scope=\"col\">failed</th>\
         <th scope=\"col\">rate limited</th><th scope=\"col\">taken out</th>\
         <th scope=\"col\">p50</th><th scope=\"col\">p99</th>\
         <th scope=\"col\" class=\"left\">mean latency, 2 min</th></tr></thead>\n<tbody>\n",
    );
    for node in &chain.nodes {
        node_row(out, node, &history.node_latency_ms(node.index));
    }
    out.push_str("</tbody>\n</table></div>\n");
}

fn node_row(out: &mut String, node: &NodeStatus, latency: &Line) {
    let _ = write!(out, "<tr><th scope=\"row\">{}", Escaped(&node.name));
    let place = (node.place != node.name).then_some(&*node.place);
    // What is as usual needs no word.
    let is_usual = node.transports == ["http"];
    let ways = node.transports.iter().copied().filter(|_| !is_usual);
    let below: Vec<&str> =
        place.into_iter().chain(ways).chain(node.backup.then_some("backup")).collect();
    if !below.is_empty() {
        let _ =
            write!(out, "<span class=\"below soft small\">{}</span>", Escaped(below.join(", ")));
    }
    let ends = node.state_ends_seconds.map_or_else(String::new, |left| match node.state {
        NodeState::Ejected if left <= 0.0 => {
            " <span class=\"soft small\">probe due</span>".to_owned()
        }
        _ => format!(" <span class=\"soft small\">for {}</span>", length(left)),
    });
    let behind = node.lag.map_or_else(|| "–".to_owned(), whole);
    let branch = if node.head.is_some() && !node.consistent {
        "<span class=\"below soft small\">branch not confirmed</span>"
    } else {
        ""
    };
    let _ = write!(
        out,
        "</th><td class=\"left\"><span class=\"badge {}\">{}</span>{ends}{branch}</td><td>{}</td>\
         <td>{behind}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td>\
         <td>{}</td><td class=\"left\">",
        tone(node.state),
        node.state.as_str(),
        node.head.map_or_else(|| "–".to_owned(), whole),
        whole(node.in_flight),
        whole(node.attempts),
        loss(node.failed),
        whole(node.rate_limited),
        times(node.ejections),
        millis(node.latency_p50_ms),
        millis(node.latency_p99_ms),
    );
    let label = format!(
        "Mean latency of attempts at {} over the last two minutes: now {}, highest {}.",
        node.name,
        millis(latency.last().copied().flatten()),
        millis(Some(highest(latency))),
    );
    plot(out, &Plot { class: "spark", label: &label, line: latency, part: None });
    out.push_str("</td></tr>\n");
}

fn groups_list(out: &mut String, chain: &ChainStatus) {
    out.push_str("<p class=\"small soft\">");
    for (at, group) in chain.groups.iter().enumerate() {
        let _ = write!(
            out,
            "{}Group {}, {}: {}",
            if at == 0 { "" } else { "<br>" },
            Escaped(&group.name),
            Escaped(&group.balance),
            Escaped(group.candidates.join(", ")),
        );
        if group.shed > 0 || group.queued > 0 {
            let limit = group.in_flight_limit.unwrap_or_default();
            let _ = write!(
                out,
                "; {} of {} places in use, {} calls wait, {} were told to come back later",
                group.in_flight,
                limit,
                whole(group.queued),
                whole(group.shed),
            );
        }
    }
    out.push_str("</p>\n");
}

fn methods_table(out: &mut String, methods: &[MethodStatus]) {
    if methods.is_empty() {
        out.push_str("<p class=\"soft\">No call yet.</p>\n");
        return;
    }
    out.push_str(
        "<h3>Methods</h3>\n<div class=\"scroll\"><table>\n<thead><tr><th scope=\"col\">method</th>\
         <th scope=\"col\">calls</th><th scope=\"col\">hit</th><th scope=\"col\">join</th>\
         <th scope=\"col\">miss</th><th scope=\"col\">bypass</th><th scope=\"col\">errors</th>\
         <th scope=\"col\">no answer</th><th scope=\"col\">p50</th><th scope=\"col\">p99</th>\
         </tr></thead>\n<tbody>\n",
    );
    for method in methods {
        let _ = writeln!(
            out,
            "<tr><th scope=\"row\"><code>{}</code></th><td>{}</td><td>{}</td><td>{}</td>\
             <td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>",
            Escaped(&method.name),
            whole(method.calls),
            whole(method.hit),
            whole(method.join),
            whole(method.miss),
            whole(method.bypass),
            whole(method.errors),
            loss(method.failed),
            millis(method.latency_p50_ms),
            millis(method.latency_p99_ms),
        );
    }
    out.push_str("</tbody>\n</table></div>\n");
}

fn tone(state: NodeState) -> &'static str {
    match state {
        NodeState::Healthy => "good",
        NodeState::Lagging | NodeState::Probing | NodeState::Paused => "warn",
        NodeState::Ejected | NodeState::Foreign => "bad",
    }
}

/// The first digits of a hash, enough to tell two apart by eye.
fn short(hash: &str) -> &str {
    hash.get(..12).unwrap_or(hash)
}

fn highest(line: &Line) -> f64 {
    line.iter().flatten().fold(0.0, |top, value| top.max(*value))
}

/// A count that should be zero, marked where it is not.
fn loss(count: u64) -> String {
    if count == 0 { whole(0) } else { format!("<span class=\"loss\">{}</span>", whole(count)) }
}

fn times(count: u64) -> String {
    if count == 0 { "–".to_owned() } else { format!("{}×", whole(count)) }
}

/// A whole number in groups of three digits.
fn whole(number: u64) -> String {
    let digits = number.to_string();
    let mut grouped = String::with_capacity(digits.len() * 2);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

fn real(number: f64) -> String {
    if number >= 10.0 || number == 0.0 {
        whole(number.round() as u64)
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

fn length(seconds: f64) -> String {
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
