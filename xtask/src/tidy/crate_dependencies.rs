//! Checks that a crate of this repository depends only on those crates of this repository that
//! ARCHITECTURE.md allows.

use toml::Table;

use super::Finding;
use super::tree::Tree;

/// Each crate of this repository, and the crates that its manifest may depend on, including dev and
/// build dependencies.
const ALLOWED_DEPENDENCIES: &[(&str, &[&str])] = &[
    ("wire", &[]),
    ("settings", &[]),
    ("gateway", &["wire", "settings"]),
    ("lab-model", &["wire", "settings", "test-support"]),
    ("lab-engine", &["wire", "lab-model", "test-support"]),
    ("lab", &["wire", "settings", "lab-model", "lab-engine", "test-support"]),
    ("index", &["wire", "settings", "test-support"]),
    ("simnode", &["wire"]),
    (
        "weir",
        &[
            "wire",
            "settings",
            "gateway",
            "lab-model",
            "lab-engine",
            "lab",
            "index",
            "simnode",
            "test-support",
        ],
    ),
    ("generate", &["gateway", "lab-model", "lab", "weir", "test-support"]),
    ("test-support", &[]),
    ("xtask", &["test-support"]),
];

const RULE: &str = "crate arrows";

/// Finds manifests with a dependency that [`ALLOWED_DEPENDENCIES`] does not allow. Also finds
/// manifests of crates that are not in that table, and manifests that are not TOML.
pub(crate) fn find_forbidden_dependencies(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in tree.texts("Cargo.toml") {
        let folder = path.strip_prefix("crates/").unwrap_or(path);
        let Some(name) = folder.strip_suffix("/Cargo.toml") else { continue };
        if name.contains('/') || name == "fuzz" {
            continue;
        }
        let Some((_, allowed)) = ALLOWED_DEPENDENCIES.iter().find(|(known, _)| *known == name)
        else {
            let message = format!("crate {name} is not in ARCHITECTURE.md's list of parts");
            findings.push(Finding::new(path, 1, RULE, message));
            continue;
        };
        let Ok(manifest) = text.parse::<Table>() else {
            findings.push(Finding::new(path, 1, RULE, "not TOML"));
            continue;
        };
        for dependency in list_dependencies(&manifest) {
            let is_ours = ALLOWED_DEPENDENCIES.iter().any(|(known, _)| *known == dependency);
            if is_ours && !allowed.contains(&dependency.as_str()) {
                let line = text.lines().position(|line| line.trim_start().starts_with(&dependency));
                let message = format!("{name} must not know {dependency}");
                findings.push(Finding::new(path, line.map_or(1, |line| line + 1), RULE, message));
            }
        }
    }
    findings
}

/// Returns the names of all dependencies, for every target. For a renamed dependency, this is the
/// real name of the crate.
fn list_dependencies(manifest: &Table) -> Vec<String> {
    let mut names = Vec::new();
    for (key, value) in manifest {
        let Some(table) = value.as_table() else { continue };
        if key.ends_with("dependencies") {
            names.extend(table.iter().map(|(name, value)| {
                let real = value.get("package").and_then(toml::Value::as_str);
                real.unwrap_or(name).to_owned()
            }));
        } else if key == "target" {
            names.extend(
                table.values().filter_map(toml::Value::as_table).flat_map(list_dependencies),
            );
        }
    }
    names
}

#[cfg(test)]
mod tests;
