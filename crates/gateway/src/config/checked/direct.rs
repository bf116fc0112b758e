//! Rules about where calls go: whether what they name exists.

use super::super::fault::Report;
use super::super::field::RULE;
use super::super::file::{Entry, Written};
use super::super::kind::{Value, header_test};
use super::super::{Chain, Group};
use super::access::methods;
use super::{not_found, refuse};
use crate::config::access::Access;
use crate::rules::direct::{Action, HeaderTest, Rule, ShareOf, WHOLE};

/// All rules, in their order. The headers that they look at are put into `kept_headers`.
pub(super) fn check(
    written: &Written,
    chains: &[Chain],
    groups: &[Group],
    access: &Access,
    kept_headers: &mut Vec<Box<str>>,
    report: &mut Report<'_>,
) -> Vec<Rule> {
    let mut rules: Vec<Rule> = Vec::new();
    for entry in written.all(&RULE) {
        let Some(name) = entry.chosen("name") else { continue };
        let name = name.text().into_boxed_str();
        if rules.iter().any(|rule| rule.name == name) {
            refuse(report, entry, "name", "another rule has this name", "each name once");
        }
        let Some(action) = action(entry, chains, groups, report) else { continue };
        check_keys(entry, access, report);
        let texts = |key: &str| -> Vec<Box<str>> {
            entry.value(key).texts().into_iter().map(Into::into).collect()
        };
        let text = |key| entry.chosen(key).map(|text| text.text().into_boxed_str());
        rules.push(Rule {
            name,
            hosts: texts("hosts"),
            path: text("path"),
            headers: header_tests(entry, kept_headers),
            keys: texts("keys"),
            tiers: texts("tiers"),
            methods: methods(entry, "methods"),
            params: text("params"),
            first_param: text("first_param"),
            share: (entry.value("share").number() * f64::from(WHOLE)).round() as u32,
            share_of: match entry.value("share_of").choice() {
                "call" => ShareOf::Call,
                _ => ShareOf::Client,
            },
            action,
        });
    }
    rules
}

/// The place of a header among those that are kept of each request.
pub(super) fn kept(kept_headers: &mut Vec<Box<str>>, name: &str) -> usize {
    kept_headers.iter().position(|known| **known == *name).unwrap_or_else(|| {
        kept_headers.push(name.into());
        kept_headers.len() - 1
    })
}

fn header_tests(entry: &Entry, kept_headers: &mut Vec<Box<str>>) -> Vec<HeaderTest> {
    let texts = entry.value("headers").texts();
    let tests = texts.iter().filter_map(|text| header_test(text).ok());
    tests
        .map(|(name, value)| {
            let start = value.strip_suffix('*');
            let place = kept(kept_headers, &name);
            HeaderTest { place, value: start.unwrap_or(&value).into(), prefix: start.is_some() }
        })
        .collect()
}

fn action(
    entry: &Entry,
    chains: &[Chain],
    groups: &[Group],
    report: &mut Report<'_>,
) -> Option<Action> {
    const ACTIONS: [&str; 3] = ["group", "deny", "rewrite"];
    let set: Vec<&str> = ACTIONS.into_iter().filter(|key| entry.set(key).is_some()).collect();
    let [key] = set[..] else {
        if !entry.has_unread(&ACTIONS) {
            let message = "exactly one of group, deny and rewrite must be set";
            refuse(report, entry, set.last().unwrap_or(&"group"), message, "one action");
        }
        return None;
    };
    if key != "deny" && entry.set("message").is_some() {
        refuse(report, entry, "message", "the rule denies nothing", "beside deny");
    }
    match key {
        "group" => {
            let name = entry.chosen(key)?.text();
            let of_chain = |chain: &Chain| {
                chain.groups.iter().copied().find(|group| *groups[*group].name == *name)
            };
            let found: Vec<_> = chains.iter().map(of_chain).collect();
            if found.iter().all(Option::is_none) {
                let known: Vec<&str> = groups.iter().map(|group| &*group.name).collect();
                let (message, allowed) = not_found("group", &name, &known);
                refuse(report, entry, "group", &message, &allowed);
                return None;
            }
            Some(Action::Group(found))
        }
        "deny" => {
            let message = entry.chosen("message").map(Value::text);
            let message = message.unwrap_or_else(|| "request is not allowed here".to_owned());
            Some(Action::Deny {
                status: entry.chosen(key)?.count() as u16,
                message: message.into(),
            })
        }
        _ => {
            if entry.set("path").is_none() {
                let message = "rewrite replaces what path names, and path is not set";
                refuse(report, entry, "rewrite", message, "beside path");
                return None;
            }
            Some(Action::Rewrite(entry.chosen(key)?.text().into()))
        }
    }
}

fn check_keys(entry: &Entry, access: &Access, report: &mut Report<'_>) {
    let known: Vec<&str> = access.keys.iter().map(|key| &*key.grant.name).collect();
    for (at, name) in entry.value("keys").texts().iter().enumerate() {
        // The holder of a token is called by its issuer and its subject.
        if !known.contains(&name.as_str()) && !name.contains(':') {
            let (message, allowed) = not_found("key", name, &known);
            super::refuse_element(report, entry, "keys", at, &message, &allowed);
        }
    }
}
