//! A proxy in front of a node that can rewrite the node's responses.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

use crate::raw::Client;

/// Starts a proxy in front of the node at an address, and returns the proxy's URL. The proxy runs
/// until the test process ends. `rewrite` gets the body of each request and of the node's response,
/// and returns the response body to send.
pub fn start_proxy(
    node_address: &str,
    rewrite: impl Fn(&str, String) -> String + Clone + Send + 'static,
) -> String {
    start_proxy_with_status(node_address, move |request, response| {
        (200, rewrite(request, response))
    })
}

/// As [`start_proxy`], but `rewrite` returns the HTTP status too.
pub fn start_proxy_with_status(
    node_address: &str,
    rewrite: impl Fn(&str, String) -> (u16, String) + Clone + Send + 'static,
) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let url = format!("http://{}", listener.local_addr().expect("it listens"));
    let node_address = node_address.to_owned();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let (node_address, rewrite) = (node_address.clone(), rewrite.clone());
            std::thread::spawn(move || forward(stream, &node_address, &rewrite));
        }
    });
    url
}

/// Forwards the requests of one connection, one at a time, until the connection ends.
fn forward(
    mut stream: TcpStream,
    node_address: &str,
    rewrite: &impl Fn(&str, String) -> (u16, String),
) {
    let mut node = Client::connect(node_address);
    let (mut request, mut chunk) = (Vec::new(), [0; 65536]);
    loop {
        let Ok(count @ 1..) = stream.read(&mut chunk) else { return };
        request.extend_from_slice(&chunk[..count]);
        let text = String::from_utf8_lossy(&request).into_owned();
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        let head = head.to_ascii_lowercase();
        let (_, length) = head.split_once("content-length:").expect("a length");
        let length: usize =
            length.lines().next().and_then(|line| line.trim().parse().ok()).expect("a number");
        if body.len() < length {
            continue;
        }
        let response = node.call("/", body.as_bytes());
        let (status, response) = rewrite(body, response.text().to_owned());
        let head = format!("HTTP/1.1 {status} OK\r\ncontent-length: {}\r\n\r\n", response.len());
        if stream.write_all(format!("{head}{response}").as_bytes()).is_err() {
            return;
        }
        request.clear();
    }
}
