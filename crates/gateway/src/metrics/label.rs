//! Labels of counters. Each label has a fixed set of values, so no client can create a new time
//! series.
//!
//! This file declares the sets that only counters use. Other modules declare the remaining sets,
//! and this file only gives them a label name.

use rustls::{HandshakeKind, ProtocolVersion};

use crate::call::CacheStatus;
use crate::policy::access::Denial;
use crate::policy::closed_set::closed_set;
use crate::policy::overload::{Class, Shed};

/// A label with a closed set of values.
pub(crate) trait Label: Copy + 'static {
    /// Name of the label.
    const NAME: &'static str;
    /// All values, in the order of [`Label::index`].
    const ALL: &'static [Self];
    /// An array with one element for each value.
    type Array<T>: AsRef<[T]>;

    /// Builds an array. `element` returns the element for the index of a value.
    fn array<T>(element: impl FnMut(usize) -> T) -> Self::Array<T>;

    /// Returns the index of the value in [`Label::ALL`].
    fn index(self) -> usize;

    /// Returns the value as `/metrics` prints it.
    fn as_str(self) -> &'static str;
}

/// Implements [`Label`] for closed sets that are declared elsewhere. The text after each type is
/// the label's name.
macro_rules! implement_labels {
    ($($Type:ty: $name:literal;)+) => { $(
        impl Label for $Type {
            const NAME: &'static str = $name;
            const ALL: &'static [$Type] = &<$Type>::ALL;
            type Array<T> = [T; <$Type>::ALL.len()];

            fn array<T>(element: impl FnMut(usize) -> T) -> Self::Array<T> {
                std::array::from_fn(element)
            }

            fn index(self) -> usize {
                <$Type>::index(self)
            }

            fn as_str(self) -> &'static str {
                <$Type>::as_str(self)
            }
        }
    )+ };
}

/// Declares closed sets that exist only for counters. The text after the type is the label's name,
/// and each variant has the value that `/metrics` prints.
macro_rules! declare_labels {
    ($($(#[$meta:meta])* $Type:ident: $name:literal { $($values:tt)+ })+) => {
        $(closed_set! { $(#[$meta])* pub(crate) enum $Type { $($values)+ } })+
        implement_labels! { $($Type: $name;)+ }
    };
}

implement_labels! {
    CacheStatus: "cache";
    Class: "class";
    Denial: "reason";
    Shed: "reason";
}

declare_labels! {
    /// HTTP status of a request that was refused as a whole.
    RefusedStatus: "status" {
        BadRequest = "400",
        Unauthorized = "401",
        Forbidden = "403",
        NotFound = "404",
        MethodNotAllowed = "405",
        RequestTimeout = "408",
        BodyTooLarge = "413",
        UnsupportedMediaType = "415",
        ExpectationFailed = "417",
        TooManyRequests = "429",
        HeadTooLarge = "431",
        HttpVersionNotSupported = "505",
        Other = "500",
    }

    /// Why a connection was closed for its PROXY protocol header.
    ProxyRefusal: "reason" {
        /// The peer is not a trusted proxy.
        Untrusted = "untrusted",
        /// The bytes are not a header, or the connection ended within the header.
        Malformed = "malformed",
        Timeout = "timeout",
    }

    /// Version of TLS.
    TlsVersion: "version" { V1_2 = "1.2", V1_3 = "1.3", }

    /// Kind of a completed TLS handshake.
    Handshake: "handshake" { Full = "full", Resumed = "resumed", }

    /// Why a TLS handshake with a client failed.
    HandshakeFailure: "reason" {
        Timeout = "timeout",
        Closed = "closed",
        NotTls = "not_tls",
        NothingInCommon = "nothing_in_common",
        CertificateMissing = "certificate_missing",
        CertificateRefused = "certificate_refused",
        /// The client ended the handshake with a TLS alert, for example because it does not trust
        /// the certificate.
        Alert = "alert",
        Other = "other",
    }

    /// Outcome of an attempt at an upstream.
    AttemptOutcome: "outcome" { Ok = "ok", Failed = "failed", RateLimited = "rate_limited", }

    /// What a request-limit zone decided about a call. The values are those of nginx's
    /// `$limit_req_status`.
    LimitOutcome: "outcome" {
        Passed = "passed",
        Delayed = "delayed",
        Rejected = "rejected",
        DelayedDryRun = "delayed_dry_run",
        RejectedDryRun = "rejected_dry_run",
    }

    /// Who decided about a call in a limit zone that several gateways share through Redis.
    LimitJudge: "by" {
        Redis = "redis",
        /// This gateway alone, by its local share: rate and burst divided by `weir_redis_gateways`.
        Share = "share",
        /// This gateway, because the last response of Redis already implies a rejection.
        Memory = "memory",
    }

    /// Why Redis did not judge a call.
    RedisFailure: "reason" { Error = "error", Timeout = "timeout", }

    /// Result of a lookup in the index.
    IndexLookup: "outcome" {
        Hit = "hit",
        /// The index holds some of the blocks of a range.
        Part = "part",
        Miss = "miss",
        /// The index cannot be read, is overloaded, or does not respond in time.
        Failed = "failed",
    }

    /// Result of a lookup in Redis.
    RedisLookup: "outcome" {
        Hit = "hit",
        Miss = "miss",
        /// The value is not valid in this gateway's view of the chain.
        Stale = "stale",
        /// The value is malformed or belongs to another key, so no gateway wrote it.
        Refused = "refused",
        Error = "error",
        Timeout = "timeout",
        /// A circuit breaker is open.
        Skipped = "skipped",
    }

    /// Result of a store in Redis.
    RedisStore: "outcome" {
        Ok = "ok",
        Failed = "failed",
        /// The response was not stored. Either no poll proved in time that its block is on the
        /// served chain, or a limit was reached, or there was no connection.
        Dropped = "dropped",
    }
}

impl TlsVersion {
    /// Returns the version of a completed handshake.
    pub(crate) fn of(version: Option<ProtocolVersion>) -> TlsVersion {
        match version {
            Some(ProtocolVersion::TLSv1_3) => TlsVersion::V1_3,
            _ => TlsVersion::V1_2,
        }
    }
}

impl Handshake {
    /// Returns the kind of a completed handshake.
    pub(crate) fn of(kind: Option<HandshakeKind>) -> Handshake {
        match kind {
            Some(HandshakeKind::Resumed) => Handshake::Resumed,
            _ => Handshake::Full,
        }
    }
}

impl RefusedStatus {
    /// Returns the label's value for a status. A status that is not listed counts as 500.
    pub(crate) fn of(status: u16) -> RefusedStatus {
        let known_status = RefusedStatus::ALL.into_iter().find(|known| known.number() == status);
        known_status.unwrap_or(RefusedStatus::Other)
    }

    /// Returns the status as a number.
    pub(crate) fn number(self) -> u16 {
        self.as_str().parse().expect("each label value is a number")
    }
}
