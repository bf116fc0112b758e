//! The result of `weir equal`: the responses of two servers to the same calls. A habit is a known
//! difference between the clients that servers run.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::named::named;

/// Version of this format.
pub const SCHEMA: &str = "weir.equal/1";

/// A comparison of the responses of two servers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct EqualResult {
    /// [`SCHEMA`].
    pub schema: String,
    /// Version of the program.
    pub weir: String,
    /// Start, as RFC 3339 in UTC.
    pub started: String,
    /// Duration in seconds.
    pub duration: f64,
    /// The conclusion.
    pub verdict: EqualVerdict,
    /// True if known habits of clients count as differences.
    pub strict: bool,
    /// True if known habits of clients could be allowed: the servers do not report the same client
    /// version.
    pub habits_apply: bool,
    /// The first server.
    pub a: ServerFacts,
    /// The second server.
    pub b: ServerFacts,
    /// `ethereum`, `harmony` or `bitcoin`.
    pub family: String,
    /// The newest block that the calls name: both servers have it.
    pub block: Option<u64>,
    /// Calls that were sent to both servers.
    pub calls: u64,
    /// Calls that were not sent, by method and reason.
    pub skipped: Vec<SkippedCalls>,
    /// By method, in alphabetical order.
    pub methods: Vec<MethodRow>,
    /// Differences, grouped by method, class, pointer and habit. Those that count come first.
    pub differences: Vec<DifferenceRow>,
    /// Number of groups of differences that are not listed, because there are too many.
    pub differences_more: u64,
    /// Warnings, each with advice.
    pub warnings: Vec<String>,
}

named! {
    /// The conclusion of the comparison.
    pub enum EqualVerdict {
        /// No response differs, apart from allowed differences.
        Equal = "equal" | "EQUAL",
        /// A response differs.
        Different = "different" | "DIFFERENT",
        /// No response differs, but neither server responded to some calls, or no call was
        /// compared.
        CannotTell = "cannot-tell" | "CANNOT TELL",
    }
}

/// One of the two servers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ServerFacts {
    /// Its URL with secrets masked.
    pub url: String,
    /// Its version as it reports it (web3_clientVersion or the family's equivalent).
    pub client: Option<String>,
    /// Chain id, if the server reports it.
    pub chain_id: Option<String>,
    /// Its newest block at the start.
    pub head: Option<u64>,
}

/// Calls of one method that were not sent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SkippedCalls {
    /// The method.
    pub method: String,
    /// The reason.
    pub reason: SkipReason,
    /// Number of calls.
    pub calls: u64,
}

named! {
    /// Why a call was not sent.
    pub enum SkipReason {
        /// It may change something, or must go to one node only.
        Unsafe = "unsafe" | "not safe to repeat",
        /// Its response depends on the node and not on the chain.
        NodeSpecific = "node-specific" | "depends on the node",
        /// The method is in no method table.
        Unknown = "unknown" | "unknown method",
    }
}

/// The calls of one method.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct MethodRow {
    /// The method.
    pub method: String,
    /// Calls that were sent to both servers.
    pub calls: u64,
    /// Calls with equal responses. The order of members and white space may differ.
    pub equal: u64,
    /// Calls whose responses differ only by known habits of clients or ignored values.
    pub allowed: u64,
    /// Calls whose responses differ.
    pub different: u64,
    /// Calls to which neither server responded.
    pub unanswered: u64,
}

/// A group of differences of the same kind.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DifferenceRow {
    /// The method.
    pub method: String,
    /// The class.
    pub class: DifferenceClass,
    /// JSON pointer (RFC 6901) relative to the response, with `*` for every array index.
    pub pointer: String,
    /// True if the difference makes the servers different.
    pub counts: bool,
    /// The known habit that explains the difference.
    pub habit: Option<String>,
    /// Calls with such a difference.
    pub calls: u64,
    /// The first difference of the group.
    pub example: DifferenceExample,
}

/// One difference.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DifferenceExample {
    /// The request, truncated if long.
    pub request: String,
    /// JSON pointer relative to the response.
    pub pointer: String,
    /// The first server's value there, truncated if long.
    pub a: String,
    /// The second server's value there, truncated if long.
    pub b: String,
}

named! {
    /// Class of a difference.
    pub enum DifferenceClass {
        /// One value is written in two ways: letter case or padding of hexadecimal numbers, notation
        /// of decimal numbers.
        Spelling = "spelling",
        /// Arrays have the same elements in different order.
        Order = "order",
        /// Only one object has the member.
        MissingMember = "missing-member" | "missing member",
        /// One value is null.
        Null = "null" | "null against value",
        /// The values have different JSON types.
        Type = "type" | "different type",
        /// Arrays have different lengths.
        Length = "length" | "different length",
        /// The values differ.
        Value = "value" | "different value",
        /// One response is an error, and the other one a result.
        ErrorAgainstResult = "error-against-result" | "error against result",
        /// The error codes differ.
        ErrorCode = "error-code" | "error code",
        /// The error messages differ.
        ErrorMessage = "error-message" | "error message",
        /// The data of the errors differ.
        ErrorData = "error-data" | "error data",
        /// One body is not a JSON-RPC response to the call.
        NotJsonRpc = "not-json-rpc" | "not a JSON-RPC response",
        /// One server did not respond.
        NoResponse = "no-response" | "no response",
    }
}
