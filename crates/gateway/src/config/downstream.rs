//! `[downstream]`: what is accepted from clients, and how they are served.

use settings::Report;
use settings::value::{As, Bool, Bytes, Count, Duration, List};
use wire::call::Limits;

use super::values::{DAY, GIB, HOUR, METHOD_BYTES_MAX, MIB, Network, Origin, Size};
use crate::policy::client::{AddressSource, Trusted};

settings::choice! {
    /// Where a client's address is taken from.
    pub ClientAddress for AddressSource {
        "peer" => Peer,
        "x-forwarded-for" => XForwardedFor,
        "forwarded" => Forwarded,
        "proxy-protocol" => ProxyProtocol,
    }
}

settings::choice! {
    /// Whether other content types than JSON's are accepted.
    pub enum ContentType {
        /// `application/json`, `application/json-rpc` and `application/jsonrequest`, as geth; else
        /// 415.
        "strict" => Strict,
        /// Any or none.
        "lenient" => Lenient,
    }
}

settings::table! {
    /// What is accepted from clients, and how they are served.
    pub struct DownstreamTable => pub Downstream {
        /// Open client connections over all threads. The process needs as many file descriptors,
        /// and those to the upstreams on top.
        connections_max: Count<1, 10_000_000, usize> = "20000";
        /// Open connections of one client address over all threads. One more is closed at once.
        /// Those of `trusted_proxies` are not counted.
        connections_per_client_max: Count<1, 10_000_000, usize> = follows "not limited";
        /// Bytes of a request's body (geth: 5 MiB, `defaultBodyLimit` in rpc/http.go).
        body_bytes_max: Size<1024, GIB> = "5MiB";
        /// Bytes of a request's head.
        header_bytes_max: Size<1024, MIB> = "16KiB";
        /// Calls in one batch (geth: 1000, `BatchRequestLimit` in upstream/defaults.go).
        batch_calls_max: Count<1, 100_000, usize> = "1000";
        /// Bytes of all responses of one batch (geth: 25 MB, `BatchResponseMaxSize` in
        /// upstream/defaults.go).
        batch_response_bytes_max: Size<1024, { 4 * GIB }> = "25MB";
        /// Nesting of a request's JSON.
        depth_max: Count<4, { wire::json::DEPTH_CEILING as u64 }, usize> = "128";
        /// Bytes of a method's name.
        method_bytes_max: Count<16, { METHOD_BYTES_MAX as u64 }, usize> = "128";
        /// Bytes of a call's id.
        id_bytes_max: Count<16, 65_536, usize> = "1024";
        /// Time for a request's head to arrive. It also bounds the header of the PROXY protocol
        /// and, over HTTP/2, the answer to a ping, which is sent on a connection that was silent
        /// for `idle_timeout`.
        header_timeout: Duration<1, HOUR> = "10s";
        /// Time for a request's body to arrive whole.
        body_timeout: Duration<1, HOUR> = "30s";
        /// How long a client may read nothing of a response before its connection is closed (nginx:
        /// 60 s).
        write_timeout: Duration<10, HOUR> = "30s";
        /// How long a connection may stay open between two requests (nginx: 75 s).
        idle_timeout: Duration<1, DAY> = "75s";
        /// HTTP/1.1 requests that one connection may carry; the last response closes it. 1 makes
        /// every connection a short one.
        keep_alive_requests_max: Count<1, { u64::MAX }> = follows "no limit" => u64::MAX;
        /// Whether a request may go on as a WebSocket, at the same address and paths. Each message
        /// is one call or batch, under the key and address of the request that opened it. Browsers
        /// may open one from the pages of `cors_origins` only.
        websocket: Bool = "true";
        /// Whether a client may ask for compressed messages (permessage-deflate, RFC 7692), each
        /// compressed by itself: those of `compression_bytes_min` and more. It saves bytes and
        /// costs processor time, for each subscriber too.
        websocket_compression: Bool = "false";
        /// Messages of one WebSocket in flight at the same time; further ones wait unread. Like the
        /// other bounds of a WebSocket it holds for those that are opened from now on.
        websocket_messages_max: Count<1, 100_000, usize> = "100";
        /// Responses and notifications that may wait for a WebSocket client that does not read.
        /// Beyond 1 MiB nothing more is read from it; beyond this it is closed with 1008.
        websocket_queue_bytes_max: Size<{ 64 << 10 }, GIB> = "16MiB";
        /// Subscriptions (`eth_subscribe`) that one WebSocket may have at a time; 0 allows none.
        websocket_subscriptions_max: Count<0, 1_000_000, usize> = "1000";
        /// How long a WebSocket client may be silent before it is pinged. After as long again
        /// without an answer the connection is closed.
        websocket_ping: Duration<1, DAY> = "30s";
        /// Filters (`eth_newFilter`, `eth_newBlockFilter`) that are kept for each chain, some 3 kB
        /// each.
        filters_max: Count<0, 1_000_000, usize> = "10000";
        /// Filters of one client, by its key or else its address.
        filters_per_client_max: Count<0, 1_000_000, usize> = "100";
        /// How long an unused filter is kept (go-ethereum: 5 min).
        filter_timeout: Duration<1, DAY> = "5m";
        /// Peers whose word about a client's address is taken: proxies and balancers before the
        /// gateway.
        trusted_proxies: As<List<Network>, Trusted> = empty;
        /// Where a client's address is taken from: the connection; the header `X-Forwarded-For` or
        /// `Forwarded` (RFC 7239) of a trusted proxy, read from the right up to the first address
        /// that is not trusted; or the PROXY protocol, version 1 or 2, which every connection must
        /// then begin with and only trusted proxies may speak.
        client_address: ClientAddress = "peer";
        /// Web pages that may call. An empty list forbids all.
        cors_origins: As<List<Origin>, Cors> = "*";
        /// `strict` accepts JSON's content types as geth does, and refuses others with 415;
        /// `lenient` accepts any or none.
        content_type: ContentType = "strict";
        /// Whether responses are compressed with zstd or gzip when the client accepts it.
        compression: Bool = "true";
        /// Smaller responses are not compressed.
        compression_bytes_min: Bytes<0, GIB, usize> = "1KiB";
        /// Whether responses carry `x-weir-cache` and `x-weir-upstream`.
        answer_headers: Bool = "true";
    }
}

/// Which web pages may call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cors {
    /// Every page: `access-control-allow-origin: *`.
    Any,
    /// Pages of these origins, lower case, without a trailing slash; may be empty.
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
    /// Returns true if pages of this origin may call.
    pub(crate) fn admits(&self, origin: &str) -> bool {
        match self {
            Cors::Any => true,
            Cors::Origins(allowed) => {
                allowed.iter().any(|known| known.eq_ignore_ascii_case(origin))
            }
        }
    }
}

impl Downstream {
    /// Bounds for the decoder of calls.
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

/// Checks that somebody is trusted if clients' addresses come from proxies.
pub(super) fn check(table: &DownstreamTable, report: &mut Report<'_>) -> Downstream {
    let DownstreamTable { trusted_proxies, client_address, .. } = table;
    let is_peer = **client_address == AddressSource::Peer;
    let trusts_none = !trusted_proxies.is_set() || trusted_proxies.is_empty_list();
    if !is_peer && trusts_none {
        let message = "nobody may say a client's address";
        let allowed = "downstream.trusted_proxies with the proxies before the gateway, or \"peer\"";
        report.error(client_address, message, allowed);
    }
    if is_peer && !trusts_none {
        let message = "is not used, because clients' addresses are taken from connections";
        let advice = "downstream.client_address with what the proxies say it in";
        report.warn(trusted_proxies, message, advice);
    }
    table.values()
}
