//! Goal: the status page as a real browser shows it, in light and in dark: style and script run
//! under the page's own policy, nothing is refused, and the state of the nodes is on it.
//!
//! Needs Chromium; see `test_support::programs` for what happens without.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use test_support::programs;

/// A child that ends with the test.
struct Running(Child);

impl Running {
    /// Starts `weir` and returns the address after `before` in its output.
    fn weir(arguments: &[&str], before: &str) -> (Running, String) {
        let mut child = Command::new(env!("CARGO_BIN_EXE_weir"))
            .args(arguments)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("weir starts");
        let out = child.stdout.take().expect("it is piped");
        let running = Running(child);
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

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Renders a page in the browser; returns its standard output and its error messages.
fn browse(chromium: &Path, folder: &Path, arguments: &[&str], url: &str) -> (String, String) {
    let mut child = Command::new(chromium)
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"])
        .args(["--enable-logging=stderr", "--window-size=1280,1000"])
        // Long enough for the page to renew itself twice.
        .arg("--virtual-time-budget=5000")
        .arg(format!("--user-data-dir={}", folder.join("profile").display()))
        .args(arguments)
        .arg(url)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("chromium starts");
    let mut stderr = child.stderr.take().expect("it is piped");
    let complaints = std::thread::spawn(move || {
        let mut text = Vec::new();
        stderr.read_to_end(&mut text).expect("its complaints can be read");
        String::from_utf8_lossy(&text).into_owned()
    });
    let mut out = String::new();
    child.stdout.take().expect("it is piped").read_to_string(&mut out).expect("it prints text");
    assert!(child.wait().expect("it ends").success(), "chromium failed");
    // Only what the page causes; Chromium has much to say about a machine without a desktop.
    let complaints = complaints.join().expect("it does not panic");
    let of_page = complaints.lines().filter(|line| line.contains("CONSOLE"));
    (out, of_page.collect::<Vec<_>>().join("\n"))
}

/// The colour of the upper left corner of a screenshot: 8-bit RGB or RGBA.
fn corner(file: &Path) -> [u8; 3] {
    let png = std::fs::read(file).expect("the screenshot was written");
    let mut rest = png.strip_prefix(b"\x89PNG\r\n\x1a\n").expect("it is a PNG");
    let mut packed = Vec::new();
    while let Some((head, body)) = rest.split_at_checked(8) {
        let length = u32::from_be_bytes([head[0], head[1], head[2], head[3]]) as usize;
        if &head[4..] == b"IDAT" {
            packed.extend_from_slice(&body[..length]);
        }
        // The checksum follows.
        rest = &body[length + 4..];
    }
    // The first byte tells how the row is filtered; to the first pixel of the first row every
    // filter does nothing.
    let mut pixel = [0; 4];
    flate2::read::ZlibDecoder::new(&*packed).read_exact(&mut pixel).expect("it has a pixel");
    [pixel[1], pixel[2], pixel[3]]
}

#[test]
fn a_browser_shows_the_page_in_light_and_dark() {
    let Some(chromium) = programs::require("chromium") else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let (_node, node) = Running::weir(&["node", "--listen", "127.0.0.1:0"], "http://");
    let upstream = format!("http://{node}");
    let serve = ["serve", "--upstream", &upstream, "--listen", "127.0.0.1:0"];
    let serve = [&serve[..], &["--admin", "127.0.0.1:0", "--threads", "1"]].concat();
    let (_gateway, admin) = Running::weir(&serve, "metrics on http://");
    let url = format!("http://{admin}/");

    let (dom, complaints) = browse(&chromium, folder.path(), &["--dump-dom"], &url);
    assert_eq!(complaints, "", "the browser refuses something");
    assert!(dom.contains(&node), "the node is on the page: {dom}");
    assert!(dom.contains("<span class=\"badge good\">healthy</span>"), "{dom}");
    assert!(dom.contains(">live, every 2 s</span>"), "the script ran: {dom}");
    assert!(!dom.contains("class=\"silent\""), "the page could renew itself: {dom}");

    for (name, dark) in [("light", "1"), ("dark", "0")] {
        let file = folder.path().join(format!("{name}.png"));
        let shot = format!("--screenshot={}", file.display());
        let scheme = format!("--blink-settings=preferredColorScheme={dark}");
        let (_, complaints) = browse(&chromium, folder.path(), &[&shot, &scheme], &url);
        assert_eq!(complaints, "", "the browser refuses something");
        let brightness = corner(&file).into_iter().max().expect("three colours");
        // White would mean that the style was not applied.
        let styled = if name == "light" { 200..255 } else { 0..60 };
        assert!(styled.contains(&brightness), "{name}: brightness {brightness}");
    }
}
