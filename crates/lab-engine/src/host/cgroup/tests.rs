//! Goal: limits, throttling and disk limits are read from both versions of cgroups, at any level.
//! Method: folders with files like those of kernels.

use std::fs;

use super::*;

/// Returns the values by name. The time and the host of the sample do not matter here.
fn values(values: Values) -> BTreeMap<String, f64> {
    values.sample(0.0, "x").values.into_iter().collect()
}

fn write(folder: &Path, files: &[(&str, &str)]) {
    fs::create_dir_all(folder).unwrap();
    for (name, text) in files {
        fs::write(folder.join(name), text).unwrap();
    }
}

fn cgroup(unified: Vec<PathBuf>, controllers: Vec<PathBuf>) -> Cgroup {
    Cgroup {
        unified,
        cpu: controllers.clone(),
        memory: controllers.clone(),
        disk: controllers,
        previous: None,
        cpu_limit: None,
    }
}

#[test]
fn mounts_of_both_versions() {
    let text = "30 24 0:26 / /sys/fs/cgroup ro,nosuid shared:9 - tmpfs tmpfs ro,mode=755\n\
                31 30 0:27 / /sys/fs/cgroup/unified rw shared:10 - cgroup2 cgroup2 rw,nsdelegate\n\
                34 30 0:30 / /sys/fs/cgroup/cpu,cpuacct rw shared:15 - cgroup cgroup rw,cpu,cpuacct\n";
    let mounts = Mounts::parse(text);
    assert_eq!(mounts.0[VERSION_2], Path::new("/sys/fs/cgroup/unified"));
    assert_eq!(mounts.0["cpu"], Path::new("/sys/fs/cgroup/cpu,cpuacct"));
    assert!(Mounts::parse("garbage\n - \n").0.is_empty());
}

#[test]
fn membership_and_levels() {
    let text = "4:memory:/a/b\n2:cpu,cpuacct:/c\n0::/system.slice/geth.service\n";
    assert_eq!(find_path(text, ""), Some("/system.slice/geth.service"));
    assert_eq!(find_path(text, "cpu"), Some("/c"));
    assert_eq!(find_path(text, "blkio"), None);
    let levels = levels_of(Path::new("/g"), "/a/b/c");
    assert_eq!(levels, [Path::new("/g/a/b/c"), Path::new("/g/a/b"), Path::new("/g/a")]);
    assert!(levels_of(Path::new("/g"), "/").is_empty());
    assert!(levels_of(Path::new("/g"), "/../x").is_empty(), "outside of what is mounted");
}

#[test]
fn a_quota_above_the_process_counts() {
    let folder = tempfile::tempdir().unwrap();
    let (outer, leaf) = (folder.path().join("a"), folder.path().join("a/b"));
    write(&leaf, &[("cpu.max", "max 100000\n"), ("cpu.stat", "usage_usec 1000000\n")]);
    let stat = |periods, throttled, time| {
        format!(
            "usage_usec 9\nnr_periods {periods}\nnr_throttled {throttled}\nthrottled_usec {time}\n"
        )
    };
    write(&outer, &[("cpu.max", "50000 100000\n"), ("cpu.stat", &stat(100, 10, 1_000_000))]);
    let mut cgroup = cgroup(vec![leaf.clone(), outer.clone()], Vec::new());
    let start = Instant::now();
    cgroup.sample(start, "geth", &mut Values::default());
    write(&outer, &[("cpu.stat", &stat(110, 18, 1_700_000))]);
    write(&leaf, &[("cpu.stat", "usage_usec 1450000\n")]);
    let mut sampled = Values::default();
    cgroup.sample(start + Duration::from_secs(1), "geth", &mut sampled);
    let values = values(sampled);
    assert_eq!(cgroup.cpu_limit, Some(0.5));
    assert_eq!(values["cgroup.geth.cpu_limit"], 0.5);
    assert_eq!(values["cgroup.geth.throttled_periods"], 0.8);
    assert!((values["cgroup.geth.throttled"] - 0.7).abs() < 1e-9);
    assert!((values["cgroup.geth.cpu"] - 0.45).abs() < 1e-9);
}

#[test]
fn version_one_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let level = folder.path().join("a");
    let stat = |throttled, time| {
        format!("nr_periods {throttled}0\nnr_throttled {throttled}\nthrottled_time {time}\n")
    };
    let service = |bytes| format!("254:0 Read {bytes}\n254:0 Write 7\n254:0 Total 1\nTotal 1\n");
    write(
        &level,
        &[
            ("cpu.cfs_quota_us", "30000\n"),
            ("cpu.cfs_period_us", "100000\n"),
            ("cpu.stat", &stat(1, 0)),
            ("memory.usage_in_bytes", "900\n"),
            ("memory.limit_in_bytes", "1000\n"),
            ("memory.failcnt", "5\n"),
            ("blkio.throttle.read_bps_device", "254:0 1048576\n"),
            ("blkio.throttle.io_service_bytes_recursive", &service(0)),
        ],
    );
    let mut cgroup = cgroup(Vec::new(), vec![level.clone()]);
    let start = Instant::now();
    cgroup.sample(start, "x", &mut Values::default());
    write(&level, &[("cpu.stat", &stat(2, 500_000_000_u64)), ("memory.failcnt", "9\n")]);
    write(&level, &[("blkio.throttle.io_service_bytes_recursive", &service(1_048_576))]);
    let mut sampled = Values::default();
    cgroup.sample(start + Duration::from_secs(1), "x", &mut sampled);
    let values = values(sampled);
    assert_eq!(values["cgroup.x.cpu_limit"], 0.3);
    assert_eq!(values["cgroup.x.throttled_periods"], 0.1);
    assert_eq!(values["cgroup.x.throttled"], 0.5);
    assert_eq!(values["cgroup.x.memory_bytes"], 900.0);
    assert_eq!(values["cgroup.x.memory_limit_hits"], 4.0);
    assert_eq!(values["cgroup.x.io_util"], 1.0);
}

#[test]
fn disk_limits_of_version_two() {
    let folder = tempfile::tempdir().unwrap();
    let level = folder.path().join("a");
    let stat = |bytes| format!("8:0 rbytes={bytes} wbytes=0 rios=3 wios=0 dbytes=0 dios=0\n");
    write(
        &level,
        &[("io.max", "8:0 rbps=2000 wbps=max riops=max wiops=max\n"), ("io.stat", &stat(0))],
    );
    let mut cgroup = cgroup(vec![level.clone()], Vec::new());
    let start = Instant::now();
    cgroup.sample(start, "x", &mut Values::default());
    write(&level, &[("io.stat", &stat(1_900))]);
    let mut sampled = Values::default();
    cgroup.sample(start + Duration::from_secs(1), "x", &mut sampled);
    assert_eq!(values(sampled)["cgroup.x.io_util"], 0.95);
}

#[test]
fn no_limit_is_none() {
    let folder = tempfile::tempdir().unwrap();
    let level = folder.path().to_owned();
    write(&level, &[("cpu.cfs_quota_us", "-1\n"), ("cpu.cfs_period_us", "100000\n")]);
    write(
        &level,
        &[("memory.usage_in_bytes", "9\n"), ("memory.limit_in_bytes", "9223372036854771712\n")],
    );
    let mut cgroup = cgroup(Vec::new(), vec![level]);
    let mut sampled = Values::default();
    cgroup.sample(Instant::now(), "x", &mut sampled);
    assert!(values(sampled).is_empty());
}
