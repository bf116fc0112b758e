//! Goal: systemd accepts the unit file, which isolates the service and runs existing commands.
//! Method: the tests parse the file, and check it with `systemd-analyze` if that is installed.

use std::path::Path;
use std::process::Command;

use test_support::programs;

/// Maximum exposure level of `systemd-analyze security`, times ten. A service with level 0 is
/// isolated, and one with level 100 has all rights. systemd rates levels below 20 as OK.
const EXPOSURE_MAX: &str = "20";

/// Returns the unit file's text.
fn unit() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/systemd/weir.service");
    std::fs::read_to_string(path).unwrap()
}

/// Returns the values of a key, in the order of the file.
fn values<'a>(unit: &'a str, key: &str) -> Vec<&'a str> {
    let lines = unit.lines().filter(|line| !line.starts_with('#'));
    let pairs = lines.filter_map(|line| line.split_once('='));
    pairs.filter(|(name, _)| *name == key).map(|(_, value)| value).collect()
}

#[test]
fn the_unit_runs_existing_commands() {
    let unit = unit();
    let mut commands = 0;
    for key in ["ExecStart", "ExecReload"] {
        for line in values(&unit, key) {
            commands += 1;
            let mut words = line.split(' ');
            assert_eq!(words.next(), Some("/usr/local/bin/weir"));
            // A valid command line fails only because the configuration file is missing.
            let output = Command::new(env!("CARGO_BIN_EXE_weir")).args(words).output().unwrap();
            let messages = String::from_utf8_lossy(&output.stderr);
            assert!(
                messages.starts_with("/etc/weir/gateway.toml: cannot read"),
                "{line}: {messages}"
            );
        }
    }
    assert_eq!(commands, 2);
}

#[test]
fn the_unit_isolates_the_service() {
    let unit = unit();
    for (key, value) in [
        ("Type", "notify"),
        ("DynamicUser", "yes"),
        ("CapabilityBoundingSet", ""),
        ("NoNewPrivileges", "yes"),
        ("ProtectSystem", "strict"),
        ("PrivateTmp", "yes"),
        ("RestrictAddressFamilies", "AF_INET AF_INET6 AF_UNIX"),
        ("RestartPreventExitStatus", "2"),
        ("MemoryDenyWriteExecute", "yes"),
    ] {
        assert_eq!(values(&unit, key), [value], "{key}");
    }
    assert_eq!(values(&unit, "SystemCallFilter")[0], "@system-service");
}

#[test]
fn systemd_accepts_the_unit_and_rates_it_as_isolated() {
    let unit = unit();
    let Some(analyze) = programs::require("systemd-analyze") else { return };
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("weir.service");
    let check = |text: String, arguments: &[&str]| {
        std::fs::write(&file, text.replace("/usr/local/bin/weir", env!("CARGO_BIN_EXE_weir")))
            .unwrap();
        let output = Command::new(&analyze).args(arguments).arg(&file).output().unwrap();
        let messages = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8_lossy(&messages).into_owned())
    };
    let (is_valid, messages) = check(unit.clone(), &["verify"]);
    assert!(is_valid && messages.is_empty(), "{messages}");
    let (_, messages) = check(unit.replace("PrivateTmp=yes", "PrivateTemp=yes"), &["verify"]);
    assert!(messages.contains("PrivateTemp"), "a misspelled key is not reported: {messages}");
    let threshold = format!("--threshold={EXPOSURE_MAX}");
    let exposure = ["security", "--offline=true", "--no-pager", &threshold];
    let (is_isolated, messages) = check(unit.clone(), &exposure);
    if messages.contains("unrecognized option") {
        return programs::skip_missing("a systemd-analyze that judges files (250 or later)");
    }
    assert!(is_isolated, "{messages}");
    let unprotected: String =
        unit.lines().filter(|line| !line.starts_with("Protect")).collect::<Vec<_>>().join("\n");
    let (is_isolated, _) = check(unprotected, &exposure);
    assert!(!is_isolated, "a unit without protection must exceed the threshold");
}
