//! Finds the chain of a URL path, and the group of this chain that serves a method. A *group* is a
//! set of upstreams that serve the same methods.
//!
//! The routes are built once from the configuration. A lookup costs one hash for an exact name, or
//! a search in a short list of prefixes. `choose` picks the upstream of the group.

use std::collections::HashMap;

use foldhash::fast::RandomState;
use wire::effect::starts_with_ignoring_case;

#[cfg(test)]
mod tests;

/// Routes of one chain as configured. Each `usize` is the index of a group; the caller defines the
/// indices.
#[derive(Debug, Clone)]
pub struct ChainRoutes<'a> {
    /// Paths of this chain, each beginning with `/`.
    pub paths: Vec<&'a str>,
    /// Patterns and their groups. A pattern is an exact method name, a prefix ending in `*`, or
    /// `*`.
    pub methods: Vec<(&'a str, usize)>,
    /// The group for methods that match no pattern.
    pub default_group: usize,
}

/// An error in configured routes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RouteError {
    /// Two chains have the same path.
    #[error("path {0:?} leads to two chains; a path may lead to one")]
    PathTwice(Box<str>),
    /// Two groups of a chain have the same pattern.
    #[error("method pattern {0:?} names two groups; a pattern may name one")]
    PatternTwice(Box<str>),
    /// A pattern has a star before its end.
    #[error("method pattern {0:?} has a star before its end; allowed is name, prefix* or *")]
    Star(Box<str>),
}

/// The compiled routes.
#[derive(Debug, Default)]
pub struct Router {
    /// Index of the chain by path, without trailing slashes.
    paths: HashMap<Box<str>, usize, RandomState>,
    /// The groups of each chain.
    chains: Vec<Methods>,
    /// Index of the chain that serves all other paths; `None` if none does.
    default: Option<usize>,
}

/// The groups of a chain by method.
#[derive(Debug, Default)]
struct Methods {
    /// Group by exact name.
    exact: HashMap<Box<str>, usize, RandomState>,
    /// Group by prefix. The longest prefix is first, so the first match is the most specific one.
    prefixes: Vec<(Box<str>, usize)>,
    default_group: usize,
}

impl Router {
    /// Compiles the routes of all chains. `default` is the chain of all other paths.
    ///
    /// # Errors
    ///
    /// The first path or pattern that is duplicate or malformed.
    pub fn new(chains: &[ChainRoutes<'_>], default: Option<usize>) -> Result<Self, RouteError> {
        let mut router = Self { default, ..Self::default() };
        for (chain, routes) in chains.iter().enumerate() {
            for &path in &routes.paths {
                if router.paths.insert(trim_slashes(path).into(), chain).is_some() {
                    return Err(RouteError::PathTwice(path.into()));
                }
            }
            router.chains.push(Methods::new(routes)?);
        }
        Ok(router)
    }

    /// Returns the index of the chain of `path`, which has no query. Returns the default chain for
    /// an unknown path, or `None` if there is no default. A trailing slash makes no difference.
    pub fn find_chain(&self, path: &str) -> Option<usize> {
        self.paths.get(trim_slashes(path)).copied().or(self.default)
    }

    /// Returns the group of `chain` that serves `method`: an exact name first, then the longest
    /// prefix, then the default group. Case does not matter.
    pub fn find_group(&self, chain: usize, method: &str) -> usize {
        self.chains[chain].find_group(method)
    }
}

impl Methods {
    fn new(routes: &ChainRoutes<'_>) -> Result<Self, RouteError> {
        let mut methods = Self { default_group: routes.default_group, ..Self::default() };
        for &(pattern, group) in &routes.methods {
            let is_duplicate = match pattern.strip_suffix('*') {
                Some(prefix) if prefix.contains('*') => {
                    return Err(RouteError::Star(pattern.into()));
                }
                Some(prefix) => {
                    let has_same_prefix =
                        |(known, _): &(Box<str>, _)| known.eq_ignore_ascii_case(prefix);
                    let is_known = methods.prefixes.iter().any(has_same_prefix);
                    methods.prefixes.push((prefix.into(), group));
                    is_known
                }
                None if pattern.contains('*') => return Err(RouteError::Star(pattern.into())),
                None => {
                    let is_known = methods.find_group_ignoring_case(pattern).is_some();
                    methods.exact.insert(pattern.into(), group);
                    is_known
                }
            };
            if is_duplicate {
                return Err(RouteError::PatternTwice(pattern.into()));
            }
        }
        let longest_first = |(prefix, _): &(Box<str>, usize)| std::cmp::Reverse(prefix.len());
        methods.prefixes.sort_by_key(longest_first);
        Ok(methods)
    }

    fn find_group(&self, method: &str) -> usize {
        if let Some(group) =
            self.exact.get(method).copied().or_else(|| self.find_group_ignoring_case(method))
        {
            return group;
        }
        self.prefixes
            .iter()
            .find(|(prefix, _)| starts_with_ignoring_case(method, prefix))
            .map_or(self.default_group, |&(_, group)| group)
    }

    fn find_group_ignoring_case(&self, method: &str) -> Option<usize> {
        let mut exact = self.exact.iter();
        exact.find(|(name, _)| name.eq_ignore_ascii_case(method)).map(|(_, group)| *group)
    }
}

fn trim_slashes(path: &str) -> &str {
    path.trim_end_matches('/')
}
