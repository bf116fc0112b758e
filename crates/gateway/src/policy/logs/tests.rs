//! Goal: parts cover a range exactly, chunks are shared, and merging never loses, duplicates or
//! reorders a log. Method: tables, and random ranges and splits compared with the whole.

use super::*;
use proptest::prelude::*;

fn part(from: u64, to: u64, finalized: bool) -> Part {
    Part { from, to, finalized }
}

#[test]
fn ranges_are_split_at_chunks_and_after_the_finalized_block() {
    // Chunks have 100 blocks, and a range has at most 8 parts.
    let check = |from, to, finalized, expected: &[Part]| {
        assert_eq!(
            split_range(from, to, finalized, 100, 8),
            expected,
            "{from}..={to} {finalized:?}"
        );
    };
    check(5, 9, Some(1000), &[part(5, 9, true)]);
    check(0, 99, Some(1000), &[part(0, 99, true)]);
    check(0, 100, Some(1000), &[part(0, 99, true), part(100, 100, true)]);
    check(
        150,
        350,
        Some(300),
        &[part(150, 199, true), part(200, 299, true), part(300, 300, true), part(301, 350, false)],
    );
    check(150, 350, Some(100), &[part(150, 350, false)]);
    check(150, 350, None, &[part(150, 350, false)]);
    check(0, 699, Some(799), &[0, 1, 2, 3, 4, 5, 6].map(|n| part(n * 100, n * 100 + 99, true)));
    check(0, 900, Some(799), &[part(0, 900, false)]);
    check(0, 900, Some(2000), &[part(0, 900, true)]);
    check(9, 5, Some(2000), &[part(9, 5, true)]);
    check(0, u64::MAX, Some(u64::MAX), &[part(0, u64::MAX, true)]);
    let top = u64::MAX - u64::MAX % 100;
    check(u64::MAX - 1, u64::MAX, Some(u64::MAX), &[part(u64::MAX - 1, u64::MAX, true)]);
    check(top, u64::MAX, Some(u64::MAX), &[part(top, u64::MAX, true)]);
}

fn log(number: u64, index: u64) -> String {
    format!(
        r#"{{"data":"0x","blockNumber":"0x{number:x}","topics":[{{}}],"logIndex":"0x{index:x}"}}"#
    )
}

fn array(logs: &[String]) -> String {
    format!("[{}]", logs.join(","))
}

fn merged(parts: &[(Part, &str)]) -> Result<String, MergeError> {
    let raw: Vec<_> = parts.iter().map(|(part, raw)| (*part, raw.as_bytes())).collect();
    merge(&raw).map(|merged| String::from_utf8(merged).unwrap())
}

#[test]
fn parts_are_joined_byte_for_byte() {
    let logs_of_first = format!("[ {} , {} ]", log(1, 0), log(9, 3));
    let two = array(&[log(10, 0)]);
    let joined = merged(&[
        (part(0, 9, true), &logs_of_first),
        (part(10, 19, true), &two),
        (part(20, 29, true), "[ ]"),
        (part(30, 39, false), &array(&[log(39, 7)])),
    ]);
    let expected = format!("[{} , {},{},{}]", log(1, 0), log(9, 3), log(10, 0), log(39, 7));
    assert_eq!(joined, Ok(expected));
    assert_eq!(merged(&[(part(0, 9, true), "[]"), (part(10, 19, true), "[]")]), Ok("[]".into()));
    assert_eq!(merged(&[]), Ok("[]".into()));
}

#[test]
fn decimal_block_numbers_are_accepted() {
    let harmony = r#"[{"blockNumber":5,"logIndex":0}]"#;
    assert_eq!(merged(&[(part(5, 5, true), harmony)]), Ok(harmony.into()));
}

#[test]
fn malformed_or_misplaced_logs_are_rejected() {
    let middle = part(10, 19, true);
    let first = (part(0, 9, true), array(&[log(9, 5)]));
    let check = |raw: &str, expected: MergeError| {
        let parts = [(first.0, first.1.as_str()), (middle, raw)];
        assert_eq!(merged(&parts), Err(expected), "{raw}");
    };
    check("null", MergeError::NotArray(middle));
    check("{}", MergeError::NotArray(middle));
    check(r#"[{"blockNumber":"0xa"}]"#, MergeError::NoPosition(middle));
    check(r#"[{"blockNumber":null,"logIndex":"0x1"}]"#, MergeError::NoPosition(middle));
    let out =
        |block, index| MergeError::OutOfOrder { log: LogPosition { block, index }, part: middle };
    check(&array(&[log(9, 6)]), out(9, 6));
    check(&array(&[log(10, 0), log(20, 0)]), out(20, 0));
    check(&array(&[log(12, 1), log(12, 0)]), out(12, 0));
    let twice = part(0, 19, true);
    let seam = array(&[log(9, 5)]);
    let parts = [(twice, seam.as_str()), (twice, seam.as_str())];
    assert!(merged(&parts).is_err(), "the same log twice at a seam");
}

proptest! {
    #[test]
    fn parts_cover_the_range_once(
        from in 0_u64..5000,
        length in 0_u64..5000,
        finalized in proptest::option::of(0_u64..9000),
        chunk in 0_u64..300,
        parts_max in 0_usize..40,
    ) {
        let to = from + length;
        let parts = split_range(from, to, finalized, chunk, parts_max);
        prop_assert!(parts.len() <= parts_max.max(1));
        prop_assert_eq!(parts[0].from, from);
        prop_assert_eq!(parts[parts.len() - 1].to, to);
        for pair in parts.windows(2) {
            prop_assert_eq!(pair[0].to + 1, pair[1].from);
        }
        for part in &parts {
            prop_assert!(part.from <= part.to);
            prop_assert!(!part.finalized || part.to <= finalized.unwrap());
        }
        for part in parts.iter().filter(|part| part.finalized && parts.len() > 1) {
            let chunk = chunk.max(1);
            prop_assert_eq!(part.from / chunk, part.to / chunk);
        }
    }

    #[test]
    fn splitting_and_merging_gives_all_logs(
        places in proptest::collection::btree_set((0_u64..100, 0_u64..4), 0..60),
        chunk in 1_u64..40,
        finalized in 0_u64..120,
    ) {
        let logs: Vec<_> = places.iter().map(|&(number, index)| (number, log(number, index))).collect();
        let parts = split_range(0, 99, Some(finalized), chunk, 1000);
        let raw: Vec<_> = parts
            .iter()
            .map(|part| {
                let within = logs.iter().filter(|(number, _)| (part.from..=part.to).contains(number));
                (*part, array(&within.map(|(_, log)| log.clone()).collect::<Vec<_>>()))
            })
            .collect();
        let raw: Vec<_> = raw.iter().map(|(part, raw)| (*part, raw.as_str())).collect();
        let all_logs = array(&logs.iter().map(|(_, log)| log.clone()).collect::<Vec<_>>());
        prop_assert_eq!(merged(&raw), Ok(all_logs));
    }
}
