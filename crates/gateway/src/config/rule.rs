//! `[[rule]]`: routing rules, which select the group of a call, deny the call, or rewrite its path.
//! This file also checks that the names in a rule exist.
//!
//! `config.rs` explains the syntax of `settings::table!`.

use settings::value::{Integer, List};
use settings::{MASK, Report, not_found_message};

use super::access::Access;
use super::access_log::format::SECRET_HEADERS;
use super::chain::Chain;
use super::group::Group;
use super::validate::{add_header, find_name, require_one};
use super::values::{Methods, Name, NonEmptyString, Share, UrlPath, parse_header_key};
use crate::policy::routing_rules::{Action, HeaderCondition, Rule, SHARE_ALL, ShareOf};

settings::choice! {
    /// The input of the hash that decides whether a rule with a `share` applies.
    pub ShareOfName for ShareOf {
        "client" => Client,
        "call" => Call,
    }
}

settings::string_scalar! {
    /// A header with its value or a prefix of its value. The value may contain a secret.
    pub HeaderPattern: (Box<str>, Box<str>) = parse_header_pattern, "a header",
        "header such as \"x-client: mobile\", or \"x-client: mobile*\" for a prefix",
        "x-client: mobile", mask |_: &str| Some(MASK.to_owned());
}

settings::table! {
    /// A routing rule. Rules are tried in order, for each call of a batch separately. A rule
    /// matches if all its conditions that are set match. The first matching rule decides where the
    /// call goes. A rule that rewrites the path does not decide, so later rules are tried.
    pub struct RuleTable by name {
        /// Name of the rule in metrics and `weir explain`.
        name: Name = required;
        /// Hosts of the request, without port. `*.example` matches every name below `example`.
        hosts: List<NonEmptyString> = empty;
        /// Prefix of the request's path, in whole segments. An API key in the path is removed
        /// before the comparison.
        path: UrlPath = described "any";
        /// Header conditions; all must match.
        headers: List<HeaderPattern> = empty;
        /// Names of API keys; `ISSUER:SUBJECT` is the holder of a token.
        keys: List<Name> = empty;
        /// Tiers of API keys and tokens.
        tiers: List<Name> = empty;
        /// Methods.
        methods: Methods = empty;
        /// Prefix of the parameters, byte for byte as the client writes them.
        params: NonEmptyString = described "any";
        /// The first parameter: a string without its quotes, any other value as written.
        first_param: NonEmptyString = described "any";
        /// Share of the matching traffic to which the rule applies, in steps of 0.0001. The same
        /// client or call is always inside or always outside of the share.
        share: Share = "1";
        /// Whether `share` selects callers or calls. Callers are identified by API key, or by
        /// address if they have no key; calls by method and parameters.
        share_of: ShareOfName = "client";
        /// The group that serves the call. The rule does not apply to chains without a group of
        /// this name.
        group: Name = described "none";
        /// Rejects the call. The value is the HTTP status of the response if the call is the only
        /// one of its request.
        deny: Integer<400, 599, u16> = described "none";
        /// The error message of `deny`.
        message: NonEmptyString = described "`\"request is not allowed here\"`";
        /// Replaces the part of the path that `path` matched. The new path then selects the chain.
        rewrite: UrlPath = described "none";
    }
}

/// Parses a header condition. Returns the lower-case name, and the value or its prefix.
fn parse_header_pattern(text: &str) -> Result<(Box<str>, Box<str>), &'static str> {
    let (name, value) = text.split_once(':').ok_or("not a name, a colon and a value")?;
    let name = parse_header_key(name.trim())?;
    if SECRET_HEADERS.contains(&&*name) {
        return Err("this header contains secrets, so rules cannot use it");
    }
    Ok((name, value.trim().into()))
}

/// Validates all rules, in order. Adds the headers in their conditions to `used_headers`.
pub(super) fn check(
    tables: &[RuleTable],
    chains: &[Chain],
    groups: &[Group],
    access: &Access,
    used_headers: &mut Vec<Box<str>>,
    report: &mut Report<'_>,
) -> Vec<Rule> {
    let mut rules: Vec<Rule> = Vec::new();
    for table in tables {
        let Some(name) = table.name.valid_value() else { continue };
        if rules.iter().any(|rule| rule.name == *name) {
            report.error(&table.name, "another rule has this name", "each name once");
        }
        let Some(action) = check_action(table, chains, groups, report) else { continue };
        check_keys(table, access, report);
        rules.push(Rule {
            name: name.clone(),
            hosts: (*table.hosts).clone(),
            path: (*table.path).clone(),
            headers: build_header_conditions(table, used_headers),
            keys: (*table.keys).clone(),
            tiers: (*table.tiers).clone(),
            methods: (*table.methods).clone(),
            params: (*table.params).clone(),
            first_param: (*table.first_param).clone(),
            // A rule stores its share as a number of steps. `SHARE_ALL` steps are all traffic.
            share: (*table.share * f64::from(SHARE_ALL)).round() as u32,
            share_of: *table.share_of,
            action,
        });
    }
    rules
}

/// Builds the header conditions of a rule. A value that ends in `*` is a prefix.
fn build_header_conditions(
    table: &RuleTable,
    used_headers: &mut Vec<Box<str>>,
) -> Vec<HeaderCondition> {
    let build_condition = |(name, value): &(Box<str>, Box<str>)| {
        let prefix = value.strip_suffix('*');
        let index = add_header(used_headers, name);
        HeaderCondition { index, value: prefix.unwrap_or(value).into(), prefix: prefix.is_some() }
    };
    table.headers.iter().map(build_condition).collect()
}

/// Returns the action of a rule; `None` after an error.
fn check_action(
    table: &RuleTable,
    chains: &[Chain],
    groups: &[Group],
    report: &mut Report<'_>,
) -> Option<Action> {
    let RuleTable { group, deny, message, rewrite, .. } = table;
    let requirement = "exactly one of group, deny and rewrite must be set";
    let locations = [&group.location, &deny.location, &rewrite.location];
    require_one(locations, requirement, "one action", report)?;
    if !deny.is_set() && message.is_set() {
        report.error(message, "message needs deny", "beside deny");
    }
    if let Some(name) = &**group {
        let find_group = |chain: &Chain| {
            chain.groups.iter().copied().find(|group| *groups[*group].name == **name)
        };
        // The index of the group in each chain; `None` in a chain without a group of this name.
        let group_by_chain: Vec<_> = chains.iter().map(find_group).collect();
        if group_by_chain.iter().all(Option::is_none) {
            let group_names: Vec<&str> = groups.iter().map(|group| &*group.name).collect();
            let (unknown_group, allowed) = not_found_message("group", name, &group_names);
            report.error(group, unknown_group, allowed);
            return None;
        }
        return Some(Action::Group(group_by_chain));
    }
    if let Some(status) = **deny {
        let message = (**message).clone();
        let message = message.unwrap_or_else(|| "request is not allowed here".into());
        return Some(Action::Deny { status, message });
    }
    if rewrite.is_set() && !table.path.is_set() {
        let missing_path =
            "rewrite replaces the part of the path that path matches, but path is not set";
        report.error(rewrite, missing_path, "beside path");
        return None;
    }
    (**rewrite).clone().map(Action::Rewrite)
}

/// Checks that the API keys that a rule names exist.
fn check_keys(table: &RuleTable, access: &Access, report: &mut Report<'_>) {
    let key_names: Vec<&str> = access.keys.iter().map(|key| &*key.grant.name).collect();
    for (index, name) in table.keys.iter().enumerate() {
        // A name with a colon is the issuer and subject of a token, which cannot be checked.
        if !name.contains(':') {
            find_name(&key_names, name, "key", &table.keys.element_location(index), report);
        }
    }
}
