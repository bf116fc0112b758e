//! The calls of a probe without a plan: cheap reads that every node of a chain family supports.

use lab_model::plan::{Mix, Piece, Plan, Step, Template, WeightedCall};
use wire::family::Family;

/// Calls of Ethereum's family: method, parameters as JSON, and weight. A call is chosen with a
/// probability in proportion to its weight.
const ETHEREUM: &[(&str, &str, f64)] = &[
    ("eth_getBlockByNumber", r#"["latest",false]"#, 2.0),
    ("eth_getBalance", r#"["0x0000000000000000000000000000000000000000","latest"]"#, 1.0),
    ("eth_gasPrice", "[]", 1.0),
    ("eth_chainId", "[]", 1.0),
];
/// Calls of Harmony's family, in the same form.
const HARMONY: &[(&str, &str, f64)] =
    &[("hmyv2_getLatestChainHeaders", "[]", 1.0), ("hmyv2_getEpoch", "[]", 1.0)];
/// Calls of Bitcoin's family, in the same form.
const BITCOIN: &[(&str, &str, f64)] =
    &[("getbestblockhash", "[]", 1.0), ("getblockchaininfo", "[]", 1.0)];

/// Replaces the calls of a plan by the default calls of a family. Only the first scenario remains.
pub(super) fn set(plan: &mut Plan, family: Family) {
    let calls = match family {
        Family::Ethereum => ETHEREUM,
        Family::Harmony => HARMONY,
        Family::Bitcoin => BITCOIN,
    };
    plan.methods = calls.iter().map(|(method, ..)| (*method).into()).collect();
    let weighted_calls =
        calls.iter().enumerate().map(|(method, (_, params, weight))| WeightedCall {
            weight: *weight,
            template: Template { method, params: vec![Piece::Text(params.as_bytes().into())] },
        });
    let step = Step::Choose(weighted_calls.collect());
    plan.mixes = vec![Mix { name: "probe".to_owned(), steps: vec![step] }];
    plan.scenarios.truncate(1);
    plan.scenarios[0].mix = 0;
}
