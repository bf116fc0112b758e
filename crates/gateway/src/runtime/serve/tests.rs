//! Goal: listeners take turns. Method: real sockets, all with connections in their backlogs.

use tokio::runtime::Builder;

use super::*;

#[test]
fn a_flood_at_one_address_does_not_shut_out_the_other() {
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut listeners = Vec::new();
        let mut connections = Vec::new();
        for listen_address in [ListenAddress::Plaintext, ListenAddress::Tls] {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            for _ in 0..4 {
                let address = listener.local_addr().unwrap();
                connections.push(TcpStream::connect(address).await.unwrap());
            }
            listeners.push((listen_address, listener));
        }
        let next_listener = Cell::new(0);
        let mut addresses = Vec::new();
        for _ in 0..connections.len() {
            let (listen_address, accepted) = next_connection(&listeners, &next_listener).await;
            accepted.unwrap();
            addresses.push(listen_address);
        }
        let tls = addresses[..4].iter().filter(|address| **address == ListenAddress::Tls).count();
        assert_eq!(tls, 2, "{addresses:?}");
    });
}
