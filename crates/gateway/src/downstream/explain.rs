//! Explains requests without serving them, for `weir explain`. `path.rs` has the steps.

use std::cell::Cell;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;

use super::answer::describe_refusal;
use super::head::{HeadFault, read_head};
use super::thread::Thread;
use crate::access::caller::{Authenticated, Caller};
use crate::call::failure::ErrorResponse;
use crate::config::Config;
use crate::config::access::Proof;
use crate::config::tls::client::ClientCertificate;
pub use crate::limits::AppliedLimit;
use crate::path::explain::explain;
pub use crate::path::explain::{CallExplanation, Refusal, Resolution, StepRecord};
use crate::path::{self, Request};
use crate::policy::heads::{ChainView, Head};
use crate::state::snapshot::Snapshot;
use crate::subscribe::SubscribeContext;
use wire::error::ErrorCode;

/// A gateway that has just started, and explains requests. It calls no upstream, and assumes the
/// state of each chain. It counts requests in the limits and quotas, as if it served them.
#[derive(Debug)]
pub struct Explainer {
    thread: Rc<Thread>,
}

impl Explainer {
    /// Starts a gateway whose chains all have this head.
    pub fn new(mut config: Config, head: u64) -> Explainer {
        // Limits behave as if Redis always responded: each has its whole rate.
        config.redis = None;
        for zone in &mut config.zones {
            zone.shared = false;
        }
        let snapshot = Snapshot::new(config, Vec::new());
        for (chain, config) in snapshot.chains.iter().zip(&snapshot.config.chains) {
            chain.view.store(Arc::new(assumed_view(head, config.finality_depth)));
        }
        let (thread_index, seed) = (0, 0);
        Explainer { thread: Thread::new(snapshot, thread_index, seed, &Arc::default()) }
    }

    /// Returns the assumed state of a chain.
    pub fn view(&self, chain: usize) -> Arc<ChainView> {
        self.thread.context().snapshot.chains[chain].view.load_full()
    }

    /// Explains the calls of a request. `head` has the request line and the headers of HTTP/1.1.
    /// `key` is the index in `Access::keys` of a key that the client presents besides.
    ///
    /// # Errors
    /// Why the gateway refuses the whole request.
    pub fn explain<'a>(
        &self,
        address: IpAddr,
        key: Option<usize>,
        head: &str,
        body: &'a [u8],
    ) -> Result<Vec<CallExplanation<'a>>, Refusal> {
        let cx = self.thread.context();
        let config = &cx.snapshot.config;
        let bytes_max = config.downstream.header_bytes_max;
        let head = read_head(head.as_bytes(), bytes_max, &cx.snapshot.head_fields, None);
        let mut head = head.and_then(|head| head.ok_or(HeadFault::Syntax)).map_err(|fault| {
            let (code, message) = (ErrorCode::INVALID_REQUEST, &*fault.to_string());
            Refusal::new(&ErrorResponse { status: 400, code, message }, None)
        })?;
        let mut certificate = None;
        let access_values = head.access_values.as_mut().and_then(Arc::get_mut);
        if let (Some(key), Some(access_values)) = (key, access_values) {
            match &config.access.keys[key].proof {
                Proof::Hash(hash) => access_values.add_key(*hash),
                Proof::Certificate(name) => {
                    let names = vec![String::from(&**name)];
                    certificate = Some(ClientCertificate { names, ..ClientCertificate::default() });
                }
            }
        }
        let identity = head.identity(address, certificate.as_ref());
        let mut client =
            Authenticated { caller: Caller::without_key(address), path: identity.path };
        let chain = path::admit(&cx, &identity, &mut client)
            .map_err(|refusal| Refusal::new(&describe_refusal(&refusal), None))?;
        let request = Request {
            chain,
            body,
            caller: &client.caller,
            path: client.path,
            access_values: head.access_values.as_deref(),
            call_records: None,
            trace: None,
            hash_header: head.hash_header.as_deref(),
            limit_headers: &head.limit_headers,
            prefetched: None,
            waiting: &Cell::new(0),
            subscribe_context: SubscribeContext {
                subscriptions: &self.thread.subscriptions,
                guard: None,
            },
        };
        Ok(explain(&cx, &request, body))
    }
}

/// Returns the assumed state of a chain. The finalized block is below the head by the configured
/// finality depth.
fn assumed_view(head: u64, finality_depth: u64) -> ChainView {
    let mut view = ChainView::default();
    view.head = Some(Head { number: head, hash: [0; 32] });
    view.finalized = Some(head.saturating_sub(finality_depth));
    view.settled = view.finalized;
    // The gateway replaces a client's `finalized` tag only with a height from the upstreams.
    view.finalized_by_upstreams = true;
    view
}
