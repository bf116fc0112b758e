//! The demo's HTTP/1.1 client: blocking, with one persistent connection and one request at a time.
//! The client never retries, so that every failure counts. It reads only responses with a content
//! length; the gateway and the simulated node send no others.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, bail};

#[cfg(test)]
mod tests;

/// Timeout of a connect, and of each read and write. The gateway's default deadline of 30 s ends
/// first.
const TIMEOUT: Duration = Duration::from_secs(40);
/// Maximum size of a response's header section in bytes. The gateway sends a few hundred bytes.
const HEAD_BYTES_MAX: u64 = 16 * 1024;
/// Maximum size of a response body in bytes. All responses of the demo are smaller.
const BODY_BYTES_MAX: usize = 16 << 20;

/// A client of one server.
pub(super) struct Client {
    address: SocketAddr,
    connection: Option<BufReader<TcpStream>>,
}

/// An HTTP response.
#[derive(Debug)]
pub(super) struct Response {
    pub(super) status: u16,
    pub(super) body: Vec<u8>,
}

impl Client {
    /// Creates a client, which connects with its first request.
    pub(super) fn new(address: SocketAddr) -> Client {
        Client { address, connection: None }
    }

    /// Posts a JSON body.
    pub(super) fn post(&mut self, body: &str) -> Result<Response> {
        let (address, length) = (self.address, body.len());
        self.exchange(&format!(
            "POST / HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\n\
             content-length: {length}\r\n\r\n{body}"
        ))
    }

    /// Gets a path.
    pub(super) fn get(&mut self, path: &str) -> Result<Response> {
        let address = self.address;
        self.exchange(&format!("GET {path} HTTP/1.1\r\nhost: {address}\r\n\r\n"))
    }

    /// Sends a request and reads the response. Keeps the connection if the server does.
    fn exchange(&mut self, request: &str) -> Result<Response> {
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => connect(self.address)?,
        };
        connection.get_mut().write_all(request.as_bytes()).context("cannot send")?;
        let (response, keep_alive) = read_response(&mut connection)?;
        // An error drops the connection, and the next request opens another.
        self.connection = keep_alive.then_some(connection);
        Ok(response)
    }
}

fn connect(address: SocketAddr) -> Result<BufReader<TcpStream>> {
    let stream = TcpStream::connect_timeout(&address, TIMEOUT).context("cannot connect")?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    Ok(BufReader::new(stream))
}

/// Reads a response. The returned flag is true if the connection can be reused.
fn read_response(reader: &mut impl BufRead) -> Result<(Response, bool)> {
    let mut head = reader.take(HEAD_BYTES_MAX);
    let mut line = String::new();
    head.read_line(&mut line).context("no response")?;
    if line.is_empty() {
        bail!("connection closed without a response");
    }
    let status = line.strip_prefix("HTTP/1.1 ").and_then(|after_version| after_version.get(..3));
    let status = status.and_then(|digits| digits.parse().ok());
    let Some(status) = status else { bail!("not a status line: {:?}", line.trim_end()) };
    let (mut content_length, mut keep_alive) = (None, true);
    loop {
        line.clear();
        head.read_line(&mut line).context("response ends within its head")?;
        if !line.ends_with('\n') {
            bail!(
                "response ends within its head, or the head has more than {HEAD_BYTES_MAX} bytes"
            );
        }
        let field = line.trim_end();
        if field.is_empty() {
            break;
        }
        let Some((name, value)) = field.split_once(':') else { bail!("not a header: {field:?}") };
        let value = value.trim();
        if name.eq_ignore_ascii_case("content-length") {
            content_length =
                Some(value.parse::<usize>().with_context(|| format!("length {value:?}"))?);
        } else if name.eq_ignore_ascii_case("connection") {
            keep_alive = !value.eq_ignore_ascii_case("close");
        }
    }
    let Some(length) = content_length else { bail!("response without a length") };
    if length > BODY_BYTES_MAX {
        bail!("response of {length} bytes, at most {BODY_BYTES_MAX} are read");
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).context("response ends within its body")?;
    Ok((Response { status, body }, keep_alive))
}
