//! Which chain a path leads to, and which group of the chain serves a method.
//!
//! Made once from the configuration; looking up is one hash for exact names and a short list of
//! prefixes otherwise. Which upstream of the group is taken is decided in `choose`.

use std::collections::HashMap;

use foldhash::fast::RandomState;
use wire::effect::starts_with_ignoring_case;

#[cfg(test)]
mod tests;

/// One chain's routes as written; indices are the caller's.
#[derive(Debug, Clone)]
pub struct ChainRoutes<'a> {
    /// Paths that lead here, each beginning with `/`.
    pub paths: &'a [&'a str],
    /// Patterns and the group that serves them: an exact method name, a prefix ending in `*`, or
    /// `*`.
    pub methods: &'a [(&'a str, usize)],
    /// The group for methods that no pattern names.
    pub rest: usize,
}

/// What is wrong with written routes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RouteFault {
    /// Two chains claim one path.
    #[error("path {0:?} leads to two chains; a path may lead to one")]
    PathTwice(Box<str>),
    /// Two groups of a chain claim one pattern.
    #[error("method pattern {0:?} names two groups; a pattern may name one")]
    PatternTwice(Box<str>),
    /// A star elsewhere than at the end.
    #[error("method pattern {0:?} has a star before its end; allowed is name, prefix* or *")]
    Star(Box<str>),
}

/// The compiled routes.
#[derive(Debug, Default)]
pub struct Router {
    paths: HashMap<Box<str>, usize, RandomState>,
    chains: Vec<Methods>,
    default: Option<usize>,
}

#[derive(Debug, Default)]
struct Methods {
    exact: HashMap<Box<str>, usize, RandomState>,
    /// Longest first, so that the first match is the most exact one.
    prefixes: Vec<(Box<str>, usize)>,
    rest: usize,
}

impl Router {
    /// Compiles the routes of all chains. `default` is the chain of paths that lead nowhere else.
    ///
    /// # Errors
    /// The first path or pattern that is given twice or is no pattern.
    pub fn new(chains: &[ChainRoutes<'_>], default: Option<usize>) -> Result<Self, RouteFault> {
        let mut router = Self { default, ..Self::default() };
        for (chain, routes) in chains.iter().enumerate() {
            for &path in routes.paths {
                if router.paths.insert(trimmed(path).into(), chain).is_some() {
                    return Err(RouteFault::PathTwice(path.into()));
                }
            }
            router.chains.push(Methods::new(routes)?);
        }
        Ok(router)
    }

    /// The chain that a path (without its query) leads to. A slash at the end makes no difference.
    pub fn chain(&self, path: &str) -> Option<usize> {
        self.paths.get(trimmed(path)).copied().or(self.default)
    }

    /// The group of `chain` that serves `method`: a whole name before the longest prefix before the
    /// rest. The case of letters makes no difference.
    pub fn group(&self, chain: usize, method: &str) -> usize {
        self.chains[chain].group(method)
    }
}

impl Methods {
    fn new(routes: &ChainRoutes<'_>) -> Result<Self, RouteFault> {
        let mut methods = Self { rest: routes.rest, ..Self::default() };
        for &(pattern, group) in routes.methods {
            let twice = match pattern.strip_suffix('*') {
                Some(prefix) if prefix.contains('*') => {
                    return Err(RouteFault::Star(pattern.into()));
                }
                Some(prefix) => {
                    let known = |(other, _): &(Box<str>, _)| other.eq_ignore_ascii_case(prefix);
                    let known = methods.prefixes.iter().any(known);
                    methods.prefixes.push((prefix.into(), group));
                    known
                }
                None if pattern.contains('*') => return Err(RouteFault::Star(pattern.into())),
                None => {
                    let known = methods.in_any_case(pattern).is_some();
                    methods.exact.insert(pattern.into(), group);
                    known
                }
            };
            if twice {
                return Err(RouteFault::PatternTwice(pattern.into()));
            }
        }
        let longest_first = |(prefix, _): &(Box<str>, usize)| std::cmp::Reverse(prefix.len());
        methods.prefixes.sort_by_key(longest_first);
        Ok(methods)
    }

    fn group(&self, method: &str) -> usize {
        if let Some(group) = self.exact.get(method).copied().or_else(|| self.in_any_case(method)) {
            return group;
        }
        self.prefixes
            .iter()
            .find(|(prefix, _)| starts_with_ignoring_case(method, prefix))
            .map_or(self.rest, |&(_, group)| group)
    }

    fn in_any_case(&self, method: &str) -> Option<usize> {
        let mut exact = self.exact.iter();
        exact.find(|(name, _)| name.eq_ignore_ascii_case(method)).map(|(_, group)| *group)
    }
}

fn trimmed(path: &str) -> &str {
    path.trim_end_matches('/')
}
