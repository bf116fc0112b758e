//! Goal: every example command in a help text, a documentation page, a shipped study or a shipped
//! configuration does what its reader expects. Method: the test extracts the commands from these
//! texts and looks each up in a table of expected outcomes. A shell runs the command against nodes
//! and gateways that this test starts.
//!
//! The test replaces only addresses, names of files outside the folder, durations and high rates. A
//! command that is missing in the table fails the test, and so does a row of the table whose command
//! no text contains.

mod find;
mod shell;
mod table;
mod world;

use std::collections::BTreeMap;

use find::Example;
use shell::Session;
use table::{OUTCOMES, Outcome};
use world::World;

/// Number of threads; each runs the commands of one text at a time.
const THREADS: usize = 3;

#[test]
fn every_example_is_in_the_table_and_the_table_has_no_others() {
    let examples = find::find_all();
    assert!(examples.len() > 100, "only {} examples were found", examples.len());
    let missing: Vec<_> =
        examples.iter().filter(|example| table::find_outcome(&example.command).is_none()).collect();
    assert!(missing.is_empty(), "examples that are not in the table: {missing:#?}");
    let unused: Vec<_> = OUTCOMES
        .iter()
        .map(|(command, ..)| *command)
        .filter(|command| !examples.iter().any(|example| example.command == *command))
        .collect();
    assert!(unused.is_empty(), "rows of the table whose command no text contains: {unused:#?}");
    let mut commands = std::collections::BTreeSet::new();
    let duplicates: Vec<_> =
        OUTCOMES.iter().filter(|(command, ..)| !commands.insert(command)).collect();
    assert!(duplicates.is_empty(), "the table has these twice: {duplicates:#?}");
}

#[test]
fn every_example_does_what_its_reader_expects() {
    let mut examples_by_text: BTreeMap<String, Vec<Example>> = BTreeMap::new();
    // The studies of the pages of results are in other texts, too.
    let is_run = |example: &Example| !example.text.starts_with(find::RESULTS);
    for example in find::find_all().into_iter().filter(is_run) {
        examples_by_text.entry(example.text.clone()).or_default().push(example);
    }
    let world = World::new();
    let waiting: parking_lot::Mutex<Vec<Vec<Example>>> =
        parking_lot::Mutex::new(examples_by_text.into_values().collect());
    let errors = parking_lot::Mutex::new(Vec::new());
    let work = || {
        loop {
            let next = waiting.lock().pop();
            let Some(examples) = next else { return };
            let mut session = Session::new(&world);
            for example in examples {
                let Some((changes, outcome)) = table::find_outcome(&example.command) else {
                    continue;
                };
                let command = session.replace_addresses(&example.command);
                let command = world.localize(&command, changes);
                if let Err(error) = session.run(&command, outcome) {
                    let error = error.lines().take(60).collect::<Vec<_>>().join("\n");
                    errors.lock().push(format!(
                        "{}: {}\nran as: {command}\n{error}",
                        example.text, example.command
                    ));
                }
            }
        }
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(work)).collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
    let errors = errors.into_inner();
    assert!(errors.is_empty(), "{} examples:\n\n{}", errors.len(), errors.join("\n\n"));
}

#[test]
fn few_examples_are_skipped_and_each_has_a_reason() {
    let skipped: Vec<_> = OUTCOMES
        .iter()
        .filter_map(|(command, _, outcome)| match outcome {
            Outcome::NotHere(reason) => Some((*command, *reason)),
            _ => None,
        })
        .collect();
    assert!(skipped.len() * 5 < OUTCOMES.len(), "too many: {skipped:#?}");
    assert!(skipped.iter().all(|(_, reason)| reason.len() > 10), "{skipped:#?}");
}
