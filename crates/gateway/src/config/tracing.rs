//! `[tracing]`: spans of sampled requests for a collector.
//!
//! `config.rs` explains the syntax of `settings::table!`.

use std::fmt;
use std::ops::Deref;
use std::path::Path;
use std::sync::Arc;

use settings::Report;
use settings::url::NodeUrl;
use settings::value::{Bool, Duration, File, Integer};

use super::upstream::{check_authorization, warn_of_plain_secrets};
use super::values::{CollectorAddress, Headers, NonEmptyString, SECOND_MS, Share};
use crate::policy::trace_context::{TraceId, TraceParent};

settings::table! {
    /// Spans of sampled requests, which are sent to a collector by OTLP over HTTP in the
    /// background. Without this table no request is sampled. A client's `traceparent` and
    /// `tracestate` reach the upstream in any case. [Traces](tracing.md) describes the spans.
    pub struct TracingTable => pub TracingKeys {
        /// Address of the collector. If the URL has no path, spans go to `/v1/traces`. A user part
        /// becomes an `authorization` header.
        endpoint: CollectorAddress = described "none: it must be set";
        /// Share of traces that are sampled.
        sample_ratio: Share = "0.01";
        /// If true, a client's `traceparent` decides whether its request is sampled, and
        /// `sample_ratio` applies only to requests without `traceparent`. If false, `sample_ratio`
        /// applies to all requests, so clients cannot choose.
        parent_based: Bool = "true";
        /// Headers to add to every request to the collector, such as
        /// `{ authorization = "Bearer ${TOKEN}" }`. The values are secrets.
        headers: Headers = empty;
        /// The value of `service.name`.
        service_name: NonEmptyString = "weir";
        /// Maximum number of spans that wait to be sent, over all threads. Further spans are
        /// dropped and counted, so a slow collector never delays a response.
        queue_max: Integer<16, 1_000_000, usize> = "8192";
        /// Maximum time for a request to the collector.
        timeout: Duration<10, { 60 * SECOND_MS }> = "5s";
        /// File of PEM certificates to trust instead of the built-in ones. Only for https.
        tls_ca: File = described "Mozilla's roots, built in";
    }
}

/// The settings of tracing. The struct dereferences to its keys.
#[derive(Clone, PartialEq)]
pub struct Tracing {
    /// Address of the collector.
    pub endpoint: NodeUrl,
    /// Content of the file `tls_ca`; `None` if the key is not set.
    pub(crate) ca_pem: Option<Arc<[u8]>>,
    keys: TracingKeys,
}

impl fmt::Debug for Tracing {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Tracing { endpoint: _, ca_pem: _, keys } = self;
        formatter.debug_struct("Tracing").field("keys", keys).finish_non_exhaustive()
    }
}

impl Deref for Tracing {
    type Target = TracingKeys;

    fn deref(&self) -> &TracingKeys {
        &self.keys
    }
}

impl Tracing {
    /// Returns true if a request is sampled. `parent` is the client's trace context; `None` if the
    /// client sent none.
    pub(crate) fn samples(&self, id: TraceId, parent: Option<TraceParent>) -> bool {
        match parent.filter(|_| self.parent_based) {
            Some(parent) => parent.sampled,
            None => id.is_in_sample(self.sample_ratio),
        }
    }
}

/// Validates the table. Returns `None` if the table is not set, or if it has no valid `endpoint`.
pub(super) fn check(
    table: &TracingTable,
    folder: &Path,
    report: &mut Report<'_>,
) -> Option<Tracing> {
    table.location.table.as_ref()?;
    let Some(endpoint) = &*table.endpoint else {
        if !table.endpoint.is_set() {
            let advice = "endpoint = \"http://127.0.0.1:4318\"";
            report.error(&table.endpoint, "no collector is set", advice);
        }
        return None;
    };
    check_authorization(&table.headers, endpoint, report);
    warn_of_plain_secrets(&table.headers, &table.endpoint, endpoint, "https://", report);
    let ca_pem = check_ca(table, endpoint, folder, report);
    Some(Tracing { endpoint: endpoint.clone(), ca_pem, keys: table.values() })
}

/// Reads and validates the file of certificates. Returns `None` if `tls_ca` is not set, and after
/// an error.
fn check_ca(
    table: &TracingTable,
    endpoint: &NodeUrl,
    folder: &Path,
    report: &mut Report<'_>,
) -> Option<Arc<[u8]>> {
    let path = table.tls_ca.as_ref().map(|file| folder.join(file))?;
    if !endpoint.tls() {
        let message = "certificates are only for https://";
        report.error(&table.tls_ca, message, "https://, or no tls_ca");
        return None;
    }
    if let Err(message) = wire::tls::build_verifying_client(Some(&path)) {
        report.error(&table.tls_ca, message, "a file of pem certificates");
        return None;
    }
    std::fs::read(path).ok().map(Arc::from)
}
