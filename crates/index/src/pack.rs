//! Pieces made small: zstd with a dictionary per kind of piece, trained on the chain's own.
//!
//! A piece has few hundred bytes, of which most are names of members that all its like have. The
//! dictionary knows those; what is left is about what the piece tells. Dictionaries stay in the
//! file for ever, since old pieces need them; a packed piece begins with the number of its own.

use std::sync::Arc;

use zstd::bulk::{Compressor, Decompressor};
use zstd::zstd_safe::CParameter;

#[cfg(test)]
mod tests;

/// Level of compression. Those above take longer and gain nothing on pieces this short.
const LEVEL: i32 = 1;
/// Bytes of a dictionary. A greater one finds little more, and is slower as it leaves the core's
/// caches.
const DICTIONARY_BYTES: usize = 32 << 10;
/// Fewer samples than that train nothing; they become the dictionary themselves.
const SAMPLES_MIN: usize = 32;
/// Longest piece that is unpacked, in bytes: no file may ask for more memory than that.
const PIECE_MAX: usize = 256 << 20;

/// What pieces are alike in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A block without its transactions.
    Block = 0,
    /// A transaction.
    Transaction = 1,
    /// A receipt, or the logs of a transaction.
    Receipt = 2,
    /// A block as Harmony's own methods write it.
    HarmonyBlock = 3,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Kind; 4] = [Kind::Block, Kind::Transaction, Kind::Receipt, Kind::HarmonyBlock];
}

/// The dictionaries of a file, in the order of their numbers, from 1. The last of a kind packs.
pub type Dictionaries = Arc<Vec<Dictionary>>;

/// What pieces of a kind have in common.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dictionary {
    /// Whose.
    pub kind: Kind,
    /// In the form of zstd.
    pub bytes: Vec<u8>,
}

/// A dictionary of what these samples have in common.
pub fn train(kind: Kind, samples: &[Vec<u8>]) -> Dictionary {
    let trained = if samples.len() < SAMPLES_MIN {
        None
    } else {
        zstd::dict::from_samples(samples, DICTIONARY_BYTES).ok()
    };
    // Any bytes will do as a dictionary; the last ones are the cheapest to refer to.
    let bytes = trained.unwrap_or_else(|| {
        let all: Vec<u8> = samples.iter().flatten().copied().collect();
        all[all.len().saturating_sub(DICTIONARY_BYTES)..].to_vec()
    });
    Dictionary { kind, bytes }
}

/// Packs pieces; one for each thread that does.
pub struct Packer {
    /// By kind, with the number of its dictionary.
    kinds: [(u8, Compressor<'static>); Kind::ALL.len()],
    /// Room for a piece before its length is known.
    room: Vec<u8>,
}

/// A library's own failure.
#[derive(Debug, thiserror::Error)]
#[error("{what}: {why}")]
pub struct PackError {
    what: &'static str,
    why: String,
}

fn failed(what: &'static str) -> impl Fn(std::io::Error) -> PackError {
    move |error| PackError { what, why: error.to_string() }
}

impl Packer {
    /// With the newest dictionary of each kind.
    ///
    /// # Errors
    /// If the compressor cannot be set up.
    pub fn new(dictionaries: &[Dictionary]) -> Result<Packer, PackError> {
        let of = |kind: Kind| -> Result<(u8, Compressor<'static>), PackError> {
            let newest = dictionaries.iter().rposition(|dictionary| dictionary.kind == kind);
            let (number, bytes) = match newest {
                Some(at) => (at as u8 + 1, dictionaries[at].bytes.as_slice()),
                None => (0, [].as_slice()),
            };
            let set_up = failed("zstd cannot be set up");
            let mut compressor = Compressor::with_dictionary(LEVEL, bytes).map_err(&set_up)?;
            // The piece says whose it is in one byte; zstd would take four.
            compressor.set_parameter(CParameter::DictIdFlag(false)).map_err(set_up)?;
            Ok((number, compressor))
        };
        let [block, transaction, receipt, harmony] = Kind::ALL.map(of);
        Ok(Packer { kinds: [block?, transaction?, receipt?, harmony?], room: Vec::new() })
    }

    /// The piece packed.
    ///
    /// # Errors
    /// If memory is short.
    pub fn pack(&mut self, kind: Kind, piece: &[u8]) -> Result<Vec<u8>, PackError> {
        let (number, compressor) = &mut self.kinds[kind as usize];
        let room = &mut self.room;
        room.clear();
        room.reserve(1 + zstd::zstd_safe::compress_bound(piece.len()));
        room.push(*number);
        let mut cursor = std::io::Cursor::new(&mut *room);
        cursor.set_position(1);
        compressor.compress_to_buffer(piece, &mut cursor).map_err(failed("zstd"))?;
        Ok(room.clone())
    }
}

/// Unpacks pieces; one for each thread that does.
pub struct Unpacker {
    /// By number of dictionary.
    numbers: Vec<Decompressor<'static>>,
}

impl Unpacker {
    /// With all dictionaries.
    ///
    /// # Errors
    /// If a dictionary is none.
    pub fn new(dictionaries: &[Dictionary]) -> Result<Unpacker, PackError> {
        let all = std::iter::once([].as_slice())
            .chain(dictionaries.iter().map(|dictionary| dictionary.bytes.as_slice()));
        let numbers = all
            .map(|bytes| Decompressor::with_dictionary(bytes).map_err(failed("zstd dictionary")))
            .collect::<Result<_, _>>()?;
        Ok(Unpacker { numbers })
    }

    /// Replaces what is in `out` by the piece.
    ///
    /// # Errors
    /// If this is no packed piece: the file is damaged.
    pub fn unpack(&mut self, out: &mut Vec<u8>, packed: &[u8]) -> Result<(), PackError> {
        let damaged = |why: &str| PackError { what: "a damaged piece", why: why.to_owned() };
        let (number, frame) = packed.split_first().ok_or_else(|| damaged("it is empty"))?;
        let decompressor = self
            .numbers
            .get_mut(usize::from(*number))
            .ok_or_else(|| damaged("its dictionary is not there"))?;
        let bytes = zstd::zstd_safe::get_frame_content_size(frame)
            .ok()
            .flatten()
            .filter(|bytes| *bytes <= PIECE_MAX as u64)
            .ok_or_else(|| damaged("it does not tell its length"))?;
        out.clear();
        out.reserve(bytes as usize);
        decompressor.decompress_to_buffer(frame, out).map_err(failed("a damaged piece"))?;
        Ok(())
    }
}
