//! Goal: the page shows every chain, upstream and method, escapes every name, and loads nothing
//! from other servers.

use std::time::Duration;

use super::draw::{Plot, draw_bar, draw_plot};
use super::{
    content_security_policy, format_bytes, format_duration, format_integer, format_millis,
    render_page,
};
use crate::admin::history::History;
use crate::admin::status::tests::populated;
use crate::admin::status::{LastHeadStatus, Status};
use crate::metrics::thread::Counters;

fn page(change: impl FnOnce(&mut Status)) -> String {
    let snapshot = populated();
    let mut status = Status::of(&snapshot);
    change(&mut status);
    let mut history = History::default();
    history.take_sample(Duration::ZERO, 1, &Counters::default());
    history.take_sample(Duration::from_secs(1), 1, &Counters::sum(&snapshot.counters));
    render_page(&status, &history, &status.unready_reasons(), "n0")
}

/// Returns an error if a tag is not closed, or is closed in the wrong order.
fn check_tags(html: &str) -> Result<(), String> {
    const VOID: [&str; 3] = ["meta", "br", "!DOCTYPE"];
    let mut open: Vec<&str> = Vec::new();
    let mut remaining = html;
    while let Some(start) = remaining.find('<') {
        let end = start + remaining[start..].find('>').ok_or("a tag does not end")?;
        let tag = &remaining[start + 1..end];
        remaining = &remaining[end + 1..];
        let name = tag.trim_start_matches('/').split([' ', '/', '\n']).next().unwrap_or_default();
        if tag.starts_with('/') {
            match open.pop() {
                Some(opened) if opened == name => {}
                opened => return Err(format!("</{name}> closes {opened:?}")),
            }
        } else if !tag.ends_with('/') && !VOID.contains(&name) {
            open.push(name);
            if name == "style" || name == "script" {
                remaining =
                    &remaining[remaining.find(&format!("</{name}>")).ok_or("it never ends")?..];
            }
        }
    }
    if open.is_empty() { Ok(()) } else { Err(format!("left open: {open:?}")) }
}

#[test]
fn it_shows_every_chain_upstream_and_method() {
    let page = page(|_| {});
    for text in ["main", "side", "first", "second", "third", "eth_call", "22,431,084"] {
        assert!(page.contains(text), "{text} is not shown");
    }
    assert!(page.contains("<span class=\"badge bad\">ejected</span>"));
    assert!(page.contains("not ready</span> chain side: no usable upstream (1 foreign);"));
    assert!(page.contains("60.0\u{202f}%"), "the hit ratio is shown");
    check_tags(&page).unwrap();
    assert!(check_tags("<p><b></p></b>").is_err() && check_tags("<p>").is_err());
}

#[test]
fn the_last_head_is_shown_during_an_outage() {
    let page = page(|status| {
        status.chains[0].head = None;
        status.chains[0].last_head =
            Some(LastHeadStatus { number: 1234, hash: "0xab".to_owned(), seconds_ago: 7.0 });
    });
    assert!(page.contains("none; the last was 1,234, 7.0\u{202f}s ago"));
}

#[test]
fn names_are_escaped() {
    let name = "<img src=x onerror=alert(1)>\"'&";
    let page = page(|status| {
        status.chains[0].name = name.to_owned();
        status.chains[0].upstreams[0].name = name.to_owned();
        status.chains[0].upstreams[0].address = name.to_owned();
        status.chains[0].methods[0].name = name.to_owned();
        status.chains[0].groups[0].name = name.to_owned();
        status.chains[0].groups[0].candidates = vec![name.to_owned()];
    });
    assert!(!page.contains("<img"), "a name became a tag");
    assert!(!page.contains("alert(1)>"), "a name could end a tag");
    assert!(page.contains("&lt;img src=x onerror=alert(1)&gt;&quot;'&amp;"));
    check_tags(&page).unwrap();
}

#[test]
fn nothing_is_loaded_from_other_servers() {
    let page = page(|_| {});
    assert!(!page.contains("http://") && !page.contains("https://"), "something is fetched");
    assert!(!page.contains(" style=\""), "the policy forbids style attributes");
    assert!(page.contains("<style nonce=\"n0\">") && page.contains("<script nonce=\"n0\">"));
    assert!(content_security_policy("n0").contains("default-src 'none'"));
    assert!(!page.contains("sekrit"), "a secret is shown");
}

#[test]
fn lines_break_where_nothing_was_measured() {
    let line = vec![Some(1.0), Some(2.0), None, Some(4.0)];
    let out = draw_plot(&Plot { class: "spark", label: "a \"line\"", line: &line, part: None })
        .into_string();
    assert_eq!(out.matches("class=\"stroke\"").count(), 2);
    assert!(out.contains("aria-label=\"a &quot;line&quot;\""));
    assert!(out.contains("M119.0 2.0L119.9 2.0"), "the newest is at the right, at the top: {out}");
    let line = vec![Some(0.0)];
    let out = draw_plot(&Plot { class: "spark", label: "", line: &line, part: None }).into_string();
    assert!(!out.contains("NaN"), "all zero is a flat line: {out}");
}

#[test]
fn bars_are_divided_by_amount() {
    let out = draw_bar("x", &[("hit", 3), ("miss", 1)]).into_string();
    assert!(out.contains("class=\"hit\" x=\"0.000\" width=\"75.000\""), "{out}");
    assert!(out.contains("class=\"miss\" x=\"75.000\" width=\"25.000\""), "{out}");
    let out = draw_bar("x", &[("hit", 0)]).into_string();
    assert!(!out.contains("NaN") && !out.contains("class=\"hit\""), "{out}");
}

#[test]
fn numbers_are_written_for_people() {
    assert_eq!(format_integer(1_234_567), "1,234,567");
    assert_eq!(format_integer(999), "999");
    assert_eq!(format_bytes(64 << 20).replace('\u{202f}', " "), "64 MiB");
    assert_eq!(format_bytes(1536).replace('\u{202f}', " "), "1.5 KiB");
    assert_eq!(format_millis(Some(0.134)).replace('\u{202f}', " "), "0.13 ms");
    assert_eq!(format_millis(Some(2500.0)).replace('\u{202f}', " "), "2.5 s");
    assert_eq!(format_duration(93_784.0), "1 d 2 h");
    assert_eq!(format_duration(125.0).replace('\u{202f}', " "), "2 min 5 s");
}
