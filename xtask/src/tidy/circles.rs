//! Checks that at most [`FILES_MAX`] files of a folder import each other in a circle
//! (ARCHITECTURE.md). `layers.rs` allows no circle at all in the folders with fixed layers.

use std::collections::{BTreeMap, BTreeSet};

use super::Finding;
use super::layers::{parse_imports, split_module_path};
use super::source::is_test;
use super::tree::Tree;

/// Largest circle of files that import each other.
const FILES_MAX: usize = 3;

const RULE: &str = "circles";

/// The imports among the modules of one folder: for each module, the modules that it imports from.
type Imports = BTreeMap<String, BTreeSet<String>>;

/// Finds folders in which more than [`FILES_MAX`] modules import each other in a circle.
pub(crate) fn find_circles(tree: &Tree) -> Vec<Finding> {
    // The name of a folder is the path of its crate's sources and the path of a module.
    let mut folders: BTreeMap<(&str, Vec<String>), Imports> = BTreeMap::new();
    let sources = || tree.texts(".rs").filter(|(path, _)| path.contains("/src/") && !is_test(path));
    for (path, _) in sources() {
        let (root, mut module) = (crate_of(path), split_module_path(path));
        while let Some(name) = module.pop() {
            folders.entry((root, module.clone())).or_default().entry(name).or_default();
        }
    }
    for (path, text) in sources() {
        let module = split_module_path(path);
        // `layers.rs` reports a file that is not Rust.
        for import in parse_imports(&module, text).unwrap_or_default() {
            let common = module.iter().zip(&import.path).take_while(|(a, b)| a == b).count();
            let (Some(from), Some(to)) = (module.get(common), import.path.get(common)) else {
                continue;
            };
            let Some(imports) = folders.get_mut(&(crate_of(path), module[..common].to_vec()))
            else {
                continue;
            };
            // Other names are items of the folder's own module.
            if imports.contains_key(to)
                && let Some(imported) = imports.get_mut(from)
            {
                imported.insert(to.clone());
            }
        }
    }
    let mut findings = Vec::new();
    for ((root, folder), imports) in &folders {
        for circle in list_circles(imports).into_iter().filter(|circle| circle.len() > FILES_MAX) {
            let path = [&[(*root).to_owned()], &folder[..]].concat().join("/");
            let message = format!("import each other: {}", circle.join(", "));
            findings.push(Finding::new(&path, 1, RULE, message));
        }
    }
    findings
}

/// Returns the folder of the sources of a file's crate, such as `crates/wire/src`.
fn crate_of(path: &str) -> &str {
    path.find("/src/").map_or(path, |start| &path[..start + "/src".len()])
}

/// Returns the sets of modules of which each one imports, directly or through others, from all
/// others of the set.
fn list_circles(imports: &Imports) -> Vec<Vec<&str>> {
    let reached = |start: &str| {
        let (mut reached, mut open) = (BTreeSet::new(), vec![start.to_owned()]);
        while let Some(module) = open.pop() {
            open.extend(
                imports[&module].iter().filter(|name| reached.insert((*name).clone())).cloned(),
            );
        }
        reached
    };
    let reached: BTreeMap<&str, BTreeSet<String>> =
        imports.keys().map(|module| (module.as_str(), reached(module))).collect();
    let circle_of = |module: &&str| -> Vec<&str> {
        let others = reached
            .iter()
            .filter(|(other, back)| reached[module].contains(**other) && back.contains(*module));
        others.map(|(other, _)| *other).collect()
    };
    let circles: BTreeSet<Vec<&str>> = reached.keys().map(circle_of).collect();
    circles.into_iter().filter(|circle| circle.len() > 1).collect()
}

#[cfg(test)]
mod tests {
    //! A circle of more modules than allowed is found, also through files of sub-folders, and
    //! smaller circles and tests are not.

    use super::*;

    fn found(files: &[(&str, &str)]) -> Vec<String> {
        find_circles(&Tree::from_texts(files)).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_circle_of_four_modules_is_found() {
        let files = [
            ("crates/x/src/f/a.rs", "use super::b::B;"),
            ("crates/x/src/f/b.rs", "use crate::f::c;"),
            ("crates/x/src/f/c/inner.rs", "fn f() { crate::f::d::g() }"),
            ("crates/x/src/f/d.rs", "use super::{a::A, e};"),
            ("crates/x/src/f/e.rs", "use super::Item; use crate::other;"),
        ];
        assert_eq!(found(&files), ["crates/x/src/f:1: circles: import each other: a, b, c, d"]);
        let mut open = files;
        open[3].1 = "use super::e; #[cfg(test)] mod tests { use super::super::a; }";
        assert_eq!(found(&open), [""; 0]);
    }

    #[test]
    fn a_circle_of_three_modules_is_allowed() {
        let files = [
            ("crates/x/src/a.rs", "use crate::b;"),
            ("crates/x/src/b.rs", "use crate::c;"),
            ("crates/x/src/c.rs", "use crate::a; use crate::Item;"),
            ("crates/x/src/tests.rs", "use crate::a; use crate::b;"),
        ];
        assert_eq!(found(&files), [""; 0]);
        assert!(list_circles(&Imports::from([("a".into(), ["a".to_owned()].into())])).is_empty());
    }
}
