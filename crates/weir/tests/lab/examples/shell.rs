//! Runs one command in a shell and judges what came of it.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use tempfile::NamedTempFile;

use super::table::Outcome;
use super::world::World;

/// The longest that a command may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(180);

/// PASS, INVALID and CLIENT-LIMITED: of a run in which no call failed.
const VERDICTS: &[i32] = &[0, 4, 5];

/// A command that runs in a process group of its own.
struct Shell {
    child: Child,
    out: NamedTempFile,
}

impl Shell {
    fn start(command: &str, folder: &Path, world: &World) -> Shell {
        let out = NamedTempFile::new().unwrap();
        let append = || std::fs::File::options().append(true).open(out.path()).unwrap();
        let child = Command::new("sh")
            // The shell outlives the signals that are meant for the command, and ends with its
            // code.
            .args(["-c", &format!("trap : TERM INT; {command}")])
            .current_dir(folder)
            .env("PATH", world.path())
            .env("KEY", "0123456789abcdef0123456789abcdef")
            .stdin(Stdio::null())
            .stdout(append())
            .stderr(append())
            .process_group(0)
            .spawn()
            .unwrap();
        Shell { child, out }
    }

    fn said(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(self.out.path()).unwrap()).into_owned()
    }

    fn signal(&self, signal: &str) {
        let group = format!("-{}", self.child.id());
        // The group may be gone, which is what is wanted.
        let _sent =
            Command::new("kill").args([signal, "--", &group]).stderr(Stdio::null()).status();
    }

    /// Waits until it has ended, or has printed enough; `None` if neither came in time.
    fn until(&mut self, enough: impl Fn(&str) -> bool) -> Option<Option<ExitStatus>> {
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            if enough(&self.said()) {
                return Some(None);
            }
            if let Some(status) = self.child.try_wait().unwrap() {
                return Some(Some(status));
            }
            // Sleeps: between two looks at another process; the deadline bounds it.
            std::thread::park_timeout(Duration::from_millis(20));
        }
        None
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        self.signal("-KILL");
        let _ = self.child.wait();
    }
}

/// Where the commands of one text run. The folder is removed at the end of the text.
pub(crate) struct Place<'a> {
    folder: PathBuf,
    world: &'a World,
    /// Servers that the text has started.
    servers: Vec<Shell>,
    /// Addresses that the text names, and those of its servers.
    addresses: BTreeMap<&'static str, String>,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.servers.clear();
        // The folder of all texts is removed at the end, too.
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

impl Place<'_> {
    pub(crate) fn new(world: &World) -> Place<'_> {
        let folder = world.folder();
        Place { folder, world, servers: Vec::new(), addresses: BTreeMap::new() }
    }

    /// A command with the addresses of this text's servers.
    pub(crate) fn moved(&self, command: &str) -> String {
        let moved = |text: String, (from, to): (&&str, &String)| text.replace(from, to);
        self.addresses.iter().fold(command.to_owned(), moved)
    }

    /// Runs a command and says how its outcome differs from the expected one.
    pub(crate) fn judge(&mut self, command: &str, outcome: Outcome) -> Result<(), String> {
        let start = |command: &str| Shell::start(command, &self.folder, self.world);
        match outcome {
            Outcome::NotHere(_) => Ok(()),
            Outcome::Ends(codes, texts) => {
                let mut shell = start(command);
                expect_end(&mut shell, codes)?;
                expect_texts(&shell.said(), texts)
            }
            Outcome::Loads => {
                let mut shell = start(command);
                expect_end(&mut shell, VERDICTS)?;
                let said = shell.said();
                let row = said.lines().find(|line| line.starts_with("all "));
                match row.is_some_and(|row| row.matches("100 %").count() >= 2) {
                    true => Ok(()),
                    false => Err(format!("calls failed:\n{said}")),
                }
            }
            Outcome::Serves(texts) => {
                let mut shell = start(command);
                let printed = expect_addresses(&mut shell, 1)?;
                expect_texts(&call(&printed[0], "eth_chainId", "[]")?, texts)?;
                shell.signal("-TERM");
                expect_end(&mut shell, &[0])
            }
            Outcome::Starts(named) => {
                let mut shell = start(command);
                let printed = expect_addresses(&mut shell, named.len())?;
                self.addresses.extend(named.iter().copied().zip(printed));
                self.servers.push(shell);
                Ok(())
            }
            Outcome::WithGateway(codes, texts) => {
                let gateway = "./weir serve gateway.toml --listen 127.0.0.1:0 --admin 127.0.0.1:0";
                let mut gateway = start(gateway);
                let printed = expect_addresses(&mut gateway, 2)?;
                let mut shell = start(&command.replace("ADMIN", &printed[1]));
                expect_end(&mut shell, codes)?;
                expect_texts(&shell.said(), texts)
            }
            Outcome::Until(text, codes) => {
                let mut shell = start(command);
                expect_said(&mut shell, text)?;
                shell.signal("-INT");
                expect_end(&mut shell, codes)
            }
        }
    }
}

/// The first addresses on which a server says that it listens.
fn expect_addresses(shell: &mut Shell, count: usize) -> Result<Vec<String>, String> {
    let addresses = |said: &str| -> Vec<String> {
        let rest = said.split(" on http://").skip(1);
        // One without an end may be cut.
        let whole =
            rest.filter_map(|rest| rest.find([' ', ',', '/', '\n']).map(|end| &rest[..end]));
        whole.take(count).map(str::to_owned).collect()
    };
    expect(shell, &format!("{count} addresses"), |said| addresses(said).len() == count)?;
    Ok(addresses(&shell.said()))
}

fn expect_said(shell: &mut Shell, text: &str) -> Result<(), String> {
    expect(shell, text, |said| said.contains(text))
}

fn expect(shell: &mut Shell, what: &str, enough: impl Fn(&str) -> bool) -> Result<(), String> {
    match shell.until(enough) {
        Some(None) => Ok(()),
        Some(Some(status)) => {
            Err(format!("ended with {status} before it said {what:?}:\n{}", shell.said()))
        }
        None => Err(format!("did not say {what:?}:\n{}", shell.said())),
    }
}

fn expect_end(shell: &mut Shell, codes: &[i32]) -> Result<(), String> {
    let Some(Some(status)) = shell.until(|_| false) else {
        return Err(format!("did not end:\n{}", shell.said()));
    };
    match status.code() {
        Some(code) if codes.contains(&code) => Ok(()),
        _ => Err(format!("ended with {status}, expected {codes:?}:\n{}", shell.said())),
    }
}

fn expect_texts(said: &str, texts: &[&str]) -> Result<(), String> {
    match texts.iter().find(|text| !said.contains(**text)) {
        Some(text) => Err(format!("{text:?} is not in:\n{said}")),
        None => Ok(()),
    }
}

/// The response to one call.
pub(crate) fn call(address: &str, method: &str, params: &str) -> Result<String, String> {
    let body = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{params}}}"#);
    let length = body.len();
    let request = format!(
        "POST / HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\n\
         content-length: {length}\r\nconnection: close\r\n\r\n{body}"
    );
    let exchange = || {
        let mut stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.write_all(request.as_bytes())?;
        let mut response = String::new();
        stream.read_to_string(&mut response)?;
        Ok(response)
    };
    exchange().map_err(|error: std::io::Error| format!("no response from {address}: {error}"))
}
