//! Goal: a later trial of response forms keeps the results of earlier trials. Method: one
//! combination of two trials.

use super::*;

fn names(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

#[test]
fn trials_of_response_forms_add_up() {
    let metadata = Metadata {
        chain: Chain { family: "ethereum".to_owned(), id: "1".to_owned(), genesis_hash: [7; 32] },
        contents: "blocks,receipts,logs".parse().unwrap(),
        verification: "full".to_owned(),
        differing_forms: names(&["receipt"]),
        untested_forms: names(&["logs", "hmyv2_hashes"]),
    };
    // The sample of the later trial has logs, and its receipt does not show the difference that the
    // earlier trial found.
    let trial =
        FormTrial { differing: names(&["logs"]), untested: names(&["hmyv2_hashes", "hashes"]) };
    let (differing, untested) = combine_trials(&metadata, &trial);
    assert_eq!(differing, names(&["receipt", "logs"]));
    assert_eq!(untested, names(&["hmyv2_hashes"]), "an earlier trial compared the hashes");
}
