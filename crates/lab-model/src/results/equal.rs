//! The result of `weir equal`, which compares the responses of two servers to the same calls. A
//! habit is a known way in which correct clients (geth, Besu, …) respond differently.

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
    /// True if known habits of clients may explain differences. False if both servers report the
    /// same client version.
    pub habits_apply: bool,
    /// The first server.
    pub a: ServerFacts,
    /// The second server.
    pub b: ServerFacts,
    /// Family of the servers' methods: `ethereum`, `harmony` or `bitcoin`.
    pub family: String,
    /// Number of the newest block that the calls name. Both servers have this block.
    pub block: Option<u64>,
    /// Number of calls that were sent to both servers.
    pub calls: u64,
    /// Calls that were not sent, by method and reason.
    pub skipped: Vec<SkippedCalls>,
    /// Counts of calls by method, in alphabetical order.
    pub methods: Vec<MethodRow>,
    /// Differences, grouped by method, class, pointer and habit. The groups that count in the
    /// verdict come first.
    pub differences: Vec<DifferenceRow>,
    /// Number of groups that `differences` does not list, because there are too many.
    pub differences_more: u64,
    /// Warnings, each with advice.
    pub warnings: Vec<String>,
}

// `named!` gives each variant its name in JSON, and a label for reports if the label differs.
named! {
    /// The conclusion of the comparison.
    pub enum EqualVerdict {
        /// All responses are equal, or their differences are allowed.
        Equal = "equal" | "EQUAL",
        /// At least one response differs.
        Different = "different" | "DIFFERENT",
        /// No response differs whenever it is asked for, but some differ in some of three askings,
        /// and the chain's movement does not explain that.
        Unsteady = "unsteady" | "UNSTEADY",
        /// No difference was found, but some calls could not be compared, or there were no calls.
        CannotTell = "cannot-tell" | "CANNOT TELL",
    }
}

/// One of the two servers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ServerFacts {
    /// Its URL with secrets masked.
    pub url: String,
    /// Client version that the server reports (`web3_clientVersion` or the equivalent of the
    /// family).
    pub client: Option<String>,
    /// Chain id, if the server reports it.
    pub chain_id: Option<String>,
    /// Number of its newest block at the start of the comparison.
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
        /// The call may change something, or must go to one node only.
        Unsafe = "unsafe" | "not safe to repeat",
        /// The response depends on the node, not on the chain.
        NodeSpecific = "node-specific" | "depends on the node",
        /// The method is not in the method table of any family.
        Unknown = "unknown" | "unknown method",
    }
}

/// The calls of one method.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct MethodRow {
    /// The method.
    pub method: String,
    /// Number of calls that were sent to both servers.
    pub calls: u64,
    /// Number of calls with equal responses. The order of members and white space may differ.
    pub equal: u64,
    /// Number of calls with only allowed differences: known habits of clients, and values that the
    /// user ignores.
    pub allowed: u64,
    /// Number of calls with at least one difference that is not allowed.
    pub different: u64,
    /// Number of calls whose responses differ in some of three askings and are equal in others,
    /// although the chain has not moved in between.
    pub unsteady: u64,
    /// Number of calls that could not be compared. Neither server responded, or the responses
    /// differed while the servers had different newest blocks.
    pub unanswered: u64,
}

/// A group of differences with the same method, class, pointer and habit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DifferenceRow {
    /// The method.
    pub method: String,
    /// The class.
    pub class: DifferenceClass,
    /// JSON pointer (RFC 6901) of the difference, relative to the response. `*` stands for any
    /// array index.
    pub pointer: String,
    /// True if the difference counts in the verdict. False if it is allowed.
    pub counts: bool,
    /// True if the difference went away when both servers were called again.
    pub unsteady: bool,
    /// Name of the known habit that explains the difference, if there is one.
    pub habit: Option<String>,
    /// Number of calls with such a difference.
    pub calls: u64,
    /// The first difference of the group.
    pub example: DifferenceExample,
}

/// One difference.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DifferenceExample {
    /// The request, truncated if long.
    pub request: String,
    /// JSON pointer of the difference, relative to the response.
    pub pointer: String,
    /// The first server's value at the pointer, truncated if long.
    pub a: String,
    /// The second server's value at the pointer, truncated if long.
    pub b: String,
}

named! {
    /// Class of a difference.
    pub enum DifferenceClass {
        /// Both servers return the same value in different notation. Hexadecimal numbers differ in
        /// letter case or padding, and decimal numbers in notation.
        Spelling = "spelling",
        /// The arrays have the same elements in different order.
        Order = "order",
        /// Only one of the two objects has the member.
        MissingMember = "missing-member" | "missing member",
        /// Only one of the two values is null.
        Null = "null" | "null against value",
        /// The values have different JSON types.
        Type = "type" | "different type",
        /// The arrays have different lengths.
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
        /// One of the two bodies is not a JSON-RPC response to the call.
        NotJsonRpc = "not-json-rpc" | "not a JSON-RPC response",
        /// One of the two servers did not respond.
        NoResponse = "no-response" | "no response",
    }
}
