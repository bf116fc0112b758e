//! Groups the differences of all calls by method, class, JSON pointer and habit. The *class* is the
//! kind of a difference, such as a missing member. A *habit* is a known difference between the
//! responses of correct node programs (`analysis/habits.rs`). Such a difference is allowed.

use std::collections::{BTreeMap, BTreeSet};

use lab_model::results::equal::{DifferenceClass, DifferenceExample, DifferenceRow, MethodRow};

use super::send::Outcome;
use super::{ComparedCall, Options};
use crate::analysis::habits::{find_habit, matches_pointer};
use crate::analysis::json_compare::all::ClassifiedDifference;

/// Maximum number of groups that are listed.
const GROUPS_MAX: usize = 500;
/// Maximum length of a request in an example, in bytes.
const REQUEST_BYTES_MAX: usize = 500;
/// The habit that is reported for values that the user ignores.
const IGNORED_HABIT: &str = "--ignore";

/// The properties that all differences of a group share. Groups are sorted by these fields. The
/// groups that count in the verdict come first, because `is_allowed` is the first field.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct GroupKey {
    /// True if a habit or the user allows the difference.
    is_allowed: bool,
    method: String,
    class: DifferenceClass,
    /// JSON pointer relative to the response; `*` replaces the indexes of arrays.
    pointer: String,
    /// True if the difference went away when the call was repeated.
    is_unsteady: bool,
    /// Name of the habit that explains the difference, if there is one.
    habit: Option<String>,
}

/// Builds the groups of all calls.
pub(super) struct Groups<'a> {
    options: &'a Options,
    /// Client version of each server, if it reports one.
    client_versions: [Option<&'a str>; 2],
    /// True if habits allow differences. False for servers of the same version, because these have
    /// the same habits.
    habits_apply: bool,
    /// Counts of calls by method.
    methods: BTreeMap<String, MethodRow>,
    /// The groups so far.
    rows: BTreeMap<GroupKey, DifferenceRow>,
}

/// The finished rows of the result.
pub(super) struct Grouped {
    /// Counts of calls by method.
    pub(super) methods: Vec<MethodRow>,
    /// The listed groups, the ones that count in the verdict first.
    pub(super) differences: Vec<DifferenceRow>,
    /// Number of groups that are not listed.
    pub(super) omitted: u64,
}

impl<'a> Groups<'a> {
    /// Creates groups without calls. `habits_apply` is false if both servers report the same client
    /// version.
    pub(super) fn new(
        options: &'a Options,
        client_versions: [Option<&'a str>; 2],
        habits_apply: bool,
    ) -> Groups<'a> {
        let (methods, rows) = (BTreeMap::new(), BTreeMap::new());
        Groups { options, client_versions, habits_apply, methods, rows }
    }

    /// Adds the outcome of a call.
    pub(super) fn add(&mut self, call: &ComparedCall, outcome: &Outcome) {
        let (found, is_unsteady) = match outcome {
            Outcome::Compared(found) => (&found[..], false),
            Outcome::Unsteady(found) => (&found[..], true),
            Outcome::Unanswered | Outcome::Unstable => (&[][..], false),
        };
        let keys: Vec<(GroupKey, &ClassifiedDifference)> = found
            .iter()
            .map(|difference| (self.key_of(call, difference, is_unsteady), difference))
            .collect();
        let row = self.methods.entry(call.method.clone()).or_default();
        row.method.clone_from(&call.method);
        row.calls += 1;
        match outcome {
            // Different responses at different heads prove nothing, so an unstable call counts as
            // unanswered.
            Outcome::Unanswered | Outcome::Unstable => row.unanswered += 1,
            _ if keys.is_empty() => row.equal += 1,
            _ if keys.iter().all(|(key, _)| key.is_allowed) => row.allowed += 1,
            Outcome::Compared(_) => row.different += 1,
            Outcome::Unsteady(_) => row.unsteady += 1,
        }
        let mut counted = BTreeSet::new();
        for (key, difference) in keys {
            // A call counts once in each group, whatever the number of its differences.
            let is_first_of_call = counted.insert(key.clone());
            let row = self.rows.entry(key).or_insert_with_key(|key| row_of(key, call, difference));
            row.calls += u64::from(is_first_of_call);
        }
    }

    /// Returns the group of a difference.
    fn key_of(
        &self,
        call: &ComparedCall,
        difference: &ClassifiedDifference,
        is_unsteady: bool,
    ) -> GroupKey {
        let mut ignore = self.options.ignore.iter();
        let is_ignored = ignore.any(|pattern| matches_pointer(pattern, &difference.pointer));
        let habit = find_habit(difference, &call.method, self.client_versions);
        let habits_apply = self.habits_apply && !self.options.strict;
        // A value that depends on the head differs even between servers of the same version.
        let is_allowed =
            is_ignored || habit.is_some_and(|habit| habits_apply || habit.depends_on_head);
        let habit = match is_ignored {
            true => Some(IGNORED_HABIT.to_owned()),
            false => habit.map(|habit| habit.name.clone()),
        };
        let pointer = without_indexes(&difference.pointer);
        GroupKey {
            is_allowed,
            method: call.method.clone(),
            class: difference.class,
            pointer,
            is_unsteady,
            habit,
        }
    }

    /// Returns the rows of all methods and groups.
    pub(super) fn finish(self) -> Grouped {
        let omitted = self.rows.len().saturating_sub(GROUPS_MAX) as u64;
        Grouped {
            methods: self.methods.into_values().collect(),
            differences: self.rows.into_values().take(GROUPS_MAX).collect(),
            omitted,
        }
    }
}

/// Returns the row of a new group, with this difference as its example.
fn row_of(key: &GroupKey, call: &ComparedCall, difference: &ClassifiedDifference) -> DifferenceRow {
    let body = call.body();
    let request = String::from_utf8_lossy(&body);
    let request = match request.len() <= REQUEST_BYTES_MAX {
        true => request.into_owned(),
        false => format!("{}…", &request[..request.floor_char_boundary(REQUEST_BYTES_MAX)]),
    };
    DifferenceRow {
        method: key.method.clone(),
        class: key.class,
        pointer: key.pointer.clone(),
        counts: !key.is_allowed,
        unsteady: key.is_unsteady,
        habit: key.habit.clone(),
        calls: 0,
        example: DifferenceExample {
            request,
            pointer: difference.pointer.clone(),
            a: difference.left.to_string(),
            b: difference.right.to_string(),
        },
    }
}

/// Replaces array indexes with `*`.
fn without_indexes(pointer: &str) -> String {
    let is_index =
        |segment: &str| !segment.is_empty() && segment.bytes().all(|byte| byte.is_ascii_digit());
    let segments = pointer.split('/').map(|segment| if is_index(segment) { "*" } else { segment });
    segments.collect::<Vec<_>>().join("/")
}
