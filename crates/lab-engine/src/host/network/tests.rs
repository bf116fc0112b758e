//! Goal: rates of a device, and the share of its line rate, are right. Method: counters made by
//! hand, and the counters of this machine.

use super::*;

fn device(line: &str) -> DeviceStatus {
    let text = format!("Inter-|\n face |\n{line}\n");
    let procfs::net::InterfaceDeviceStatus(devices) =
        procfs::FromRead::from_read(text.as_bytes()).unwrap();
    devices.into_values().next().unwrap()
}

#[test]
fn rates_of_a_device() {
    // Received bytes, packets, errors, drops and overruns, and three other counts. Then the same
    // for sent data.
    let before = device("eth0: 1000 10 0 0 0 0 0 0 500 5 0 0 0 0 0 0");
    let now = device("eth0: 126000 20 1 3 1 0 0 0 600 6 0 2 0 0 0 0");
    let mut values = Values::default();
    let (line_rate, elapsed) = (Some(1_250_000.0), Duration::from_millis(500));
    add_values(&now, &before, line_rate, elapsed, &mut values);
    let values = values.sample(0.0, "x").values;
    let get = |name: &str| values.iter().find(|(known, _)| known == name).unwrap().1;
    assert_eq!(get("net.eth0.rx_bytes"), 250_000.0);
    assert_eq!(get("net.eth0.tx_bytes"), 200.0);
    assert_eq!(get("net.eth0.drops"), 12.0, "three and two dropped, one overrun, in half a second");
    assert_eq!(get("net.eth0.errors"), 2.0);
    assert_eq!(get("net.eth0.util"), 0.2, "the busier direction against the line rate");
}

#[test]
fn this_machine_has_a_tcp_stack() {
    let mut network = Network::default();
    let start = Instant::now();
    network.sample(start, &mut Values::default());
    let mut values = Values::default();
    network.sample(start + Duration::from_secs(1), &mut values);
    let values = values.sample(0.0, "x").values;
    for name in ["tcp_retransmits", "listen_overflows", "tcp_sockets", "files_share"] {
        assert!(values.iter().any(|(known, _)| known == name), "{name}: {values:?}");
    }
}
