//! Runs example commands in a shell and compares their results with the expected outcomes. A *text*
//! is a help text, page, study or configuration that contains example commands.

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

/// Timeout of a command; long enough for a busy machine.
const TIMEOUT: Duration = Duration::from_secs(180);

/// Exit codes of a run without failed calls: PASS, INVALID and CLIENT-LIMITED.
const VERDICTS: &[i32] = &[0, 4, 5];

/// A shell that runs one command, as a separate process group.
struct Shell {
    child: Child,
    /// Standard output and standard error of the command.
    output_file: NamedTempFile,
}

/// Why [`Shell::wait_for`] has stopped waiting.
enum WaitEnd {
    ConditionMet,
    CommandEnded(ExitStatus),
    TimedOut,
}

impl Shell {
    fn start(command: &str, folder: &Path, world: &World) -> Shell {
        let output_file = NamedTempFile::new().unwrap();
        let append = || std::fs::File::options().append(true).open(output_file.path()).unwrap();
        let child = Command::new("sh")
            // The shell survives the signals, which are for the command, and ends with the
            // command's exit code.
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
        Shell { child, output_file }
    }

    fn output(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(self.output_file.path()).unwrap()).into_owned()
    }

    fn signal(&self, signal: &str) {
        let group = format!("-{}", self.child.id());
        // An error means that the group has ended already.
        let _sent =
            Command::new("kill").args([signal, "--", &group]).stderr(Stdio::null()).status();
    }

    /// Waits until the output meets a condition or the command ends, for at most [`TIMEOUT`].
    fn wait_for(&mut self, is_met: impl Fn(&str) -> bool) -> WaitEnd {
        let deadline = Instant::now() + TIMEOUT;
        while Instant::now() < deadline {
            if is_met(&self.output()) {
                return WaitEnd::ConditionMet;
            }
            if let Some(status) = self.child.try_wait().unwrap() {
                return WaitEnd::CommandEnded(status);
            }
            // Sleeps: between two checks of another process; the deadline bounds the loop.
            std::thread::park_timeout(Duration::from_millis(20));
        }
        WaitEnd::TimedOut
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        self.signal("-KILL");
        let _ = self.child.wait();
    }
}

/// Returns a command that runs weir, possibly after environment variables or by cargo. Returns
/// `None` for another program.
fn as_weir_command(command: &str) -> Option<String> {
    let command = command.replace("cargo run --release --", "weir");
    let program = command.split(' ').find(|word| !word.contains('='));
    (program == Some("weir")).then_some(command)
}

/// Runs the commands of one text, in a folder that is removed after the last command.
pub(crate) struct Session<'a> {
    folder: PathBuf,
    world: &'a World,
    /// Servers that commands of the text have started.
    servers: Vec<Shell>,
    /// The actual address of a server, by its address in the text.
    addresses: BTreeMap<&'static str, String>,
}

impl Drop for Session<'_> {
    fn drop(&mut self) {
        self.servers.clear();
        // If this fails, the end of the test removes the folder with its parent.
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

impl Session<'_> {
    pub(crate) fn new(world: &World) -> Session<'_> {
        let folder = world.folder();
        Session { folder, world, servers: Vec::new(), addresses: BTreeMap::new() }
    }

    /// Replaces the addresses in a command by those of the servers that earlier commands started.
    pub(crate) fn replace_addresses(&self, command: &str) -> String {
        let replace = |text: String, (from, to): (&&str, &String)| text.replace(from, to);
        self.addresses.iter().fold(command.to_owned(), replace)
    }

    /// Runs a command. Returns an error if its outcome is not the expected one.
    pub(crate) fn run(&mut self, command: &str, outcome: Outcome) -> Result<(), String> {
        let start = |command: &str| Shell::start(command, &self.folder, self.world);
        match outcome {
            // weir prints its help only if the command and its options exist.
            Outcome::NotHere(_) => match as_weir_command(command) {
                Some(command) => expect_end(&mut start(&format!("{command} --help")), &[0]),
                None => Ok(()),
            },
            Outcome::Ends(codes, texts) => {
                let mut shell = start(command);
                expect_end(&mut shell, codes)?;
                expect_texts(&shell.output(), texts)
            }
            Outcome::Loads => {
                let mut shell = start(command);
                expect_end(&mut shell, VERDICTS)?;
                let output = shell.output();
                let row = output.lines().find(|line| line.starts_with("all "));
                match row.is_some_and(|row| row.matches("100 %").count() >= 2) {
                    true => Ok(()),
                    false => Err(format!("calls failed:\n{output}")),
                }
            }
            Outcome::Serves(texts) => {
                let mut shell = start(command);
                let printed = expect_addresses(&mut shell, 1)?;
                expect_texts(&call(&printed[0], "eth_chainId", "[]")?, texts)?;
                shell.signal("-TERM");
                expect_end(&mut shell, &[0])
            }
            Outcome::Starts(text_addresses) => {
                let mut shell = start(command);
                let printed = expect_addresses(&mut shell, text_addresses.len())?;
                self.addresses.extend(text_addresses.iter().copied().zip(printed));
                self.servers.push(shell);
                Ok(())
            }
            Outcome::WithGateway(codes, texts) => {
                let gateway = "./weir serve gateway.toml --listen 127.0.0.1:0 --admin 127.0.0.1:0";
                let mut gateway = start(gateway);
                let printed = expect_addresses(&mut gateway, 2)?;
                let mut shell = start(&command.replace("ADMIN", &printed[1]));
                expect_end(&mut shell, codes)?;
                expect_texts(&shell.output(), texts)
            }
            Outcome::Until(text, codes) => {
                let mut shell = start(command);
                expect_output(&mut shell, text)?;
                shell.signal("-INT");
                expect_end(&mut shell, codes)
            }
        }
    }
}

/// Waits until a server has printed `count` addresses on which it listens, and returns them.
fn expect_addresses(shell: &mut Shell, count: usize) -> Result<Vec<String>, String> {
    let parse_addresses = |output: &str| -> Vec<String> {
        let candidates = output.split(" on http://").skip(1);
        // An address without an end may be incomplete, because the server is still printing it.
        let complete =
            candidates.filter_map(|text| text.find([' ', ',', '/', '\n']).map(|end| &text[..end]));
        complete.take(count).map(str::to_owned).collect()
    };
    expect(shell, &format!("{count} addresses"), |output| parse_addresses(output).len() == count)?;
    Ok(parse_addresses(&shell.output()))
}

fn expect_output(shell: &mut Shell, text: &str) -> Result<(), String> {
    expect(shell, text, |output| output.contains(text))
}

fn expect(shell: &mut Shell, expected: &str, is_met: impl Fn(&str) -> bool) -> Result<(), String> {
    match shell.wait_for(is_met) {
        WaitEnd::ConditionMet => Ok(()),
        WaitEnd::CommandEnded(status) => {
            Err(format!("ended with {status} before it said {expected:?}:\n{}", shell.output()))
        }
        WaitEnd::TimedOut => Err(format!("did not say {expected:?}:\n{}", shell.output())),
    }
}

fn expect_end(shell: &mut Shell, codes: &[i32]) -> Result<(), String> {
    let WaitEnd::CommandEnded(status) = shell.wait_for(|_| false) else {
        return Err(format!("did not end:\n{}", shell.output()));
    };
    match status.code() {
        Some(code) if codes.contains(&code) => Ok(()),
        _ => Err(format!("ended with {status}, expected {codes:?}:\n{}", shell.output())),
    }
}

fn expect_texts(output: &str, texts: &[&str]) -> Result<(), String> {
    match texts.iter().find(|text| !output.contains(**text)) {
        Some(text) => Err(format!("{text:?} is not in:\n{output}")),
        None => Ok(()),
    }
}

/// Sends one call and returns the response with its status line and headers.
pub(crate) fn call(address: &str, method: &str, params: &str) -> Result<String, String> {
    let body = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{params}}}"#);
    let length = body.len();
    let request = format!(
        "POST / HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\n\
         content-length: {length}\r\nconnection: close\r\n\r\n{body}"
    );
    let exchange = || {
        let mut stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.write_all(request.as_bytes())?;
        let mut response = String::new();
        stream.read_to_string(&mut response)?;
        Ok(response)
    };
    exchange().map_err(|error: std::io::Error| format!("no response from {address}: {error}"))
}
