//! A front before a node: it hands on what it is asked, and what it says to it may be another.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

use crate::raw::Client;

/// Starts one before the node at this address, for as long as the test runs, and says where. `say`
/// is given each request's body and the node's answer, and gives the answer.
pub fn front(node: &str, say: impl Fn(&str, String) -> String + Clone + Send + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let url = format!("http://{}", listener.local_addr().expect("it listens"));
    let node = node.to_owned();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let (node, say) = (node.clone(), say.clone());
            std::thread::spawn(move || hand_on(stream, &node, &say));
        }
    });
    url
}

fn hand_on(mut stream: TcpStream, node: &str, say: &impl Fn(&str, String) -> String) {
    let mut node = Client::connect(node);
    let (mut read, mut piece) = (Vec::new(), [0; 65536]);
    loop {
        let Ok(count @ 1..) = stream.read(&mut piece) else { return };
        read.extend_from_slice(&piece[..count]);
        let text = String::from_utf8_lossy(&read).into_owned();
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        let head = head.to_ascii_lowercase();
        let (_, length) = head.split_once("content-length:").expect("a length");
        let length: usize =
            length.lines().next().and_then(|line| line.trim().parse().ok()).expect("a number");
        if body.len() < length {
            continue;
        }
        let answer = node.call("/", body.as_bytes());
        let said = say(body, answer.text().to_owned());
        let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", said.len());
        if stream.write_all(format!("{head}{said}").as_bytes()).is_err() {
            return;
        }
        read.clear();
    }
}
