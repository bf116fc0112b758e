//! Who clients are: where their addresses are taken from, and who may say so.

use super::super::fault::Report;
use super::super::file::Entry;
use super::super::kind;
use super::refuse;
use crate::rules::client::{AddressSource, Trusted};

/// Where a client's address is taken from, and the peers that may say it.
pub(super) fn check(front: &Entry, report: &mut Report<'_>) -> (AddressSource, Trusted) {
    let texts = front.value("trusted_proxies").texts();
    let networks = texts.iter().filter_map(|text| kind::network(text).ok());
    let trusted = Trusted::new(networks.collect());
    let source = match front.value("client_address").choice() {
        "x-forwarded-for" => AddressSource::XForwardedFor,
        "forwarded" => AddressSource::Forwarded,
        "proxy-protocol" => AddressSource::ProxyProtocol,
        _ => AddressSource::Peer,
    };
    let read_none = front.set("trusted_proxies").is_none_or(|set| set.elements.is_empty());
    if source != AddressSource::Peer && read_none {
        let message = "nobody may say a client's address";
        let allowed = "front.trusted_proxies with the proxies before the gateway, or \"peer\"";
        refuse(report, front, "client_address", message, allowed);
    }
    if let Some(set) = front.set("trusted_proxies")
        && source == AddressSource::Peer
        && !read_none
    {
        let message = "is not used, because clients' addresses are taken from connections";
        let advice = "front.client_address with what the proxies say it in";
        report.warn(set.span.as_ref(), front.key("trusted_proxies"), message, advice);
    }
    (source, trusted)
}
