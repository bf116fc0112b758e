//! Goal: the text and the Markdown of a comparison name each difference with its example.
//! Method: an invented result with markup in its values.

use expect_test::expect;
use lab_model::results::equal::{
    DifferenceClass, DifferenceExample, SCHEMA, ServerFacts, SkipReason, SkippedCalls,
};

use super::*;
use crate::report::{Colour, Report};

/// Returns a result with a difference that counts, and with an allowed difference.
pub(in crate::report) fn different() -> EqualResult {
    let server = |url: &str, client: &str| ServerFacts {
        url: url.into(),
        client: Some(client.into()),
        chain_id: Some("0x1".into()),
        head: Some(21_000_100),
    };
    let row = |class, pointer: &str, counts, habit: Option<&str>| DifferenceRow {
        method: "eth_call".into(),
        class,
        pointer: pointer.into(),
        counts,
        unsteady: false,
        habit: habit.map(str::to_owned),
        calls: 3,
        example: DifferenceExample {
            request: r#"{"method":"eth_call"}"#.into(),
            pointer: pointer.replace('*', "0"),
            a: "\"<b>&|`\"".into(),
            b: "nothing".into(),
        },
    };
    let method = |method: &str, different, allowed| MethodRow {
        method: method.into(),
        calls: 10,
        equal: 10 - different - allowed,
        allowed,
        different,
        unsteady: 0,
        unanswered: 0,
    };
    EqualResult {
        schema: SCHEMA.into(),
        weir: "0.1.0".into(),
        started: "2026-11-25T19:00:00Z".into(),
        duration: 1.5,
        verdict: EqualVerdict::Different,
        strict: false,
        habits_apply: true,
        a: server("http://a.example", "Geth/v1.16.0"),
        b: server("http://b.example", "Nethermind/v1.32.0"),
        family: "ethereum".into(),
        block: Some(21_000_000),
        calls: 20,
        skipped: vec![SkippedCalls {
            method: "eth_sendRawTransaction".into(),
            reason: SkipReason::Unsafe,
            calls: 2,
        }],
        methods: vec![method("eth_call", 3, 3), method("eth_getLogs", 0, 0)],
        differences: vec![
            row(DifferenceClass::Value, "/result/*/x", true, None),
            row(DifferenceClass::ErrorMessage, "/error/message", false, Some("error texts")),
        ],
        differences_more: 0,
        warnings: vec!["2 calls of eth_sendRawTransaction not sent: not safe to repeat".into()],
    }
}

#[test]
fn the_text_has_a_table_by_method_and_class_and_an_example_of_each_difference() {
    expect![[r#"
        DIFFERENT  the responses to 3 of 20 calls of 2 methods differ, and 3 differ only by known habits of clients or ignored values

           server                  head  client
        A  http://a.example  21,000,100  Geth/v1.16.0
        B  http://b.example  21,000,100  Nethermind/v1.32.0
        Family ethereum; newest block of the calls: 21,000,000.

        method       calls  equal  allowed  different  unsteady  unanswered
        eth_call        10      4        3          3         0           0
        eth_getLogs     10     10        0          0         0           0

        Differences:
        method    class            calls  pointer      known habit
        eth_call  different value      3  /result/*/x
          eth_call /result/0/x: A = "<b>&|`", B = nothing; request {"method":"eth_call"}

        Allowed differences:
        method    class          calls  pointer         known habit
        eth_call  error message      3  /error/message  error texts
        warning     2 calls of eth_sendRawTransaction not sent: not safe to repeat
    "#]].assert_eq(&Report::equal(&different()).text(Colour::Plain));
}

#[test]
fn the_markdown_escapes_values() {
    expect![[r###"
        ## DIFFERENT: http://a.example · http://b.example

        **DIFFERENT**: the responses to 3 of 20 calls of 2 methods differ, and 3 differ only by known habits of clients or ignored values

        ### Servers

        |  | server | head | client |
        | --- | --- | --: | --- |
        | A | http://a.example | 21,000,100 | Geth/v1.16.0 |
        | B | http://b.example | 21,000,100 | Nethermind/v1.32.0 |

        Family ethereum; newest block of the calls: 21,000,000.

        ### Methods

        | method | calls | equal | allowed | different | unsteady | unanswered |
        | --- | --: | --: | --: | --: | --: | --: |
        | `eth_call` | 10 | 4 | 3 | **3** | 0 | 0 |
        | `eth_getLogs` | 10 | 10 | 0 | 0 | 0 | 0 |

        ### Differences

        | method | class | calls | pointer | known habit |
        | --- | --- | --: | --- | --- |
        | `eth_call` | **different value** | 3 | `/result/*/x` |  |

        - `eth_call` /result/0/x: A = `"<b>&\|'"`, B = `nothing`; request `{"method":"eth_call"}`

        ### Allowed differences

        | method | class | calls | pointer | known habit |
        | --- | --- | --: | --- | --- |
        | `eth_call` | error message | 3 | `/error/message` | error texts |

        - `eth_call` /error/message: A = `"<b>&\|'"`, B = `nothing`; request `{"method":"eth_call"}`

        ### Warnings

        - 2 calls of eth_sendRawTransaction not sent: not safe to repeat
    "###]].assert_eq(&Report::equal(&different()).markdown());
}
