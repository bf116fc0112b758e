//! Goal: every command that a help text, a page, a shipped study or a shipped configuration names
//! does what its reader expects. Method: the commands are read from where they stand, each is
//! looked up in a table of outcomes, and a shell runs it against nodes and gateways that this test
//! starts.
//!
//! Only addresses, names of files outside the folder, and durations are replaced. A command that is
//! not in the table fails the test, and so does a line of the table that no text has any more.

mod find;
mod shell;
mod table;
mod world;

use std::collections::BTreeMap;

use find::Found;
use shell::Place;
use table::{OUTCOMES, Outcome};
use world::World;

/// Texts whose commands run at the same time.
const AT_ONCE: usize = 3;

#[test]
fn every_example_is_in_the_table_and_the_table_has_no_others() {
    let found = find::all();
    assert!(found.len() > 100, "only {} examples were found", found.len());
    let unknown: Vec<_> =
        found.iter().filter(|one| table::outcome(&one.command).is_none()).collect();
    assert!(unknown.is_empty(), "examples that no test runs: {unknown:#?}");
    let gone: Vec<_> = OUTCOMES
        .iter()
        .map(|(command, ..)| *command)
        .filter(|command| !found.iter().any(|one| one.command == *command))
        .collect();
    assert!(gone.is_empty(), "no text has these any more: {gone:#?}");
    let mut seen = std::collections::BTreeSet::new();
    let twice: Vec<_> = OUTCOMES.iter().filter(|(command, ..)| !seen.insert(command)).collect();
    assert!(twice.is_empty(), "the table has these twice: {twice:#?}");
}

#[test]
fn every_example_does_what_its_reader_expects() {
    let mut texts: BTreeMap<String, Vec<Found>> = BTreeMap::new();
    for one in find::all() {
        texts.entry(one.text.clone()).or_default().push(one);
    }
    let world = World::new();
    let waiting: parking_lot::Mutex<Vec<Vec<Found>>> =
        parking_lot::Mutex::new(texts.into_values().collect());
    let faults = parking_lot::Mutex::new(Vec::new());
    let work = || {
        loop {
            let next = waiting.lock().pop();
            let Some(commands) = next else { return };
            let mut place = Place::new(&world);
            for one in commands {
                let Some((changes, outcome)) = table::outcome(&one.command) else { continue };
                let command = world.here(&place.moved(&one.command), changes);
                if let Err(fault) = place.judge(&command, outcome) {
                    let fault = fault.lines().take(60).collect::<Vec<_>>().join("\n");
                    let told = format!("{}: {}\nran as: {command}\n{fault}", one.text, one.command);
                    faults.lock().push(told);
                }
            }
        }
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..AT_ONCE).map(|_| scope.spawn(work)).collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
    let faults = faults.into_inner();
    assert!(faults.is_empty(), "{} examples:\n\n{}", faults.len(), faults.join("\n\n"));
}

#[test]
fn few_examples_are_left_out_and_each_says_why() {
    let left: Vec<_> = OUTCOMES
        .iter()
        .filter_map(|(command, _, outcome)| match outcome {
            Outcome::NotHere(why) => Some((*command, *why)),
            _ => None,
        })
        .collect();
    assert!(left.len() * 5 < OUTCOMES.len(), "too many: {left:#?}");
    assert!(left.iter().all(|(_, why)| why.len() > 10), "{left:#?}");
}
