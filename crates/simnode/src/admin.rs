//! The admin port of a node: reports its state and changes its settings. It has no authentication,
//! so it belongs on loopback.
//!
//! | request | body | effect |
//! | --- | --- | --- |
//! | `GET /state` | - | returns `{name, up, head, world_head, finalized, pool, tally, settings}` |
//! | `POST /faults` | settings | merges these members into the settings (RFC 7396: `null` resets a member) |
//! | `POST /lag` | `{"blocks": N}` | sets the lag behind the chain's head to N blocks |
//! | `POST /freeze` | - | stops the node at its current head |
//! | `POST /thaw` | - | ends the freeze |
//! | `POST /down` | - | closes the port and resets all connections |
//! | `POST /up` | - | opens the same port |
//!
//! Every response is JSON: the state after the change, or `{"error": text}` with status 400, 404,
//! 405 or 409. `head` is the number of the node's newest block. `world_head` is the number of the
//! newest block of the whole simulated chain (world). `finalized` is the number of the node's
//! finalized block, and `pool` the number of pending transactions. These four members are `null` if
//! the node replays a recording. `tally` has the node's counters. The members of the settings are
//! those of [`Settings`], for example
//! `{"faults":[{"fault":{"kind":"html"},"share":0.1}],"latency":{"shape":"exponential","mean_ms":5}}`.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::Instant;

use crate::node::settings::Settings;
use crate::serve::{NodeServer, serve_with};

/// Maximum number of bytes of an admin request body.
const BODY_BYTES_MAX: usize = 256 * 1024;
/// Maximum number of open connections of the admin port.
const CONNECTIONS_MAX: usize = 64;

/// An admin port. Dropping it closes the port.
pub struct Admin {
    addr: SocketAddr,
    task: JoinHandle<()>,
}

impl Admin {
    /// Opens the admin port of a node. Port 0 picks a free port.
    ///
    /// # Errors
    /// Fails if the process cannot listen on the address.
    pub async fn listen(addr: SocketAddr, server: Arc<NodeServer>) -> io::Result<Self> {
        let listener = TcpListener::bind(addr).await?;
        let addr = listener.local_addr()?;
        let task = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                while connections.len() >= CONNECTIONS_MAX {
                    connections.join_next().await;
                }
                let Ok((stream, _)) = listener.accept().await else {
                    tokio::task::yield_now().await;
                    continue;
                };
                let server = Arc::clone(&server);
                connections.spawn(serve_with(stream, move |request| {
                    respond(Arc::clone(&server), request)
                }));
                while connections.try_join_next().is_some() {}
            }
        });
        Ok(Self { addr, task })
    }

    /// Returns the address with its actual port.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }
}

impl Drop for Admin {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The status and message of a rejected request.
struct Rejection(StatusCode, String);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Lag {
    blocks: u64,
}

async fn respond(server: Arc<NodeServer>, request: Request<Incoming>) -> Response<Full<Bytes>> {
    let (status, value) = match execute(&server, request).await {
        Ok(()) => (StatusCode::OK, state_json(&server)),
        Err(Rejection(status, error)) => (status, json!({ "error": error })),
    };
    let mut response = Response::new(Full::new(format!("{value:#}\n").into()));
    *response.status_mut() = status;
    let json = HeaderValue::from_static("application/json");
    response.headers_mut().insert(CONTENT_TYPE, json);
    response
}

/// Executes a request. The caller then responds with the new state.
async fn execute(server: &NodeServer, request: Request<Incoming>) -> Result<(), Rejection> {
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let body = Limited::new(request.into_body(), BODY_BYTES_MAX).collect().await;
    let body = body.map_err(|error| bad_request(format!("body: {error}")))?.to_bytes();
    let node = server.node();
    match (&method, path.as_str()) {
        (&Method::GET, "/state") => Ok(()),
        (&Method::POST, "/faults") => {
            let patch: Value = serde_json::from_slice(&body).map_err(bad_request)?;
            let mut settings = serde_json::to_value(&*node.settings()).map_err(bad_request)?;
            merge(&mut settings, patch);
            let settings: Settings = serde_json::from_value(settings).map_err(bad_request)?;
            node.set(|current| *current = settings).map_err(bad_request)
        }
        (&Method::POST, "/lag") => {
            let Lag { blocks } = serde_json::from_slice(&body).map_err(bad_request)?;
            node.set(|current| current.lag_blocks = blocks).map_err(bad_request)
        }
        (&Method::POST, "/freeze") => {
            node.freeze();
            Ok(())
        }
        (&Method::POST, "/thaw") => {
            node.thaw();
            Ok(())
        }
        (&Method::POST, "/down") => {
            server.close_port().await;
            Ok(())
        }
        (&Method::POST, "/up") => {
            let conflict = |fault: io::Error| Rejection(StatusCode::CONFLICT, fault.to_string());
            server.open_port().await.map_err(conflict)
        }
        (_, "/state" | "/faults" | "/lag" | "/freeze" | "/thaw" | "/down" | "/up") => {
            let allowed = if path == "/state" { "GET" } else { "POST" };
            let text = format!("{method} {path}: only {allowed} is allowed");
            Err(Rejection(StatusCode::METHOD_NOT_ALLOWED, text))
        }
        _ => {
            let allowed_paths = "/state, /faults, /lag, /freeze, /thaw, /down and /up";
            Err(Rejection(
                StatusCode::NOT_FOUND,
                format!("unknown path {path}: allowed are {allowed_paths}"),
            ))
        }
    }
}

/// Returns the state of the node. It is the response to every successful request.
fn state_json(server: &NodeServer) -> Value {
    let node = server.node();
    let now = Instant::now();
    let head = node.view(now).map(|view| view.head);
    json!({
        "name": node.name(),
        "up": server.is_up(),
        "head": head,
        "world_head": node.world().map(|world| world.height_at(now)),
        "finalized": node.world().zip(head).map(|(world, head)| world.finalized_number(head)),
        "pool": node.world().map(|world| world.pool_len()),
        "tally": node.counters(),
        "settings": &*node.settings(),
    })
}

/// Merges a patch like RFC 7396, except that a tagged object in the patch replaces the current
/// object as a whole. `null` removes a member, so that the setting gets its default value.
fn merge(target: &mut Value, patch: Value) {
    let Value::Object(patch) = patch else {
        *target = patch;
        return;
    };
    if !target.is_object() {
        *target = json!({});
    }
    let Value::Object(members) = target else { return };
    for (name, value) in patch {
        // A tagged object is a serialized enum. The variants of an enum have different members.
        let is_tagged = ["kind", "shape", "do"].iter().any(|tag| value.get(tag).is_some());
        match value {
            Value::Null => {
                members.remove(&name);
            }
            value if is_tagged => {
                members.insert(name, value);
            }
            value => merge(members.entry(name).or_insert(Value::Null), value),
        }
    }
}

fn bad_request(fault: impl ToString) -> Rejection {
    Rejection(StatusCode::BAD_REQUEST, fault.to_string())
}
