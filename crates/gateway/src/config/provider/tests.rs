//! Goal: a provider makes the upstreams that its table describes, with the right URLs, and its key
//! is never printed. Method: read whole configurations, and compare the upstreams' addresses with
//! the expected ones.

use std::collections::BTreeSet;
use std::path::Path;

use super::*;
use crate::config::Config;

const CHAINS: &str = "[chain.eth]\nid = 1\n[chain.base]\nid = 8453\n[chain.arb]\nid = 42161\n";

/// Returns a valid key of a provider.
fn valid_key(provider: &Provider) -> String {
    "0123456789abcdef".chars().cycle().take(provider.key_bytes.0).collect()
}

/// Returns the table of a provider with an endpoint if the provider needs one.
fn table_text(kind: &str, provider: &Provider, key: &str) -> String {
    let endpoint = match (provider.has_endpoint(), provider.endpoint_is_host()) {
        (false, _) => "",
        (true, false) => "endpoint = 'cool-name'\n",
        (true, true) => "endpoint = 'nd-1.p2pify.com'\n",
    };
    format!("[[provider]]\nkind = '{kind}'\nkey = '{key}'\n{endpoint}")
}

fn read(text: &str) -> Result<Config, settings::Diagnostics> {
    Config::from_text("test", text, Path::new("/"), &|_| None)
}

#[test]
fn every_kind_has_a_valid_description() {
    let providers = read_providers();
    let kinds: BTreeSet<&str> = ProviderKind::NAMES.iter().copied().collect();
    assert_eq!(kinds, providers.keys().map(String::as_str).collect());
    for (kind, provider) in &providers {
        let ids: BTreeSet<u64> = provider.networks.iter().map(|(id, _)| *id).collect();
        assert_eq!(ids.len(), provider.networks.len(), "{kind} has a chain twice");
        assert!(provider.accepts_key(&valid_key(provider)), "{kind}");
        for (id, network) in &provider.networks {
            let text = format!(
                "[chain.c]\nid = {id}\n{}",
                table_text(kind, provider, &valid_key(provider))
            );
            let config = read(&text).unwrap_or_else(|errors| panic!("{kind} {id}: {errors}"));
            let [upstream] = &config.upstreams[..] else { panic!("{kind} {id}") };
            assert_eq!(&*upstream.name, format!("{kind}-c"));
            let url = format!("{}{}", upstream.url.host(), upstream.url.target());
            assert!(url.contains(network.as_str()) || !provider.has_network(), "{url}");
            assert!(!url.contains(['{', '}']), "{url}");
        }
    }
}

#[test]
fn upstreams_have_the_urls_of_the_provider() {
    let mut text = String::new();
    for (kind, provider) in &read_providers() {
        for chain in ["eth", "base", "arb"] {
            let table = table_text(kind, provider, &valid_key(provider));
            let config = format!("{CHAINS}{table}chains = ['{chain}']\n");
            // The other chains need an upstream too.
            let others = ["eth", "base", "arb"].into_iter().filter(|other| *other != chain);
            let others: String = others
                .map(|other| format!("[[upstream]]\nurl = 'http://127.0.0.1'\nchain = '{other}'\n"))
                .collect();
            let config = read(&format!("{config}{others}"));
            let config = config.unwrap_or_else(|errors| panic!("{errors}"));
            let upstream = config.upstreams.last().unwrap();
            assert_eq!(&*config.chains[upstream.chain].name, chain);
            let url = &upstream.url;
            let (host, target) = (url.authority(), url.target());
            text.push_str(&format!("{} https://{host}{target} {url}\n", upstream.name));
        }
    }
    let text = text.replace("0123456789abcdef", "*");
    expect_test::expect![[r#"
        alchemy-eth https://eth-mainnet.g.alchemy.com/v2/*01234 https://eth-mainnet.g.alchemy.com/v2/***
        alchemy-base https://base-mainnet.g.alchemy.com/v2/*01234 https://base-mainnet.g.alchemy.com/v2/***
        alchemy-arb https://arb-mainnet.g.alchemy.com/v2/*01234 https://arb-mainnet.g.alchemy.com/v2/***
        ankr-eth https://rpc.ankr.com/eth/**** https://rpc.ankr.com/eth/***
        ankr-base https://rpc.ankr.com/base/**** https://rpc.ankr.com/base/***
        ankr-arb https://rpc.ankr.com/arbitrum/**** https://rpc.ankr.com/arbitrum/***
        blast-eth https://eth-mainnet.blastapi.io/**0123 https://eth-mainnet.blastapi.io/***
        blast-base https://base-mainnet.blastapi.io/**0123 https://base-mainnet.blastapi.io/***
        blast-arb https://arbitrum-one.blastapi.io/**0123 https://arbitrum-one.blastapi.io/***
        chainstack-eth https://nd-1.p2pify.com/** https://nd-1.p2pify.com/***
        chainstack-base https://nd-1.p2pify.com/** https://nd-1.p2pify.com/***
        chainstack-arb https://nd-1.p2pify.com/** https://nd-1.p2pify.com/***
        drpc-eth https://lb.drpc.org/ogrpc?network=ethereum&dkey=**01234567 https://lb.drpc.org/ogrpc?***
        drpc-base https://lb.drpc.org/ogrpc?network=base&dkey=**01234567 https://lb.drpc.org/ogrpc?***
        drpc-arb https://lb.drpc.org/ogrpc?network=arbitrum&dkey=**01234567 https://lb.drpc.org/ogrpc?***
        infura-eth https://mainnet.infura.io/v3/** https://mainnet.infura.io/v3/***
        infura-base https://base-mainnet.infura.io/v3/** https://base-mainnet.infura.io/v3/***
        infura-arb https://arbitrum-mainnet.infura.io/v3/** https://arbitrum-mainnet.infura.io/v3/***
        quicknode-eth https://cool-name.quiknode.pro/**01234567 https://cool-name.quiknode.pro/***
        quicknode-base https://cool-name.base-mainnet.quiknode.pro/**01234567 https://cool-name.base-mainnet.quiknode.pro/***
        quicknode-arb https://cool-name.arbitrum-mainnet.quiknode.pro/**01234567 https://cool-name.arbitrum-mainnet.quiknode.pro/***
    "#]].assert_eq(&text);
}

#[test]
fn a_key_is_never_printed() {
    for (kind, provider) in &read_providers() {
        let key = valid_key(provider);
        let chain = "[chain.eth]\nid = 1\n";
        let text = format!("{chain}{}", table_text(kind, provider, &key));
        let config = read(&text).unwrap_or_else(|errors| panic!("{errors}"));
        let printed = format!("{config:?}{}", config.warnings);
        assert!(!printed.contains(&key), "{printed}");
        for wrong_key in [format!("{key}!"), key[1..].to_owned(), format!("{key}{key}")] {
            let config = read(&format!("{chain}{}", table_text(kind, provider, &wrong_key)));
            let config = config.unwrap_or_else(|errors| panic!("{errors}"));
            let printed = format!("{config:?}{}", config.warnings);
            assert!(printed.contains("does not look like a key of"), "{printed}");
            assert!(!printed.contains(&key[1..]), "{printed}");
        }
    }
}

#[test]
fn weight_backup_and_name_apply_to_every_upstream() {
    let providers = read_providers();
    let table = table_text("infura", &providers["infura"], &valid_key(&providers["infura"]));
    let text = format!("{CHAINS}{table}name = 'second'\nweight = 7\nbackup = true\n");
    let config = read(&text).unwrap_or_else(|errors| panic!("{errors}"));
    let upstreams: Vec<_> = config
        .upstreams
        .iter()
        .map(|upstream| (&*upstream.name, upstream.weight, upstream.backup))
        .collect();
    assert_eq!(
        upstreams,
        [("second-eth", 7, true), ("second-base", 7, true), ("second-arb", 7, true)]
    );
}

#[test]
fn a_changed_key_is_listed_and_masked() {
    let provider = &read_providers()["infura"];
    let (key, other_key) = (valid_key(provider), "f".repeat(32));
    let config = |key: &str| read(&format!("{CHAINS}{}", table_text("infura", provider, key)));
    let changes = config(&key).unwrap().changes_to(&config(&other_key).unwrap());
    let text: Vec<_> = changes.iter().map(ToString::to_string).collect();
    assert_eq!(text, ["~ provider.infura.key = ***: the part that is masked has changed"]);
}
