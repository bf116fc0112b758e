//! Collectors, and the spans that they receive as JSON.

use std::path::Path;
use std::process::{Child, Stdio};

use serde_json::Value;
use test_support::port::ReservedPort;
use test_support::running::{command_killed_with_test, spawn};
use test_support::wait::wait_until;

use super::otlp;
use super::recorder::Recorder;

/// A collector.
pub(super) struct Collector {
    /// The process of a real collector. `None` if `receiver` gets the spans from the gateway.
    process: Option<Process>,
    /// The server that records the spans.
    receiver: Recorder,
}

/// A real OpenTelemetry Collector. Dropping it kills it.
struct Process {
    child: Child,
    port: ReservedPort,
    _folder: tempfile::TempDir,
}

/// A span as OTLP JSON.
#[derive(Debug, Clone)]
pub(super) struct Span(Value);

impl Collector {
    /// Starts a server that decodes the spans itself.
    pub(super) fn decoding() -> Collector {
        // An empty body is a response without fields.
        Collector { process: None, receiver: Recorder::start(|_| Some((200, Vec::new()))) }
    }

    /// Starts a real collector, which forwards the spans as JSON.
    pub(super) fn real(program: &Path) -> Collector {
        let receiver = Recorder::start(|_| Some((200, b"{}".to_vec())));
        let folder = tempfile::tempdir().unwrap();
        let port = ReservedPort::new();
        let config = folder.path().join("config.yaml");
        let text = format!(
            "receivers:\n  otlp:\n    protocols:\n      http:\n        endpoint: {}\n\
             exporters:\n  otlp_http:\n    endpoint: {}\n    encoding: json\n    compression: none\n\
             service:\n  pipelines:\n    traces:\n      receivers: [otlp]\n      exporters: [otlp_http]\n",
            port.address,
            receiver.url(),
        );
        std::fs::write(&config, text).unwrap();
        let log = folder.path().join("log");
        let mut command = command_killed_with_test(program);
        command.arg("--config").arg(&config).stdout(Stdio::null());
        command.stderr(std::fs::File::create(&log).unwrap());
        let mut child = spawn(command).unwrap();
        wait_until("the collector listens", || {
            let ended = child.try_wait().unwrap();
            assert!(ended.is_none(), "it ended: {}", std::fs::read_to_string(&log).unwrap());
            std::net::TcpStream::connect(port.address).is_ok()
        });
        Collector { process: Some(Process { child, port, _folder: folder }), receiver }
    }

    pub(super) fn url(&self) -> String {
        let process = self.process.as_ref();
        process.map_or_else(|| self.receiver.url(), |it| format!("http://{}", it.port.address))
    }

    /// Waits until this many spans are recorded, and returns them.
    pub(super) fn wait_for_spans(&self, count: usize) -> Vec<Span> {
        let mut spans = Vec::new();
        wait_until(&format!("{count} spans"), || {
            spans = self.spans();
            spans.len() >= count
        });
        assert_eq!(spans.len(), count, "{spans:#?}");
        spans
    }

    fn spans(&self) -> Vec<Span> {
        let mut spans = Vec::new();
        for request in self.receiver.requests("") {
            let parsed: Value = match self.process {
                Some(_) => serde_json::from_slice(&request.body).unwrap(),
                None => otlp::decode_request(&request.body),
            };
            for resource_spans in parsed["resourceSpans"].as_array().unwrap() {
                let resource = Span(resource_spans["resource"].clone());
                assert_eq!(resource.attribute("service.name"), Some("edge"));
                for scope_spans in resource_spans["scopeSpans"].as_array().unwrap() {
                    spans
                        .extend(scope_spans["spans"].as_array().unwrap().iter().cloned().map(Span));
                }
            }
        }
        spans
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _killed = self.child.kill();
        let _status = self.child.wait();
    }
}

impl Span {
    /// Returns the text of a field, or an empty text if the field is missing.
    pub(super) fn text(&self, field: &str) -> &str {
        self.0[field].as_str().unwrap_or_default()
    }

    pub(super) fn is_failed(&self) -> bool {
        self.0["status"]["code"] == 2
    }

    /// Returns an attribute as text. In OTLP JSON, integers are text too.
    pub(super) fn attribute(&self, key: &str) -> Option<&str> {
        let attributes = self.0["attributes"].as_array()?;
        let value = &attributes.iter().find(|attribute| attribute["key"] == key)?["value"];
        value["stringValue"].as_str().or_else(|| value["intValue"].as_str())
    }

    /// Returns the start and the end in nanoseconds since 1970.
    pub(super) fn times(&self) -> (u64, u64) {
        let time = |field| self.text(field).parse().unwrap();
        (time("startTimeUnixNano"), time("endTimeUnixNano"))
    }
}

/// Returns the spans with this name in this trace, sorted by start.
pub(super) fn spans_named<'a>(spans: &'a [Span], trace: &str, name: &str) -> Vec<&'a Span> {
    let is_match = |span: &&Span| span.text("traceId") == trace && span.text("name") == name;
    let mut matching: Vec<&Span> = spans.iter().filter(is_match).collect();
    matching.sort_by_key(|span| span.times());
    matching
}
