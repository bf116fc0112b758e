//! Goal: recorded replies are sent byte for byte, with the id of the new call. Method: each
//! recorded request of the repository's fixtures is sent to a replaying node.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use alloy_primitives::B256;
use serde_json::Value;
use serde_json::value::RawValue;

use super::{FixedHead, Members, Recording, RecordingError, lookup_key};
use crate::node::{Delivery, Node};

fn fixture(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata").join(path)
}

const HEAD: FixedHead = FixedHead {
    chain_id: 1,
    number: 22_431_090,
    hash: B256::repeat_byte(2),
    parent: B256::repeat_byte(1),
    finalized: 22_431_000,
};

async fn send(node: &Node, request: &str) -> String {
    match node.serve(request.as_bytes()).await {
        Delivery::Whole { status: 200, body, .. } => String::from_utf8(body.to_vec()).unwrap(),
        other => panic!("{other:?}"),
    }
}

/// Compares the result of a response with the recorded result as raw text. If there is no recorded
/// result, compares the error codes. Returns false if the recording has neither a result nor an
/// error code.
fn check_response(
    request: &RawValue,
    recorded: &RawValue,
    response: &RawValue,
    file: &Path,
) -> bool {
    let parse = |raw: &'_ RawValue| serde_json::from_str::<Value>(raw.get()).unwrap();
    let Ok(call) = serde_json::from_str::<Members<'_>>(request.get()) else { return false };
    let recorded_members: Members<'_> = serde_json::from_str(recorded.get()).unwrap();
    let response_members: Members<'_> = serde_json::from_str(response.get()).unwrap();
    assert_eq!(response_members["id"].get(), call["id"].get(), "{}", file.display());
    let text =
        |members: &Members<'_>, name: &str| members.get(name).map(|raw| raw.get().to_owned());
    if !call.contains_key("method") || text(&recorded_members, "result").is_none() {
        // The decoder refuses the request, or the recording has an error or no response.
        let expected = &parse(recorded)["error"]["code"];
        if !expected.is_null() {
            assert_eq!(&parse(response)["error"]["code"], expected, "{}", file.display());
        }
        return !expected.is_null();
    }
    let is_same = text(&response_members, "result") == text(&recorded_members, "result");
    assert!(is_same, "{}: {} differs", file.display(), request.get());
    true
}

async fn replay(recording: Recording) -> usize {
    let recording = Arc::new(recording);
    let node = Node::replaying("r", Arc::clone(&recording));
    let mut compared = 0;
    for exchanged in recording.exchanges() {
        let response = send(&node, &exchanged.request).await;
        if exchanged.request.starts_with('[') {
            let parse_list =
                |text: &str| -> Vec<Box<RawValue>> { serde_json::from_str(text).unwrap() };
            let responses = parse_list(&response);
            let requests = parse_list(&exchanged.request);
            let recorded = parse_list(&exchanged.response);
            assert_eq!(responses.len(), recorded.len());
            for index in 0..responses.len() {
                let was_compared = check_response(
                    &requests[index],
                    &recorded[index],
                    &responses[index],
                    &exchanged.file,
                );
                compared += usize::from(was_compared);
            }
        } else {
            let raw = |text: &str| serde_json::from_str::<Box<RawValue>>(text).unwrap();
            let (request, recorded) = (raw(&exchanged.request), raw(&exchanged.response));
            let was_compared =
                check_response(&request, &recorded, &raw(&response), &exchanged.file);
            compared += usize::from(was_compared);
        }
    }
    compared
}

#[tokio::test]
async fn recorded_mainnet_requests_come_back_as_recorded() {
    let mut recording = Recording::new(Some(HEAD));
    let count = recording.add_pairs_folder(&fixture("mainnet/erigon-rpc-tests")).unwrap();
    assert!(count >= 160, "{count} exchanges");
    assert_eq!(recording.conflicts(), 0);
    let compared = replay(recording).await;
    assert!(compared >= 130, "only {compared} compared");
}

#[tokio::test]
async fn recorded_harmony_samples_come_back_as_recorded() {
    let mut recording = Recording::new(None);
    let count = recording.add_pairs(&fixture("harmony/docs-samples.json")).unwrap();
    assert_eq!(count, 73);
    let conflicts = recording.conflicts();
    assert_eq!(conflicts, 0);
    assert!(replay(recording).await >= 70);
}

#[tokio::test]
async fn blocks_and_receipts_are_responses() {
    let mut recording = Recording::new(Some(HEAD));
    let (number, hash) =
        recording.add_block(&fixture("mainnet/nimbus-blocks/block_0x17a2d23.json")).unwrap();
    assert_eq!(number, 24_784_163);
    let receipts = recording.add_receipts(&fixture("mainnet/helios/receipts.json")).unwrap();
    assert_eq!(receipts, 202);
    let node = Node::replaying("r", Arc::new(recording));
    let ask = async |method: &str, params: String| {
        let call = format!(r#"{{"jsonrpc":"2.0","id":"x","method":"{method}","params":{params}}}"#);
        send(&node, &call).await
    };
    let block = std::fs::read_to_string(fixture("mainnet/nimbus-blocks/block_0x17a2d23.json"));
    let block = block.unwrap();
    let expected = format!(r#"{{"jsonrpc":"2.0","id":"x","result":{}}}"#, block.trim());
    assert!(ask("eth_getBlockByNumber", format!("[\"{number:#x}\", true]")).await == expected);
    assert!(ask("eth_getBlockByHash", format!("[ \"{hash}\",true ]")).await == expected);
    let receipts = ask("eth_getBlockReceipts", "[\"0x14e8d38\"]".to_owned()).await;
    assert!(receipts.len() > 500_000);
    let unknown = ask("eth_getBlockReceipts", "[\"0x1\"]".to_owned()).await;
    assert!(unknown.contains("was not recorded"), "{unknown}");
}

#[tokio::test]
async fn a_fixed_head_answers_polls() {
    let node = Node::replaying("r", Arc::new(Recording::new(Some(HEAD))));
    let result = async |method: &str, params: &str| -> Value {
        let call = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{params}}}"#);
        serde_json::from_str::<Value>(&send(&node, &call).await).unwrap()["result"].clone()
    };
    // 0x1564572 is 22,431,090.
    assert_eq!(result("eth_blockNumber", "[]").await, "0x1564572");
    assert_eq!(result("hmyv2_blockNumber", "[]").await, 22_431_090);
    let latest = result("eth_getBlockByNumber", "[\"latest\",false]").await;
    assert_eq!(latest["hash"], HEAD.hash.to_string());
    let mut block = latest;
    for number in (22_431_000..22_431_090).rev() {
        let params = format!("[\"{number:#x}\",false]");
        let parent = result("eth_getBlockByNumber", &params).await;
        assert_eq!(block["parentHash"], parent["hash"]);
        block = parent;
    }
    assert_eq!(result("eth_getBlockByNumber", "[\"finalized\",false]").await, block);
    for number in ["0x1", "0xffffffffffffffff"] {
        let params = format!("[\"{number}\",false]");
        assert_eq!(result("eth_getBlockByNumber", &params).await, Value::Null);
    }
    assert_eq!(result("hmyv2_latestHeader", "[]").await["blockNumber"], 22_431_090);
}

#[test]
fn keys_ignore_white_space_outside_strings_only() {
    assert_eq!(lookup_key("m", b" [ 1 ,\n\"a b\\\" c\" ] "), lookup_key("m", b"[1,\"a b\\\" c\"]"));
    assert_ne!(lookup_key("m", b"[\"a b\"]"), lookup_key("m", b"[\"ab\"]"));
    assert_ne!(lookup_key("m", b"[\"\\\\\" ]"), lookup_key("m", b"[\"\\\\ \"]"));
}

#[test]
fn an_empty_folder_is_refused() {
    let error = Recording::new(None).add_pairs_folder(&fixture("mainnet/nothing")).unwrap_err();
    assert!(matches!(error, RecordingError::Unreadable { .. }));
    let error = Recording::new(None).add_pairs(&fixture("mainnet/helios/block.json")).unwrap_err();
    assert!(matches!(error, RecordingError::Malformed { .. }), "{error}");
}
