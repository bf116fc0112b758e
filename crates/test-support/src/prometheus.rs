//! A real Prometheus for a test. It scrapes targets, receives remote write, evaluates rules and
//! responds to queries.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use crate::programs;
use crate::raw::Client;
use crate::running::{command_killed_with_test, spawn};
use crate::wait::{WAIT_TIMEOUT, pause, wait_until};

/// Interval between two queries that wait for a value.
const QUERY_INTERVAL: std::time::Duration = std::time::Duration::from_millis(50);

/// A Prometheus that ends with the test.
pub struct Prometheus {
    child: Child,
    address: String,
    _folder: tempfile::TempDir,
}

/// Labels of a series, without its name.
pub type Labels = BTreeMap<String, String>;

impl Prometheus {
    /// Starts a Prometheus that scrapes these addresses each second. Returns `None` if the program
    /// is missing.
    pub fn start(targets: &[String]) -> Option<Prometheus> {
        Prometheus::with_rules(targets, "groups: []\n")
    }

    /// Starts a Prometheus that also evaluates rules. The evaluation interval is one second, or
    /// Prometheus' default if `targets` is empty.
    ///
    /// # Panics
    /// Panics if Prometheus rejects the rules.
    pub fn with_rules(targets: &[String], rules: &str) -> Option<Prometheus> {
        let target_list = targets.join("\", \"");
        let config = format!(
            "global:\n  scrape_interval: 1s\n  evaluation_interval: 1s\n\
             rule_files: [weir.rules.yml]\nscrape_configs:\n  - job_name: weir\n    \
             static_configs:\n      - targets: [\"{target_list}\"]\n"
        );
        let config = if targets.is_empty() { "rule_files: [weir.rules.yml]\n" } else { &config };
        Prometheus::with_config(config, rules)
    }

    /// Starts a Prometheus with this configuration, and with these rules in the file
    /// `weir.rules.yml` beside the configuration.
    ///
    /// # Panics
    /// Panics if Prometheus rejects the configuration or the rules.
    pub fn with_config(config: &str, rules: &str) -> Option<Prometheus> {
        let program = programs::require("prometheus")?;
        let folder = tempfile::tempdir().expect("a folder");
        let write = |name: &str, text: &str| {
            std::fs::write(folder.path().join(name), text).expect("the folder is writable");
        };
        write("prometheus.yml", config);
        write("weir.rules.yml", rules);
        let mut child = run(&program, folder.path());
        let log = folder.path().join("log");
        let address = programs::wait_for_address(&mut child, &log, "\"Listening on\" address=");
        let ready = || get(&address, "/-/ready").is_some_and(|response| response.contains("Ready"));
        wait_until("prometheus is ready", ready);
        Some(Prometheus { child, address, _folder: folder })
    }

    /// Returns the URL for remote write.
    pub fn write_url(&self) -> String {
        format!("http://{}/api/v1/write", self.address)
    }

    /// Returns the series of a query at `time`, in seconds since 1970.
    ///
    /// # Panics
    /// Panics if Prometheus rejects the query.
    pub fn series_at(&self, query: &str, time: f64) -> Vec<(Labels, f64)> {
        let encoded: String = query.bytes().map(|byte| format!("%{byte:02x}")).collect();
        let path = format!("/api/v1/query?query={encoded}&time={time:.3}");
        let json = query_api(&self.address, &path);
        let result = json["data"]["result"].as_array().expect("a vector").iter();
        let series = result.map(|series| {
            let value = series["value"][1].as_str().expect("text").parse().expect("a number");
            (read_labels(&series["metric"]), value)
        });
        series.collect()
    }

    /// Returns the labels of a series' exemplars from the last minute.
    ///
    /// # Panics
    /// Panics if Prometheus rejects the query.
    pub fn exemplars(&self, series: &str) -> Vec<Labels> {
        let (start, end) = (now() - 60.0, now() + 60.0);
        let path = format!("/api/v1/query_exemplars?query={series}&start={start:.3}&end={end:.3}");
        let data = &query_api(&self.address, &path)["data"];
        let exemplars = data
            .as_array()
            .expect("series")
            .iter()
            .flat_map(|series| series["exemplars"].as_array().expect("exemplars").iter());
        exemplars.map(|exemplar| read_labels(&exemplar["labels"])).collect()
    }

    /// Returns the current series of a query.
    pub fn series(&self, query: &str) -> Vec<(Labels, f64)> {
        self.series_at(query, now())
    }

    /// Returns the values of a query at `time`, in seconds since 1970.
    pub fn values_at(&self, query: &str, time: f64) -> Vec<f64> {
        self.series_at(query, time).into_iter().map(|(_, value)| value).collect()
    }

    /// Returns the current values of a query.
    pub fn values(&self, query: &str) -> Vec<f64> {
        self.values_at(query, now())
    }

    /// Returns the only current value of a query.
    ///
    /// # Panics
    /// Panics if the query has no value or several values.
    pub fn single_value(&self, query: &str) -> f64 {
        let values = self.values(query);
        assert_eq!(values.len(), 1, "{query} is {values:?}");
        values[0]
    }

    /// Repeats a query until it has exactly one value, and returns this value. A single query could
    /// be too early, because Prometheus stores a sample a moment after it was taken.
    ///
    /// # Panics
    /// Panics if the query does not have exactly one value within a minute.
    pub fn wait_for_value(&self, query: &str) -> f64 {
        let start = Instant::now();
        loop {
            if let [value] = self.values(query)[..] {
                return value;
            }
            assert!(start.elapsed() < WAIT_TIMEOUT, "{query} has no value");
            pause(QUERY_INTERVAL); // Sleeps: the interval between two queries.
        }
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        // This fails if Prometheus has ended by itself. Then the test has failed already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn run(program: &Path, folder: &Path) -> Child {
    let log = std::fs::File::create(folder.join("log")).expect("a file");
    let mut command = command_killed_with_test(program);
    command
        .arg(format!("--config.file={}", folder.join("prometheus.yml").display()))
        .arg(format!("--storage.tsdb.path={}", folder.join("data").display()))
        .arg("--web.listen-address=127.0.0.1:0")
        .arg("--web.enable-remote-write-receiver")
        // Versions before 3.8 need the flag for native histograms.
        .arg("--enable-feature=native-histograms,exemplar-storage")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log);
    spawn(command).expect("prometheus starts")
}

/// Returns the JSON of a successful query.
fn query_api(address: &str, path: &str) -> serde_json::Value {
    let response = get(address, path).expect("prometheus answers");
    let json: serde_json::Value = serde_json::from_str(&response).expect("JSON");
    assert_eq!(json["status"], "success", "{path}: {json}");
    json
}

fn read_labels(labels: &serde_json::Value) -> Labels {
    let labels = labels.as_object().expect("labels").iter();
    labels.map(|(name, value)| (name.clone(), value.as_str().expect("text").to_owned())).collect()
}

/// Sends a GET request. Returns the body, or `None` if the connection ends instead.
fn get(address: &str, path: &str) -> Option<String> {
    let mut client = Client::connect(address);
    client.send(format!("GET {path} HTTP/1.1\r\nHost: {address}\r\n\r\n").as_bytes());
    let response = client.read_response()?;
    Some(response.text().to_owned())
}

/// Returns the time in seconds since 1970.
pub fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("it is after 1970").as_secs_f64()
}
