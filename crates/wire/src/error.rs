//! Error codes of JSON-RPC and of the Ethereum clients, each with its source.

/// The `code` of a JSON-RPC error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ErrorCode(pub i32);

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
    /// Resource unavailable (EIP-1474); geth returns it for a timed-out request (`rpc/errors.go`).
    pub const RESOURCE_UNAVAILABLE: ErrorCode = ErrorCode(-32002);
    /// Transaction rejected (EIP-1474); geth returns it for a response above its size limit
    /// (`rpc/errors.go`).
    pub const TRANSACTION_REJECTED: ErrorCode = ErrorCode(-32003);
    /// A rate or size limit is exceeded (EIP-1474).
    pub const LIMIT_EXCEEDED: ErrorCode = ErrorCode(-32005);
}
