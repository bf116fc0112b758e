//! The result as one page: no network, no script, readable in light and dark and on paper.
//!
//! What comes from outside (method names, error texts, URLs, the plan) is escaped by `maud` at the
//! place where it is written. Sections stand in the files beside; what a number means is taken from
//! `docs/measuring.md` (`words.rs`).

mod calls;
pub(super) mod capacity;
pub(super) mod comparison;
mod health;
mod hosts;
mod origin;
mod over_time;
pub(super) mod study;
mod verdict;

#[cfg(test)]
pub(super) mod tests;

use maud::{DOCTYPE, Markup, PreEscaped, html};

use super::chart::{Chart, Ink};
use super::timeline::timeline;
use super::words;
use crate::record::Totals;
use crate::results::run::RunResult;

const STYLE: &str = include_str!("html/style.css");

/// See [`super::html()`].
pub(super) fn page(result: &RunResult, totals: &Totals, methods: &[Box<str>]) -> String {
    let line = timeline(result);
    let body = html! {
        (verdict::head(result))
        (verdict::findings(&result.findings))
        (verdict::objectives(result))
        (verdict::bottleneck(result.bottleneck.as_ref()))
        (verdict::warnings(&result.warnings))
        (over_time::load(result, &line))
        (over_time::latency(result, &line))
        (calls::methods(result))
        (calls::spectrum(result, totals, methods))
        (calls::stages(result))
        (health::generator(result, &line))
        (hosts::hosts(result))
        (health::connections(result))
        (health::compared(result))
        (origin::origin(&result.plan, &result.target, &result.fingerprint))
        (origin::repeat(&result.plan, &result.target, "load", &result.weir, &result.schema))
        (glossary())
    };
    document(&result.plan.name, &body)
}

/// A whole document around a body.
pub(super) fn document(title: &str, body: &Markup) -> String {
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                meta http-equiv="Content-Security-Policy"
                    content="default-src 'none'; style-src 'unsafe-inline'";
                title { (title) " · weir" }
                style { (PreEscaped(STYLE)) }
            }
            body { main { (body) } }
        }
    };
    page.into_string()
}

/// A word that the glossary at the end explains, linked to it.
fn term(id: &str, text: &str) -> Markup {
    let Some(word) = words::find(id) else { return html! { (text) } };
    html! { a.term href={ "#word-" (word.id()) } title=(word.plain()) { (text) } }
}

/// A chart with its caption and the meaning of its colours.
fn figure(chart: &Chart, keys: &[(Ink, &str)]) -> Markup {
    html! {
        figure {
            figcaption {
                b { (chart.title) }
                @for (ink, text) in keys { (key(*ink, text)) }
            }
            // Safe: the chart escapes what it is given.
            (PreEscaped(chart.svg()))
        }
    }
}

fn key(ink: Ink, text: &str) -> Markup {
    let shape = match ink {
        Ink::Bad | Ink::Limited | Ink::Shade => "box",
        _ => "line",
    };
    html! { span.key { i class={ (shape) " k-" (ink.class()) } {} (text) } }
}

fn glossary() -> Markup {
    html! {
        h2 id="words" { "Words" }
        p.lead { "What each number is, how it is measured, and when it is weak." }
        dl.words {
            @for word in words::all() {
                dt id={ "word-" (word.id()) } { (word.name) }
                @for paragraph in word.paragraphs() {
                    dd {
                        @for (index, part) in paragraph.split('`').enumerate() {
                            @if index % 2 == 1 { code { (part) } } @else { (part) }
                        }
                    }
                }
            }
        }
    }
}
