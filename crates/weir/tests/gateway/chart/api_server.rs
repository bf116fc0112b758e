//! A Kubernetes API server for a test: kube-apiserver, and the etcd in which it stores objects. The
//! server validates objects, but nothing acts on them, because no controllers and no kubelet run.

use std::fs::File;
use std::io;
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::Value;
use test_support::port::ReservedPort;
use test_support::programs;
use test_support::running::{command_killed_with_test, spawn};
use test_support::wait::{pause, wait_until};

use crate::support::authority::{Authority, ConfigFiles, KeyType};
use crate::support::tls_client::TlsClient;

/// The namespace of the objects. The server warns about pods in it that do not meet the pod
/// security standard `restricted`.
const NAMESPACE: &str = "apiVersion: v1
kind: Namespace
metadata:
  name: weir
  labels:
    pod-security.kubernetes.io/warn: restricted
";
/// Media type of a request that creates an object.
const YAML: &str = "application/yaml";
/// Media type of a server-side apply.
const APPLY: &str = "application/apply-patch+yaml";
/// Query parameters: the server validates an object without storing it, and rejects unknown and
/// duplicate fields.
const DRY_RUN: &str = "dryRun=All&fieldValidation=Strict";
/// Host name in the server's certificate.
const HOST: &str = "localhost";
/// Token of the server's only user.
const TOKEN: &str = "sekrit0123456789";
/// Interval between two requests of a test that waits for the server.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// A Kubernetes object as YAML.
pub(super) struct Object {
    pub(super) yaml: String,
    pub(super) kind: String,
    name: String,
    api_version: String,
}

impl Object {
    /// Reads the documents of a YAML stream. The top-level keys and `metadata.name` must be
    /// formatted as Helm formats them, because this is no YAML parser.
    pub(super) fn parse_all(stream: &str) -> Vec<Object> {
        let documents = stream.split("---\n").filter(|document| document.contains("kind: "));
        documents.map(Object::parse).collect()
    }

    /// Reads one document.
    pub(super) fn parse(yaml: &str) -> Object {
        let value = |key: &str| {
            let value = yaml.lines().find_map(|line| line.strip_prefix(key));
            value.unwrap_or_else(|| panic!("no {key}in {yaml}")).to_owned()
        };
        Object {
            yaml: yaml.to_owned(),
            kind: value("kind: "),
            name: value("  name: "),
            api_version: value("apiVersion: "),
        }
    }

    /// Returns the URL path of all objects of this kind.
    fn collection(&self) -> String {
        let prefix = if self.api_version.contains('/') { "apis" } else { "api" };
        let kind = self.kind.to_ascii_lowercase();
        let plural = match kind.strip_suffix('y') {
            Some(stem) => format!("{stem}ies"),
            None => format!("{kind}s"),
        };
        let has_namespace = !["namespace", "customresourcedefinition"].contains(&kind.as_str());
        let namespace = if has_namespace { "namespaces/weir/" } else { "" };
        format!("/{prefix}/{}/{namespace}{plural}", self.api_version)
    }
}

/// A response of the server.
pub(super) struct Response {
    /// Status line and headers.
    head: String,
    body: String,
}

impl Response {
    /// Returns the response if it is an error or has a warning.
    pub(super) fn complaint(&self) -> Option<String> {
        let has_warning = self.head.to_ascii_lowercase().contains("\nwarning: ");
        (has_warning || !self.is_success()).then(|| format!("{}{}", self.head, self.body))
    }

    fn is_success(&self) -> bool {
        self.head.split(' ').nth(1).is_some_and(|status| status.starts_with('2'))
    }
}

/// A running API server. Dropping it kills it and its etcd.
pub(super) struct ApiServer {
    server: Child,
    etcd: Child,
    address: String,
    client: TlsClient,
    files: ConfigFiles,
    _reserved: [ReservedPort; 3],
}

impl ApiServer {
    /// Starts a server without objects. Returns `None` and records a skip if a program is missing.
    pub(super) fn start() -> Option<ApiServer> {
        let etcd = programs::require("etcd")?;
        let program = programs::require("kube-apiserver")?;
        let reserved = [(); 3].map(|()| ReservedPort::new());
        let [store, peers, address] = reserved.each_ref().map(|port| port.address.to_string());
        let authority = Authority::new("authority");
        let mut files = ConfigFiles::new();
        files.write_certificate("server", &authority, KeyType::Ecdsa, &[HOST]);
        files.write("tokens.csv", format!("{TOKEN},tester,1,system:masters\n").as_bytes());
        let etcd = start_etcd(&etcd, files.folder(), &store, &peers);
        wait_until("etcd listens", || TcpStream::connect(&store).is_ok());
        let server = start_server(&program, files.folder(), &store, reserved[2].address.port());
        let client = TlsClient::new(&authority);
        let mut server = ApiServer { server, etcd, address, client, files, _reserved: reserved };
        server.wait_until_ready();
        Some(server)
    }

    fn wait_until_ready(&mut self) {
        wait_until("the API server is ready", || {
            let status = self.server.try_wait().unwrap();
            let log = self.files.folder().join("kube-apiserver.log");
            assert!(status.is_none(), "{status:?}: {}", std::fs::read_to_string(log).unwrap());
            pause(POLL_INTERVAL); // Sleeps: the interval between two requests.
            self.send("GET", "/readyz", "", "").is_ok_and(|response| response.is_success())
        });
    }

    /// Creates the namespace of the objects.
    pub(super) fn create_namespace(&self) {
        self.create(&Object::parse(NAMESPACE));
    }

    /// Creates a custom resource definition, and waits until its objects are served.
    pub(super) fn define(&self, definition: &Object) {
        self.create(definition);
        let (plural, group) = definition.name.split_once('.').unwrap();
        let collection = format!("/apis/{group}/v1/namespaces/weir/{plural}");
        wait_until("the custom resource is served", || {
            pause(POLL_INTERVAL); // Sleeps: the interval between two requests.
            self.send("GET", &collection, "", "").unwrap().is_success()
        });
    }

    /// Returns the OpenAPI document of an API group, such as `apis/apps/v1`.
    pub(super) fn read_schemas(&self, group: &str) -> Value {
        let response = self.send("GET", &format!("/openapi/v3/{group}"), "", "").unwrap();
        assert!(response.is_success(), "{}{}", response.head, response.body);
        serde_json::from_str(&response.body).unwrap()
    }

    fn create(&self, object: &Object) {
        let response = self.send("POST", &object.collection(), YAML, &object.yaml).unwrap();
        assert!(response.is_success(), "{}{}", response.head, response.body);
    }

    /// Sends a request that creates the object, and a server-side apply of the object. Returns both
    /// responses. The server stores nothing.
    pub(super) fn validate(&self, object: &Object) -> [Response; 2] {
        let collection = object.collection();
        let create = format!("{collection}?{DRY_RUN}");
        let apply = format!("{collection}/{}?{DRY_RUN}&fieldManager=tester", object.name);
        [("POST", create, YAML), ("PATCH", apply, APPLY)]
            .map(|(method, path, kind)| self.send(method, &path, kind, &object.yaml).unwrap())
    }

    /// Sends a request on a new connection. It uses HTTP/1.0, because the response then has no
    /// chunked encoding.
    fn send(&self, method: &str, path: &str, kind: &str, body: &str) -> io::Result<Response> {
        let length = body.len();
        let request = format!(
            "{method} {path} HTTP/1.0\r\nHost: {HOST}\r\nAuthorization: Bearer {TOKEN}\r\n\
             Content-Type: {kind}\r\nContent-Length: {length}\r\n\r\n{body}"
        );
        let mut connection = self.client.connect(&self.address, HOST)?;
        let head = connection.request_head(request.as_bytes())?;
        Ok(Response { head, body: connection.read_to_end()? })
    }
}

impl Drop for ApiServer {
    fn drop(&mut self) {
        for child in [&mut self.server, &mut self.etcd] {
            // The process may have ended already, which the test reports elsewhere.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn start_etcd(program: &Path, folder: &Path, clients: &str, peers: &str) -> Child {
    let (clients, peers) = (format!("http://{clients}"), format!("http://{peers}"));
    let mut command = command_killed_with_test(program);
    command.arg("--data-dir").arg(folder.join("etcd"));
    command.args(["--listen-client-urls", &clients, "--advertise-client-urls", &clients]);
    command.args(["--listen-peer-urls", &peers, "--initial-advertise-peer-urls", &peers]);
    command.args(["--initial-cluster", &format!("default={peers}")]);
    start(command, folder, "etcd.log")
}

fn start_server(program: &Path, folder: &Path, store: &str, port: u16) -> Child {
    let file = |name: &str| folder.join(name).display().to_string();
    let mut command = command_killed_with_test(program);
    for (option, value) in [
        ("etcd-servers", format!("http://{store}")),
        ("bind-address", "127.0.0.1".to_owned()),
        ("secure-port", port.to_string()),
        ("tls-cert-file", file("server.pem")),
        ("tls-private-key-file", file("server.key")),
        ("cert-dir", file("certificates")),
        ("token-auth-file", file("tokens.csv")),
        ("authorization-mode", "AlwaysAllow".to_owned()),
        ("service-account-issuer", "https://weir.invalid".to_owned()),
        ("service-account-key-file", file("server.pem")),
        ("service-account-signing-key-file", file("server.key")),
        ("service-cluster-ip-range", "10.0.0.0/24".to_owned()),
        // No other server joins this one.
        ("endpoint-reconciler-type", "none".to_owned()),
    ] {
        command.arg(format!("--{option}={value}"));
    }
    start(command, folder, "kube-apiserver.log")
}

fn start(mut command: Command, folder: &Path, log: &str) -> Child {
    let log = File::create(folder.join(log)).unwrap();
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
    spawn(command).unwrap()
}
