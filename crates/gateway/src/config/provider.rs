//! `[[provider]]`: companies that run nodes of many chains. Each table becomes one `[[upstream]]`
//! for each configured chain that the provider has. `providers.toml` lists the providers with their
//! URLs, keys and chains.
//!
//! In `settings::table!`, `key: Type = "default";` declares a configuration key, and its comment
//! becomes a text of `docs/config.md`. `settings::choice!` declares the names that a value has in
//! the file. A key with `described "…"` is `None` if it is not set; the text states what then
//! applies. With `as label`, messages name a table by the result of `label`. `config.rs` explains
//! the other forms, and the arguments of `report`.

use std::collections::BTreeMap;

use rustls::pki_types::DnsName;
use serde::Deserialize;
use settings::url::NodeUrl;
use settings::value::{Bool, Integer, List, Secret};
use settings::{Report, Scalar, Table};
use wire::family::Family;

use super::chain::{self, Chain};
use super::upstream::UpstreamTable;
use super::validate::find_name;
use super::values::{Host, Name, parse_name};

#[cfg(test)]
mod tests;

settings::choice! {
    /// Providers of nodes.
    pub enum ProviderKind {
        /// Alchemy.
        "alchemy" => Alchemy,
        /// Infura.
        "infura" => Infura,
        /// dRPC.
        "drpc" => Drpc,
        /// Ankr.
        "ankr" => Ankr,
        /// Blast API.
        "blast" => Blast,
        /// QuickNode.
        "quicknode" => QuickNode,
        /// Chainstack.
        "chainstack" => Chainstack,
    }
}

settings::table! {
    /// A provider of nodes. It makes one upstream for each configured chain that the provider has,
    /// named `NAME-CHAIN`, such as `alchemy-base`. A chain is found by its `id`.
    pub struct ProviderTable as label {
        /// The provider. It determines the URLs of the upstreams.
        kind: ProviderKind = required;
        /// The key from the provider. It becomes a part of the URLs and is never printed.
        key: Secret<1> = required;
        /// First part of the upstreams' names.
        name: Name = described "the kind";
        /// Names of the chains for which the provider is used.
        chains: List<Name> = described "all chains that the provider has";
        /// The endpoint from the provider: for quicknode the first label of the URL's host, for
        /// chainstack the whole host. Other providers have no endpoints.
        endpoint: Host = described "none";
        /// Weight of each upstream, as in `[[upstream]]`.
        weight: Integer<1, 1000, u32> = "1";
        /// If true, the upstreams are used only while no other upstream of their group is usable.
        backup: Bool = "false";
    }
}

/// Labels the table in diagnostics with the first part of the upstreams' names.
fn label(table: &ProviderTable) -> String {
    table.name.as_deref().unwrap_or(ProviderKind::name_of(*table.kind)).to_owned()
}

/// A provider, as `providers.toml` describes it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Provider {
    /// Pattern of a URL with `{key}`, and possibly `{network}` and `{endpoint}`.
    url: String,
    /// Minimum and maximum number of bytes of a key.
    key_bytes: (usize, usize),
    /// Characters of a key, and ranges of them such as `a-z`.
    key_characters: Vec<String>,
    /// The chain id and the network's name of each chain. The name replaces `{network}`.
    networks: Vec<(u64, String)>,
}

impl Provider {
    /// Returns the name of the network of a chain; `None` if the provider does not have the chain.
    fn find_network(&self, chain_id: u64) -> Option<&str> {
        let network = self.networks.iter().find(|(id, _)| *id == chain_id);
        network.map(|(_, name)| name.as_str())
    }

    /// Returns true if a key has the length and the characters of this provider's known keys.
    fn accepts_key(&self, key: &str) -> bool {
        let is_in_part = |part: &String, byte: u8| match part.as_bytes() {
            [first, b'-', last] => (*first..=*last).contains(&byte),
            part => part == [byte],
        };
        let is_allowed = |byte| self.key_characters.iter().any(|part| is_in_part(part, byte));
        let (bytes_min, bytes_max) = self.key_bytes;
        (bytes_min..=bytes_max).contains(&key.len()) && key.bytes().all(is_allowed)
    }

    /// Describes the keys that [`Provider::accepts_key`] accepts.
    fn describe_key(&self) -> String {
        let characters = self.key_characters.join(" ");
        match self.key_bytes {
            (min, max) if min == max => format!("{max} of {characters}"),
            (min, max) => format!("{min} to {max} of {characters}"),
        }
    }

    /// Describes the chains of the provider.
    fn describe_chains(&self) -> String {
        let ids: Vec<_> = self.networks.iter().map(|(id, _)| id.to_string()).collect();
        format!("a chain with one of the ids {}", ids.join(", "))
    }

    fn has_endpoint(&self) -> bool {
        self.url.contains("{endpoint}")
    }

    /// Returns true if an endpoint is a whole host, and false if it is the first label of a host.
    fn endpoint_is_host(&self) -> bool {
        self.url.contains("{endpoint}/")
    }

    /// Returns true if the URLs of all chains differ. If false, an endpoint serves only one chain.
    fn has_network(&self) -> bool {
        self.url.contains("{network}")
    }
}

/// Returns the providers by the names of their kinds.
fn read_providers() -> BTreeMap<String, Provider> {
    toml::from_str(include_str!("providers.toml")).expect("a test reads the providers")
}

/// Builds the tables of the upstreams that the providers make. A provider with an error makes none.
pub(super) fn expand(
    tables: &[ProviderTable],
    chains: &[Chain],
    report: &mut Report<'_>,
) -> Vec<UpstreamTable> {
    let mut upstreams = Vec::new();
    if tables.is_empty() {
        return upstreams;
    }
    let providers = read_providers();
    for table in tables {
        // The errors of such a table are already reported.
        if report.is_faulty(&table.location) {
            continue;
        }
        let provider = &providers[ProviderKind::name_of(*table.kind)];
        check_key(table, provider, report);
        let has_valid_endpoint = check_endpoint(table, provider, report);
        let selected = select_chains(table, provider, chains, report);
        if has_valid_endpoint {
            for (chain, network) in selected {
                upstreams.extend(build_upstream(table, provider, chain, network, report));
            }
        }
    }
    upstreams
}

/// Warns of a key that does not have the shape of the provider's known keys.
fn check_key(table: &ProviderTable, provider: &Provider, report: &mut Report<'_>) {
    if !provider.accepts_key(&table.key) {
        let message = format!("does not look like a key of {}", ProviderKind::name_of(*table.kind));
        report.warn(&table.key, message, provider.describe_key());
    }
}

/// Returns true if the endpoint is set exactly if the provider has endpoints, and has the right
/// shape. Otherwise reports an error.
fn check_endpoint(table: &ProviderTable, provider: &Provider, report: &mut Report<'_>) -> bool {
    let kind = ProviderKind::name_of(*table.kind);
    let allowed = if provider.endpoint_is_host() {
        "the host of the node's url, such as \"nd-1.example.com\""
    } else {
        "the first label of the url's host, such as \"cool-name\""
    };
    match table.endpoint.as_deref() {
        None if !provider.has_endpoint() => return true,
        None => report.error(&table.endpoint, format!("must be set for {kind}"), allowed),
        Some(_) if !provider.has_endpoint() => {
            report.error(&table.endpoint, format!("{kind} has no endpoints"), "no such line");
        }
        Some(endpoint) => {
            let has_labels = provider.endpoint_is_host() || !endpoint.contains('.');
            if has_labels && DnsName::try_from(endpoint).is_ok() {
                return true;
            }
            report.error(&table.endpoint, format!("not an endpoint of {kind}"), allowed);
        }
    }
    false
}

/// Returns the chains of the provider's upstreams, each with the name of its network. Omits chains
/// with an error.
fn select_chains<'c, 'p>(
    table: &ProviderTable,
    provider: &'p Provider,
    chains: &'c [Chain],
    report: &mut Report<'_>,
) -> Vec<(&'c Chain, &'p str)> {
    let kind = ProviderKind::name_of(*table.kind);
    let mut selected = Vec::new();
    if let Some(names) = &*table.chains {
        if table.chains.is_empty_list() {
            report.error(&table.chains, "the provider serves no chain", "at least one chain");
        }
        for (index, name) in names.iter().enumerate() {
            let position = table.chains.element_location(index);
            let known_names = chain::list_names(chains);
            let Some(index) = find_name(&known_names, name, "chain", &position, report) else {
                continue;
            };
            let Some(id) = chains[index].id else {
                let allowed = format!("id in [chain.{name}], such as id = 1");
                report.error(&position, "the chain has no id", allowed);
                continue;
            };
            match provider.find_network(id) {
                Some(network) => selected.push((&chains[index], network)),
                None => {
                    let message = format!("{kind} does not have the chain with id {id}");
                    report.error(&position, message, provider.describe_chains());
                }
            }
        }
    } else {
        let find_network = |chain: &Chain| provider.find_network(chain.id?);
        let matching = chains.iter().filter_map(|chain| Some((chain, find_network(chain)?)));
        selected.extend(matching);
        if selected.is_empty() {
            report_no_chain(table, provider, chains, report);
        }
    }
    if selected.len() > 1 && !provider.has_network() {
        let message = format!("one endpoint of {kind} serves one chain");
        let allowed = "a [[provider]] for each endpoint, with chains = [\"NAME\"]";
        report.error(&table.endpoint, message, allowed);
        selected.clear();
    }
    selected
}

/// Reports that the provider has no configured chain. Names the chains without an id, because the
/// provider may have these.
fn report_no_chain(
    table: &ProviderTable,
    provider: &Provider,
    chains: &[Chain],
    report: &mut Report<'_>,
) {
    let kind = ProviderKind::name_of(*table.kind);
    let lacks_id = |chain: &&Chain| chain.id.is_none() && chain.family != Family::Bitcoin;
    let unknown: Vec<_> =
        chains.iter().filter(lacks_id).map(|chain| format!("chain.{}.id", chain.name)).collect();
    let mut message = format!("{kind} has no chain of this file");
    if !unknown.is_empty() {
        message.push_str(&format!("; not set: {}", unknown.join(", ")));
    }
    report.error(table, message, provider.describe_chains());
}

/// Builds the table of one upstream. Its diagnostics point to the table of the provider. Returns
/// `None` after an error.
fn build_upstream(
    table: &ProviderTable,
    provider: &Provider,
    chain: &Chain,
    network: &str,
    report: &mut Report<'_>,
) -> Option<UpstreamTable> {
    let name = match parse_name(&format!("{}-{}", label(table), chain.name)) {
        Ok(name) => name,
        Err(message) => {
            let message = format!("with the name of chain {}, {message}", chain.name);
            report.error(&table.name, message, Name::allowed());
            return None;
        }
    };
    let pattern = match network {
        "" => provider.url.replace("{network}.", ""),
        network => provider.url.replace("{network}", network),
    };
    let pattern = pattern.replace("{endpoint}", table.endpoint.as_deref().unwrap_or_default());
    let url = match NodeUrl::parse(&pattern.replace("{key}", &table.key)) {
        // The key is not in `pattern`, so it is masked even if it looks like a word.
        Ok(url) => url.mask_unless_in(&pattern),
        Err(message) => {
            report.error(&table.endpoint, message, Host::allowed());
            return None;
        }
    };
    let mut upstream = UpstreamTable::defaults("upstream");
    upstream.location = table.location.clone();
    let printed = format!("\"{url}\"");
    upstream.url.set(url, printed);
    upstream.url.location = table.key.location.clone();
    let printed = format!("\"{name}\"");
    upstream.name.set(Some(name), printed);
    upstream.name.location = table.name.location.clone();
    upstream.chain.set(Some((*chain.name).into()), format!("\"{}\"", chain.name));
    upstream.chain.location = table.chains.location.clone();
    upstream.weight = table.weight.clone();
    upstream.backup = table.backup.clone();
    Some(upstream)
}
