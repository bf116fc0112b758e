//! Recorded pairs of requests and responses, replayed byte for byte.
//!
//! A recorded reply is found by the call's method and its parameters without white space. The
//! response has the recorded `result` or `error`, and the id of the new call. A gateway also polls:
//! it repeatedly requests the newest block, which no file contains. A [`FixedHead`] serves these
//! polls.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::{Path, PathBuf};

use alloy_primitives::{B256, keccak256};
use bytes::Bytes;
use foldhash::fast::RandomState;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::rpc::RawReply;

/// Number of blocks below the fixed head that have a synthetic header. A gateway may read the
/// blocks from the head backward.
pub const HEADERS_MAX: u64 = 256;

/// Maximum number of bytes of one file. The largest recorded block has under 1 MB.
const FILE_BYTES_MAX: u64 = 16_000_000;
/// Maximum number of pairs of a recording.
const PAIRS_MAX: usize = 100_000;

/// The newest block of a node that replays a recording. It never changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FixedHead {
    /// The chain id.
    pub chain_id: u64,
    /// The head's number.
    pub number: u64,
    /// The head's hash.
    pub hash: B256,
    /// The hash of the head's parent.
    pub parent: B256,
    /// The finalized block's number.
    pub finalized: u64,
}

/// One request with its response, as written in the file. Both are single objects, or both are
/// batches.
#[derive(Clone, Debug)]
pub struct RecordedExchange {
    /// The file.
    pub file: PathBuf,
    /// The request's JSON.
    pub request: String,
    /// The response's JSON.
    pub response: String,
}

/// A set of recorded pairs.
#[derive(Default)]
pub struct Recording {
    /// The replies by their lookup keys (`lookup_key`).
    pairs: HashMap<Box<[u8]>, RawReply, RandomState>,
    exchanges: Vec<RecordedExchange>,
    /// Number of replies that were skipped because they differ from an earlier reply.
    conflicts: usize,
    /// The head for polls. With `None`, the node rejects polls that were not recorded.
    head: Option<FixedHead>,
}

/// The reason why a file cannot be replayed.
#[derive(Debug, thiserror::Error)]
pub enum RecordingError {
    /// The file cannot be read.
    #[error("{}: {source}", file.display())]
    Unreadable {
        /// The file or folder.
        file: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// The file has the wrong contents.
    #[error("{}: {why}", file.display())]
    Malformed {
        /// The file.
        file: PathBuf,
        /// The reason.
        why: String,
    },
    /// The file or the recording is too large.
    #[error("{}: more than {PAIRS_MAX} pairs or {FILE_BYTES_MAX} bytes", file.display())]
    TooLarge {
        /// The file.
        file: PathBuf,
    },
}

// A request in a file, with its response. `add_pairs` skips a pair without a response.
#[derive(Deserialize)]
struct Pair<'a> {
    #[serde(borrow)]
    request: &'a RawValue,
    #[serde(borrow)]
    response: Option<&'a RawValue>,
}

/// The unparsed members of a JSON object by name.
type Members<'a> = BTreeMap<&'a str, &'a RawValue>;

impl Recording {
    /// Creates an empty recording.
    #[must_use]
    pub fn new(head: Option<FixedHead>) -> Self {
        Self { head, ..Self::default() }
    }

    /// Returns every exchange that was added from files of pairs, in order.
    #[must_use]
    pub fn exchanges(&self) -> &[RecordedExchange] {
        &self.exchanges
    }

    /// Returns the number of calls with a reply.
    #[must_use]
    pub fn len(&self) -> usize {
        self.pairs.len()
    }

    /// Returns true if there is no pair.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pairs.is_empty()
    }

    /// Returns the number of replies that differ from an earlier reply to the same call. The node
    /// replays the earlier reply.
    #[must_use]
    pub fn conflicts(&self) -> usize {
        self.conflicts
    }

    /// Adds a file that holds a JSON array. Each element is an object with `request` and
    /// `response`, which are both single objects or both batches. Returns the number of exchanges
    /// in the file. Batch members that are not calls are skipped.
    ///
    /// # Errors
    /// Fails if the file is missing, too large or of another shape.
    pub fn add_pairs(&mut self, file: &Path) -> Result<usize, RecordingError> {
        let text = read_file(file)?;
        let pairs: Vec<Pair<'_>> =
            serde_json::from_str(&text).map_err(|error| malformed(file, error))?;
        for pair in &pairs {
            let Some(response) = pair.response else { continue };
            if pair.request.get().starts_with('[') {
                let requests: Vec<&RawValue> = serde_json::from_str(pair.request.get())
                    .map_err(|error| malformed(file, error))?;
                let responses: Vec<&RawValue> =
                    serde_json::from_str(response.get()).map_err(|error| malformed(file, error))?;
                if requests.len() != responses.len() {
                    return Err(malformed(file, "a batch and its responses differ in length"));
                }
                for (request, response) in requests.iter().zip(responses) {
                    self.add_exchange(file, request, response)?;
                }
            } else {
                self.add_exchange(file, pair.request, response)?;
            }
            self.exchanges.push(RecordedExchange {
                file: file.to_owned(),
                request: pair.request.get().to_owned(),
                response: response.get().to_owned(),
            });
        }
        Ok(pairs.len())
    }

    /// Adds every `.json` file of a folder and of the folders in it, in the order of their names.
    /// Returns the number of exchanges.
    ///
    /// # Errors
    /// Fails like [`Recording::add_pairs`], and if the folder has no recorded exchange.
    pub fn add_pairs_folder(&mut self, folder: &Path) -> Result<usize, RecordingError> {
        let unreadable = |source| RecordingError::Unreadable { file: folder.to_owned(), source };
        let mut entries = fs::read_dir(folder)
            .and_then(|entries| {
                entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>, _>>()
            })
            .map_err(unreadable)?;
        entries.sort();
        let mut count = 0;
        for path in entries {
            if path.is_dir() {
                count += self.add_pairs_folder(&path)?;
            } else if path.extension().is_some_and(|extension| extension == "json") {
                count += self.add_pairs(&path)?;
            }
        }
        if count == 0 {
            return Err(malformed(folder, "no recorded exchange in this folder"));
        }
        Ok(count)
    }

    /// Adds a file with one block and its full transactions: the reply to `eth_getBlockByNumber`
    /// and `eth_getBlockByHash`. Returns the block's number and hash.
    ///
    /// # Errors
    /// Fails if the file is missing, too large, or has no block.
    pub fn add_block(&mut self, file: &Path) -> Result<(u64, B256), RecordingError> {
        let text = read_file(file)?;
        let block: &RawValue =
            serde_json::from_str(&text).map_err(|error| malformed(file, error))?;
        let members: Members<'_> =
            serde_json::from_str(block.get()).map_err(|error| malformed(file, error))?;
        let member_text = |name: &str| members.get(name).map(|raw| raw.get().trim_matches('"'));
        let number = member_text("number").and_then(crate::hex::read_quantity);
        let hash = member_text("hash").and_then(crate::hex::read_hash);
        let (Some(number), Some(hash)) = (number, hash) else {
            return Err(malformed(file, "a block without number or hash"));
        };
        let result = Bytes::copy_from_slice(block.get().as_bytes());
        let by_number = format!("[\"{number:#x}\",true]");
        self.insert_reply(
            file,
            "eth_getBlockByNumber",
            &by_number,
            RawReply::Result(result.clone()),
        )?;
        let by_hash = format!("[\"{hash}\",true]");
        self.insert_reply(file, "eth_getBlockByHash", &by_hash, RawReply::Result(result))?;
        Ok((number, hash))
    }

    /// Adds a file with all receipts of one block: the replies to `eth_getBlockReceipts` by number
    /// and by hash, and to each `eth_getTransactionReceipt`. Returns the number of receipts.
    ///
    /// # Errors
    /// Fails if the file is missing, too large, or has no receipts.
    pub fn add_receipts(&mut self, file: &Path) -> Result<usize, RecordingError> {
        let text = read_file(file)?;
        let list: &RawValue =
            serde_json::from_str(&text).map_err(|error| malformed(file, error))?;
        let receipts: Vec<&RawValue> =
            serde_json::from_str(list.get()).map_err(|error| malformed(file, error))?;
        for (index, receipt) in receipts.iter().enumerate() {
            let members: Members<'_> =
                serde_json::from_str(receipt.get()).map_err(|error| malformed(file, error))?;
            // The parameters of a call with this member as its only argument.
            let params_with = |name: &str| {
                members
                    .get(name)
                    .map(|raw| format!("[{}]", raw.get()))
                    .ok_or_else(|| malformed(file, format!("receipt {index} has no {name}")))
            };
            let result = Bytes::copy_from_slice(receipt.get().as_bytes());
            let by_hash = params_with("transactionHash")?;
            self.insert_reply(
                file,
                "eth_getTransactionReceipt",
                &by_hash,
                RawReply::Result(result),
            )?;
            if index == 0 {
                let result = Bytes::copy_from_slice(list.get().as_bytes());
                for params in [params_with("blockNumber")?, params_with("blockHash")?] {
                    let result = RawReply::Result(result.clone());
                    self.insert_reply(file, "eth_getBlockReceipts", &params, result)?;
                }
            }
        }
        Ok(receipts.len())
    }

    /// Returns the reply to a call if the reply was recorded, or if the call is a poll that the
    /// fixed head serves.
    pub(crate) fn find(&self, method: &str, params: Option<&[u8]>) -> Option<RawReply> {
        let key = lookup_key(method, params.unwrap_or(b"[]"));
        let recorded = self.pairs.get(key.as_slice()).cloned();
        recorded.or_else(|| self.head?.respond(method, params).map(RawReply::Result))
    }

    /// Adds the reply to one call. Adds nothing if the request is no call, or if the response has
    /// neither a result nor an error.
    fn add_exchange(
        &mut self,
        file: &Path,
        request: &RawValue,
        response: &RawValue,
    ) -> Result<(), RecordingError> {
        let Ok(call) = serde_json::from_str::<Members<'_>>(request.get()) else { return Ok(()) };
        let Some(method) = call.get("method") else { return Ok(()) };
        let Ok(method) = serde_json::from_str::<String>(method.get()) else { return Ok(()) };
        let params = call.get("params").map_or("[]", |params| params.get());
        let members: Members<'_> =
            serde_json::from_str(response.get()).map_err(|error| malformed(file, error))?;
        let copy = |raw: &RawValue| Bytes::copy_from_slice(raw.get().as_bytes());
        let reply = match (members.get("result"), members.get("error")) {
            (_, Some(error)) if error.get() != "null" => RawReply::Error(copy(error)),
            (Some(result), _) => RawReply::Result(copy(result)),
            // The file has no reply, because the reply changes with the newest block.
            (None, _) => return Ok(()),
        };
        self.insert_reply(file, &method, params, reply)
    }

    /// Adds a reply if the recording has no reply to this call. Counts a conflict if the recording
    /// has a different reply.
    fn insert_reply(
        &mut self,
        file: &Path,
        method: &str,
        params: &str,
        reply: RawReply,
    ) -> Result<(), RecordingError> {
        if self.pairs.len() >= PAIRS_MAX {
            return Err(RecordingError::TooLarge { file: file.to_owned() });
        }
        let key = lookup_key(method, params.as_bytes()).into_boxed_slice();
        match self.pairs.entry(key) {
            std::collections::hash_map::Entry::Vacant(vacant) => {
                vacant.insert(reply);
            }
            std::collections::hash_map::Entry::Occupied(occupied) => {
                self.conflicts += usize::from(*occupied.get() != reply);
            }
        }
        Ok(())
    }
}

impl FixedHead {
    /// Returns the reply to a poll, or `None` for any other call. Blocks below the head have
    /// synthetic hashes, and every block contains the hash of the block below it.
    fn respond(&self, method: &str, params: Option<&[u8]>) -> Option<Bytes> {
        let (namespace, name) = method.split_once('_')?;
        let is_decimal = namespace == "hmyv2";
        let format_number = |number: u64| match is_decimal {
            true => number.to_string(),
            false => format!("\"{number:#x}\""),
        };
        let text = match (namespace, name) {
            ("eth" | "hmy" | "hmyv2", "blockNumber") => format_number(self.number),
            ("eth" | "hmy" | "hmyv2", "chainId") => format_number(self.chain_id),
            ("net", "version") => format!("\"{}\"", self.chain_id),
            ("eth" | "hmy" | "hmyv2", "syncing") => "false".to_owned(),
            ("hmy" | "hmyv2", "latestHeader") => {
                let (hash, parent) = (self.hash, self.parent);
                let number = format_number(self.number);
                format!(
                    "{{\"blockHash\":\"{hash}\",\"blockNumber\":{number},\
                     \"parentHash\":\"{parent}\",\"shardID\":0,\"viewID\":{number}}}"
                )
            }
            ("eth" | "hmy" | "hmyv2", "getBlockByNumber") => {
                let number = self.requested_block(params?)?;
                let (hash, parent) = (self.hash_of(number), self.hash_of(number.wrapping_sub(1)));
                // The block's number serves as its timestamp.
                let number = format_number(number);
                format!(
                    "{{\"hash\":\"{hash}\",\"number\":{number},\"parentHash\":\"{parent}\",\
                     \"timestamp\":{number},\"transactions\":[]}}"
                )
            }
            _ => return None,
        };
        Some(text.into())
    }

    /// Returns the number of the block that a poll requests. Returns `None` if the block is above
    /// the head or more than [`HEADERS_MAX`] below it, or if the parameters name no block.
    fn requested_block(&self, params: &[u8]) -> Option<u64> {
        let values: Vec<&RawValue> = serde_json::from_slice(params).ok()?;
        let number = match values.first()?.get() {
            "\"latest\"" | "\"pending\"" | "-1" => self.number,
            "\"finalized\"" | "\"safe\"" => self.finalized,
            raw => {
                let text = raw.trim_matches('"');
                let number = crate::hex::read_quantity(text).or_else(|| text.parse().ok())?;
                if number.saturating_add(HEADERS_MAX) < self.number {
                    return None;
                }
                number
            }
        };
        (number <= self.number).then_some(number)
    }

    /// Returns the hash of a block at or below the head.
    fn hash_of(&self, number: u64) -> B256 {
        match self.number.wrapping_sub(number) {
            0 => self.hash,
            1 => self.parent,
            _ => keccak256([self.hash.as_slice(), &number.to_be_bytes()].concat()),
        }
    }
}

/// Builds the key of a call: the method, a zero byte, and the parameters without white space. No
/// recorded method contains a zero byte.
fn lookup_key(method: &str, params: &[u8]) -> Vec<u8> {
    let mut key = Vec::with_capacity(method.len() + params.len() + 1);
    key.extend_from_slice(method.as_bytes());
    key.push(0);
    let (mut in_string, mut is_escaped) = (false, false);
    for byte in params {
        match byte {
            b' ' | b'\t' | b'\n' | b'\r' if !in_string => continue,
            b'"' if !is_escaped => in_string = !in_string,
            _ => {}
        }
        is_escaped = *byte == b'\\' && !is_escaped;
        key.push(*byte);
    }
    key
}

fn read_file(file: &Path) -> Result<String, RecordingError> {
    let unreadable = |source| RecordingError::Unreadable { file: file.to_owned(), source };
    if fs::metadata(file).map_err(unreadable)?.len() > FILE_BYTES_MAX {
        return Err(RecordingError::TooLarge { file: file.to_owned() });
    }
    fs::read_to_string(file).map_err(unreadable)
}

fn malformed(file: &Path, why: impl ToString) -> RecordingError {
    RecordingError::Malformed { file: file.to_owned(), why: why.to_string() }
}

#[cfg(test)]
mod tests;
