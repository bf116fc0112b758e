//! The parsers of `/proc` are tested with lines in the kernel's format and with a child process.

use std::os::unix::process::CommandExt;
use std::process::Command;

use super::{
    busy_ticks, core_busy_seconds, cpu_time, list_group, parse_group, resident_bytes,
    resident_kibibytes,
};

#[test]
fn the_group_is_read_past_a_name_with_parentheses() {
    assert_eq!(parse_group("41 (a) b (c) S 1 37 37 0 -1"), Some(37));
    assert_eq!(parse_group("41"), None);
}

#[test]
fn resident_memory_is_the_number_of_its_line() {
    assert_eq!(resident_kibibytes("VmPeak:\t 9 kB\nVmRSS:\t  512 kB\n"), Some(512));
    assert_eq!(resident_kibibytes("VmPeak:\t 9 kB\n"), None);
}

#[test]
fn idle_iowait_and_guest_time_are_not_busy() {
    let stat = "cpu  9 9 9 9 9 9 9 9 9 9\ncpu0 1 2 4 800 900 8 16 32 64 128\n";
    assert_eq!(busy_ticks(stat, "0"), Some(63));
    assert_eq!(busy_ticks(stat, "1"), None);
    assert!(core_busy_seconds("0").unwrap() > 0.0);
}

#[test]
fn a_busy_group_has_cpu_time_and_memory_and_ends() {
    let mut child = Command::new("sh")
        .args(["-c", "i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done; read line"])
        .stdin(std::process::Stdio::piped())
        .process_group(0)
        .spawn()
        .unwrap();
    let leader = child.id();
    assert!(list_group(leader).unwrap().contains(&leader));
    // Wait until the kernel has counted some CPU time of the loop.
    while cpu_time(leader).map_or(0, |time| time.as_micros()) < 1_000 {
        std::thread::yield_now();
    }
    assert!(resident_bytes(leader).unwrap() > 100 << 10);
    drop(child.stdin.take());
    child.wait().unwrap();
    assert!(list_group(leader).is_err());
}
