//! `weir discover`: measures nodes with a limited number of calls, and writes a gateway
//! configuration for them with the measurements as comments.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result};
use clap::Args;
use lab::capabilities::{
    CALLS_MAX, Capabilities, Measured, MeasuredNode, Options, REQUESTS_MAX, SizeLimit, measure,
};
use lab_model::plan::Tls;
use settings::MASK;
use settings::url::{NodeUrl, Transport, mask_url};
use wire::chain_profile;
use wire::family::Family;

use crate::exit_code::EXIT_FAULTY;
use crate::load::argument_error;
use crate::nodes::{
    COLUMNS, Job, build_target, count_behind, describe_methods, describe_node, describe_state,
    format_table, run_all,
};
use crate::source::count_text;

/// Timeout of one call.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);
/// Time after which no further call is sent to a node.
const DURATION_MAX: Duration = Duration::from_secs(60);
/// Maximum number of URLs, each of which has a thread.
const URLS_MAX: usize = 100;

/// Measure nodes and write a gateway configuration for them
///
/// Asks each URL for its chain id, head, client, state of old blocks, optional methods, subscriptions
/// over a WebSocket at the same address, the longest range of eth_getLogs up to 10,000 blocks, and
/// the largest batch up to 100 calls. It sends at most 60 requests with at most 320 calls to each
/// URL, within about a minute; nothing that changes the chain is called.
///
/// Then it writes a file with the chains, one upstream per usable URL, and the measurements as
/// comments. A URL that may contain a key is written to a file of its own beside it, which only its
/// owner can read. No existing file is overwritten. Measurements are shown as by weir check --connect.
#[derive(Args)]
#[command(after_long_help = "\
Examples:
  weir discover http://127.0.0.1:8545 http://10.0.0.1:8545
  weir discover http://127.0.0.1:8545 --out nodes.toml && weir check nodes.toml

Exit codes: 0 all URLs can be used; 1 a file cannot be written; 2 faulty arguments, or a URL cannot be
used.")]
pub(crate) struct Discover {
    /// URL of a node (http://, https://, ws:// or wss://); may be repeated
    #[arg(value_name = "URL", required = true)]
    urls: Vec<String>,

    /// Write the configuration to this file, which must not exist
    #[arg(long, value_name = "GATEWAY.TOML", default_value = "gateway.toml")]
    out: PathBuf,
}

/// A URL, and the same URL as written on the command line.
struct Address {
    url: NodeUrl,
    /// **Secret**: it may contain a key.
    text: String,
}

/// A file to create beside the configuration.
struct SecretFile {
    name: String,
    /// **Secret**: a URL with a key.
    url: String,
}

impl Discover {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let addresses = match self.parse_addresses() {
            Ok(addresses) => addresses,
            Err(fault) => return Ok(argument_error(&fault)),
        };
        eprintln!(
            "at most {REQUESTS_MAX} requests with {CALLS_MAX} calls are sent to each of {}",
            count_text(addresses.len(), "URL")
        );
        let nodes = measure_all(&addresses);
        print!("{}", describe_nodes(&addresses, &nodes));
        for (address, node) in addresses.iter().zip(&nodes) {
            if let Err(reason) = node {
                println!("error: {}: {reason}", address.url);
            }
        }
        let usable = nodes.iter().filter(|node| node.is_ok()).count();
        if usable == 0 {
            println!("no URL can be used, so no file is written");
            return Ok(ExitCode::from(EXIT_FAULTY));
        }
        let (text, secret_files) = write_configuration(&addresses, &nodes);
        for file in &secret_files {
            create_file(&self.beside(&file.name), &format!("{}\n", file.url))?;
        }
        create_file(&self.out, &text)?;
        let out = self.out.display();
        println!("\nwrote {out}; next: weir check {out} && weir serve {out}");
        for file in &secret_files {
            println!(
                "wrote {} with a URL that may contain a key",
                self.beside(&file.name).display()
            );
        }
        Ok(match usable == nodes.len() {
            true => ExitCode::SUCCESS,
            false => ExitCode::from(EXIT_FAULTY),
        })
    }

    /// Parses the URLs, and checks that no file exists. The error contains no secret.
    fn parse_addresses(&self) -> Result<Vec<Address>, String> {
        if self.urls.len() > URLS_MAX {
            return Err(format!("{} URLs are too many; at most {URLS_MAX}", self.urls.len()));
        }
        let mut addresses: Vec<Address> = Vec::new();
        for text in &self.urls {
            let url = NodeUrl::parse_remote(text)
                .map_err(|message| format!("{}: {message}", mask_url(text)))?;
            if addresses.iter().any(|earlier| earlier.url == url) {
                return Err(format!("{url} is given twice"));
            }
            addresses.push(Address { url, text: text.clone() });
        }
        let indexes = 1..=addresses.len();
        let names = indexes.flat_map(|index| [secret_name(index, ""), secret_name(index, "ws-")]);
        let mut paths =
            std::iter::once(self.out.clone()).chain(names.map(|name| self.beside(&name)));
        match paths.find(|path| path.exists()) {
            Some(path) => {
                let path = path.display();
                Err(format!("{path} exists and is not overwritten; set another file with --out"))
            }
            None => Ok(addresses),
        }
    }

    /// Returns the path of a file in the folder of the configuration.
    fn beside(&self, name: &str) -> PathBuf {
        self.out.with_file_name(name)
    }
}

/// Returns the name of the file for the URL with this number.
fn secret_name(index: usize, kind: &str) -> String {
    format!("upstream-{index}.{kind}url")
}

/// Measures all nodes at once. The error is the reason why a node cannot be used.
fn measure_all(addresses: &[Address]) -> Vec<Result<Capabilities, String>> {
    let options = Options { call_timeout: CALL_TIMEOUT, duration_max: DURATION_MAX, sizes: true };
    let to_job = |address: &Address| -> Job<Result<Capabilities, String>> {
        let target = |url: &NodeUrl| build_target(url, None, Vec::new(), CALL_TIMEOUT);
        let node = MeasuredNode {
            target: target(&address.url),
            websocket: Some(target(&address.url.to_websocket())),
            tls: Tls::default(),
        };
        Box::new(move || measure(&node, &options))
    };
    let results = run_all(addresses.iter().map(to_job).collect(), DURATION_MAX + CALL_TIMEOUT);
    let no_result = || Err(format!("no result within {DURATION_MAX:?}"));
    results.into_iter().map(|result| result.unwrap_or_else(no_result)).collect()
}

/// Returns the name of the chain of a node.
fn chain_name(node: &Capabilities) -> String {
    match &node.chain_id {
        Ok(id) => match chain_profile::find_by_id(*id) {
            Some(profile) if profile.family == node.family => profile.name.clone(),
            _ => format!("chain-{id}"),
        },
        Err(_) => node.family.as_str().to_owned(),
    }
}

/// Returns the number of blocks that each node is behind the highest head of its chain.
fn count_blocks_behind(nodes: &[Result<Capabilities, String>]) -> Vec<Option<u64>> {
    let chain_of = |node: &Result<Capabilities, String>| node.as_ref().ok().map(chain_name);
    let behind = |node: &Result<Capabilities, String>| {
        let (own_chain, own_head) = (chain_of(node), node.as_ref().ok()?.head.clone().ok());
        let same_chain = nodes.iter().filter(|other| chain_of(other) == own_chain);
        let heads = same_chain.map(|other| other.as_ref().ok()?.head.clone().ok());
        *count_behind(&std::iter::once(own_head).chain(heads).collect::<Vec<_>>()).first()?
    };
    nodes.iter().map(behind).collect()
}

/// Describes the nodes in a table with one line each.
fn describe_nodes(addresses: &[Address], nodes: &[Result<Capabilities, String>]) -> String {
    let header = std::iter::once("URL").chain(COLUMNS).map(str::to_owned).collect();
    let mut rows: Vec<Vec<String>> = vec![header];
    let behind = count_blocks_behind(nodes);
    for ((address, node), behind) in addresses.iter().zip(nodes).zip(behind) {
        let columns = match node {
            Ok(node) => describe_node(node, behind),
            Err(_) => COLUMNS.map(|_| "-".to_owned()),
        };
        rows.push(std::iter::once(address.url.to_string()).chain(columns).collect());
    }
    format_table(&rows)
}

/// Returns the text of the configuration, and the files with its secret URLs.
fn write_configuration(
    addresses: &[Address],
    nodes: &[Result<Capabilities, String>],
) -> (String, Vec<SecretFile>) {
    let mut text =
        "# Written by `weir discover`. Comments state what was measured, and docs/config.md \
                    lists all keys.\n"
            .to_owned();
    let usable = || nodes.iter().filter_map(|node| node.as_ref().ok());
    let chains: BTreeSet<(String, Option<u64>, &str)> = usable()
        .map(|node| (chain_name(node), node.chain_id.clone().ok(), node.family.as_str()))
        .collect();
    for (name, id, family) in &chains {
        let _ = write!(text, "\n[chain.{name}]\nfamily = \"{family}\"\n");
        let _ = match id {
            Some(id) => writeln!(text, "id = {id}"),
            None => Ok(()),
        };
    }
    let mut secret_files = Vec::new();
    let behind = count_blocks_behind(nodes);
    for (index, (address, node)) in addresses.iter().zip(nodes).enumerate() {
        match node {
            Ok(node) => {
                write_upstream(
                    &mut text,
                    &mut secret_files,
                    index + 1,
                    address,
                    node,
                    behind[index],
                );
            }
            Err(reason) => {
                let _ = write!(text, "\n# Not used: {}: {}\n", address.url, in_one_line(reason));
            }
        }
    }
    (text, secret_files)
}

/// Appends the table of an upstream, with its measurements as comments.
fn write_upstream(
    text: &mut String,
    secret_files: &mut Vec<SecretFile>,
    index: usize,
    address: &Address,
    node: &Capabilities,
    behind: Option<u64>,
) {
    let _ = write!(text, "\n[[upstream]]\n");
    let mut comment = |line: String| {
        let _ = writeln!(text, "# {}", in_one_line(&line));
    };
    comment(format!("client: {}", describe(&node.client, String::clone)));
    let behind = behind.map_or_else(String::new, |blocks| format!(", {blocks} blocks behind"));
    comment(format!("head: {}{behind}", describe(&node.head, u64::to_string)));
    match &node.state {
        Err(reason) => comment(format!("state: unknown: {reason}")),
        state => comment(format!("state: {}", describe_state(state))),
    }
    if node.family != Family::Bitcoin {
        comment(format!("optional methods: {}", describe_methods(node)));
    }
    if let Some(range) = &node.log_range {
        comment(format!(
            "eth_getLogs: {}",
            describe(range, |limit| describe_limit(limit, "blocks"))
        ));
    }
    if let Some(batch) = &node.batch {
        comment(format!("batches: {}", describe(batch, |limit| describe_limit(limit, "calls"))));
    }
    if let Some(Err(reason)) = &node.websocket {
        comment(format!("no subscriptions over a WebSocket at this address: {reason}"));
    }
    let mut write_url = |key: &str, kind: &str, url: String| {
        let is_secret = address.url.to_string().contains(MASK);
        let value = match is_secret {
            true => format!("${{file:{}}}", secret_name(index, kind)),
            // A `${` of the URL itself is not a reference.
            false => url.replace("${", "$${"),
        };
        let _ = writeln!(text, "{key} = \"{value}\"");
        if is_secret {
            secret_files.push(SecretFile { name: secret_name(index, kind), url });
        }
    };
    write_url("url", "", address.text.clone());
    if address.url.transport() == Transport::Http
        && node.websocket == Some(Ok(()))
        && let Some((_, after_scheme)) = address.text.split_once("://")
    {
        let scheme = if address.url.tls() { "wss" } else { "ws" };
        write_url("ws_url", "ws-", format!("{scheme}://{after_scheme}"));
    }
    let _ = writeln!(text, "chain = \"{}\"", chain_name(node));
}

/// Describes a property, or why it is unknown.
fn describe<T>(property: &Measured<T>, describe_value: impl Fn(&T) -> String) -> String {
    match property {
        Ok(value) => describe_value(value),
        Err(reason) => format!("unknown: {reason}"),
    }
}

/// Describes a limit on the size of a call, such as `5000 blocks accepted, 8192 refused: …`.
fn describe_limit(limit: &SizeLimit, unit: &str) -> String {
    let SizeLimit { accepted, failed } = limit;
    match failed {
        None => format!("{accepted} {unit} accepted; more were not tried"),
        Some((size, reason)) => format!("{accepted} {unit} accepted, {size} refused: {reason}"),
    }
}

/// Replaces control characters, which would end a comment.
fn in_one_line(text: &str) -> String {
    text.replace(char::is_control, " ")
}

/// Creates a file that only its owner can read. Fails if the file exists.
fn create_file(path: &Path, text: &str) -> Result<()> {
    let mut options = OpenOptions::new();
    let file = options.write(true).create_new(true).mode(0o600).open(path);
    let written = file.and_then(|mut file| file.write_all(text.as_bytes()));
    written.with_context(|| format!("cannot write {}", path.display()))
}
