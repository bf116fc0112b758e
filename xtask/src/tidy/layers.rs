//! Checks that the modules of a folder import only from lower layers (ARCHITECTURE.md).
//!
//! A layer is a set of modules that do not import from each other. The layers of a folder are
//! ordered, so its modules have no dependency cycle. An import is any path that begins with
//! `crate`, `self` or `super`, in macros too. Tests are not checked. Dependencies between crates
//! are checked by `crate_dependencies.rs`.

use proc_macro2::{Delimiter, TokenStream, TokenTree};

use super::Finding;
use super::source::is_test;
use super::tree::Tree;

/// A source folder and its modules by layer.
struct LayeredFolder {
    path: &'static str,
    /// Names of the modules of each layer, the lowest layer first.
    layers: &'static [&'static [&'static str]],
}

/// Every folder with fixed layers. A module of such a folder must have a layer.
const FOLDERS: &[LayeredFolder] = &[
    LayeredFolder {
        path: "crates/wire/src",
        layers: &[
            &["error", "family", "json", "retry_after", "tls"],
            &["chain_profile", "hex", "quantity", "websocket"],
            &["block", "call", "effect"],
            &["block_param", "filter", "logs", "response"],
            &["method"],
            &["key", "node_error"],
            &["fuzz"],
        ],
    },
    LayeredFolder {
        path: "crates/wire/src/json",
        layers: &[
            &["simd", "syntax_error"],
            &["string"],
            &["fast_scanner", "splitter", "walk"],
            &["cursor", "scanner"],
            &["envelope"],
        ],
    },
    LayeredFolder {
        path: "crates/lab-model/src",
        layers: &[
            &["named", "number"],
            &["record"],
            &["metrics"],
            &["plan", "results"],
            &["samples"],
        ],
    },
    LayeredFolder {
        path: "crates/lab-engine/src",
        layers: &[&["aggregate", "chain", "schedule"], &["engine", "host", "recorder"]],
    },
    LayeredFolder {
        path: "crates/lab/src",
        layers: &[
            &["analysis"],
            &["wording"],
            &["fingerprint", "self_check", "target", "variant"],
            &["capabilities", "import", "inclusion", "reference"],
            &["run"],
            &["capacity", "compare", "equal", "probe"],
            &["assessment"],
            &["export", "live", "report"],
            &["study"],
        ],
    },
    LayeredFolder {
        path: "crates/gateway/src",
        layers: &[
            &["policy"],
            &["config", "io"],
            &["trace"],
            &["call"],
            &["metrics"],
            &["access"],
            &["process"],
            &["access_log", "limits", "quota", "upstream"],
            &["cache"],
            &["state"],
            &["resolve"],
            &["subscribe"],
            &["path"],
            &["admin", "downstream"],
            &["runtime"],
        ],
    },
    LayeredFolder {
        path: "crates/gateway/src/policy",
        layers: &[
            &[
                "availability",
                "avoided_methods",
                "batch",
                "blocks",
                "branch",
                "breaker",
                "choose",
                "client",
                "closed_set",
                "history",
                "limit",
                "log_range",
                "proxy",
                "quota",
                "route",
                "sliding_window",
                "stall",
                "trace_context",
            ],
            &[
                "access",
                "block_headers",
                "classify",
                "gateways",
                "heads",
                "hedge",
                "memory",
                "overload",
            ],
            &["cacheable", "chain_cursor", "complete", "health", "routing_rules"],
            &["absence", "causal", "cordon", "logs", "plan", "shareable"],
            &["retry"],
        ],
    },
    LayeredFolder {
        path: "crates/gateway/src/io",
        layers: &[&[
            "background",
            "buffers",
            "chunked",
            "clock",
            "head_cache",
            "memory",
            "random",
            "wait",
            "websocket",
        ]],
    },
    LayeredFolder {
        path: "crates/gateway/src/cache/redis",
        layers: &[
            &["client", "message", "value"],
            &["script"],
            &["zones"],
            &["heartbeat", "invalidation_bus", "quotas"],
            &["fuzz"], // for tests
        ],
    },
    LayeredFolder {
        path: "crates/gateway/src/config",
        layers: &[
            &["jwt", "redis_url", "tls", "validate"],
            &["values"],
            &["access_log", "cache", "chain", "downstream", "health", "listen_tls", "log"],
            &["access", "overload", "server", "upstream"],
            &["group", "index", "limits", "provider", "tracing"],
            &["redis", "rule"],
            &["quota"],
        ],
    },
    LayeredFolder {
        path: "crates/gateway/src/downstream",
        layers: &[
            &["connection", "forwarded_header", "frames", "tls", "unread"],
            &["head"],
            &["answer", "parsed_heads", "peer"],
            &["compress", "log", "thread"],
            &["exchange", "explain"],
            &["http2", "websocket"],
            &["http1"],
            &["accept"],
            &["fuzz"], // for tests
        ],
    },
    LayeredFolder {
        path: "crates/gateway/src/subscribe",
        layers: &[
            &["blocks", "notifications", "outcome", "selection"],
            &["filters", "stream"],
            &["feeds"],
            &["source"],
            &["chain_events", "relay"],
            &["fan"],
            &["subscriber"],
        ],
    },
    LayeredFolder {
        path: "crates/gateway/src/upstream",
        layers: &[
            &["chain", "connector", "exchange", "fault", "request_head"],
            &["resources", "state"],
            // Connections.
            &["http1", "http2", "multiplexed_connection"],
            &["http", "multiplexed_pool"],
            &["batcher"],
            // Health and heads.
            &["overload"],
            &["topology"],
            &["watch"],
            // Choice.
            &["local"],
            &["balance"],
            &["thread"],
            &["choose"],
            // Attempts.
            &["send"],
            &["broadcast", "doubt", "rank"],
            &["attempts"],
            &["race"],
            &["fetch"],
        ],
    },
    LayeredFolder {
        path: "crates/index/src",
        layers: &[
            &["compression", "contents", "fragments", "postings", "verify"],
            &["harmony", "nodes", "store"],
            &["encode", "error", "planner"],
            &["search"],
            &["reader"],
            &["audit", "export", "serve", "sync"],
            &["fixture"], // for tests
        ],
    },
    LayeredFolder {
        path: "crates/simnode/src",
        layers: &[
            &["bech32", "hex", "millis", "seed", "transaction_pool"],
            &["schedule"],
            &["block"],
            &["world"],
            &["rpc"],
            &["oracle", "replay"],
            &["node"],
            &["serve"],
            &["admin"],
        ],
    },
    LayeredFolder {
        path: "crates/weir/src",
        layers: &[
            &["ci", "exit_code", "out", "print", "source", "terminal", "variant"],
            &["nodes", "stop"],
            &["control", "load", "serve"],
            &[
                "capacity",
                "chains",
                "check",
                "compare",
                "completions",
                "cordon",
                "demo",
                "diff",
                "discover",
                "equal",
                "explain",
                "index",
                "key",
                "logs",
                "node",
                "probe",
                "ready",
                "report",
                "study",
                "top",
            ],
        ],
    },
    LayeredFolder {
        path: "xtask/src",
        layers: &[
            &["shell"],
            &["backend", "fuzz", "generate", "package_files", "sim", "site", "tidy"],
            &["static_program"],
            &["image"],
            &["release"],
            &["check"],
            &["bench"],
        ],
    },
];

const RULE: &str = "layers";

/// Finds modules that import from their own or a higher layer.
pub(crate) fn find_upward_imports(tree: &Tree) -> Vec<Finding> {
    FOLDERS.iter().flat_map(|folder| check_folder(tree, folder)).collect()
}

fn check_folder(tree: &Tree, folder: &LayeredFolder) -> Vec<Finding> {
    let mut findings = Vec::new();
    let find_layer = |name: &str| folder.layers.iter().position(|layer| layer.contains(&name));
    let prefix = format!("{}/", folder.path);
    let base = split_module_path(folder.path);
    for (path, text) in tree.texts(".rs") {
        let Some(path_in_folder) = path.strip_prefix(&prefix) else { continue };
        if is_test(path) || matches!(path_in_folder, "lib.rs" | "main.rs") {
            continue;
        }
        let module = path_in_folder.split('/').next().unwrap_or_default();
        let module = module.strip_suffix(".rs").unwrap_or(module);
        let Some(layer) = find_layer(module) else {
            let message = format!("{module} has no layer in {}", folder.path);
            findings.push(Finding::new(path, 1, RULE, message));
            continue;
        };
        let imports = match parse_imports(&split_module_path(path), text) {
            Ok(imports) => imports,
            Err(reason) => {
                findings.push(Finding::new(path, 1, RULE, reason));
                continue;
            }
        };
        for import in imports {
            let Some([name, ..]) = import.path.strip_prefix(&base[..]) else { continue };
            // A name without a layer is an item of the folder's own module, or a module for which
            // its own file has a finding.
            let Some(other_layer) = find_layer(name) else { continue };
            if name != module && other_layer >= layer {
                let message = format!("{module} must not import from {name}");
                findings.push(Finding::new(path, import.line, RULE, message));
            }
        }
    }
    findings.dedup(); // one line may import several items of a folder
    findings
}

/// Returns the names in a module's path within its crate. For `crates/gateway/src/cache/memory.rs`
/// these are `cache` and `memory`.
pub(super) fn split_module_path(path: &str) -> Vec<String> {
    let path_in_folder = path.split_once("/src").map_or("", |(_, path_in_folder)| path_in_folder);
    let segments = path_in_folder.split('/').filter(|segment| !segment.is_empty());
    let names = segments.map(|segment| segment.strip_suffix(".rs").unwrap_or(segment));
    names.filter(|name| !matches!(*name, "lib" | "main")).map(str::to_owned).collect()
}

/// A path in a file's source, absolute from the crate's root.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Import {
    /// Names of the path, without `crate`.
    pub(super) path: Vec<String>,
    /// Number of the line, counted from 1.
    line: usize,
}

/// Finds every path in `text` that begins with `crate`, `self` or `super`. `text` is the source of
/// `module`, which is the module's path within its crate.
///
/// # Errors
/// Fails if the text is not Rust.
pub(super) fn parse_imports(module: &[String], text: &str) -> Result<Vec<Import>, String> {
    let tokens: TokenStream = text.parse().map_err(|error| format!("not Rust: {error}"))?;
    let mut imports = Vec::new();
    collect_imports(&tokens.into_iter().collect::<Vec<_>>(), module, &mut imports);
    Ok(imports)
}

/// Collects imports from the tokens of a module or of a group in it.
fn collect_imports(tokens: &[TokenTree], module: &[String], imports: &mut Vec<Import>) {
    let mut index = 0;
    while index < tokens.len() {
        if is_test_attribute(&tokens[index..]) {
            index = end_of_item(tokens, index + 2);
            continue;
        }
        match &tokens[index] {
            TokenTree::Ident(word) if word == "mod" => {
                if let [TokenTree::Ident(name), TokenTree::Group(body), ..] = &tokens[index + 1..] {
                    let inner = [module, &[name.to_string()]].concat();
                    collect_imports(
                        &body.stream().into_iter().collect::<Vec<_>>(),
                        &inner,
                        imports,
                    );
                    index += 2;
                }
            }
            TokenTree::Ident(word) => {
                let start = match word.to_string().as_str() {
                    "crate" => Some(Vec::new()),
                    "self" => Some(module.to_vec()),
                    "super" => module.split_last().map(|(_, parent)| parent.to_vec()),
                    _ => None,
                };
                if let Some(start) = start
                    && is_path_separator(&tokens[index + 1..])
                {
                    // The first word and the two colons of the separator are three tokens.
                    index += 3 + read_path(&tokens[index + 3..], start, imports);
                    continue;
                }
            }
            TokenTree::Group(group) => {
                collect_imports(&group.stream().into_iter().collect::<Vec<_>>(), module, imports);
            }
            _ => {}
        }
        index += 1;
    }
}

/// Extends `path` by the names in `tokens`, and adds the result to `imports`. For `{a, b::c}`, adds
/// one path for each part in the braces. Returns the number of tokens that were read.
fn read_path(tokens: &[TokenTree], mut path: Vec<String>, imports: &mut Vec<Import>) -> usize {
    let mut index = 0;
    loop {
        match tokens.get(index) {
            Some(TokenTree::Ident(word)) if word == "super" => {
                path.pop();
            }
            Some(TokenTree::Ident(word)) => path.push(word.to_string()),
            Some(TokenTree::Group(group)) if group.delimiter() == Delimiter::Brace => {
                let inner: Vec<_> = group.stream().into_iter().collect();
                for branch in inner.split(is_comma) {
                    read_path(branch, path.clone(), imports);
                }
                return index + 1;
            }
            _ => break,
        }
        index += 1;
        if !is_path_separator(&tokens[index..]) {
            break;
        }
        index += 2;
    }
    let line = tokens.first().map_or(0, |token| token.span().start().line);
    imports.push(Import { path, line });
    index
}

fn is_path_separator(tokens: &[TokenTree]) -> bool {
    let colon =
        |token: &TokenTree| matches!(token, TokenTree::Punct(punct) if punct.as_char() == ':');
    matches!(tokens, [first, second, ..] if colon(first) && colon(second))
}

fn is_comma(token: &TokenTree) -> bool {
    matches!(token, TokenTree::Punct(punct) if punct.as_char() == ',')
}

/// Returns true if the tokens begin with `#[cfg(test)]` or a similar attribute.
fn is_test_attribute(tokens: &[TokenTree]) -> bool {
    let [TokenTree::Punct(hash), TokenTree::Group(group), ..] = tokens else { return false };
    let text = group.stream().to_string().replace(' ', "");
    hash.as_char() == '#' && text.starts_with("cfg(") && text.contains("test")
}

/// Returns the end of the item that begins at the token `start`: the index after its `;` or its
/// body.
fn end_of_item(tokens: &[TokenTree], start: usize) -> usize {
    let ends_item = |token: &TokenTree| match token {
        TokenTree::Punct(punct) => punct.as_char() == ';',
        TokenTree::Group(group) => group.delimiter() == Delimiter::Brace,
        _ => false,
    };
    tokens[start..].iter().position(ends_item).map_or(tokens.len(), |length| start + length + 1)
}

#[cfg(test)]
mod tests;
