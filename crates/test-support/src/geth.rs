//! A geth process that ends with the test. It has the chain of the tests in the repository
//! execution-apis, or a development chain.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::programs;
use crate::raw::Client;
use crate::signing::Account;
use crate::wait::wait_until;

/// Timeout for geth's first response after its start, on a busy machine.
const START_TIMEOUT: Duration = Duration::from_secs(60);
/// The text that geth logs before its HTTP address.
pub const LISTEN_LOG_PREFIX: &str = "HTTP server started                      endpoint=";
/// Number of the last block of `chain.rlp`, as JSON.
const HEAD: &str = "\"0x36\"";

/// The folder of the tests' chain and calls.
pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/execution-apis")
}

/// A running geth. Dropping this value kills the process.
pub struct Geth {
    child: Child,
    _folder: tempfile::TempDir,
    /// HTTP address, as `127.0.0.1:PORT`.
    pub address: String,
}

impl Geth {
    /// Starts geth with the tests' chain, and waits until it serves the last block of this chain.
    pub fn start(geth: &Path) -> Geth {
        let home = tempfile::tempdir().unwrap();
        import_chain(geth, home.path(), &[]);
        let mut geth = Geth::spawn(geth, home, &["--gcmode", "archive", "--syncmode", "full"]);
        geth.wait_for_head();
        geth
    }

    /// Starts geth with a new development chain (chain id 1337), which makes one block per second.
    /// Gives ten ether to each of the first `accounts` accounts. Returns `None` if geth is missing.
    pub fn start_dev(accounts: u8) -> Option<Geth> {
        let home = tempfile::tempdir().unwrap();
        let geth = programs::require("geth")?;
        let geth = Geth::spawn(&geth, home, &["--dev", "--dev.period", "1"]);
        // This account has all ether, and geth signs for it.
        let funding_account = geth.call("eth_accounts", "[]")[0].clone();
        let addresses = (0..accounts).map(|number| Account::numbered(number).address);
        for address in addresses.clone() {
            let transfer = format!(
                r#"[{{"from":{funding_account},"to":"{address}","value":"0x8ac7230489e80000"}}]"#
            );
            geth.call("eth_sendTransaction", &transfer);
        }
        wait_until("funded accounts", || {
            let is_funded = |address| {
                geth.call("eth_getBalance", &format!(r#"["{address}","latest"]"#)) != "0x0"
            };
            addresses.clone().all(is_funded)
        });
        Some(geth)
    }

    /// Calls the node and returns the result.
    ///
    /// # Panics
    /// Panics if the response is an error.
    pub fn call(&self, method: &str, params: &str) -> Value {
        let body = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{params}}}"#);
        let response = Client::connect(&self.address).call("/", body.as_bytes());
        let response: Value = serde_json::from_str(response.text()).unwrap();
        assert!(response["error"].is_null(), "{method}: {response}");
        response["result"].clone()
    }

    /// Starts geth with additional arguments, and waits until it listens.
    fn spawn(geth: &Path, home: tempfile::TempDir, arguments: &[&str]) -> Geth {
        let log_path = home.path().join("log");
        let log = File::create(&log_path).unwrap();
        let mut child = geth_command(geth, home.path())
            .args(arguments)
            .args(["--nodiscover", "--maxpeers", "0", "--port", "0"])
            .args(["--http", "--http.port", "0", "--http.api", "eth,net,web3,debug,txpool"])
            .args(["--authrpc.port", "0", "--ipcdisable"])
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        let address = programs::wait_for_address(&mut child, &log_path, LISTEN_LOG_PREFIX);
        Geth { child, _folder: home, address }
    }

    /// Waits until geth responds. Its newest block must be the last block of the tests' chain.
    fn wait_for_head(&mut self) {
        let call = br#"{"jsonrpc":"2.0","id":1,"method":"eth_blockNumber"}"#;
        let deadline = Instant::now() + START_TIMEOUT;
        loop {
            assert!(self.child.try_wait().unwrap().is_none(), "geth ended");
            if std::net::TcpStream::connect(&self.address).is_ok() {
                let response = Client::connect(&self.address).call("/", call);
                assert_eq!(crate::members::members(response.text())["result"].get(), HEAD);
                return;
            }
            assert!(Instant::now() < deadline, "geth does not listen");
            // Sleeps: between two polls of another program's start.
            std::thread::park_timeout(Duration::from_millis(50));
        }
    }
}

impl Drop for Geth {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Imports the tests' chain into a new folder. Returns the log in one of geth's formats:
/// `terminal`, `logfmt` or `json`.
pub fn import_log(geth: &Path, format: &str) -> String {
    let home = tempfile::tempdir().unwrap();
    import_chain(geth, home.path(), &["--log.format", format])
}

/// Imports the tests' chain into a folder and returns the log.
fn import_chain(geth: &Path, home: &Path, options: &[&str]) -> String {
    let run = |arguments: &[&str]| {
        let output = geth_command(geth, home).args(options).args(arguments).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "geth {arguments:?}: {stderr}");
        stderr
    };
    run(&["init", folder().join("genesis.json").to_str().unwrap()]);
    run(&["--gcmode", "archive", "import", folder().join("chain.rlp").to_str().unwrap()])
}

fn geth_command(geth: &Path, home: &Path) -> Command {
    let mut command = Command::new(geth);
    command.arg("--datadir").arg(home).args(["--state.scheme", "hash"]).stdin(Stdio::null());
    command
}
