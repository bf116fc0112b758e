//! Distinguishes a process from earlier processes with the same process id.

/// Returns the start time of a process in clock ticks since the machine started; `None` if it
/// cannot be read.
///
/// The start time is field 22 of `/proc/PID/stat` (proc_pid_stat(5)). Start time and process id
/// together identify a process. This holds across containers too, because they share the machine's
/// clock.
pub fn start_ticks(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The second field is a name in parentheses, which may contain spaces and parentheses. Field 3
    // becomes the first of `fields`, so field 22 has the index 19.
    let fields = &stat[stat.rfind(')')? + 1..];
    fields.split_ascii_whitespace().nth(19)?.parse().ok()
}

#[cfg(test)]
mod tests {
    //! Goal: the start time is found, and differs between processes.

    use super::start_ticks;

    #[test]
    fn start_times_differ_and_an_unknown_process_has_none() {
        let start = start_ticks(std::process::id()).unwrap();
        assert!(start > start_ticks(1).unwrap(), "the first process was started before");
        assert_eq!(start_ticks(u32::MAX), None);
    }
}
