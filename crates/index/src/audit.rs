//! Whether a file is what it must be: looked through whole, without asking anyone.
//!
//! Everything that is kept twice is compared: rows with what they are put together to, hashes with
//! the rows that they lead to, lists of logs with the logs. What is kept once is held against the
//! block's hash by [`crate::verify`], and blocks against each other by their links. What no hash
//! binds is said there; whether the chain is the one that others follow is not decided here.
//!
//! Memory does not grow with the file but for two numbers per 256 blocks.

mod lists;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};

use wire::json;
use wire::json::walk;
use wire::logs::{self, Selection};
use wire::quantity;

use self::lists::{Sums, Window};
use crate::cut::Header;
use crate::harmony;
use crate::places::{INDEX_MAX, keys_of, parts, place};
use crate::reader::{Form, ReadError, Reader};
use crate::search::Bounds;
use crate::store::{BlockRow, Held, StoreError, Wanted};
use crate::verify::{self, Level};

/// So many findings are told; the search ends with the last of them. Whoever has twenty does not
/// need the others to know what to do.
pub const FINDINGS_MAX: usize = 20;
/// Nested arrays and objects in what is kept, as in what nodes may say.
const DEPTH_MAX: usize = 64;

/// Something that is not as it must be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// In which block, if it is in one.
    pub block: Option<u64>,
    /// What.
    pub what: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.block {
            Some(number) => write!(f, "block {number}: {}", self.what),
            None => f.write_str(&self.what),
        }
    }
}

/// What was found in a file.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Findings {
    /// From where to where the file goes; none if there is nothing in it.
    pub held: Option<Held>,
    /// What is wrong, at most [`FINDINGS_MAX`].
    pub all: Vec<Finding>,
    /// Blocks whose transactions or receipts are of a kind that cannot be verified.
    pub unverifiable: u64,
    /// Whether it was told to stop before the end.
    pub stopped: bool,
}

/// How far it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// SQLite's own structures are looked at, which takes as long as reading the file.
    Structures,
    /// The lists of logs are summed up.
    Lists,
    /// A block was looked at.
    Block {
        /// The first one.
        first: u64,
        /// This one.
        at: u64,
        /// The last one.
        last: u64,
    },
}

/// Looks through a file, and holds what is in it against the hashes as closely as `level` says.
///
/// # Errors
/// If the file cannot be read at all; damages of what is in it are findings.
pub fn audit(
    reader: &mut Reader,
    level: Level,
    watch: &mut dyn FnMut(Step),
    stop: &AtomicBool,
) -> Result<Findings, ReadError> {
    reader.store().begin_reading()?;
    let mut audit = Audit { reader, level, stop, findings: Findings::default(), before: None };
    let done = audit.run(watch);
    let findings = audit.findings;
    reader.store().end_reading()?;
    done.map(|_| findings)
}

struct Audit<'a> {
    reader: &'a mut Reader,
    level: Level,
    stop: &'a AtomicBool,
    findings: Findings,
    /// Number and hash of the block before.
    before: Option<(u64, [u8; 32])>,
}

/// It has enough, or was told to stop.
struct Enough;

type Going = std::ops::ControlFlow<Enough>;
const ON: Going = Going::Continue(());

impl Audit<'_> {
    fn run(&mut self, watch: &mut dyn FnMut(Step)) -> Result<Going, ReadError> {
        watch(Step::Structures);
        for flaw in self.reader.store().flaws()? {
            if self.tell(None, format!("SQLite: {flaw}")).is_break() {
                return Ok(Going::Break(Enough));
            }
        }
        if self.dictionaries()?.is_break() {
            return Ok(Going::Break(Enough));
        }
        let held = match self.reader.held() {
            Err(error) => return self.damage(None, error),
            Ok(held) => held,
        };
        self.findings.held = held;
        let Some(held) = held else { return Ok(ON) };
        if self.ends(held)?.is_break() {
            return Ok(Going::Break(Enough));
        }
        watch(Step::Lists);
        let mut sums = match Sums::of(self.reader.store(), held, self.stop) {
            Err(error) => match self.damage(None, error)? {
                Going::Continue(()) => None,
                enough => return Ok(enough),
            },
            Ok((sums, odd)) => {
                for what in odd {
                    if self.tell(None, what).is_break() {
                        return Ok(Going::Break(Enough));
                    }
                }
                Some(sums)
            }
        };
        if self.blocks(held, &mut sums, watch)?.is_break() {
            return Ok(Going::Break(Enough));
        }
        self.strays(sums)
    }

    /// Notes a finding.
    fn tell(&mut self, block: Option<u64>, what: impl Into<String>) -> Going {
        self.findings.all.push(Finding { block, what: what.into() });
        if self.findings.all.len() >= FINDINGS_MAX { Going::Break(Enough) } else { ON }
    }

    /// Notes what could not be read, if that is for what stands in the file.
    fn damage(&mut self, block: Option<u64>, error: ReadError) -> Result<Going, ReadError> {
        match error {
            ReadError::Pack(error) => Ok(self.tell(block, error.to_string())),
            ReadError::Store(StoreError::Damaged(what)) => {
                let said = block.map(|number| format!("block {number}, ")).unwrap_or_default();
                Ok(self.tell(block, what.strip_prefix(&said).unwrap_or(&what)))
            }
            // A column that holds something of another type, or of another length.
            ReadError::Store(StoreError::Sqlite(error)) => Ok(self.tell(block, error.to_string())),
            error => Err(error),
        }
    }

    /// Whether the dictionaries are as they were: a piece shows a changed byte only if it refers to
    /// that byte.
    fn dictionaries(&mut self) -> Result<Going, ReadError> {
        match self.reader.store().dictionaries_match() {
            Ok(Some(false)) => {
                let what = "the dictionaries are not those that the index was made with";
                Ok(self.tell(None, what))
            }
            Ok(_) => Ok(ON),
            Err(error) => self.damage(None, error.into()),
        }
    }

    /// Whether the ends of the file are where it says.
    fn ends(&mut self, held: Held) -> Result<Going, ReadError> {
        let first = self.reader.store().block_from(0)?;
        if first != Some(held.first) {
            let is = first.map_or("nothing is there".to_owned(), |first| {
                format!("block {first} is the first that is there")
            });
            let what = format!("the index says that it begins with block {}, but {is}", held.first);
            if self.tell(None, what).is_break() {
                return Ok(Going::Break(Enough));
            }
        }
        if self.reader.store().has_negative()? {
            return Ok(self.tell(None, "there are blocks or transactions with negative numbers"));
        }
        Ok(ON)
    }

    fn blocks(
        &mut self,
        held: Held,
        sums: &mut Option<Sums>,
        watch: &mut dyn FnMut(Step),
    ) -> Result<Going, ReadError> {
        let mut window = Window::default();
        let mut next = held.first;
        while let Some(number) = self.reader.store().block_from(next)? {
            if self.stop.load(Ordering::Relaxed) {
                self.findings.stopped = true;
                return Ok(Going::Break(Enough));
            }
            if number > next {
                let what = if number == next + 1 {
                    "it is not there".to_owned()
                } else {
                    format!("it and those after it up to {} are not there", number - 1)
                };
                if self.tell(Some(next), what).is_break() {
                    return Ok(Going::Break(Enough));
                }
            }
            // The lists of what is not there are no finding of their own.
            let gap = number > next;
            if gap {
                window.spoil();
            }
            if !window.has(number) && self.close(&mut window, sums)?.is_break() {
                return Ok(Going::Break(Enough));
            }
            if gap {
                window.spoil();
            }
            let looked = self.block(number, &mut window);
            let going = match looked {
                Ok(going) => going,
                Err(error) => {
                    // What its logs are found by is not known, then.
                    window.spoil();
                    self.damage(Some(number), error)?
                }
            };
            if going.is_break() {
                return Ok(going);
            }
            watch(Step::Block { first: held.first, at: number, last: held.last });
            let Some(after) = number.checked_add(1) else { break };
            next = after;
        }
        self.close(&mut window, sums)
    }

    /// Compares the lists of some blocks with their logs.
    fn close(&mut self, window: &mut Window, sums: &mut Option<Sums>) -> Result<Going, ReadError> {
        let Some(sums) = sums else { return Ok(ON) };
        for (number, what) in window.close(sums, self.reader.store(), FINDINGS_MAX)? {
            if self.tell(Some(number), what).is_break() {
                return Ok(Going::Break(Enough));
            }
        }
        Ok(ON)
    }

    fn block(&mut self, number: u64, window: &mut Window) -> Result<Going, ReadError> {
        window.begin(number);
        let Some((row, of)) = self.reader.row(number)? else { return Ok(ON) };
        let mut faults = self.items(&row)?;
        if !faults.is_empty() {
            // Where transactions are missing, their logs are too.
            window.spoil();
        }
        let what = self.reader.facts().what;
        let mut raw = Vec::new();
        self.reader.block(&mut raw, number, Form::Whole)?;
        let (mut receipts, mut logs) = (None, None);
        if what.receipts {
            let mut list = Vec::new();
            self.reader.list(&mut list, &of, number, Form::Receipt)?;
            receipts = Some(list);
        } else if what.logs {
            let mut list = b"[".to_vec();
            let bounds = Bounds::NONE;
            self.reader.logs(&mut list, &Selection::default(), (number, number), bounds)?;
            list.push(b']');
            logs = Some(list);
        }
        let said = Kept { raw: &raw, receipts: receipts.as_deref(), logs: logs.as_deref() };
        faults.extend(row_faults(&row, said.raw, self.before));
        faults.extend(self.hash_fault(&row)?);
        if let Err(why) = said.check(self.level, what.blocks) {
            match why {
                Doubt::Fault(why) => faults.push(why),
                Doubt::Unverifiable => self.findings.unverifiable += 1,
            }
        }
        if what.hmyv2 {
            faults.extend(self.harmony_fault(&row)?);
        }
        if what.logs {
            said.note(number, window);
        }
        self.before = Some((number, row.hash));
        for what in faults {
            if self.tell(Some(number), what).is_break() {
                return Ok(Going::Break(Enough));
            }
        }
        Ok(ON)
    }

    /// What is wrong with a block as Harmony's own methods write it.
    fn harmony_fault(&mut self, row: &BlockRow) -> Result<Option<String>, ReadError> {
        let mut raw = Vec::new();
        if !self.reader.harmony_block(&mut raw, row.number, harmony::Form::KEPT)? {
            return Ok(Some("its hmyv2 form is not there".to_owned()));
        }
        if let Err(fault) = json::check(&raw, DEPTH_MAX) {
            return Ok(Some(format!("hmyv2 block: no JSON: {fault}")));
        }
        Ok(harmony::fits(&raw, row.number, &row.hash).err())
    }

    /// What is wrong with the rows of the transactions of a block.
    fn items(&mut self, row: &BlockRow) -> Result<Vec<String>, ReadError> {
        let store = self.reader.store();
        let mut rows = Vec::new();
        let (from, to) = (place(row.number, 0), place(row.number, INDEX_MAX));
        store.items(from, to, Wanted::Hash, |item| {
            rows.push((item.place, item.hash));
            Ok::<_, ReadError>(true)
        })?;
        let mut faults = Vec::new();
        if rows.len() as u64 != row.count {
            let count = rows.len();
            faults.push(format!("{count} transactions, where it says that it has {}", row.count));
        }
        let hole = rows.iter().enumerate().find(|(at, (place, _))| *at as u64 != parts(*place).1);
        if let Some((at, _)) = hole {
            faults.push(format!("transaction {at} is not there"));
        }
        if let Some(place) = store.unled(&rows)? {
            let index = parts(place).1;
            faults.push(format!("the hash of transaction {index} does not lead to it"));
        }
        Ok(faults)
    }

    fn hash_fault(&self, row: &BlockRow) -> Result<Option<String>, ReadError> {
        let leads = self.reader.store().leads_to_block(&row.hash, row.number)?;
        Ok((!leads).then(|| "its hash does not lead to it".to_owned()))
    }

    /// What belongs to no block: each table has as much as the blocks told, or is looked through.
    fn strays(&mut self, sums: Option<Sums>) -> Result<Going, ReadError> {
        let store = self.reader.store();
        let mut strays = Vec::new();
        let (blocks, items) = store.leads()?;
        let at = |place: i64| (parts(place).0, parts(place).1);
        if blocks.entries != blocks.rows {
            for number in store.stray_block_hashes(FINDINGS_MAX)? {
                strays.push((number as u64, "a hash that is not its own leads to it".to_owned()));
            }
        }
        if items.entries != items.rows {
            for (number, index) in store.stray_item_hashes(FINDINGS_MAX)?.into_iter().map(at) {
                let what = format!("a hash that is not its own leads to transaction {index}");
                strays.push((number, what));
            }
        }
        for (number, index) in store.stray_items(FINDINGS_MAX)?.into_iter().map(at) {
            strays.push((number, format!("transaction {index} is there without its block")));
        }
        for number in store.stray_harmony(FINDINGS_MAX)? {
            strays.push((number as u64, "its hmyv2 form is there without it".to_owned()));
        }
        for (number, what) in sums.map(Sums::left).unwrap_or_default() {
            strays.push((number, what));
        }
        for (number, what) in strays {
            if self.tell(Some(number), what).is_break() {
                return Ok(Going::Break(Enough));
            }
        }
        Ok(ON)
    }
}

/// What is wrong between the row of a block, what it is put together to, and the one before.
fn row_faults(row: &BlockRow, raw: &[u8], before: Option<(u64, [u8; 32])>) -> Vec<String> {
    let header = match Header::read(raw) {
        Ok(header) => header,
        Err(error) => return vec![error.to_string()],
    };
    let mut faults = Vec::new();
    let pairs = [
        ("number", header.number == row.number),
        ("hash", header.hash == row.hash),
        ("time", header.time == row.time),
    ];
    for (name, _) in pairs.iter().filter(|(_, same)| !same) {
        faults.push(format!("its {name} is another in its row than in itself"));
    }
    if let Some((_, hash)) = before.filter(|(number, _)| number + 1 == row.number)
        && header.parent != hash
    {
        faults.push("its parentHash is not the hash of the block before".to_owned());
    }
    let listed = walk::member(raw, "transactions").unwrap_or_default();
    let count = walk::elements(listed).count() as u64;
    if count != row.count {
        faults.push(format!("it lists {count} transactions, and {} in its row", row.count));
    }
    faults
}

/// A block as it was put together.
#[derive(Clone, Copy)]
struct Kept<'a> {
    raw: &'a [u8],
    receipts: Option<&'a [u8]>,
    logs: Option<&'a [u8]>,
}

enum Doubt {
    Fault(String),
    Unverifiable,
}

impl From<verify::Fault> for Doubt {
    fn from(fault: verify::Fault) -> Doubt {
        if fault.is_unverifiable() { Doubt::Unverifiable } else { Doubt::Fault(fault.to_string()) }
    }
}

impl Kept<'_> {
    /// Whether it is JSON, and what the hash binds.
    fn check(self, level: Level, whole: bool) -> Result<(), Doubt> {
        let parts = [("block", Some(self.raw)), ("receipts", self.receipts), ("logs", self.logs)];
        for (name, raw) in parts {
            if let Some(Err(fault)) = raw.map(|raw| json::check(raw, DEPTH_MAX)) {
                return Err(Doubt::Fault(format!("{name}: no JSON: {fault}")));
            }
        }
        let block = match whole {
            true => verify::block(self.raw, level)?,
            false => verify::header(self.raw, level)?,
        };
        if let Some(receipts) = self.receipts {
            verify::receipts(&block, receipts, level)?;
        }
        if let Some(logs) = self.logs {
            verify::logs(&block, logs, level)?;
        }
        Ok(())
    }

    /// Notes what its logs are found by.
    fn note(self, number: u64, window: &mut Window) {
        let mut note = |index: u64, log: &[u8]| match logs::keys_of(log) {
            Some((address, topics)) => {
                for key in keys_of(&address, &topics) {
                    window.note(key, place(number, index));
                }
            }
            // That is a fault of its own, told before.
            None => window.spoil(),
        };
        for (index, receipt) in walk::elements(self.receipts.unwrap_or_default()).enumerate() {
            for log in walk::elements(walk::member(receipt, "logs").unwrap_or_default()) {
                note(index as u64, log);
            }
        }
        for log in walk::elements(self.logs.unwrap_or_default()) {
            let index = walk::member(log, "transactionIndex").and_then(quantity::from_value);
            note(index.unwrap_or(INDEX_MAX), log);
        }
    }
}
