//! A cache of parsed request heads per thread, and the credentials that a head contains.

use std::cell::RefCell;
use std::net::IpAddr;
use std::rc::{Rc, Weak};

use super::forwarded_header::ForwardedHeader;
use super::head::{Head, HeadFault, HttpMethod, read_head};
use crate::access::caller::RequestIdentity;
use crate::config::tls::client::ClientCertificate;
use crate::io::head_cache::HeadCache;
use crate::state::context::ThreadContext;

/// Maximum number of cached heads per thread. Heads of one client library differ in the length of
/// the body, so a library needs one cached head per common length. This is enough for a few
/// libraries.
const HEADS_MAX: usize = 64;

type Heads = HeadCache<Rc<Head>>;

/// Cache of the heads that one thread has parsed. A client usually sends the same head with every
/// request, so most heads are parsed once. The configuration selects the parsed fields, so a new
/// configuration empties the cache. The cache does not keep a replaced configuration in memory.
#[derive(Default)]
pub(super) struct ParsedHeads(RefCell<Option<CachedHeads>>);

/// The heads that were parsed in one context. A context is the state of a thread under one
/// configuration.
struct CachedHeads {
    /// The context whose configuration selected the parsed fields.
    context: Weak<ThreadContext>,
    heads: Heads,
}

impl ParsedHeads {
    /// Parses the head at the start of `buf`. Returns `None` while the head is incomplete.
    pub(super) fn read(
        &self,
        cx: &Rc<ThreadContext>,
        buf: &[u8],
    ) -> Result<Option<Rc<Head>>, HeadFault> {
        let mut cached = self.0.borrow_mut();
        let is_current =
            |cached: &CachedHeads| std::ptr::eq(cached.context.as_ptr(), Rc::as_ptr(cx));
        if !cached.as_ref().is_some_and(is_current) {
            *cached = None;
        }
        let CachedHeads { heads, .. } = cached.get_or_insert_with(|| CachedHeads {
            context: Rc::downgrade(cx),
            heads: Heads::new(HEADS_MAX),
        });
        if let Some((_, head)) = heads.find(buf) {
            return Ok(Some(Rc::clone(head)));
        }
        let downstream = &cx.snapshot.config.downstream;
        let bytes_max = downstream.header_bytes_max;
        let Some(head) =
            read_head(buf, bytes_max, &cx.snapshot.head_fields, ForwardedHeader::of(downstream))?
        else {
            return Ok(None);
        };
        let head = Rc::new(head);
        // Each WebSocket upgrade has a unique key, and each `traceparent` has a unique span. So a
        // head with a key or a `traceparent` is not cached.
        if head.upgrade.is_none() && head.trace.is_none() {
            heads.insert(buf, head.bytes, Rc::clone(&head));
        }
        Ok(Some(head))
    }
}

impl Head {
    /// Returns the credentials of a request with this head. `client` is the client's address, and
    /// `certificate` is the client's verified TLS certificate, if any.
    pub(crate) fn identity<'a>(
        &'a self,
        client: IpAddr,
        certificate: Option<&'a ClientCertificate>,
    ) -> RequestIdentity<'a> {
        RequestIdentity {
            client,
            path: self.path.as_str(),
            access_values: self.access_values.as_deref(),
            needs_key: self.http_method == HttpMethod::Post || self.upgrade.is_some(),
            certificate,
        }
    }
}

#[cfg(test)]
mod tests {
    //! Goal: a head is parsed once per configuration, and the cache does not keep a configuration
    //! alive.

    use std::path::Path;

    use super::*;
    use crate::config::Config;
    use crate::state::snapshot::Snapshot;

    fn context() -> Rc<ThreadContext> {
        let text = "[server]\nthreads = 1\n[[upstream]]\nurl = 'http://a.local:1'\n";
        let config = Config::from_text("test", text, Path::new("/"), &|_| None);
        let config = config.unwrap_or_else(|errors| panic!("{errors}"));
        let (thread_index, seed) = (0, 1);
        ThreadContext::new(Snapshot::new(config, Vec::new()), thread_index, seed)
    }

    #[test]
    fn a_head_is_parsed_once_and_does_not_keep_its_context_alive() {
        let (heads, first, second) = (ParsedHeads::default(), context(), context());
        let read = |cx| heads.read(cx, b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap().unwrap();
        let head = read(&first);
        assert!(Rc::ptr_eq(&head, &read(&first)));
        assert!(
            !Rc::ptr_eq(&head, &read(&second)),
            "another configuration may select other fields"
        );
        let ended = Rc::downgrade(&second);
        drop(second);
        assert!(ended.upgrade().is_none());
    }
}
