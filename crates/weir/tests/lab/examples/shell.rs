//! Runs one command in a shell and judges what came of it.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
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
            // The shell outlives the signals that are meant for the command, and ends with its code.
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

    /// Waits until it has ended, or until it has said something; `None` if neither came in time.
    fn until(&mut self, said: Option<&str>) -> Option<Option<ExitStatus>> {
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            if said.is_some_and(|text| self.said().contains(text)) {
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

/// Runs a command and says how its outcome differs from the expected one.
pub(crate) fn judge(
    command: &str,
    outcome: Outcome,
    folder: &Path,
    world: &World,
) -> Result<(), String> {
    match outcome {
        Outcome::NotHere(_) => Ok(()),
        Outcome::Ends(codes, texts) => {
            let mut shell = Shell::start(command, folder, world);
            expect_end(&mut shell, codes)?;
            expect_texts(&shell.said(), texts)
        }
        Outcome::Loads => {
            let mut shell = Shell::start(command, folder, world);
            expect_end(&mut shell, VERDICTS)?;
            let said = shell.said();
            let row = said.lines().find(|line| line.starts_with("all "));
            match row.is_some_and(|row| row.matches("100 %").count() >= 2) {
                true => Ok(()),
                false => Err(format!("calls failed:\n{said}")),
            }
        }
        Outcome::Serves(texts) => {
            let mut shell = Shell::start(command, folder, world);
            expect_said(&mut shell, "listens on http://")?;
            let said = shell.said();
            let (_, rest) = said.split_once("listens on http://").unwrap();
            let address = &rest[..rest.find([' ', ',', '/', '\n']).unwrap_or(rest.len())];
            expect_texts(&call(address, "eth_chainId", "[]")?, texts)?;
            shell.signal("-TERM");
            expect_end(&mut shell, &[0])
        }
        Outcome::WithGateway(codes, texts) => {
            let gateway = "./weir serve gateway.toml --listen 127.0.0.1:0 --admin 127.0.0.1:0";
            let mut gateway = Shell::start(gateway, folder, world);
            expect_said(&mut gateway, "listens on http://")?;
            expect_said(&mut gateway, "metrics")?;
            let said = gateway.said();
            let (_, rest) = said.rsplit_once(" on http://").unwrap();
            let admin = &rest[..rest.find([' ', ',', '/', '\n']).unwrap_or(rest.len())];
            let mut shell = Shell::start(&command.replace("ADMIN", admin), folder, world);
            expect_end(&mut shell, codes)?;
            expect_texts(&shell.said(), texts)
        }
        Outcome::Until(text, codes) => {
            let mut shell = Shell::start(command, folder, world);
            expect_said(&mut shell, text)?;
            shell.signal("-INT");
            expect_end(&mut shell, codes)
        }
    }
}

fn expect_said(shell: &mut Shell, text: &str) -> Result<(), String> {
    match shell.until(Some(text)) {
        Some(None) => Ok(()),
        Some(Some(status)) => {
            Err(format!("ended with {status} before it said {text:?}:\n{}", shell.said()))
        }
        None => Err(format!("did not say {text:?}:\n{}", shell.said())),
    }
}

fn expect_end(shell: &mut Shell, codes: &[i32]) -> Result<(), String> {
    let Some(Some(status)) = shell.until(None) else {
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
