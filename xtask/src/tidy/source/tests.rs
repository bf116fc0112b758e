//! Each check on source has a sample with a violation and a sample without one.

use super::super::Finding;
use super::super::tree::Tree;
use super::{
    SLEEPS, find_misplaced_error_responses, find_missing_docs, find_sentences_in_analysis,
    find_side_effects_in_pure_code, find_unexplained_sleeps, find_unnumbered_open_work,
};

fn lines(check: fn(&Tree) -> Vec<Finding>, path: &str, text: &str) -> Vec<usize> {
    check(&Tree::from_texts(&[(path, text)])).iter().map(|finding| finding.line).collect()
}

#[test]
fn a_file_without_a_doc_is_caught() {
    let caught = |text| lines(find_missing_docs, "crates/wire/src/key.rs", text);
    assert_eq!(caught("use a::b;\n"), [1]);
    assert_eq!(caught("//!\n"), [1]);
    assert_eq!(caught("//! \n"), [1]);
    assert_eq!(caught("//! Keys of calls.\n"), [0usize; 0]);
}

#[test]
fn a_side_effect_in_pure_code_is_caught() {
    let caught = |path, text| lines(find_side_effects_in_pure_code, path, text);
    let rule = "crates/gateway/src/policy/limit.rs";
    for bad in [
        "use std::time::Instant;",
        "let t = std::time::SystemTime::now();",
        "use tokio::time::sleep;",
        "use std::net::SocketAddr;",
        "let x = rand::random();",
        "use std::fs;",
        "std::thread::yield_now();",
    ] {
        assert_eq!(caught(rule, bad), [1], "{bad}");
        assert_eq!(caught("crates/gateway/src/policy.rs", bad), [1], "{bad}");
        assert_eq!(caught("crates/lab/src/analysis/search.rs", bad), [1], "{bad}");
        assert!(caught("crates/gateway/src/upstream/send.rs", bad).is_empty(), "{bad}");
        assert!(caught("crates/gateway/src/policy/limit/tests.rs", bad).is_empty(), "{bad}");
        assert_eq!(caught("crates/index/src/planner/range.rs", bad), [1], "{bad}");
    }
    for good in ["use std::time::Duration;", "// no tokio here", "let operand::A = instant;"] {
        assert!(caught(rule, good).is_empty(), "{good}");
    }
}

#[test]
fn a_sentence_in_the_lab_s_analysis_is_caught() {
    let analysis = "crates/lab/src/analysis/verdict.rs";
    let caught = |path, text| lines(find_sentences_in_analysis, path, text);
    for bad in [
        r#"reasons.push(format!("{share} of the calls failed"));"#,
        r#"    "the generator was the limit, \"#,
        r#"'"' => "not set","#,
    ] {
        assert_eq!(caught(analysis, bad), [1], "{bad}");
        assert!(caught("crates/lab/src/wording/verdict.rs", bad).is_empty(), "{bad}");
        assert!(caught("crates/lab/src/analysis/verdict/tests.rs", bad).is_empty(), "{bad}");
    }
    for good in [
        r#"let name = host!("process.*.cpu");"#,
        r#"let first = order.expect("no part is NaN");"#,
        r#"// the sentence "it was late" is in wording"#,
        r#"'"' => format!("{:?}", string(raw)),"#,
    ] {
        assert!(caught(analysis, good).is_empty(), "{good}");
    }
}

#[test]
fn an_error_response_built_elsewhere_is_caught() {
    let text = "\nwire::answer::write_error(&mut out);";
    let caught = |path| lines(find_misplaced_error_responses, path, text);
    assert_eq!(caught("crates/gateway/src/downstream/http.rs"), [2]);
    assert!(caught("crates/gateway/src/downstream/answer.rs").is_empty());
    assert!(caught("crates/wire/src/answer.rs").is_empty());
    assert!(caught("crates/simnode/src/rpc.rs").is_empty());
}

#[test]
fn a_test_that_sleeps_without_a_reason_is_caught() {
    // The literal is split, so this file does not contain a match.
    let call = concat!("sl", "eep(d)");
    let caught = |text: &str| lines(find_unexplained_sleeps, "crates/gateway/tests/pool.rs", text);
    assert_eq!(caught(&format!("a();\n{call}.await;")), [2]);
    for call in [call, concat!("std::thread::park_", "timeout(d)"), concat!("pau", "se(d)")] {
        assert_eq!(caught(&format!("{call};")), [1], "{call}");
        // Neither another comment nor an empty reason is a reason.
        assert_eq!(caught(&format!("{call}; // virtual time")), [1], "{call}");
        assert_eq!(caught(&format!("// A pause.\n{call};")), [2], "{call}");
        assert_eq!(caught(&format!("{call}; {SLEEPS}")), [1], "{call}");
        assert_eq!(caught(&format!("{SLEEPS}the first only.\n{call};\n{call};")), [3], "{call}");
        assert_eq!(caught(&format!("{call}; {SLEEPS}virtual time.")), [0; 0], "{call}");
        assert_eq!(caught(&format!("{SLEEPS}no signal.\n{call};")), [0; 0], "{call}");
    }
    assert!(caught(concat!("fn pau", "se(d: Duration) {}")).is_empty());
    assert!(caught("self.pause.as_micros(); unpause(d);").is_empty());
    assert!(lines(find_unexplained_sleeps, "crates/gateway/src/pool.rs", call).is_empty());
    assert_eq!(lines(find_unexplained_sleeps, "crates/gateway/src/pool/tests.rs", call), [1]);
    assert_eq!(lines(find_unexplained_sleeps, "crates/test-support/src/wait.rs", call), [1]);
    let own = concat!("pau", "se(attempts)");
    assert!(lines(find_unexplained_sleeps, "crates/gateway/src/retry/tests.rs", own).is_empty());
}

#[test]
fn open_work_without_a_number_is_caught() {
    let word = super::OPEN_WORK[0];
    let caught = |text: &str| lines(find_unnumbered_open_work, "crates/wire/src/key.rs", text);
    assert_eq!(caught(&format!("// {word}: later")), [1]);
    assert_eq!(caught(&format!("// {word}(#x): later")), [1]);
    assert!(caught(&format!("// {word}(#12): later")).is_empty());
    assert!(caught(&format!("let {word}S = 1;")).is_empty());
}
