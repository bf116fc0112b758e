//! Finds the processes that listen at an address, and their children. Also finds the sockets that a
//! process holds.
//!
//! Only root can inspect the processes of other users. If this process does not run as root, the
//! processes of other users are not found. In this case, the result of the run contains a message.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::SocketAddr;

use procfs::process::Process;

use super::sockets::{Socket, State};

/// Maximum number of processes that are searched. Hosts of blockchain nodes have fewer.
const PROCESSES_MAX: usize = 20_000;

/// Returns the ids of all processes.
pub(super) fn list_pids() -> Vec<u32> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let ids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    ids.take(PROCESSES_MAX).collect()
}

/// Returns the inodes of a process's sockets. The set is empty if the process cannot be inspected.
pub(super) fn read_socket_inodes(pid: u32) -> BTreeSet<u64> {
    let Ok(entries) = fs::read_dir(format!("/proc/{pid}/fd")) else { return BTreeSet::new() };
    let inode = |entry: fs::DirEntry| {
        let link = fs::read_link(entry.path()).ok()?;
        link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
    };
    entries.flatten().filter_map(inode).collect()
}

/// Returns the inodes of the sockets that listen at an address.
pub(super) fn find_listeners(sockets: &[Socket], address: SocketAddr) -> BTreeSet<u64> {
    let listeners = sockets.iter().filter(|socket| is_listener(socket, address));
    listeners.map(|socket| socket.inode).collect()
}

/// Returns true if a socket accepts connections to an address.
pub(super) fn is_listener(socket: &Socket, address: SocketAddr) -> bool {
    let ip = socket.local.ip();
    socket.state == State::Listen
        && socket.local.port() == address.port()
        && (ip.is_unspecified() || ip == address.ip().to_canonical())
}

/// Returns the processes that hold one of these sockets, and all their descendants. The descendants
/// are included because a server's worker processes may get their connections from the server's
/// first process.
pub(super) fn find_holders(inodes: &BTreeSet<u64>) -> BTreeSet<u32> {
    if inodes.is_empty() {
        return BTreeSet::new();
    }
    let pids = list_pids();
    let is_holder = |pid: &u32| !read_socket_inodes(*pid).is_disjoint(inodes);
    let holders: BTreeSet<u32> = pids.iter().copied().filter(is_holder).collect();
    if holders.contains(&std::process::id()) {
        // In tests this process is the target, and its children do not belong to it.
        return holders;
    }
    with_descendants(holders, &pids)
}

/// Adds all descendants of the processes in `found`. `pids` are all processes of the host.
fn with_descendants(mut found: BTreeSet<u32>, pids: &[u32]) -> BTreeSet<u32> {
    let mut children: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for &pid in pids {
        if let Some(parent) = read_parent(pid) {
            children.entry(parent).or_default().push(pid);
        }
    }
    let mut unvisited: Vec<u32> = found.iter().copied().collect();
    while let Some(pid) = unvisited.pop() {
        for &child in children.get(&pid).into_iter().flatten() {
            if found.insert(child) {
                unvisited.push(child);
            }
        }
    }
    found
}

/// Returns the id of a process's parent, or `None` if the process has ended.
fn read_parent(pid: u32) -> Option<u32> {
    let process = Process::new(i32::try_from(pid).ok()?).ok()?;
    u32::try_from(process.stat().ok()?.ppid).ok()
}

#[cfg(test)]
mod tests;
