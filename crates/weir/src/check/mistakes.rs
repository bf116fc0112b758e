//! Finds what a valid configuration probably does not mean: one URL as two upstreams, a folder that
//! does not exist, and names of methods in deny lists that are nearly those of known methods.

use std::collections::BTreeSet;

use gateway::config::Config;
use gateway::config::access_log::LogTarget;
use settings::find_nearest_name;
use wire::family::Family;
use wire::method::methods_of;

/// Returns a warning for each mistake.
pub(super) fn find_warnings(config: &Config) -> Vec<String> {
    let mut warnings = Vec::new();
    for (index, upstream) in config.upstreams.iter().enumerate() {
        let is_same = |other: &&gateway::config::upstream::Upstream| other.url == upstream.url;
        if let Some(earlier) = config.upstreams[..index].iter().find(is_same) {
            warnings.push(format!(
                "the upstreams {} and {} have the same URL, so they are one node that counts as two",
                earlier.name, upstream.name
            ));
        }
    }
    if let Some(LogTarget::File(path)) = config.access_log.as_ref().map(|log| &log.target)
        && let Some(folder) = path.parent().filter(|folder| !folder.is_dir())
    {
        let folder = folder.display();
        warnings.push(format!(
            "access_log.file: the folder {folder} does not exist here, and weir serve does not create it"
        ));
    }
    let policy = &config.access.policy;
    let mut names: BTreeSet<&str> = policy.methods.deny.names().collect();
    names.extend(policy.node_methods.names());
    names.extend(config.chains.iter().flat_map(|chain| chain.methods.deny.names()));
    names.extend(config.groups.iter().flat_map(|group| group.methods_deny.names()));
    let families: BTreeSet<&str> =
        config.chains.iter().map(|chain| chain.family.as_str()).collect();
    let known: Vec<&str> = Family::ALL
        .into_iter()
        .filter(|family| families.contains(family.as_str()))
        .flat_map(|family| methods_of(family).methods().map(|method| method.name))
        .collect();
    for name in names {
        if known.iter().any(|known_name| known_name.eq_ignore_ascii_case(name)) {
            continue;
        }
        // One or two letters differ, or two have changed places.
        let is_near = |known_name: &&str| known_name.len().abs_diff(name.len()) <= 1;
        let near: Vec<&str> = known.iter().copied().filter(is_near).collect();
        if let Some(nearest) = find_nearest_name(name, &near).filter(|known_name| {
            let same = name.bytes().zip(known_name.bytes());
            let start = same.take_while(|(a, b)| a.eq_ignore_ascii_case(b)).count();
            let ends = name.bytes().rev().zip(known_name.bytes().rev());
            let end = ends.take_while(|(a, b)| a.eq_ignore_ascii_case(b)).count();
            start + end + 2 >= name.len()
        }) {
            warnings.push(format!("no known method is named {name}; did you mean {nearest}?"));
        }
    }
    warnings
}

#[cfg(test)]
mod tests {
    //! Goal: each mistake causes one warning, and a correct configuration causes none.

    use std::path::Path;

    use super::*;

    fn warnings(text: &str) -> Vec<String> {
        let config = Config::from_text("test", text, Path::new("/"), &|_| None);
        find_warnings(&config.unwrap_or_else(|errors| panic!("{errors}")))
    }

    #[test]
    fn each_mistake_causes_a_warning() {
        let upstream = |name: &str, port: u16| {
            format!("[[upstream]]\nname = '{name}'\nurl = 'http://a:{port}'\n")
        };
        let deny =
            |name: &str| format!("[access]\nmethods_deny = ['{name}']\n{}", upstream("a", 1));
        let correct = upstream("a", 1) + &upstream("b", 2);
        for text in [correct, deny("eth_getLogs"), deny("eth_somethingNew"), deny("ots_*")] {
            assert_eq!(warnings(&text), Vec::<String>::new(), "{text}");
        }
        let doubled = warnings(&(upstream("a", 1) + &upstream("b", 1)));
        assert!(matches!(&doubled[..], [one] if one.contains("a and b have the same URL")));
        let misspelt = warnings(&deny("eth_getLosg"));
        assert!(matches!(&misspelt[..], [one] if one.contains("did you mean eth_getLogs?")));
        let log = format!("[access_log]\nfile = '/no-such-folder/log'\n{}", upstream("a", 1));
        assert!(matches!(&warnings(&log)[..], [one] if one.contains("/no-such-folder does not")));
    }
}
