//! Goal: complete responses are read exactly, broken ones are errors. Method: responses as text.

use super::read_response;

fn check(response: &str) -> String {
    match read_response(&mut response.as_bytes()) {
        Ok((response, keep_alive)) => {
            let body = String::from_utf8(response.body).unwrap();
            format!("{} {body:?} keep {keep_alive}", response.status)
        }
        Err(error) => format!("{error:#}"),
    }
}

#[test]
fn complete_responses() {
    assert_eq!(check("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"), "200 \"hi\" keep true");
    assert_eq!(
        check("HTTP/1.1 503 No\r\ncontent-length:0\r\nconnection: close\r\n\r\n"),
        "503 \"\" keep false"
    );
}

#[test]
fn broken_responses() {
    assert_eq!(check(""), "connection closed without a response");
    assert_eq!(check("HTTP/1.0 200 OK\r\n"), "not a status line: \"HTTP/1.0 200 OK\"");
    assert_eq!(check("HTTP/1.1 200 OK\r\n\r\n"), "response without a length");
    assert!(check("HTTP/1.1 200 OK\r\nContent-").starts_with("response ends within its head"));
    assert!(check("HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nhi").contains("within its body"));
}
