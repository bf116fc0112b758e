//! Measures several nodes at once, and describes what they serve.

use std::fmt::Write as _;
use std::sync::mpsc::sync_channel;
use std::time::{Duration, Instant};

use lab::capabilities::{Capabilities, Measured, StateDepth};
use lab_model::plan::Target;
use settings::url::NodeUrl;
use wire::family::Family;

use crate::terminal::ProgressOutput;

/// Timeout to connect to a node, including TLS.
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// Maximum size of a response. The measured calls have short responses, except for the traces and
/// receipts of an old block.
const RESPONSE_BYTES_MAX: usize = 64 << 20;
/// Text for an unknown property.
const UNKNOWN: &str = "unknown";

/// A function that runs on a thread of its own.
pub(crate) type Job<T> = Box<dyn FnOnce() -> T + Send>;

/// Runs all jobs at once and returns their results in the same order. The result of a job is `None`
/// if the job has not ended after `duration_max`. A spinner shows the number of finished jobs.
pub(crate) fn run_all<T: Send + 'static>(
    jobs: Vec<Job<T>>,
    duration_max: Duration,
) -> Vec<Option<T>> {
    let deadline = Instant::now() + duration_max;
    let count = jobs.len();
    let (sender, receiver) = sync_channel(count);
    for (index, job) in jobs.into_iter().enumerate() {
        let sender = sender.clone();
        // The threads are not joined. A job that lasts too long ends with the process. If the
        // receiver is gone, nobody needs the result.
        std::thread::spawn(move || sender.send((index, job())));
    }
    drop(sender);
    let quiet = false;
    let progress = ProgressOutput::new(quiet);
    let mut results: Vec<Option<T>> = (0..count).map(|_| None).collect();
    for finished in 0..count {
        progress.set_message(format!("{finished} of {count} addresses have been asked"));
        let remaining = deadline.saturating_duration_since(Instant::now());
        let Ok((index, result)) = receiver.recv_timeout(remaining) else { break };
        results[index] = Some(result);
    }
    progress.finish();
    results
}

/// Builds the target for the calls to a URL. `headers` does not contain the URL's user part.
pub(crate) fn build_target(
    url: &NodeUrl,
    family: Option<Family>,
    mut headers: Vec<(String, String)>,
    call_timeout: Duration,
) -> Target {
    let authorization = url.authorization().and_then(|value| value.to_str().ok());
    headers.extend(authorization.map(|value| ("authorization".to_owned(), value.to_owned())));
    Target {
        url: url.clone(),
        family,
        headers,
        timeout: call_timeout,
        connect_timeout: CONNECT_TIMEOUT,
        response_bytes_max: RESPONSE_BYTES_MAX,
    }
}

/// The columns of [`describe_node`].
pub(crate) const COLUMNS: [&str; 7] =
    ["CHAIN ID", "HEAD", "BEHIND", "STATE", "METHODS", "WEBSOCKET", "CLIENT"];

/// Describes the properties of a node, one text for each of [`COLUMNS`]. `behind` is the number of
/// blocks behind the highest head.
pub(crate) fn describe_node(node: &Capabilities, behind: Option<u64>) -> [String; 7] {
    fn or_unknown<T: ToString>(value: &Measured<T>) -> String {
        value.as_ref().map_or_else(|_| UNKNOWN.to_owned(), T::to_string)
    }
    let websocket = match &node.websocket {
        None => "-".to_owned(),
        Some(Ok(())) => "yes".to_owned(),
        Some(Err(_)) => "no".to_owned(),
    };
    [
        or_unknown(&node.chain_id),
        or_unknown(&node.head),
        behind.map_or_else(|| UNKNOWN.to_owned(), |blocks| blocks.to_string()),
        describe_state(&node.state),
        describe_methods(node),
        websocket,
        or_unknown(&node.client),
    ]
}

/// Describes the blocks whose state a node has.
pub(crate) fn describe_state(state: &Measured<StateDepth>) -> String {
    match state {
        Ok(StateDepth::All) => "all".to_owned(),
        Ok(StateDepth::Last(blocks)) => format!("last ~{blocks} blocks"),
        Err(_) => UNKNOWN.to_owned(),
    }
}

/// Lists the optional methods that a node serves, by the short names in the help of `weir check`.
/// A question mark follows the name of a method for which that is unknown.
pub(crate) fn describe_methods(node: &Capabilities) -> String {
    let short_name = |method: &str| match method {
        "debug_traceBlockByNumber" => "debug".to_owned(),
        "trace_block" => "trace".to_owned(),
        "eth_getBlockReceipts" => "receipts".to_owned(),
        "eth_getProof" => "proof".to_owned(),
        other => other.to_owned(),
    };
    let describe_method = |(method, is_served): &(&str, Measured<bool>)| match is_served {
        Ok(true) => Some(short_name(method)),
        Ok(false) => None,
        Err(_) => Some(format!("{}?", short_name(method))),
    };
    let listed: Vec<String> = node.methods.iter().filter_map(describe_method).collect();
    if listed.is_empty() { "none".to_owned() } else { listed.join(" ") }
}

/// Returns the number of blocks that each head is behind the highest one.
pub(crate) fn count_behind(heads: &[Option<u64>]) -> Vec<Option<u64>> {
    let highest = heads.iter().flatten().max();
    heads.iter().map(|head| Some(highest?.saturating_sub((*head)?))).collect()
}

/// Formats rows as columns of equal width. Control characters are replaced, because a node chooses
/// the text of its version.
pub(crate) fn format_table(rows: &[Vec<String>]) -> String {
    let replace_control = |character: char| if character.is_control() { ' ' } else { character };
    let clean = |text: &String| text.chars().map(replace_control).collect::<String>();
    let rows: Vec<Vec<String>> = rows.iter().map(|row| row.iter().map(clean).collect()).collect();
    let column_count = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        let texts = rows.iter().filter_map(|row| row.get(column));
        texts.map(|text| text.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..column_count).map(width).collect();
    let mut table = String::new();
    for row in &rows {
        let mut line = String::new();
        for (text, width) in row.iter().zip(&widths) {
            let _ = write!(line, "{text:width$}  ");
        }
        let _ = writeln!(table, "{}", line.trim_end());
    }
    table
}
