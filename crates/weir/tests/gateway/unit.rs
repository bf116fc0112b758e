//! Goal: the systemd unit is one that systemd takes, shuts the service in, and runs commands that
//! exist. Method: its lines are read; where systemd's own checker is there, it judges them too.

use std::path::Path;
use std::process::Command;

use test_support::programs;

/// Systemd's measure of what a service may do, times ten: 0 is nothing, 100 everything. Below 20 it
/// calls it fine.
const EXPOSURE_MAX: &str = "20";

fn unit() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/systemd/weir.service");
    std::fs::read_to_string(path).unwrap()
}

/// The values of a key, in their order.
fn values<'a>(unit: &'a str, key: &str) -> Vec<&'a str> {
    let lines = unit.lines().filter(|line| !line.starts_with('#'));
    let pairs = lines.filter_map(|line| line.split_once('='));
    pairs.filter(|(own, _)| *own == key).map(|(_, value)| value).collect()
}

#[test]
fn it_runs_commands_that_exist() {
    let unit = unit();
    let mut commands = 0;
    for key in ["ExecStart", "ExecReload"] {
        for line in values(&unit, key) {
            commands += 1;
            let mut words = line.split(' ');
            assert_eq!(words.next(), Some("/usr/local/bin/weir"));
            // A command line that is wrong ends with 2 and a usage; a missing file is another
            // thing.
            let output = Command::new(env!("CARGO_BIN_EXE_weir")).args(words).output().unwrap();
            let told = String::from_utf8_lossy(&output.stderr);
            assert!(told.starts_with("/etc/weir/gateway.toml: cannot read"), "{line}: {told}");
        }
    }
    assert_eq!(commands, 2);
}

#[test]
fn it_shuts_the_service_in() {
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
fn systemd_takes_it_and_finds_it_shut_in() {
    let unit = unit();
    let Some(analyze) = programs::require("systemd-analyze") else { return };
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("weir.service");
    let check = |text: String, arguments: &[&str]| {
        std::fs::write(&file, text.replace("/usr/local/bin/weir", env!("CARGO_BIN_EXE_weir")))
            .unwrap();
        let output = Command::new(&analyze).args(arguments).arg(&file).output().unwrap();
        let told = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8_lossy(&told).into_owned())
    };
    let (right, told) = check(unit.clone(), &["verify"]);
    assert!(right && told.is_empty(), "{told}");
    let (_, told) = check(unit.replace("PrivateTmp=yes", "PrivateTemp=yes"), &["verify"]);
    assert!(told.contains("PrivateTemp"), "a slip is not seen: {told}");
    let threshold = format!("--threshold={EXPOSURE_MAX}");
    let exposure = ["security", "--offline=true", "--no-pager", &threshold];
    let (fine, told) = check(unit.clone(), &exposure);
    if told.contains("unrecognized option") {
        return programs::skip_missing("a systemd-analyze that judges files (250 or later)");
    }
    assert!(fine, "{told}");
    let open: String =
        unit.lines().filter(|line| !line.starts_with("Protect")).collect::<Vec<_>>().join("\n");
    let (fine, _) = check(open, &exposure);
    assert!(!fine, "the measure has no bar");
}
