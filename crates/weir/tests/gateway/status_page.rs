//! Goal: a real browser renders the status page in light and dark mode. The page's own content
//! security policy blocks neither its style nor its script, and the page shows the nodes' state.
//!
//! Needs Chromium. `test_support::programs` documents what happens if it is not installed.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use test_support::programs;

/// A `weir` process, which is killed on drop.
struct RunningWeir(Child);

impl RunningWeir {
    /// Starts `weir` and returns the address that it prints after `before`.
    fn start(arguments: &[&str], before: &str) -> (RunningWeir, String) {
        let mut child = Command::new(env!("CARGO_BIN_EXE_weir"))
            .args(arguments)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("weir starts");
        let out = child.stdout.take().expect("it is piped");
        let running = RunningWeir(child);
        for line in BufReader::new(out).lines() {
            let line = line.expect("it prints text");
            if let Some((_, rest)) = line.split_once(before) {
                let address = rest.split([' ', ',', '/']).next().expect("a split has a first part");
                return (running, address.to_owned());
            }
        }
        panic!("weir {arguments:?} ended without printing {before:?}");
    }
}

impl Drop for RunningWeir {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Renders a page in the browser. Returns the browser's standard output and the messages on the
/// page's console.
fn browse(chromium: &Path, folder: &Path, arguments: &[&str], url: &str) -> (String, String) {
    let mut child = Command::new(chromium)
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"])
        .args(["--enable-logging=stderr", "--window-size=1280,1000"])
        // In five seconds, the page refreshes twice.
        .arg("--virtual-time-budget=5000")
        .arg(format!("--user-data-dir={}", folder.join("profile").display()))
        .args(arguments)
        .arg(url)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("chromium starts");
    let mut stderr = child.stderr.take().expect("it is piped");
    let console_errors = std::thread::spawn(move || {
        let mut text = Vec::new();
        stderr.read_to_end(&mut text).expect("its complaints can be read");
        String::from_utf8_lossy(&text).into_owned()
    });
    let mut out = String::new();
    child.stdout.take().expect("it is piped").read_to_string(&mut out).expect("it prints text");
    assert!(child.wait().expect("it ends").success(), "chromium failed");
    // Ignore Chromium's messages about the machine, such as the missing desktop.
    let console_errors = console_errors.join().expect("it does not panic");
    let page_errors = console_errors.lines().filter(|line| line.contains("CONSOLE"));
    (out, page_errors.collect::<Vec<_>>().join("\n"))
}

/// Returns the color of the upper left pixel of a screenshot. The file is a PNG with 8 bits per
/// channel, RGB or RGBA.
fn corner_color(file: &Path) -> [u8; 3] {
    let png = std::fs::read(file).expect("the screenshot was written");
    let mut rest = png.strip_prefix(b"\x89PNG\r\n\x1a\n").expect("it is a PNG");
    let mut compressed = Vec::new();
    while let Some((chunk_header, body)) = rest.split_at_checked(8) {
        let length_bytes = [chunk_header[0], chunk_header[1], chunk_header[2], chunk_header[3]];
        let length = u32::from_be_bytes(length_bytes) as usize;
        if &chunk_header[4..] == b"IDAT" {
            compressed.extend_from_slice(&body[..length]);
        }
        // Skips the chunk's checksum of four bytes.
        rest = &body[length + 4..];
    }
    // The first byte is the type of the row's filter. No filter changes the first pixel of the
    // first row.
    let mut pixel = [0; 4];
    flate2::read::ZlibDecoder::new(&*compressed).read_exact(&mut pixel).expect("it has a pixel");
    [pixel[1], pixel[2], pixel[3]]
}

#[test]
fn a_browser_shows_the_page_in_light_and_dark() {
    let Some(chromium) = programs::require("chromium") else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let (_node, node) = RunningWeir::start(&["node", "--listen", "127.0.0.1:0"], "http://");
    let upstream = format!("http://{node}");
    let serve = ["serve", "--upstream", &upstream, "--listen", "127.0.0.1:0"];
    let serve = [&serve[..], &["--admin", "127.0.0.1:0", "--threads", "1"]].concat();
    let (_gateway, admin) = RunningWeir::start(&serve, "metrics on http://");
    let url = format!("http://{admin}/");

    let (dom, console_errors) = browse(&chromium, folder.path(), &["--dump-dom"], &url);
    assert_eq!(console_errors, "", "the browser reports an error");
    assert!(dom.contains(&node), "the node is on the page: {dom}");
    assert!(dom.contains("<span class=\"badge good\">healthy</span>"), "{dom}");
    assert!(dom.contains(">live, every 2 s</span>"), "the script ran: {dom}");
    assert!(!dom.contains("class=\"silent\""), "the page could not refresh: {dom}");

    for (name, dark) in [("light", "1"), ("dark", "0")] {
        let file = folder.path().join(format!("{name}.png"));
        let screenshot = format!("--screenshot={}", file.display());
        let scheme = format!("--blink-settings=preferredColorScheme={dark}");
        let (_, console_errors) = browse(&chromium, folder.path(), &[&screenshot, &scheme], &url);
        assert_eq!(console_errors, "", "the browser reports an error");
        let brightness = corner_color(&file).into_iter().max().expect("three colours");
        // A brightness of 255 (white) means that the browser did not apply the style.
        let expected = if name == "light" { 200..255 } else { 0..60 };
        assert!(expected.contains(&brightness), "{name}: brightness {brightness}");
    }
}
