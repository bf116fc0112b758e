//! Goal: the deb, the rpm and the archive contain what a user needs. They can be installed, and the
//! linters of Debian and Red Hat accept them. Method: `cargo xtask check` builds them from the
//! debug program, and the tools of Debian and Red Hat read them. To test a release instead, set
//! `WEIR_RELEASE_FILES` to its folder.

use std::fs::Permissions;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;
use test_support::programs;
use test_support::running::weir;

/// Files that both the deb and the rpm must have, among others.
const SHARED: &[&str] = &[
    "etc/weir/gateway.toml",
    "usr/bin/weir",
    "usr/lib/systemd/system/weir.service",
    "usr/lib/sysusers.d/weir.conf",
    "usr/share/bash-completion/completions/weir",
    "usr/share/fish/vendor_completions.d/weir.fish",
    "usr/share/man/man1/weir.1.gz",
    "usr/share/man/man1/weir-serve.1.gz",
    "usr/share/man/man1/weir-index-sync.1.gz",
    "usr/share/doc/weir/examples/two-nodes.toml",
];

/// Returns the folder of packages. Returns `None` and records a skip if it does not exist.
fn release_files() -> Option<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let folder = std::env::var_os("WEIR_RELEASE_FILES")
        .map_or_else(|| root.join("target/check-files"), |folder| root.join(folder));
    programs::require_folder(&folder).then_some(folder)
}

/// Returns the one file of the release with this ending.
pub(crate) fn release_file(ending: &str) -> Option<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(release_files()?).unwrap() {
        let path = entry.unwrap().path();
        found.extend(path.to_str().unwrap().ends_with(ending).then_some(path));
    }
    assert_eq!(found.len(), 1, "{ending}: {found:?}");
    found.pop()
}

/// Runs a command that must succeed, and returns what it prints to both streams.
fn output(command: &mut Command) -> String {
    let (success, text) = outcome(command);
    assert!(success, "{command:?}: {text}");
    text
}

/// Runs a command. Returns true if it succeeded, and what it prints to both streams.
fn outcome(command: &mut Command) -> (bool, String) {
    let output = command.output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&text).into_owned())
}

/// Extracts the deb into a folder. Returns `None` and records a skip if dpkg-deb or the deb is
/// missing.
fn extract_deb() -> Option<TempDir> {
    let (dpkg_deb, deb) = (programs::require("dpkg-deb")?, release_file(".deb")?);
    let folder = tempfile::tempdir().unwrap();
    output(Command::new(dpkg_deb).arg("--extract").arg(deb).arg(folder.path()));
    Some(folder)
}

#[test]
fn the_deb_has_a_program_that_runs_and_a_valid_configuration() {
    let Some(root) = extract_deb() else { return };
    let zsh = ["usr/share/zsh/vendor-completions/_weir", "usr/share/doc/weir/copyright"];
    for path in SHARED.iter().chain(&zsh) {
        assert!(root.path().join(path).is_file(), "the deb lacks {path}");
    }
    let program = root.path().join("usr/bin/weir");
    let version = output(Command::new(&program).arg("--version"));
    assert_eq!(version.trim_end(), concat!("weir ", env!("CARGO_PKG_VERSION")));
    let configuration = root.path().join("etc/weir/gateway.toml");
    assert_eq!(configuration.metadata().unwrap().mode() & 0o777, 0o640);
    output(Command::new(&program).arg("check").arg(configuration));
    for entry in std::fs::read_dir(root.path().join("usr/share/doc/weir/examples")).unwrap() {
        let text = std::fs::read_to_string(entry.unwrap().path()).unwrap();
        assert!(text.contains("[[upstream]]"), "{text}");
    }
}

#[test]
fn systemd_accepts_the_unit_of_the_deb() {
    let Some(root) = extract_deb() else { return };
    let Some(analyze) = programs::require("systemd-analyze") else { return };
    let unit = root.path().join("usr/lib/systemd/system/weir.service");
    let text = std::fs::read_to_string(&unit).unwrap();
    assert!(text.contains("\nExecStart=/usr/bin/weir serve /etc/weir/gateway.toml\n"), "{text}");
    let program = root.path().join("usr/bin/weir");
    std::fs::write(&unit, text.replace("/usr/bin/weir", program.to_str().unwrap())).unwrap();
    let messages = output(Command::new(analyze).arg("verify").arg(unit));
    assert_eq!(messages, "");
}

#[test]
fn the_deb_installs_with_its_user_and_a_private_configuration() {
    let Some(deb) = release_file(".deb") else { return };
    let Some(dpkg) = programs::require("dpkg") else { return };
    if !rustix::process::geteuid().is_root() {
        return programs::skip_missing("root, which dpkg needs to install");
    }
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    std::fs::create_dir_all(root.join("var/lib/dpkg/updates")).unwrap();
    std::fs::create_dir_all(root.join("var/lib/dpkg/info")).unwrap();
    std::fs::write(root.join("var/lib/dpkg/status"), "").unwrap();
    let run = |action: &str, argument: &Path| {
        // The package's scripts read the folder from DPKG_ROOT and change nothing outside of it.
        let mut command = Command::new(&dpkg);
        command.arg(format!("--root={}", root.display()));
        command.args(["--force-script-chrootless", "--force-depends", action]).arg(argument);
        output(&mut command)
    };
    run("--install", &deb);
    let group = std::fs::read_to_string(root.join("etc/group")).unwrap();
    let line = group.lines().find(|line| line.starts_with("weir:")).expect("the group is created");
    let group: u32 = line.split(':').nth(2).unwrap().parse().unwrap();
    let configuration = root.join("etc/weir/gateway.toml");
    let metadata = configuration.metadata().unwrap();
    assert_eq!((metadata.uid(), metadata.gid()), (0, group));
    assert_eq!(metadata.mode() & 0o777, 0o640);
    assert!(std::fs::read_to_string(root.join("etc/passwd")).unwrap().contains("weir:"));

    // An upgrade keeps the operator's configuration, and only a purge removes it.
    std::fs::write(&configuration, "# changed\n").unwrap();
    run("--install", &deb);
    assert_eq!(std::fs::read_to_string(&configuration).unwrap(), "# changed\n");
    run("--remove", Path::new("weir"));
    assert!(!root.join("usr/bin/weir").exists() && configuration.exists());
    run("--purge", Path::new("weir"));
    assert!(!configuration.exists());
}

#[test]
fn the_rpm_has_the_same_files() {
    let Some(package) = release_file(".rpm") else { return };
    let Some(rpm) = programs::require("rpm") else { return };
    let query = |option: &str| output(Command::new(&rpm).args(["-qp", option]).arg(&package));
    let list = query("-l");
    for path in SHARED.iter().chain(&["usr/share/zsh/site-functions/_weir"]) {
        assert!(list.contains(&format!("/{path}\n")), "the rpm lacks {path}: {list}");
    }
    assert!(query("-c").contains("/etc/weir/gateway.toml"));
    let scripts = query("--scripts");
    assert!(scripts.contains("systemd-sysusers weir.conf"), "{scripts}");
}

#[test]
fn lintian_reports_nothing() {
    let Some(deb) = release_file(".deb") else { return };
    let Some(lintian) = programs::require("lintian") else { return };
    let mut command = Command::new(lintian);
    command.args(["--allow-root", "--no-cfg", "--fail-on", "error,warning"]).arg(deb);
    assert_eq!(output(&mut command), "");
}

#[test]
fn rpmlint_reports_nothing() {
    let Some(package) = release_file(".rpm") else { return };
    let Some(rpmlint) = programs::require("rpmlint") else { return };
    let Some(cpio) = programs::require("cpio") else { return };
    let filters = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/packages/rpmlint.toml");
    // rpmlint extracts the package with cpio, and the paths in the package are absolute. Without
    // `--no-absolute-filenames`, root would write the files of the package to this machine.
    let folder = tempfile::tempdir().unwrap();
    let relative = folder.path().join("cpio");
    let script = format!("#!/bin/sh\nexec {} --no-absolute-filenames \"$@\"\n", cpio.display());
    std::fs::write(&relative, script).unwrap();
    std::fs::set_permissions(&relative, Permissions::from_mode(0o755)).unwrap();
    let mut path = folder.path().as_os_str().to_owned();
    path.push(":");
    path.push(std::env::var_os("PATH").unwrap_or_default());
    let mut command = Command::new(rpmlint);
    command.env("PATH", path).arg("--config").arg(filters).arg(package);
    let text = output(&mut command);
    assert!(text.contains(" 0 errors, 0 warnings"), "{text}");
}

#[test]
fn the_archive_and_the_checksums_are_complete() {
    let Some(folder) = release_files() else { return };
    let checked =
        output(Command::new("sha256sum").args(["--check", "SHA256SUMS"]).current_dir(&folder));
    assert!(checked.lines().count() >= 3, "{checked}");
    let Some(archive) = release_file(".tar.gz") else { return };
    let list = output(Command::new("tar").arg("--list").arg("--file").arg(archive));
    let top = list.lines().next().unwrap().to_owned();
    for path in ["weir", "weir.service", "man/weir.1.gz", "completions/_weir", "LICENSE-MIT"] {
        assert!(list.contains(&format!("{top}{path}\n")), "the archive lacks {path}: {list}");
    }
}

/// Returns the files in a folder that contain this text. Also searches compressed files.
fn files_with(text: &str, folder: &Path) -> String {
    let mut command = Command::new("find");
    command.arg(folder).args(["-type", "f", "-exec", "zgrep", "--text", "--files-with-matches"]);
    command.args(["--fixed-strings", "-e", text, "{}", "+"]);
    // The command fails if no file contains the text.
    outcome(&mut command).1
}

/// `.cargo/config.toml` sets the secret in the environment of every build.
#[test]
fn no_file_of_a_release_holds_a_secret_of_the_builder() {
    let secret = env!("WEIR_PLANTED_SECRET");
    let Some(root) = extract_deb() else { return };
    let Some(rpm2cpio) = programs::require("rpm2cpio") else { return };
    for ending in [".tar.gz", ".tar"] {
        let folder = root.path().join(ending);
        std::fs::create_dir(&folder).unwrap();
        let archive = release_file(ending).unwrap();
        let mut command = Command::new("tar");
        output(command.args(["--extract", "--file"]).arg(archive).arg("--directory").arg(folder));
    }
    let control = root.path().join("control");
    let deb = release_file(".deb").unwrap();
    output(Command::new("dpkg-deb").arg("--control").arg(deb).arg(control));
    let rpm = Command::new(rpm2cpio).arg(release_file(".rpm").unwrap()).output().unwrap();
    // The status is not checked: Debian's rpm2cpio ends with 1 although it writes all files.
    std::fs::write(root.path().join("rpm.cpio"), rpm.stdout).unwrap();
    assert_eq!(files_with(secret, root.path()), "");

    // The search must be able to find a text, also in a compressed file.
    assert!(files_with("ExecStart=/usr/bin/weir", root.path()).contains("/rpm.cpio\n"));
    let planted = root.path().join("planted");
    std::fs::write(&planted, secret).unwrap();
    output(Command::new("gzip").arg(&planted));
    assert_eq!(files_with(secret, root.path()), format!("{}.gz\n", planted.display()));
}

#[test]
fn completions_know_the_commands() {
    for shell in ["bash", "fish", "zsh"] {
        let script = output(Command::new(weir()).args(["completions", shell]));
        assert!(script.contains("cordon") && script.contains("upstream"), "{shell}");
    }
    let Some(bash) = programs::require("bash") else { return };
    let script = output(Command::new(weir()).args(["completions", "bash"]));
    let question = "COMP_WORDS=(weir unc); COMP_CWORD=1; _weir weir unc weir; echo ${COMPREPLY[@]}";
    let completed = output(Command::new(bash).args(["-c", &format!("{script}\n{question}")]));
    assert_eq!(completed.trim_end(), "uncordon");
}
