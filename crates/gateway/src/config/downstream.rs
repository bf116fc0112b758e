//! `[downstream]`: limits and settings for clients.
//!
//! `config.rs` explains the syntax of `settings::table!`.

use settings::Report;
use settings::value::{Bool, Bytes, Duration, Integer, List};
use wire::call::Limits;

use super::values::{DAY_MS, GIB, HOUR_MS, METHOD_BYTES_MAX, MIB, Network, Origin, Size};
use crate::policy::client::{AddressSource, Networks};

settings::choice! {
    /// Source of a client's address.
    pub ClientAddress for AddressSource {
        "peer" => Peer,
        "x-forwarded-for" => XForwardedFor,
        "forwarded" => Forwarded,
        "proxy-protocol" => ProxyProtocol,
    }
}

settings::choice! {
    /// Accepted content types of requests.
    pub enum ContentType {
        /// `application/json`, `application/json-rpc` and `application/jsonrequest`, as geth; else
        /// 415.
        "strict" => Strict,
        /// Any content type or none is accepted.
        "lenient" => Lenient,
    }
}

settings::table! {
    /// Limits and settings for clients.
    pub struct DownstreamTable => pub Downstream {
        /// Maximum number of open client connections, over all threads. The process needs as many
        /// file descriptors, plus those of the upstream connections.
        connections_max: Integer<1, 10_000_000, usize> = "20000";
        /// Maximum number of open connections of one client address, over all threads. Further
        /// connections are closed at once. Connections of `trusted_proxies` are not counted.
        connections_per_client_max: Integer<1, 10_000_000, usize> = described "not limited";
        /// Maximum bytes of a request's body (geth: 5 MiB, `defaultBodyLimit` in rpc/http.go).
        body_bytes_max: Size<1024, GIB> = "5MiB";
        /// Maximum bytes of a request's header section.
        header_bytes_max: Size<1024, MIB> = "16KiB";
        /// Maximum number of calls in one batch (geth: 1000, `BatchRequestLimit` in
        /// node/defaults.go).
        batch_calls_max: Integer<1, 100_000, usize> = "1000";
        /// Maximum bytes of all responses of one batch (geth: 25 MB, `BatchResponseMaxSize` in
        /// node/defaults.go).
        batch_response_bytes_max: Size<1024, { 4 * GIB }> = "25MB";
        /// Maximum nesting depth of a request's JSON.
        depth_max: Integer<4, { wire::json::DEPTH_CEILING as u64 }, usize> = "128";
        /// Maximum bytes of a method's name.
        method_bytes_max: Integer<16, { METHOD_BYTES_MAX as u64 }, usize> = "128";
        /// Maximum bytes of a call's id.
        id_bytes_max: Integer<16, 65_536, usize> = "1024";
        /// Maximum time until a request's header section has arrived. It also applies to the header
        /// of the PROXY protocol. Over HTTP/2 it applies to the client's response to a ping, which
        /// the gateway sends after `idle_timeout` without data.
        header_timeout: Duration<1, HOUR_MS> = "10s";
        /// Maximum time until a request's whole body has arrived.
        body_timeout: Duration<1, HOUR_MS> = "30s";
        /// Maximum time that a client may read nothing of a response before its connection is
        /// closed (nginx: 60 s).
        write_timeout: Duration<10, HOUR_MS> = "30s";
        /// Maximum time that a connection stays open between two requests (nginx: 75 s).
        idle_timeout: Duration<1, DAY_MS> = "75s";
        /// Maximum number of HTTP/1.1 requests on one connection. The gateway closes the connection
        /// after the last response. 1 disables keep-alive.
        keep_alive_requests_max: Integer<1, { u64::MAX }> = described "no limit" => u64::MAX;
        /// If true, a request may be upgraded to a WebSocket, at the same address and paths. Each
        /// message is one call or batch, with the API key and client address of the upgrade
        /// request. Browsers may open a WebSocket only from the pages of `cors_origins`.
        websocket: Bool = "true";
        /// If true, WebSocket clients may negotiate compression (permessage-deflate, RFC 7692).
        /// Messages of `compression_bytes_min` and more are compressed, without a shared context.
        /// Compression saves bytes but costs CPU time, separately for each subscriber.
        websocket_compression: Bool = "false";
        /// Maximum number of messages of one WebSocket in flight at the same time. The gateway
        /// reads further messages once one of them has its response. A change of this limit, or of
        /// another WebSocket limit, applies only to new WebSockets.
        websocket_messages_max: Integer<1, 100_000, usize> = "100";
        /// Maximum bytes of responses and notifications that wait for a WebSocket client that does
        /// not read them. Above 1 MiB the gateway stops reading from the client. Above this limit
        /// it closes the connection with code 1008.
        websocket_queue_bytes_max: Size<{ 64 << 10 }, GIB> = "16MiB";
        /// Maximum number of subscriptions (`eth_subscribe`) of one WebSocket; 0 allows none.
        websocket_subscriptions_max: Integer<0, 1_000_000, usize> = "1000";
        /// Time without data after which a WebSocket client is pinged. If the client does not
        /// respond within the same time, the gateway closes the connection.
        websocket_ping: Duration<1, DAY_MS> = "30s";
        /// Maximum number of filters (`eth_newFilter`, `eth_newBlockFilter`) of each chain. A
        /// filter takes some 3 kB.
        filters_max: Integer<0, 1_000_000, usize> = "10000";
        /// Maximum number of filters of one client. Clients are identified by API key, or by
        /// address if they have no key.
        filters_per_client_max: Integer<0, 1_000_000, usize> = "100";
        /// Lifetime of an unused filter (go-ethereum: 5 min).
        filter_timeout: Duration<1, DAY_MS> = "5m";
        /// Peers that may report a client's address: proxies and load balancers in front of the
        /// gateway.
        trusted_proxies: List<Network, Networks> = empty;
        /// Source of a client's address. `peer` is the other end of the connection.
        /// `x-forwarded-for` and `forwarded` (RFC 7239) are the headers of a trusted proxy, read
        /// from the right up to the first address that is not trusted. `proxy-protocol` is the
        /// PROXY protocol, version 1 or 2: every connection must then begin with its header, and
        /// only trusted proxies may connect.
        client_address: ClientAddress = "peer";
        /// Web origins whose pages may call. An empty list forbids all.
        cors_origins: List<Origin, Cors> = "*";
        /// `strict` accepts JSON content types as geth does, and rejects others with 415; `lenient`
        /// accepts any or none.
        content_type: ContentType = "strict";
        /// If true, responses are compressed with zstd or gzip if the client accepts one of them.
        compression: Bool = "true";
        /// Responses of at least this size are compressed.
        compression_bytes_min: Bytes<0, GIB, usize> = "1KiB";
        /// If true, responses carry `x-weir-cache` and `x-weir-upstream`.
        answer_headers: Bool = "true";
    }
}

/// Web origins whose pages may call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cors {
    /// Every page: `access-control-allow-origin: *`.
    Any,
    /// These origins, lower case, without a trailing slash; may be empty.
    Origins(Vec<Box<str>>),
}

impl From<Vec<Box<str>>> for Cors {
    fn from(origins: Vec<Box<str>>) -> Cors {
        match origins.iter().any(|origin| &**origin == "*") {
            true => Cors::Any,
            false => Cors::Origins(origins),
        }
    }
}

impl Cors {
    /// Returns true if web pages of this origin may call.
    pub(crate) fn admits(&self, origin: &str) -> bool {
        match self {
            Cors::Any => true,
            Cors::Origins(allowed_origins) => {
                allowed_origins.iter().any(|allowed| allowed.eq_ignore_ascii_case(origin))
            }
        }
    }
}

impl Downstream {
    /// Returns the limits of the call decoder.
    pub(super) fn call_limits(&self) -> Limits {
        Limits {
            body_bytes_max: self.body_bytes_max,
            depth_max: self.depth_max,
            batch_calls_max: self.batch_calls_max,
            method_bytes_max: self.method_bytes_max,
            id_bytes_max: self.id_bytes_max,
        }
    }
}

/// Validates the table. It is an error if proxies report clients' addresses but no proxy is
/// trusted. Trusted proxies that report no addresses only cause a warning.
pub(super) fn check(table: &DownstreamTable, report: &mut Report<'_>) -> Downstream {
    let DownstreamTable { trusted_proxies, client_address, .. } = table;
    let is_peer = **client_address == AddressSource::Peer;
    let trusts_none = !trusted_proxies.is_set() || trusted_proxies.is_empty_list();
    if !is_peer && trusts_none {
        let message = "no peer may report a client's address";
        let allowed = "downstream.trusted_proxies with the proxies before the gateway, or \"peer\"";
        report.error(client_address, message, allowed);
    }
    if is_peer && !trusts_none {
        let message = "is not used, because clients' addresses are taken from connections";
        let advice = "downstream.client_address with the header or protocol of the proxies";
        report.warn(trusted_proxies, message, advice);
    }
    table.values()
}
