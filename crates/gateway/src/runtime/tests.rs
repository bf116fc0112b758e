//! Goal: listeners take turns. Method: real sockets with full backlogs.

use super::*;

#[test]
fn a_flood_at_one_address_does_not_shut_out_the_other() {
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut listeners = Vec::new();
        let mut waiting = Vec::new();
        for door in [ListenAddress::Clear, ListenAddress::Tls] {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            for _ in 0..4 {
                let address = listener.local_addr().unwrap();
                waiting.push(TcpStream::connect(address).await.unwrap());
            }
            listeners.push((door, listener));
        }
        let turn = Cell::new(0);
        let mut doors = Vec::new();
        for _ in 0..waiting.len() {
            let (door, accepted) = next_connection(&listeners, &turn).await;
            accepted.unwrap();
            doors.push(door);
        }
        let tls = doors[..4].iter().filter(|door| **door == ListenAddress::Tls).count();
        assert_eq!(tls, 2, "{doors:?}");
    });
}
