//! What tells a process from every other one that has or had its number.

/// When a process was started, in clock ticks since the machine was; `None` where nobody can tell.
///
/// Field 22 of `/proc/PID/stat` (proc_pid_stat(5)). Together with the number it names one process
/// for good, also across containers, which share the machine's clock.
pub fn start_ticks(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The second field is a name in brackets that may hold anything.
    let rest = &stat[stat.rfind(')')? + 1..];
    rest.split_ascii_whitespace().nth(19)?.parse().ok()
}

#[cfg(test)]
mod tests {
    //! Goal: the time of start is found, and differs between processes.

    use super::start_ticks;

    #[test]
    fn a_process_knows_its_start_and_none_has_none() {
        let own = start_ticks(std::process::id()).unwrap();
        assert!(own > start_ticks(1).unwrap(), "the first process was started before");
        assert_eq!(start_ticks(u32::MAX), None);
    }
}
