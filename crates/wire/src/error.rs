//! Error codes of JSON-RPC and of the Ethereum clients, each with its source.

use std::fmt;

/// The `code` of a JSON-RPC error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ErrorCode(pub i32);

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl ErrorCode {
    /// The body is not JSON (JSON-RPC 2.0, section 5.1).
    pub const PARSE: ErrorCode = ErrorCode(-32700);
    /// The JSON is not a call (JSON-RPC 2.0, section 5.1).
    pub const INVALID_REQUEST: ErrorCode = ErrorCode(-32600);
    /// The method does not exist (JSON-RPC 2.0, section 5.1).
    pub const METHOD_NOT_FOUND: ErrorCode = ErrorCode(-32601);
    /// The parameters are invalid for the method (JSON-RPC 2.0, section 5.1).
    pub const INVALID_PARAMS: ErrorCode = ErrorCode(-32602);
    /// The server failed (JSON-RPC 2.0, section 5.1).
    pub const INTERNAL: ErrorCode = ErrorCode(-32603);
    /// Invalid input; in practice any error of a client (EIP-1474; geth's default for Go errors
    /// without a code, `rpc/errors.go`).
    pub const INVALID_INPUT: ErrorCode = ErrorCode(-32000);
    /// Resource not found (EIP-1474, EIP-1898 for an unknown block).
    pub const RESOURCE_NOT_FOUND: ErrorCode = ErrorCode(-32001);
    /// Resource unavailable (EIP-1474); geth returns it for a timed-out request (`rpc/errors.go`).
    pub const RESOURCE_UNAVAILABLE: ErrorCode = ErrorCode(-32002);
    /// Transaction rejected (EIP-1474); geth returns it for a response above its size limit
    /// (`rpc/errors.go`).
    pub const TRANSACTION_REJECTED: ErrorCode = ErrorCode(-32003);
    /// Method not supported (EIP-1474).
    pub const METHOD_NOT_SUPPORTED: ErrorCode = ErrorCode(-32004);
    /// A rate or size limit is exceeded (EIP-1474).
    pub const LIMIT_EXCEEDED: ErrorCode = ErrorCode(-32005);
    /// Version of JSON-RPC not supported (EIP-1474).
    pub const VERSION_NOT_SUPPORTED: ErrorCode = ErrorCode(-32006);
    /// Rate limited, as Quicknode and others return with HTTP 429.
    pub const RATE_LIMITED: ErrorCode = ErrorCode(-32029);
    /// Execution reverted; `data` has the revert bytes (geth `internal/ethapi/errors.go`,
    /// execution-apis `src/eth/execute.yaml`).
    pub const REVERTED: ErrorCode = ErrorCode(3);
    /// Block history or state was pruned (EIP-4444; execution-apis `src/trace/methods.yaml`).
    pub const PRUNED: ErrorCode = ErrorCode(4444);

    /// eth_simulateV1: nonce too low (this and the following: execution-apis
    /// `src/eth/execute.yaml`).
    pub const SIMULATE_NONCE_TOO_LOW: ErrorCode = ErrorCode(-38010);
    /// eth_simulateV1: nonce too high.
    pub const SIMULATE_NONCE_TOO_HIGH: ErrorCode = ErrorCode(-38011);
    /// eth_simulateV1: fee cap below the base fee.
    pub const SIMULATE_BASE_FEE_TOO_LOW: ErrorCode = ErrorCode(-38012);
    /// eth_simulateV1: gas below the intrinsic gas.
    pub const SIMULATE_INTRINSIC_GAS: ErrorCode = ErrorCode(-38013);
    /// eth_simulateV1: balance too low for gas and value.
    pub const SIMULATE_INSUFFICIENT_FUNDS: ErrorCode = ErrorCode(-38014);
    /// eth_simulateV1: block gas limit exceeded.
    pub const SIMULATE_BLOCK_GAS_LIMIT: ErrorCode = ErrorCode(-38015);
    /// eth_simulateV1: block number did not increase.
    pub const SIMULATE_BLOCK_NUMBER: ErrorCode = ErrorCode(-38020);
    /// eth_simulateV1: block time did not increase.
    pub const SIMULATE_BLOCK_TIME: ErrorCode = ErrorCode(-38021);
    /// eth_simulateV1: a precompile was moved onto itself.
    pub const SIMULATE_PRECOMPILE_SELF: ErrorCode = ErrorCode(-38022);
    /// eth_simulateV1: two precompiles were moved onto one address.
    pub const SIMULATE_PRECOMPILE_TWICE: ErrorCode = ErrorCode(-38023);
    /// eth_simulateV1: the sender is a contract.
    pub const SIMULATE_SENDER_IS_CONTRACT: ErrorCode = ErrorCode(-38024);
    /// eth_simulateV1: init code too large.
    pub const SIMULATE_INIT_CODE_SIZE: ErrorCode = ErrorCode(-38025);
    /// eth_simulateV1: a limit of the client is exceeded.
    pub const SIMULATE_CLIENT_LIMIT: ErrorCode = ErrorCode(-38026);
}
