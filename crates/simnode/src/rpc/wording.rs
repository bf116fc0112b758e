//! Error messages in the words of execution clients, such as geth. A gateway under test must
//! classify them.
//!
//! Sources: go-ethereum `rpc/errors.go`, `eth/filters/api.go`, `internal/ethapi/api.go`,
//! `trie/errors.go`; Erigon `db/state` (`PrunedError`) and its RPC daemon; Nethermind
//! `ErrorCodes.cs` and its `EthRpcModule`; Besu `RpcErrorType.java`.

use alloy_primitives::B256;
use serde::{Deserialize, Serialize};

use super::RpcError;

/// Invalid parameters (JSON-RPC 2.0, section 5.1).
pub const INVALID_PARAMS: i64 = -32602;
/// Method not found (JSON-RPC 2.0, section 5.1).
pub const METHOD_NOT_FOUND: i64 = -32601;
/// Server error: the code that geth uses for every error without its own code.
pub const SERVER_ERROR: i64 = -32000;
/// Resource not found (EIP-1474). EIP-1898 requires it for an unknown block.
pub const NOT_FOUND: i64 = -32001;
/// Resource unavailable (EIP-1474).
pub const UNAVAILABLE: i64 = -32002;
/// Limit exceeded (EIP-1474).
pub const LIMIT_EXCEEDED: i64 = -32005;
/// Execution reverted (geth `internal/ethapi/errors.go`).
pub const REVERTED: i64 = 3;
/// Unknown block of Besu (`RpcErrorType.UNKNOWN_BLOCK`).
const BESU_UNKNOWN_BLOCK: i64 = -39001;

/// An execution client: the software of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Client {
    /// go-ethereum.
    #[default]
    Geth,
    /// Erigon.
    Erigon,
    /// Nethermind.
    Nethermind,
    /// Hyperledger Besu.
    Besu,
    /// Harmony, whose Ethereum methods are go-ethereum's code.
    Harmony,
}

/// Returns the error for a call that a replayed recording does not have.
pub(crate) fn not_recorded(method: &str) -> RpcError {
    RpcError::new(SERVER_ERROR, format!("this call of {method} was not recorded"))
}

impl Client {
    /// Returns the result of `web3_clientVersion`.
    #[must_use]
    pub fn version(self) -> &'static str {
        match self {
            Self::Geth => "Geth/v1.16.0-stable/linux-amd64/go1.24 (weir simulated node)",
            Self::Erigon => "erigon/3.0.0/linux-amd64/go1.24 (weir simulated node)",
            Self::Nethermind => "Nethermind/v1.32.0/linux-x64/dotnet9 (weir simulated node)",
            Self::Besu => "besu/v25.4.0/linux-x86_64/openjdk-java-21 (weir simulated node)",
            // Harmony `cmd/harmony/main.go`, `getHarmonyVersion`.
            Self::Harmony => "Harmony (C) 2025. harmony, version v2025.1.0 (weir simulated node)",
        }
    }

    /// Returns the error for an unknown method.
    pub(crate) fn unsupported(self, method: &str) -> RpcError {
        let message = match self {
            Self::Geth | Self::Erigon | Self::Harmony => {
                format!("the method {method} does not exist/is not available")
            }
            Self::Nethermind => format!("The method '{method}' is not supported."),
            Self::Besu => "Method not found".to_owned(),
        };
        RpcError::new(METHOD_NOT_FOUND, message)
    }

    /// Returns the error for a state read at an unknown block.
    pub(crate) fn header_not_found(self) -> RpcError {
        match self {
            Self::Geth | Self::Harmony => RpcError::new(SERVER_ERROR, "header not found"),
            Self::Erigon => RpcError::new(SERVER_ERROR, "block not found"),
            Self::Nethermind => RpcError::new(NOT_FOUND, "block could not be found"),
            Self::Besu => RpcError::new(BESU_UNKNOWN_BLOCK, "Unknown block"),
        }
    }

    /// Returns the error for pruned state.
    pub(crate) fn state_missing(self, number: u64, root: B256) -> RpcError {
        match self {
            Self::Geth | Self::Harmony => RpcError::new(
                SERVER_ERROR,
                format!(
                    "missing trie node {root:x} (path ) state {root:#x} is not available, not found"
                ),
            ),
            Self::Erigon => RpcError::new(SERVER_ERROR, "old data not available due to pruning"),
            Self::Nethermind => {
                RpcError::new(UNAVAILABLE, format!("No state available for block {number}"))
            }
            Self::Besu => RpcError::new(SERVER_ERROR, "World state unavailable"),
        }
    }

    /// Returns the error for pruned blocks, receipts or logs (EIP-4444).
    pub(crate) fn history_missing(self) -> RpcError {
        match self {
            // geth `ethdb`/`eth` `history.PrunedHistoryError`, code 4444.
            Self::Geth | Self::Harmony => RpcError::new(4444, "pruned history unavailable"),
            Self::Erigon => RpcError::new(SERVER_ERROR, "old data not available due to pruning"),
            Self::Nethermind => RpcError::new(UNAVAILABLE, "Pruned history unavailable"),
            Self::Besu => RpcError::new(SERVER_ERROR, "Block not found"),
        }
    }

    /// Returns the error for a call that ran too long.
    pub(crate) fn execution_timeout(self) -> RpcError {
        match self {
            Self::Geth | Self::Erigon | Self::Harmony => {
                RpcError::new(SERVER_ERROR, "execution aborted (timeout = 5s)")
            }
            Self::Nethermind => {
                RpcError::new(-32016, "eth_call request was canceled due to enabled timeout.")
            }
            Self::Besu => RpcError::new(SERVER_ERROR, "Timeout expired"),
        }
    }

    /// Returns the error for an exceeded rate limit.
    pub(crate) fn limit_exceeded(self) -> RpcError {
        RpcError::new(LIMIT_EXCEEDED, "limit exceeded: too many requests, try again later")
    }
}
