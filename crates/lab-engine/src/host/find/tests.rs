//! Goal: the processes that listen at an address are found with their children, and no others.
//! Method: sockets and a child process of this test.

use std::net::TcpListener;
use std::process::{Command, Stdio};

use super::*;
use crate::host::sockets;

#[test]
fn a_listener_is_found_by_its_socket() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let sockets = sockets::read_all().unwrap();
    let inodes = find_listeners(&sockets, listener.local_addr().unwrap());
    assert_eq!(inodes.len(), 1);
    assert_ne!(inodes, find_listeners(&sockets, other.local_addr().unwrap()));
    assert!(read_socket_inodes(std::process::id()).is_superset(&inodes));
    assert!(find_holders(&inodes).contains(&std::process::id()));
}

#[test]
fn a_listener_at_any_address_serves_all() {
    let listener = TcpListener::bind("0.0.0.0:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let sockets = sockets::read_all().unwrap();
    assert_eq!(find_listeners(&sockets, SocketAddr::from(([127, 0, 0, 1], port))).len(), 1);
    let elsewhere = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = elsewhere.local_addr().unwrap().port();
    let sockets = sockets::read_all().unwrap();
    assert!(find_listeners(&sockets, SocketAddr::from(([127, 0, 0, 2], port))).is_empty());
}

#[test]
fn children_are_found() {
    let mut child = Command::new("sleep").arg("30").stdin(Stdio::null()).spawn().unwrap();
    let own = std::process::id();
    let found = with_descendants(BTreeSet::from([own]), &list_pids());
    assert!(found.contains(&child.id()), "{found:?}");
    assert!(!with_descendants(BTreeSet::from([child.id()]), &list_pids()).contains(&own));
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn no_sockets_have_no_process() {
    assert!(find_holders(&BTreeSet::new()).is_empty());
}
