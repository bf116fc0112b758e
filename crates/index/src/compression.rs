//! Compression of fragments: zstd with one dictionary per kind of fragment, trained on blocks of
//! the chain.
//!
//! A fragment is a part of a block's JSON (`fragments.rs`) and has a few hundred bytes. Most of
//! these bytes are member names that all fragments of a kind share, so the dictionary holds these
//! names. A compressed fragment begins with the number of its dictionary in one byte. An index
//! never deletes a dictionary, because stored fragments need it.

use std::sync::Arc;

use zstd::bulk;
use zstd::zstd_safe::{self, CParameter};

#[cfg(test)]
mod tests;

/// The compression level of zstd. Higher levels take longer and gain nothing on such short
/// fragments.
const LEVEL: i32 = 1;
/// Maximum number of bytes of a dictionary. A larger dictionary hardly improves the compression. It
/// would be slower, because it exceeds the caches of a processor core.
const DICTIONARY_BYTES: usize = 32 << 10;
/// Minimum number of samples for the training. With fewer samples, there is no training: the bytes
/// of the samples are the dictionary.
const SAMPLES_MIN: usize = 32;
/// Maximum number of bytes of a decompressed fragment. The limit bounds the memory that a reader
/// allocates for a damaged fragment.
const FRAGMENT_BYTES_MAX: usize = 256 << 20;

/// The kind of a fragment. Fragments of one kind share a dictionary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FragmentKind {
    /// A block without its transactions.
    Block = 0,
    /// A transaction.
    Transaction = 1,
    /// A receipt, or the logs of a transaction if the index holds logs without receipts.
    Receipt = 2,
    /// A block as Harmony's `hmyv2_` methods write it.
    HarmonyBlock = 3,
}

impl FragmentKind {
    /// All kinds.
    pub const ALL: [FragmentKind; 4] = [
        FragmentKind::Block,
        FragmentKind::Transaction,
        FragmentKind::Receipt,
        FragmentKind::HarmonyBlock,
    ];
}

/// The dictionaries of an index in the order of their numbers, which start at 1. The last
/// dictionary of each kind compresses new fragments.
pub type Dictionaries = Arc<Vec<Dictionary>>;

/// A zstd dictionary.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dictionary {
    /// The kind of fragments on which the dictionary was trained.
    pub kind: FragmentKind,
    /// The dictionary in zstd's format, or raw content.
    pub bytes: Vec<u8>,
}

/// Trains a dictionary on these samples.
pub fn train(kind: FragmentKind, samples: &[Vec<u8>]) -> Dictionary {
    let trained = if samples.len() < SAMPLES_MIN {
        None
    } else {
        zstd::dict::from_samples(samples, DICTIONARY_BYTES).ok()
    };
    // zstd accepts any bytes as a dictionary. If the samples are too long, their last bytes are
    // kept: zstd needs the fewest bytes to refer to the end of a dictionary.
    let bytes = trained.unwrap_or_else(|| {
        let content: Vec<u8> = samples.iter().flatten().copied().collect();
        content[content.len().saturating_sub(DICTIONARY_BYTES)..].to_vec()
    });
    Dictionary { kind, bytes }
}

/// Compresses fragments. Each thread needs its own compressor.
pub struct Compressor {
    /// For each kind, the number of its dictionary and the compressor that uses the dictionary. The
    /// number is 0 without a dictionary.
    by_kind: [(u8, bulk::Compressor<'static>); FragmentKind::ALL.len()],
    /// Holds a compressed fragment until its length is known.
    buffer: Vec<u8>,
}

/// A failure of zstd, or a stored fragment that is damaged.
#[derive(Debug, thiserror::Error)]
#[error("{subject}: {reason}")]
pub struct CompressionError {
    subject: &'static str,
    reason: String,
}

/// Returns the function that maps an error of zstd. `subject` names the operation or the data.
fn zstd_error(subject: &'static str) -> impl Fn(std::io::Error) -> CompressionError {
    move |error| CompressionError { subject, reason: error.to_string() }
}

impl Compressor {
    /// Creates a compressor that uses the newest dictionary of each kind.
    ///
    /// # Errors
    /// Fails if zstd cannot be set up.
    pub fn new(dictionaries: &[Dictionary]) -> Result<Compressor, CompressionError> {
        let new_compressor = |kind: FragmentKind| -> Result<_, CompressionError> {
            let newest = dictionaries.iter().rposition(|dictionary| dictionary.kind == kind);
            let (number, bytes) = match newest {
                Some(index) => (index as u8 + 1, dictionaries[index].bytes.as_slice()),
                None => (0, [].as_slice()),
            };
            let set_up_error = zstd_error("zstd cannot be set up");
            let mut compressor =
                bulk::Compressor::with_dictionary(LEVEL, bytes).map_err(&set_up_error)?;
            // A compressed fragment already begins with the dictionary's number in one byte. zstd's
            // own number would take four.
            compressor.set_parameter(CParameter::DictIdFlag(false)).map_err(set_up_error)?;
            Ok((number, compressor))
        };
        let [block, transaction, receipt, harmony] = FragmentKind::ALL.map(new_compressor);
        Ok(Compressor { by_kind: [block?, transaction?, receipt?, harmony?], buffer: Vec::new() })
    }

    /// Compresses a fragment.
    ///
    /// # Errors
    /// Fails if zstd cannot allocate memory.
    pub fn compress(
        &mut self,
        kind: FragmentKind,
        fragment: &[u8],
    ) -> Result<Vec<u8>, CompressionError> {
        let (number, compressor) = &mut self.by_kind[kind as usize];
        let buffer = &mut self.buffer;
        buffer.clear();
        buffer.reserve(1 + zstd_safe::compress_bound(fragment.len()));
        buffer.push(*number);
        let mut cursor = std::io::Cursor::new(&mut *buffer);
        cursor.set_position(1);
        compressor.compress_to_buffer(fragment, &mut cursor).map_err(zstd_error("zstd"))?;
        Ok(buffer.clone())
    }
}

/// Decompresses fragments. Each thread needs its own decompressor.
pub struct Decompressor {
    /// The decompressors by the number of their dictionary. Number 0 has no dictionary.
    by_number: Vec<bulk::Decompressor<'static>>,
}

impl Decompressor {
    /// Creates a decompressor that knows these dictionaries.
    ///
    /// # Errors
    /// Fails if zstd rejects a dictionary.
    pub fn new(dictionaries: &[Dictionary]) -> Result<Decompressor, CompressionError> {
        let dictionary_bytes = std::iter::once([].as_slice())
            .chain(dictionaries.iter().map(|dictionary| dictionary.bytes.as_slice()));
        let by_number = dictionary_bytes
            .map(|bytes| {
                bulk::Decompressor::with_dictionary(bytes).map_err(zstd_error("zstd dictionary"))
            })
            .collect::<Result<_, _>>()?;
        Ok(Decompressor { by_number })
    }

    /// Replaces the content of `out` by the fragment.
    ///
    /// # Errors
    /// Fails if `compressed` is not a compressed fragment, which means that the index is damaged.
    pub fn decompress(
        &mut self,
        out: &mut Vec<u8>,
        compressed: &[u8],
    ) -> Result<(), CompressionError> {
        const DAMAGED: &str = "a damaged fragment";
        let damaged_error =
            |reason: &str| CompressionError { subject: DAMAGED, reason: reason.to_owned() };
        let (number, frame) =
            compressed.split_first().ok_or_else(|| damaged_error("it is empty"))?;
        let decompressor = self
            .by_number
            .get_mut(usize::from(*number))
            .ok_or_else(|| damaged_error("its dictionary is missing"))?;
        let bytes = zstd_safe::get_frame_content_size(frame)
            .ok()
            .flatten()
            .filter(|bytes| *bytes <= FRAGMENT_BYTES_MAX as u64)
            .ok_or_else(|| damaged_error("it does not state its length"))?;
        out.clear();
        out.reserve(bytes as usize);
        decompressor.decompress_to_buffer(frame, out).map_err(zstd_error(DAMAGED))?;
        Ok(())
    }
}
