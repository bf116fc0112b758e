//! A geth on the chain of the execution-apis tests that ends with the test.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long geth may take from its start until it answers, on a busy machine.
const GETH_PATIENCE: Duration = Duration::from_secs(60);
/// The last block of `chain.rlp`.
const HEAD: &str = "\"0x36\"";

/// The chain and the calls of the tests.
pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/execution-apis")
}

/// A geth on the tests' chain that ends with the test.
pub struct Geth {
    child: Child,
    _folder: tempfile::TempDir,
    /// Where it answers by HTTP, as `127.0.0.1:PORT`.
    pub address: String,
}

impl Geth {
    /// Starts the program and waits until it answers.
    pub fn start(geth: &Path) -> Geth {
        let home = tempfile::tempdir().unwrap();
        let run = |arguments: &[&str]| {
            let output = geth_command(geth, home.path()).args(arguments).output().unwrap();
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(output.status.success(), "geth {arguments:?}: {said}");
        };
        run(&["init", folder().join("genesis.json").to_str().unwrap()]);
        run(&["--gcmode", "archive", "import", folder().join("chain.rlp").to_str().unwrap()]);
        let (http, auth) = (free_port(), free_port());
        let log = File::create(home.path().join("log")).unwrap();
        let child = geth_command(geth, home.path())
            .args(["--gcmode", "archive", "--syncmode", "full", "--nodiscover"])
            .args(["--maxpeers", "0", "--port", "0"])
            .args(["--http", "--http.port", &http, "--http.api", "eth,net,web3,debug,txpool"])
            .args(["--authrpc.port", &auth, "--ipcdisable"])
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        let mut geth = Geth { child, _folder: home, address: format!("127.0.0.1:{http}") };
        geth.wait_for_head();
        geth
    }

    fn wait_for_head(&mut self) {
        let asked = br#"{"jsonrpc":"2.0","id":1,"method":"eth_blockNumber"}"#;
        let deadline = Instant::now() + GETH_PATIENCE;
        loop {
            assert!(self.child.try_wait().unwrap().is_none(), "geth ended");
            if std::net::TcpStream::connect(&self.address).is_ok() {
                let answer = crate::raw::Client::connect(&self.address).call("/", asked);
                assert_eq!(crate::members::members(answer.text())["result"].get(), HEAD);
                return;
            }
            assert!(Instant::now() < deadline, "geth does not listen");
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

fn geth_command(geth: &Path, home: &Path) -> Command {
    let mut command = Command::new(geth);
    command.arg("--datadir").arg(home).args(["--state.scheme", "hash"]).stdin(Stdio::null());
    command
}

/// A port that was free a moment ago: geth does not tell which one it took.
fn free_port() -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port().to_string()
}
