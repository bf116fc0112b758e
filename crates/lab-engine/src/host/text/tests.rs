//! Goal: the right number for a name is found. Method: excerpts of real files.

use super::*;

#[test]
fn a_name_is_found_whole() {
    let text =
        "MemTotal:       24684832 kB\nActive(anon):    1 kB\nActive:   77 kB\nnr_throttled 9\n";
    assert_eq!(find_value(text, "MemTotal"), Some(24_684_832.0));
    assert_eq!(find_value(text, "Active"), Some(77.0), "not the one of Active(anon)");
    assert_eq!(find_value(text, "nr_throttled"), Some(9.0));
    assert_eq!(find_value(text, "nr"), None);
    assert_eq!(find_value("", "MemTotal"), None);
}

#[test]
fn columns_follow_the_line_of_names() {
    let text = "TcpExt: SyncookiesSent ListenOverflows ListenDrops\nTcpExt: 0 12 13\n\
                IpExt: InNoRoutes ListenDrops\nIpExt: 5 99\n";
    assert_eq!(find_column(text, "TcpExt", "ListenOverflows"), Some(12.0));
    assert_eq!(find_column(text, "TcpExt", "ListenDrops"), Some(13.0));
    assert_eq!(find_column(text, "IpExt", "ListenDrops"), Some(99.0));
    assert_eq!(find_column(text, "Tcp", "ListenDrops"), None);
    assert_eq!(find_column("TcpExt: A B\nTcpExt: 1\n", "TcpExt", "B"), None, "cut short");
}

#[test]
fn pairs_belong_to_their_line() {
    let text = "sockets: used 120\nTCP: inuse 7 orphan 1 tw 30 alloc 9 mem 2\nUDP: inuse 1 mem 4\n";
    assert_eq!(find_pair(text, "TCP", "tw"), Some(30.0));
    assert_eq!(find_pair(text, "UDP", "mem"), Some(4.0));
    assert_eq!(find_pair(text, "TCP", "none"), None);
}

#[test]
fn psi_totals() {
    let text = "some avg10=11.74 avg60=4.69 avg300=14.76 total=309661262\n\
                full avg10=0.00 avg60=0.00 avg300=0.00 total=17\n";
    let expected = StallMicros { some: 309_661_262.0, full: 17.0 };
    assert_eq!(parse_stalls(text), Some(expected));
    let without_full = Some(StallMicros { some: 5.0, full: 0.0 });
    assert_eq!(parse_stalls("some avg10=0.0 total=5\n"), without_full, "kernel 5.4 has no full");
    assert_eq!(parse_stalls("Operation not supported"), None);
}
