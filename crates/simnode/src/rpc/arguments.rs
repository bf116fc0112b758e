//! The arguments of a call, read from raw JSON. Errors have geth's words.

use alloy_primitives::{Address, B256};
use serde_json::value::RawValue;

use super::RpcError;
use super::wording::INVALID_PARAMS;
use crate::{bech32, hex};

/// Maximum number of arguments of a method. Calls with more are rejected, as in geth.
const ARGUMENTS_MAX: usize = 8;

/// The arguments of a call by position.
pub(super) struct Arguments<'a> {
    values: Vec<&'a RawValue>,
    /// True if block numbers may be decimal, as on Harmony.
    decimal: bool,
}

/// The block that an argument of a call names.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum BlockArgument {
    Number(u64),
    Latest,
    Safe,
    Finalized,
    /// A block hash; `strict` is true if the block must be canonical.
    Hash {
        hash: B256,
        strict: bool,
    },
}

impl<'a> Arguments<'a> {
    /// Reads the arguments. `decimal` is true if block numbers may be decimal.
    pub(super) fn read(params: Option<&'a [u8]>, decimal: bool) -> Result<Self, RpcError> {
        let Some(params) = params.filter(|raw| *raw != b"null") else {
            return Ok(Self { values: Vec::new(), decimal });
        };
        let values: Vec<&RawValue> = serde_json::from_slice(params)
            .map_err(|_| RpcError::new(INVALID_PARAMS, "non-array args"))?;
        if values.len() > ARGUMENTS_MAX {
            let message = format!("too many arguments, want at most {ARGUMENTS_MAX}");
            return Err(RpcError::new(INVALID_PARAMS, message));
        }
        Ok(Self { values, decimal })
    }

    /// Returns the raw JSON of an argument, or `None` if it is absent or null.
    pub(super) fn raw(&self, index: usize) -> Option<&'a str> {
        self.values.get(index).map(|value| value.get()).filter(|raw| *raw != "null")
    }

    /// Returns the raw JSON of an argument that must be present.
    pub(super) fn required(&self, index: usize) -> Result<&'a str, RpcError> {
        self.raw(index).ok_or_else(|| {
            RpcError::new(INVALID_PARAMS, format!("missing value for required argument {index}"))
        })
    }

    /// Returns every argument as raw JSON, for replies that depend on all of them.
    pub(super) fn iter(&self) -> impl Iterator<Item = &'a str> {
        self.values.iter().map(|value| value.get())
    }

    /// Reads a 32-byte hash.
    pub(super) fn hash(&self, index: usize) -> Result<B256, RpcError> {
        hex::read_hash(&read_text(self.required(index)?, index)?)
            .ok_or_else(|| invalid(index, "hex string must have 64 digits of type common.Hash"))
    }

    /// Reads an address, hexadecimal or (on Harmony) bech32.
    pub(super) fn address(&self, index: usize) -> Result<Address, RpcError> {
        let text = read_text(self.required(index)?, index)?;
        hex::read_address(&text)
            .or_else(|| bech32::decode_address(&text))
            .ok_or_else(|| invalid(index, "hex string must have 40 digits of type common.Address"))
    }

    /// Reads hexadecimal bytes.
    pub(super) fn bytes(&self, index: usize) -> Result<Vec<u8>, RpcError> {
        hex::read_bytes(&read_text(self.required(index)?, index)?)
            .ok_or_else(|| invalid(index, "cannot unmarshal hex string of type hexutil.Bytes"))
    }

    /// Reads a boolean. An absent argument means false.
    pub(super) fn flag(&self, index: usize) -> Result<bool, RpcError> {
        match self.raw(index) {
            None | Some("false") => Ok(false),
            Some("true") => Ok(true),
            Some(_) => Err(invalid(index, "cannot unmarshal into Go value of type bool")),
        }
    }

    /// Reads a quantity, hexadecimal or decimal.
    pub(super) fn quantity(&self, index: usize) -> Result<u64, RpcError> {
        read_number(self.required(index)?)
            .ok_or_else(|| invalid(index, "cannot unmarshal into Go value of type hexutil.Uint64"))
    }

    /// Reads a block number or tag.
    pub(super) fn number(&self, index: usize) -> Result<BlockArgument, RpcError> {
        let allow_hash = false;
        read_block(self.required(index)?, allow_hash, self.decimal).ok_or_else(|| {
            invalid(index, "hex string without 0x prefix or unknown tag of type rpc.BlockNumber")
        })
    }

    /// Reads a block number, tag, hash or EIP-1898 object. An absent argument means latest.
    pub(super) fn block(&self, index: usize) -> Result<BlockArgument, RpcError> {
        let Some(raw) = self.raw(index) else { return Ok(BlockArgument::Latest) };
        if raw.starts_with('{') {
            return read_block_object(raw, index);
        }
        let allow_hash = true;
        read_block(raw, allow_hash, self.decimal).ok_or_else(|| {
            invalid(
                index,
                "hex string without 0x prefix or unknown tag of type rpc.BlockNumberOrHash",
            )
        })
    }
}

/// Returns the error of an invalid argument, as geth words it.
pub(super) fn invalid(index: usize, reason: &str) -> RpcError {
    RpcError::new(INVALID_PARAMS, format!("invalid argument {index}: json: {reason}"))
}

/// Reads a JSON string.
fn read_text(raw: &str, index: usize) -> Result<std::borrow::Cow<'_, str>, RpcError> {
    let unquoted = raw.strip_prefix('"').and_then(|after_quote| after_quote.strip_suffix('"'));
    match unquoted {
        Some(unquoted) if !unquoted.contains('\\') => Ok(unquoted.into()),
        _ => serde_json::from_str::<String>(raw)
            .map(Into::into)
            .map_err(|_| invalid(index, "cannot unmarshal non-string into Go value")),
    }
}

/// Reads a block number or tag.
///
/// If `allow_hash` is true, a hash is valid too. If `decimal` is true, decimal text and JSON
/// numbers are valid too; -1 and -2 mean latest. `pending` means latest, because the node builds no
/// blocks.
pub(super) fn read_block(raw: &str, allow_hash: bool, decimal: bool) -> Option<BlockArgument> {
    let Ok(text) = read_text(raw, 0) else {
        return match raw {
            _ if !decimal => None,
            "-1" | "-2" => Some(BlockArgument::Latest),
            _ => raw.parse().ok().map(BlockArgument::Number),
        };
    };
    match text.as_ref() {
        "latest" | "pending" => Some(BlockArgument::Latest),
        "safe" => Some(BlockArgument::Safe),
        "finalized" => Some(BlockArgument::Finalized),
        "earliest" => Some(BlockArgument::Number(0)),
        other => match hex::read_quantity(other) {
            Some(number) => Some(BlockArgument::Number(number)),
            None if decimal && !other.starts_with("0x") => {
                other.parse().ok().map(BlockArgument::Number)
            }
            None if allow_hash => {
                hex::read_hash(other).map(|hash| BlockArgument::Hash { hash, strict: false })
            }
            None => None,
        },
    }
}

/// Reads a number from hexadecimal text, decimal text or a JSON number.
pub(super) fn read_number(raw: &str) -> Option<u64> {
    match read_text(raw, 0) {
        Ok(text) => hex::read_quantity(&text).or_else(|| text.parse().ok()),
        Err(_) => raw.parse().ok(),
    }
}

// An object that names a block (EIP-1898).
#[derive(serde::Deserialize)]
#[serde(rename_all = "camelCase")]
struct BlockObject<'a> {
    #[serde(borrow)]
    block_number: Option<&'a RawValue>,
    block_hash: Option<String>,
    #[serde(default)]
    require_canonical: bool,
}

fn read_block_object(raw: &str, index: usize) -> Result<BlockArgument, RpcError> {
    let object: BlockObject<'_> = serde_json::from_str(raw).map_err(|_| {
        invalid(index, "cannot unmarshal object into Go value of type rpc.BlockNumberOrHash")
    })?;
    match (object.block_number, object.block_hash) {
        (Some(_), Some(_)) => {
            let reason = "cannot specify both BlockHash and BlockNumber, choose one or the other";
            Err(RpcError::new(INVALID_PARAMS, format!("invalid argument {index}: {reason}")))
        }
        (Some(number), None) => read_block(number.get(), false, false)
            .ok_or_else(|| invalid(index, "cannot unmarshal blockNumber of type rpc.BlockNumber")),
        (None, Some(hash)) => hex::read_hash(&hash)
            .map(|hash| BlockArgument::Hash { hash, strict: object.require_canonical })
            .ok_or_else(|| invalid(index, "hex string must have 64 digits of type common.Hash")),
        (None, None) => Err(invalid(index, "neither blockHash nor blockNumber given")),
    }
}
