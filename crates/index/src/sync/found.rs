//! What a file is about: of a new one, found out before the first block; of an old one, compared
//! with what the nodes are about.

use std::sync::atomic::{AtomicBool, Ordering};

use wire::json::walk;
use wire::logs::Selection;
use wire::{block, quantity};

use super::fetch::{NO_METHOD, RECEIPTS_AT_ONCE, harmony_call, receipt_calls};
use super::nodes::Nodes;
use super::{Note, Options, SyncError, Watch, fits};
use crate::cut::{self, Said};
use crate::harmony::{self, COUNT, HASHES, SINGLE, WITHOUT_STAKING};
use crate::nodes::{Call, Replies};
use crate::pack::{Dictionary, Kind, Packer, train};
use crate::places::place;
use crate::reader::{Form, ReadError, Reader};
use crate::rules::range::End;
use crate::search::Bounds;
use crate::store::{Chain, Facts, NewItem, Store, What};
use crate::verify::Level;

/// Blocks that dictionaries are trained on, spread over what is synced.
const SAMPLE_BLOCKS: u64 = 48;
/// Bytes of samples of a kind: some dozen times the dictionary, and no more than are trained on in a
/// second.
const SAMPLE_BYTES: usize = 2 << 20;

/// What the file is about; it is written to a new one. None if it was told to stop before that was
/// known.
pub(super) fn facts(
    store: &mut Store,
    options: &Options,
    nodes: &Nodes,
    watch: &dyn Watch,
    stop: &AtomicBool,
) -> Result<Option<Facts>, SyncError> {
    let stopped = || stop.load(Ordering::Relaxed);
    let known = store.facts()?;
    if let Some(known) = &known {
        fits(known, options).map_err(SyncError::OtherChain)?;
    }
    let of = known.as_ref().map(|known| &known.chain);
    let Some(chain) = chain(nodes, options.what, of, watch, stop)? else { return Ok(known) };
    nodes.are_of(&chain, options.what);
    if let Some(mut known) = known {
        if let Some(less) = less_verified(&known, options.verify) {
            store.verified(&less)?;
            known.verified = less;
        }
        if !known.untried.is_empty() {
            try_again(store, &mut known, options, nodes, watch, stop)?;
        }
        return Ok(Some(known));
    }
    let (samples, richest) = samples(options, nodes, watch, stop)?;
    let dictionaries: Vec<Dictionary> = Kind::ALL
        .into_iter()
        .map(|kind| {
            let of_kind = samples.iter().filter(|(of, _)| *of == kind);
            train(kind, &of_kind.map(|(_, bytes)| bytes.clone()).collect::<Vec<_>>())
        })
        .filter(|dictionary| !dictionary.bytes.is_empty())
        .collect();
    let mut facts = Facts {
        chain,
        what: options.what,
        verified: match options.verify {
            _ if options.what.hmyv2 => harmony::UNVERIFIED.to_owned(),
            Level::Off => "off: nothing of what nodes said was verified".to_owned(),
            level => level.to_string(),
        },
        unlike: Vec::new(),
        untried: Vec::new(),
    };
    let tried = tried(&facts, &dictionaries, richest.as_ref(), nodes, watch, stop)?;
    (facts.unlike, facts.untried) = (tried.unlike, tried.untried);
    // What is written now is gone by for ever, so it is not made of half of the answers.
    if stopped() {
        return Ok(None);
    }
    store.found(&facts, &dictionaries)?;
    watch.note(&Note::Founded {
        chain: facts.chain.id.clone(),
        unlike: facts.unlike.clone(),
        untried: facts.untried.clone(),
    });
    Ok(Some(facts))
}

/// Tries the forms once more that no block had shown so far.
fn try_again(
    store: &mut Store,
    known: &mut Facts,
    options: &Options,
    nodes: &Nodes,
    watch: &dyn Watch,
    stop: &AtomicBool,
) -> Result<(), SyncError> {
    let (_, richest) = samples(options, nodes, watch, stop)?;
    let dictionaries = store.dictionaries()?;
    let tried = tried(known, &dictionaries, richest.as_ref(), nodes, watch, stop)?;
    // A sample that shows less than the one before says nothing new.
    if stop.load(Ordering::Relaxed) || tried.untried.len() >= known.untried.len() {
        return Ok(());
    }
    store.compared(&tried.unlike, &tried.untried)?;
    (known.unlike, known.untried) = (tried.unlike, tried.untried);
    Ok(())
}

/// What a file is to say if it goes on with less than it was verified with so far.
fn less_verified(facts: &Facts, level: Level) -> Option<String> {
    let before: Level = facts.verified.parse().ok()?;
    (level < before).then(|| match level {
        Level::Off => "off: not all of what nodes said was verified".to_owned(),
        level => level.to_string(),
    })
}

/// The chain of the nodes. Those of another one are left; if the index is of another one, that is an
/// error.
fn chain(
    nodes: &Nodes,
    what: What,
    known: Option<&Chain>,
    watch: &dyn Watch,
    stop: &AtomicBool,
) -> Result<Option<Chain>, SyncError> {
    let calls = chain_calls(what);
    let mut chain = known.cloned();
    let mut others = Vec::new();
    let mut agreed = false;
    let mut last = String::new();
    for at in 0..nodes.len() {
        let read = |replies: &Replies| match no_harmony(replies, what) {
            Some(why) => Ok(Err(why)),
            None => read_chain(replies, what).map(Ok),
        };
        let found = match nodes.ask_one(at, &calls, read, (watch, stop)) {
            Ok(Ok(found)) => found,
            Ok(Err(why)) => {
                last = format!("{}: {why}", nodes.name(at));
                nodes.leave(at, &why, watch);
                continue;
            }
            Err(Some(why)) => {
                last = format!("{}: {why}", nodes.name(at));
                nodes.is_unknown(at);
                continue;
            }
            Err(None) => {
                nodes.is_unknown(at);
                continue;
            }
        };
        match &chain {
            Some(chain) if *chain != found => {
                nodes.leave(at, &foreign(&found), watch);
                others.push(found);
            }
            _ => {
                agreed = true;
                chain = Some(found);
            }
        }
    }
    match (known, others.first(), agreed) {
        (Some(known), Some(other), false) => Err(SyncError::OtherChain(format!(
            "the index is of chain {} (first block {}), the node of chain {} (first block {})",
            known.id,
            show(&known.genesis),
            other.id,
            show(&other.genesis),
        ))),
        (None, _, false) if !stop.load(Ordering::Relaxed) => {
            Err(SyncError::Nodes(if last.is_empty() {
                format!("no node answered: {}", nodes.failures())
            } else {
                last
            }))
        }
        _ => Ok(chain),
    }
}

/// What a chain is known by.
pub(super) fn chain_calls(what: What) -> Vec<Call> {
    let mut calls =
        vec![Call::new("eth_chainId", "[]"), Call::new("eth_getBlockByNumber", r#"["0x0",false]"#)];
    if what.hmyv2 {
        calls.push(Call::new(HARMONY_PROBE, "[]"));
    }
    calls
}

/// Why a node of this chain is left.
pub(super) fn foreign(chain: &Chain) -> String {
    format!("it is on another chain (id {}, first block {})", chain.id, show(&chain.genesis))
}

fn show(hash: &[u8; 32]) -> String {
    let text = crate::pieces::hash_text(hash);
    String::from_utf8_lossy(&text[..10]).into_owned() + "..."
}

/// How often a call is refused before that is believed.
const REFUSALS: u32 = 8;

/// What tells a node of a Harmony chain from others.
const HARMONY_PROBE: &str = "hmyv2_blockNumber";

/// Why a node cannot give Harmony's blocks, if they are wanted and it never will.
fn no_harmony(replies: &Replies, what: What) -> Option<String> {
    let refusal = what.hmyv2.then(|| replies.result(2).err()).flatten()?;
    let why = format!("hmyv2 needs a node of Harmony, and this one has no {HARMONY_PROBE}");
    (refusal.code == NO_METHOD).then(|| format!("{why}: {refusal}"))
}

/// The chain that a node is of.
///
/// # Errors
/// Why that cannot be read.
pub(super) fn read_chain(replies: &Replies, what: What) -> Result<Chain, String> {
    let id = replies.result(0).map_err(|refusal| format!("eth_chainId: {refusal}"))?;
    let id = quantity::from_value(id).ok_or("eth_chainId: no quantity")?;
    let first = replies.result(1).map_err(|refusal| format!("block 0: {refusal}"))?;
    let genesis = walk::member(first, "hash")
        .and_then(block::hash_of_value)
        .ok_or("it does not have block 0, by which a chain is known")?;
    if what.hmyv2 {
        replies.result(2).map_err(|refusal| format!("{HARMONY_PROBE}: {refusal}"))?;
    }
    let family = if what.hmyv2 { "harmony" } else { "ethereum" };
    Ok(Chain { family: family.to_owned(), id: id.to_string(), genesis })
}

/// A block as it came, to compare what is put together with.
struct Sample {
    number: u64,
    block: Vec<u8>,
    receipts: Option<Vec<u8>>,
    logs: Option<Vec<u8>>,
    harmony: Option<Vec<u8>>,
}

impl Sample {
    /// How many transactions its block of Harmony's has, if there is one, of either kind.
    fn counts(&self) -> (u64, u64) {
        self.harmony.as_deref().and_then(harmony::counts).unwrap_or_default()
    }

    fn is_mixed(&self) -> bool {
        matches!(self.counts(), (1.., 1..))
    }

    fn has_logs(&self) -> bool {
        let mut receipts = walk::elements(self.receipts.as_deref().unwrap_or_default());
        receipts.any(|receipt| walk::member(receipt, "logs").is_some_and(|logs| logs.len() > 2))
    }

    fn said(&self) -> Said<'_> {
        Said {
            block: &self.block,
            receipts: self.receipts.as_deref(),
            logs: self.logs.as_deref(),
            harmony: self.harmony.as_deref(),
        }
    }
}

/// Puts an answer together.
type Put<'a> = dyn FnMut(&mut Reader, &mut Vec<u8>) -> Result<(), ReadError> + 'a;
type Samples = Vec<(Kind, Vec<u8>)>;

/// Pieces of blocks spread over what is to be synced, and the block with the most of them. One of
/// Harmony's with transactions of both kinds tells more than any other, and one with logs more than
/// one without.
fn samples(
    options: &Options,
    nodes: &Nodes,
    watch: &dyn Watch,
    stop: &AtomicBool,
) -> Result<(Samples, Option<Sample>), SyncError> {
    let Some(tip) = nodes.tip(watch, stop)? else { return Ok(Default::default()) };
    let first = options.start.unwrap_or(0).min(tip.head);
    let last = match options.end {
        End::At(number) => number.min(tip.head),
        End::Finalized => tip.finalized,
        End::Follow => tip.head,
    };
    // Half of them from what is synced now, half from the whole: a file may be gone on with later.
    let spread = |last: u64| {
        let span = last.max(first) - first;
        (0..SAMPLE_BLOCKS / 2).map(move |at| first + span * at / (SAMPLE_BLOCKS / 2 - 1))
    };
    let mut numbers: Vec<u64> = spread(last).chain(spread(tip.head)).collect();
    numbers.sort_unstable();
    numbers.dedup();
    let mut bytes = [0; Kind::ALL.len()];
    let mut samples = Vec::new();
    let mut richest: Option<((bool, bool, usize), Sample)> = None;
    for number in numbers {
        let Some(sample) = sample(options.what, number, nodes, watch, stop)? else { continue };
        let pieces = cut::samples(sample.said(), options.what).unwrap_or_default();
        let rank = (sample.is_mixed(), sample.has_logs(), pieces.len());
        for (kind, piece) in pieces {
            bytes[kind as usize] += piece.len();
            if bytes[kind as usize] < SAMPLE_BYTES {
                samples.push((kind, piece));
            }
        }
        if richest.as_ref().is_none_or(|(most, _)| rank > *most) {
            richest = Some((rank, sample));
        }
    }
    Ok((samples, richest.map(|(_, sample)| sample)))
}

fn sample(
    what: What,
    number: u64,
    nodes: &Nodes,
    watch: &dyn Watch,
    stop: &AtomicBool,
) -> Result<Option<Sample>, SyncError> {
    let whole = what.blocks || what.receipts;
    let mut calls = vec![Call::new("eth_getBlockByNumber", format!(r#"["{number:#x}",{whole}]"#))];
    if what.receipts {
        calls.push(Call::new("eth_getBlockReceipts", format!(r#"["{number:#x}"]"#)));
    } else if what.logs {
        let range = format!(r#"[{{"fromBlock":"{number:#x}","toBlock":"{number:#x}"}}]"#);
        calls.push(Call::new("eth_getLogs", range));
    }
    if what.hmyv2 {
        calls.push(harmony_call((number, number), harmony::WHOLE_OPTIONS));
    }
    let Some(replies) = nodes.ask(&calls, watch, stop)? else { return Ok(None) };
    let array = |at: usize| {
        let raw = replies.result(at).ok().filter(|raw| raw.first() == Some(&b'['));
        raw.map(<[u8]>::to_vec)
    };
    let block = replies.result(0).ok().filter(|raw| raw.first() == Some(&b'{'));
    let Some(block) = block else { return Ok(None) };
    let mut receipts = what.receipts.then(|| array(1)).flatten();
    if what.receipts && receipts.is_none() {
        receipts = one_by_one(block, nodes, watch, stop)?;
    }
    if what.receipts && receipts.is_none() {
        return Ok(None);
    }
    let logs = (what.logs && !what.receipts).then(|| array(1)).flatten();
    let harmony = match what.hmyv2 {
        true => {
            array(calls.len() - 1).and_then(|list| walk::elements(&list).next().map(<[u8]>::to_vec))
        }
        false => None,
    };
    if what.hmyv2 && harmony.is_none() {
        return Ok(None);
    }
    Ok(Some(Sample { number, block: block.to_vec(), receipts, logs, harmony }))
}

/// The receipts of a block from a node that gives them one by one only.
fn one_by_one(
    block: &[u8],
    nodes: &Nodes,
    watch: &dyn Watch,
    stop: &AtomicBool,
) -> Result<Option<Vec<u8>>, SyncError> {
    let mut all = b"[".to_vec();
    for some in receipt_calls(block).chunks(RECEIPTS_AT_ONCE) {
        let Some(replies) = nodes.ask(some, watch, stop)? else { return Ok(None) };
        for at in 0..some.len() {
            let Ok(raw) = replies.result(at) else { return Ok(None) };
            if all.len() > 1 {
                all.push(b',');
            }
            all.extend_from_slice(raw);
        }
    }
    all.push(b']');
    Ok(Some(all))
}

/// Which forms of answers are to be left to nodes.
#[derive(Default)]
struct Tried {
    /// The node does not make them of the same pieces.
    unlike: Vec<String>,
    /// The sample has nothing of what they could differ in.
    untried: Vec<String>,
}

/// Which answers the node does not make of the same pieces: found by putting them together from a
/// file in memory and comparing them with the node's own.
fn tried(
    facts: &Facts,
    dictionaries: &[Dictionary],
    sample: Option<&Sample>,
    nodes: &Nodes,
    watch: &dyn Watch,
    stop: &AtomicBool,
) -> Result<Tried, SyncError> {
    let mut tried = Tried::default();
    let What { blocks, receipts, logs, hmyv2 } = facts.what;
    let mut leave = |forms: &[(&str, bool)]| {
        let kept = forms.iter().filter(|(_, kept)| *kept);
        tried.untried.extend(kept.map(|(form, _)| (*form).to_owned()));
    };
    // How a node leaves out staking transactions shows without any too.
    if sample.is_none_or(|sample| sample.counts() == (0, 0)) {
        leave(&[(HASHES, hmyv2)]);
    }
    let of_transactions = [("hashes", blocks), ("transaction", blocks), ("receipt", receipts)];
    let of_logs = [("logs", receipts && logs)];
    let Some(sample) = sample else {
        leave(&of_transactions);
        leave(&of_logs);
        return Ok(tried);
    };
    let mut store = Store::in_memory()?;
    store.found(facts, dictionaries)?;
    let rows = cut::cut(&mut Packer::new(dictionaries)?, sample.said(), facts.what)
        .map_err(|error| SyncError::Nodes(format!("block {}: {error}", sample.number)))?;
    store.append(std::slice::from_ref(&rows), 0)?;
    let reader = Reader::over(store)?.expect("a block was appended");
    let mut compare = Compare { reader, unlike: Vec::new(), nodes, watch, stop };
    let items = &rows.items;
    let with_logs = items.iter().find(|item| !item.keys.is_empty());
    if with_logs.is_none() {
        leave(&of_logs);
    }
    match with_logs.or(items.first()) {
        Some(item) => compare.ethereum(facts.what, sample.number, item)?,
        None => leave(&of_transactions),
    }
    if hmyv2 {
        compare.harmony(sample.number)?;
    }
    tried.unlike = compare.unlike;
    Ok(tried)
}

/// Holds what is put together against what the node says.
struct Compare<'a> {
    /// Of a file that has one block.
    reader: Reader,
    unlike: Vec<String>,
    nodes: &'a Nodes,
    watch: &'a dyn Watch,
    stop: &'a AtomicBool,
}

impl Compare<'_> {
    /// What a node says to a call. A refusal is believed if it comes again and again, since what it
    /// leads to is kept for good.
    fn asked(&self, call: &[Call]) -> Result<Option<Replies>, SyncError> {
        for _ in 1..REFUSALS {
            let Some(replies) = self.nodes.ask(call, self.watch, self.stop)? else {
                return Ok(None);
            };
            let passing = replies.result(0).is_err_and(|refusal| refusal.code != NO_METHOD);
            if !passing {
                return Ok(Some(replies));
            }
        }
        self.nodes.ask(call, self.watch, self.stop)
    }

    fn form(&mut self, name: &str, call: Call, read: &mut Put<'_>) -> Result<(), SyncError> {
        let Some(replies) = self.asked(&[call])? else { return Ok(()) };
        let mut ours = Vec::new();
        read(&mut self.reader, &mut ours)?;
        let theirs = replies
            .result(0)
            .ok()
            .map(|raw| crate::pieces::compacted(raw).unwrap_or_else(|| raw.to_vec()));
        if theirs.as_deref() != Some(ours.as_slice()) {
            self.unlike.push(name.to_owned());
        }
        Ok(())
    }

    /// The answers of `eth_` methods about the block and one of its transactions.
    fn ethereum(&mut self, what: What, number: u64, item: &NewItem) -> Result<(), SyncError> {
        let at = place(number, item.index);
        let hash = String::from_utf8_lossy(&crate::pieces::hash_text(&item.hash)).into_owned();
        if what.blocks {
            let call = Call::new("eth_getBlockByNumber", format!(r#"["{number:#x}",false]"#));
            self.form("hashes", call, &mut |reader, out| {
                reader.block(out, number, Form::Hash).map(|_| ())
            })?;
            let call = Call::new("eth_getTransactionByHash", format!(r#"["{hash}"]"#));
            self.form("transaction", call, &mut |reader, out| {
                reader.item(out, at, Form::Whole).map(|_| ())
            })?;
        }
        if what.receipts {
            let call = Call::new("eth_getTransactionReceipt", format!(r#"["{hash}"]"#));
            self.form("receipt", call, &mut |reader, out| {
                reader.item(out, at, Form::Receipt).map(|_| ())
            })?;
        }
        if what.receipts && what.logs {
            let call = Call::new(
                "eth_getLogs",
                format!(r#"[{{"fromBlock":"{number:#x}","toBlock":"{number:#x}"}}]"#),
            );
            self.form("logs", call, &mut |reader, out| {
                out.push(b'[');
                let bounds = Bounds::NONE;
                reader.logs(out, &Selection::default(), (number, number), bounds)?;
                out.push(b']');
                Ok(())
            })?;
        }
        Ok(())
    }

    /// The forms in which `hmyv2_` methods write the block.
    fn harmony(&mut self, number: u64) -> Result<(), SyncError> {
        let forms = [(false, true, HASHES), (true, false, WITHOUT_STAKING)];
        for (whole, staking, name) in forms {
            let form = harmony::Form { whole, staking };
            let call = harmony_call((number, number), &form.options());
            self.form(name, call, &mut |reader, out| {
                out.push(b'[');
                reader.harmony_block(out, number, form)?;
                out.push(b']');
                Ok(())
            })?;
        }
        let kept = harmony::Form::KEPT;
        let params = format!("[{number},{}]", kept.options());
        self.form(SINGLE, Call::new("hmyv2_getBlockByNumber", params), &mut |reader, out| {
            reader.harmony_block(out, number, kept).map(|_| ())
        })?;
        let call = Call::new("hmyv2_getBlockTransactionCountByNumber", format!("[{number}]"));
        self.form(COUNT, call, &mut |reader, out| reader.harmony_count(out, number).map(|_| ()))
    }
}
