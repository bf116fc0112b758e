//! Goal: the Helm chart renders the objects that its values describe, and rejects wrong values. Its
//! objects are valid, and `weir check` accepts its `gateway.toml`.
//!
//! Method: real Helm and the recorded schemas of a Kubernetes API server. Each values file in
//! `chart/rendered` has the expected objects beside it (`UPDATE_EXPECT=1` rewrites them). Helm must
//! reject the values files in `chart/rejected`. The values in `docs/kubernetes.md` are tested too.
//! With `cargo xtask check --full`, a real API server validates the objects, and its schemas must be
//! the recorded ones.

mod api_server;
mod schemas;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;
use tempfile::TempDir;
use test_support::programs;

use api_server::{ApiServer, Object, Response};
use schemas::Schemas;

/// The Kubernetes version for which Helm renders. A Helm that `go install` builds would assume an
/// old version.
const KUBERNETES: &str = "1.33.0";
/// Folder of mounted Secrets in a pod.
const SECRETS: &str = "/run/secrets";
/// Kinds of objects that the chart can render.
const KINDS: [&str; 10] = [
    "ConfigMap",
    "Deployment",
    "HorizontalPodAutoscaler",
    "NetworkPolicy",
    "PodDisruptionBudget",
    "PrometheusRule",
    "Secret",
    "Service",
    "ServiceAccount",
    "ServiceMonitor",
];
/// Definitions of the custom resources that the chart can render.
const CUSTOM_RESOURCES: [&str; 2] = [
    "testdata/prometheus-operator/monitoring.coreos.com_prometheusrules.yaml",
    "testdata/prometheus-operator/monitoring.coreos.com_servicemonitors.yaml",
];
/// Faults that the schemas and the API server must report: the kind of an object, a text in it, the
/// faulty text that replaces that text, and an expected part of the report.
const FAULTS: [[&str; 4]; 3] = [
    ["Deployment", "revisionHistoryLimit:", "revisionHistoryLimits:", "revisionHistoryLimits"],
    ["ServiceMonitor", "path: /metrics", "paths: /metrics", "paths"],
    ["HorizontalPodAutoscaler", "maxReplicas: 8", "maxReplicas: many", "maxReplicas"],
];
/// Faults that only the API server reports.
const SERVER_FAULTS: [[&str; 4]; 2] = [
    ["HorizontalPodAutoscaler", "maxReplicas: 8", "maxReplicas: 0", "spec.maxReplicas"],
    // The server only warns about this fault.
    ["Deployment", "Escalation: false", "Escalation: true", "would violate PodSecurity"],
];
/// A chart whose only template prints the files of the chart's folder `objects` as JSON. Helm parses
/// YAML as Kubernetes does.
const CONVERTER: [(&str, &str); 2] = [
    ("Chart.yaml", "apiVersion: v2\nname: converter\nversion: 0.1.0\n"),
    (
        "templates/objects.yaml",
        r#"{{ $items := list }}{{ range $file, $bytes := .Files.Glob "objects/*" -}}
{{ $items = append $items ($.Files.Get $file | fromYaml) }}{{ end -}}
{{ dict "items" $items | toJson }}"#,
    ),
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn chart() -> PathBuf {
    root().join("deploy/helm/weir")
}

/// Returns the values files in a folder of `chart`. Panics if there are fewer than `count_min`.
fn values_files(folder: &str, count_min: usize) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/gateway/chart").join(folder);
    let files = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<_> =
        files.filter(|file| file.extension().is_some_and(|found| found == "yaml")).collect();
    files.sort();
    assert!(files.len() >= count_min, "too few cases in {}", folder.display());
    files
}

/// Returns the values file with only the required values.
fn required_values() -> PathBuf {
    values_files("rendered", 1).into_iter().find(|file| file.ends_with("least.yaml")).unwrap()
}

/// Helm with a temporary home folder.
struct Helm {
    program: PathBuf,
    home: TempDir,
}

impl Helm {
    /// Returns `None` and records a skip if Helm is missing.
    fn find() -> Option<Helm> {
        Some(Helm { program: programs::require("helm")?, home: tempfile::tempdir().unwrap() })
    }

    fn run(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(&self.program);
        for variable in ["HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME"] {
            command.env(variable, self.home.path());
        }
        command.env("KUBECONFIG", "/dev/null").args(arguments).output().unwrap()
    }

    /// Renders the chart with these values files.
    fn render(&self, values: &[&Path]) -> Result<String, String> {
        let chart = chart();
        let mut arguments = vec!["template", "test", chart.to_str().unwrap()];
        arguments.extend(["--kube-version", KUBERNETES]);
        for file in values {
            arguments.extend(["--values", file.to_str().unwrap()]);
        }
        let output = self.run(&arguments);
        match output.status.success() {
            true => Ok(text(output.stdout)),
            false => Err(text(output.stderr)),
        }
    }

    /// Converts YAML documents to JSON.
    fn convert_to_json(&self, documents: &[impl AsRef<str>]) -> Vec<Value> {
        let chart = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let file = chart.path().join(name);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(file, text).unwrap();
        };
        CONVERTER.iter().for_each(|(name, text)| write(name, text));
        for (number, document) in documents.iter().enumerate() {
            write(&format!("objects/{number:04}"), document.as_ref());
        }
        let output = self.run(&["template", "test", chart.path().to_str().unwrap()]);
        assert!(output.status.success(), "{}", text(output.stderr));
        let printed = text(output.stdout);
        let json = printed.lines().find(|line| line.starts_with('{')).expect(&printed);
        let list: Value = serde_json::from_str(json).unwrap();
        let items = list["items"].as_array().unwrap();
        assert_eq!(items.len(), documents.len(), "{printed}");
        items.clone()
    }
}

fn text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).unwrap()
}

/// Returns the `gateway.toml` in rendered objects. Returns `None` if the chart writes none.
fn gateway_toml(rendered: &str) -> Option<String> {
    let (_, after_key) = rendered.split_once("  gateway.toml: |\n")?;
    let lines = after_key.lines().map_while(|line| line.strip_prefix("    "));
    Some(lines.map(|line| format!("{line}\n")).collect())
}

/// Runs `weir check` on a rendered `gateway.toml`. A temporary folder has the Secrets that a pod
/// would mount.
fn check(gateway_toml: &str) {
    let folder = tempfile::tempdir().unwrap();
    let secrets = [
        ("weir-redis/url", "rediss://weir:sekrit@redis:6379"),
        ("weir/provider/key", "sekrit0123456789"),
        ("weir/keys/alice", "sekrit0123456789abcdef"),
    ];
    for (name, secret) in secrets {
        let file = folder.path().join(name);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(file, secret).unwrap();
    }
    let key = rcgen::KeyPair::generate().unwrap();
    let params = rcgen::CertificateParams::new(vec!["rpc.example".to_owned()]).unwrap();
    let tls = folder.path().join("weir-tls");
    std::fs::create_dir(&tls).unwrap();
    std::fs::write(tls.join("tls.crt"), params.self_signed(&key).unwrap().pem()).unwrap();
    std::fs::write(tls.join("tls.key"), key.serialize_pem()).unwrap();
    let file = folder.path().join("gateway.toml");
    let mounted = gateway_toml.replace(SECRETS, folder.path().to_str().unwrap());
    std::fs::write(&file, mounted).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_weir"))
        .arg("check")
        .arg(&file)
        .env("PROVIDER_TOKEN", "sekrit0123456789")
        .output()
        .unwrap();
    let printed = text(output.stdout) + &text(output.stderr);
    assert!(output.status.success(), "{printed}\n{gateway_toml}");
    // The chart chooses these values, so none of them may cause a warning.
    assert!(!printed.contains("warning: server."), "{printed}\n{gateway_toml}");
}

#[test]
fn values_render_as_expected_and_weir_accepts_the_configuration() {
    let Some(helm) = Helm::find() else { return };
    let mut checked = 0;
    for file in values_files("rendered", 4) {
        let rendered = helm.render(&[&file]).unwrap_or_else(|error| panic!("{error}"));
        expect_test::expect_file![file.with_extension("expected")].assert_eq(&rendered);
        if let Some(gateway_toml) = gateway_toml(&rendered) {
            check(&gateway_toml);
            checked += 1;
        }
        let chart = chart();
        let lint = ["lint", "--strict", "--values", file.to_str().unwrap()];
        let output = helm.run(&[&lint[..], &[chart.to_str().unwrap()]].concat());
        let printed = text(output.stdout) + &text(output.stderr);
        assert!(output.status.success() && !printed.contains("[ERROR]"), "{printed}");
    }
    assert!(checked >= 3, "only {checked} configurations were checked");
}

/// Returns the objects of all values files in `chart/rendered`, and those of values that enable the
/// alert rules.
fn rendered_objects(helm: &Helm) -> Vec<Object> {
    let folder = tempfile::tempdir().unwrap();
    let rules = folder.path().join("values.yaml");
    std::fs::write(&rules, "prometheusRule:\n  enabled: true\n").unwrap();
    let mut renderings: Vec<String> =
        values_files("rendered", 4).iter().map(|file| helm.render(&[file]).unwrap()).collect();
    renderings.push(helm.render(&[&required_values(), &rules]).unwrap());
    renderings.iter().flat_map(|rendered| Object::parse_all(rendered)).collect()
}

/// Starts an API server that knows the custom resources of the chart. Returns `None` and records a
/// skip if a program is missing.
fn start_api_server() -> Option<ApiServer> {
    let server = ApiServer::start()?;
    server.create_namespace();
    for file in CUSTOM_RESOURCES {
        let definition = std::fs::read_to_string(root().join(file)).unwrap();
        server.define(&Object::parse(&definition));
    }
    Some(server)
}

/// Returns the first object with the fault, after its text was replaced.
fn plant(objects: &[Object], [kind, text, faulty, _]: [&str; 4]) -> Object {
    let has_text = |object: &&Object| object.kind == kind && object.yaml.contains(text);
    let object = objects.iter().find(has_text).unwrap_or_else(|| panic!("no {kind}: {text}"));
    Object::parse(&object.yaml.replace(text, faulty))
}

#[test]
fn the_recorded_schemas_accept_all_objects_and_reject_planted_faults() {
    let Some(helm) = Helm::find() else { return };
    let schemas = Schemas::read(&helm);
    let objects = rendered_objects(&helm);
    let kinds: BTreeSet<&str> = objects.iter().map(|object| object.kind.as_str()).collect();
    assert_eq!(kinds, BTreeSet::from(KINDS), "the cases render every kind");
    let texts: Vec<&str> = objects.iter().map(|object| object.yaml.as_str()).collect();
    for object in helm.convert_to_json(&texts) {
        let faults = schemas.find_faults(&object);
        assert!(faults.is_empty(), "{faults:#?}\n{object:#}");
    }
    let planted = FAULTS.map(|fault| plant(&objects, fault).yaml);
    for (object, [.., expected]) in helm.convert_to_json(&planted).iter().zip(FAULTS) {
        let faults = schemas.find_faults(object);
        assert!(faults.iter().any(|fault| fault.contains(expected)), "{expected}: {faults:#?}");
    }
}

/// The server accepts the objects without a warning, both when they are created and by server-side
/// apply. It warns about pods that do not meet the pod security standard `restricted`.
#[test]
fn an_api_server_accepts_all_objects_reports_planted_faults_and_has_the_recorded_schemas() {
    let Some(helm) = Helm::find() else { return };
    let Some(server) = start_api_server() else { return };
    let objects = rendered_objects(&helm);
    for object in &objects {
        let responses = server.validate(object);
        let complaints: Vec<String> = responses.iter().filter_map(Response::complaint).collect();
        assert!(complaints.is_empty(), "{complaints:#?}\n{}", object.yaml);
    }
    for fault in FAULTS.into_iter().chain(SERVER_FAULTS) {
        for response in server.validate(&plant(&objects, fault)) {
            let complaint = response.complaint().unwrap_or_else(|| panic!("accepted: {fault:?}"));
            assert!(complaint.contains(fault[3]), "{complaint}");
        }
    }
    let documents = schemas::API_GROUPS.map(|group| server.read_schemas(group));
    expect_test::expect_file![root().join("testdata/kubernetes/schemas.json")]
        .assert_eq(&schemas::record(&documents));
}

#[test]
fn wrong_values_are_rejected() {
    let Some(helm) = Helm::find() else { return };
    let required = required_values();
    for file in values_files("rejected", 20) {
        let values = std::fs::read_to_string(&file).unwrap();
        let expected = values.lines().next().unwrap().strip_prefix("# ").unwrap();
        let error = helm.render(&[&required, &file]).expect_err(&file.display().to_string());
        assert!(error.contains(expected), "{}: {error}", file.display());
    }
}

/// URLs of upstreams often contain keys of providers.
#[test]
fn the_configuration_is_rendered_into_a_secret_only() {
    let Some(helm) = Helm::find() else { return };
    let folder = tempfile::tempdir().unwrap();
    let values = folder.path().join("values.yaml");
    let upstream = "[[upstream]]\n    url = \"https://node.example/planted-secret\"\n";
    std::fs::write(&values, format!("config:\n  text: |\n    {upstream}")).unwrap();
    let rendered = helm.render(&[&values]).unwrap();
    let mut holders = Object::parse_all(&rendered);
    holders.retain(|object| object.yaml.contains("planted-secret"));
    let kinds: Vec<&str> = holders.iter().map(|object| object.kind.as_str()).collect();
    assert_eq!(kinds, ["Secret"], "{rendered}");
}

/// The chart has the version of the program, because it deploys the image with that version.
#[test]
fn the_chart_has_the_version_of_the_program() {
    let chart = std::fs::read_to_string(chart().join("Chart.yaml")).unwrap();
    let version = env!("CARGO_PKG_VERSION");
    assert!(chart.contains(&format!("\nversion: {version}\n")), "{chart}");
    assert!(chart.contains(&format!("\nappVersion: \"{version}\"\n")), "{chart}");
}

/// Keys that a process reads only at its start must restart the pods; other keys must not.
#[test]
fn only_keys_that_need_new_processes_restart_the_pods() {
    let Some(helm) = Helm::find() else { return };
    let folder = tempfile::tempdir().unwrap();
    let checksum = |values: &str| {
        let file = folder.path().join("values.yaml");
        std::fs::write(&file, values).unwrap();
        let rendered = helm.render(&[&required_values(), &file]).unwrap();
        let (_, rest) = rendered.split_once("checksum/config: ").unwrap();
        rest.lines().next().unwrap().to_owned()
    };
    let text = "text: |\n    [[upstream]]\n    url = \"http://other:8545\"\n";
    let initial = checksum("");
    assert_eq!(checksum(&format!("config:\n  {text}")), initial, "a reload is enough");
    assert_ne!(checksum("server:\n  threads: 2\n"), initial);
    assert_ne!(checksum("postgresql:\n  url: postgres://weir@postgresql/weir\n"), initial);
    let restarting = checksum("config:\n  reloadOnChange: false\n");
    let changed = checksum(&format!("config:\n  reloadOnChange: false\n  {text}"));
    assert_ne!(changed, restarting, "nothing reloads the file");
}

/// The alert rules of the repository are in the chart, next to those of the values.
#[test]
fn rules_are_rendered() {
    let Some(helm) = Helm::find() else { return };
    let folder = tempfile::tempdir().unwrap();
    let values = folder.path().join("values.yaml");
    let groups = "\n  groups:\n    - name: own\n      rules:\n        - alert: Own\n          expr: up == 0\n";
    let runbooks = "https://wiki.example/weir/alerts";
    let text = format!("prometheusRule:\n  enabled: true\n  runbookUrl: {runbooks}{groups}");
    std::fs::write(&values, text).unwrap();
    let rendered = helm.render(&[&required_values(), &values]).unwrap();
    let is_rendered =
        |alert: &str| rendered.lines().any(|line| line.trim_start_matches([' ', '-']) == alert);
    assert!(is_rendered("alert: Own"), "{rendered}");
    // `cargo xtask generate` writes this file from the metrics. The chart has a copy, because Helm
    // reads only files in the chart's folder.
    let Ok(rules) = std::fs::read_to_string(root().join("deploy/prometheus/weir.rules.yml")) else {
        return;
    };
    let copy = std::fs::read_to_string(chart().join("files/weir.rules.yml")).unwrap();
    assert_eq!(copy, rules, "run cargo xtask generate");
    let alerts = rules.lines().map(|line| line.trim_start_matches([' ', '-']));
    let alerts: Vec<_> = alerts.filter(|line| line.starts_with("alert: ")).collect();
    assert!(!alerts.is_empty(), "the file has no alerts");
    for alert in alerts {
        assert!(is_rendered(alert), "{alert} is not in {rendered}");
        let anchor = alert.trim_start_matches("alert: ").to_ascii_lowercase();
        let link = format!("runbook_url: {runbooks}#{anchor}");
        assert!(is_rendered(&link), "{link} is not in {rendered}");
    }
}

/// The values and commands of the page work.
#[test]
fn the_page_shows_what_works() {
    let Some(helm) = Helm::find() else { return };
    let page = std::fs::read_to_string(root().join("docs/kubernetes.md")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let values = folder.path().join("values.yaml");
    let blocks = page.split("```yaml\n").skip(1).map(|rest| rest.split("```").next().unwrap());
    let mut rendered_count = 0;
    for block in blocks.filter(|block| !block.starts_with("apiVersion")) {
        std::fs::write(&values, block).unwrap();
        let files: &[&Path] =
            if block.contains("text: |") { &[&values] } else { &[&required_values(), &values] };
        let rendered = helm.render(files).unwrap_or_else(|error| panic!("{block}{error}"));
        check(&gateway_toml(&rendered).expect("the page writes its configuration as text"));
        rendered_count += 1;
    }
    assert!(rendered_count >= 3, "only {rendered_count} blocks of values");
    let mut commands = 0;
    for line in page.lines().filter(|line| line.starts_with("helm ")) {
        let local = line.replace("deploy/helm/weir", chart().to_str().unwrap());
        let local = local.replace("values.yaml", required_values().to_str().unwrap());
        let mut words: Vec<&str> = local.split_whitespace().skip(1).collect();
        // `helm upgrade` needs a cluster. `helm template` takes the same arguments and needs none.
        if let ["upgrade", "--install", rest @ ..] = words.as_slice() {
            words = [&["template", "--kube-version", KUBERNETES][..], rest].concat();
        }
        let output = helm.run(&words);
        assert!(output.status.success(), "{line}: {}", text(output.stderr));
        commands += 1;
    }
    assert!(commands > 0, "the page has no command of helm");
}
