//! Verifies one log: its members, its encoding, and its position in the block.

use alloy_primitives::{Address, B256, Bytes, hex};
use alloy_rlp::{Encodable, Header as RlpHeader};

use super::block::Block;
use super::cursor::Cursor;
use super::error::Error;
use super::fields::{Fields, Layout, Value, digits, names};

// `names!` declares a list of member names, and for each name a constant: its index in the list.
// `Layout` finds these members in an object, and `Fields` holds their raw values (`fields.rs`).
names! {
    /// The members of a log that are verified (execution-apis `src/schemas/receipt.yaml`, `Log`).
    LOG, LogMember:
    ADDRESS = "address",
    TOPICS = "topics",
    DATA = "data",
    BLOCK_HASH = "blockHash",
    BLOCK_NUMBER = "blockNumber",
    BLOCK_TIMESTAMP = "blockTimestamp",
    TX_HASH = "transactionHash",
    TX_INDEX = "transactionIndex",
    LOG_INDEX = "logIndex",
    REMOVED = "removed",
}

/// Maximum number of topics of a log, by the instructions `LOG0` to `LOG4`.
const TOPICS_MAX: usize = 4;

/// A log.
pub(super) struct Log<'a> {
    pub(super) fields: Fields<'a, { LOG.len() }>,
    pub(super) address: Address,
    topics: [B256; TOPICS_MAX],
    topic_count: usize,
    /// The digits of the data. [`Log::check_data`] and [`Log::encode`] check that they are
    /// hexadecimal.
    data: &'a [u8],
}

impl<'a> Log<'a> {
    /// Reads the next value as a log.
    pub(super) fn read(
        cursor: &mut Cursor<'a>,
        layout: &mut Layout<{ LOG.len() }>,
    ) -> Result<Self, Error> {
        let mut fields = layout.fields();
        let (mut topics, mut topic_count) = ([B256::ZERO; TOPICS_MAX], 0);
        cursor.open_object()?;
        while let Some(field) = cursor.member(&mut fields, layout)? {
            if field == TOPICS {
                topic_count = read_topics(cursor, &mut topics)
                    .map_err(|error| fields.error(TOPICS, error))?;
            } else {
                fields.set(field, cursor.value()?);
            }
        }
        fields.required_raw(TOPICS, "an array of up to four hashes")?;
        let address = fields.required(ADDRESS)?;
        let raw = fields.required_raw(DATA, Bytes::ALLOWED)?;
        let data = digits(raw).filter(|digits| digits.len() % 2 == 0);
        let Some(data) = data else {
            return Err(fields.error(DATA, Error::malformed(raw, Bytes::ALLOWED)));
        };
        Ok(Self { fields, address, topics, topic_count, data })
    }

    pub(super) fn topics(&self) -> &[B256] {
        &self.topics[..self.topic_count]
    }

    /// Compares the members for the log's position with its actual position.
    pub(super) fn check_position(&self, position: &LogPosition<'_>) -> Result<(), Error> {
        let (fields, block) = (&self.fields, position.block);
        fields.check_required(BLOCK_HASH, &block.hash, "the block")?;
        fields.check_required(BLOCK_NUMBER, &block.number, "the block")?;
        fields.check_optional(BLOCK_TIMESTAMP, &block.timestamp, "the block")?;
        fields.check_required(
            TX_HASH,
            position.transaction_hash,
            "the transaction at this index",
        )?;
        fields.check_required(
            TX_INDEX,
            &position.transaction_index,
            "the index of its transaction",
        )?;
        fields.check_required(LOG_INDEX, &position.log_index, "counting the block's logs")?;
        match fields.raw(REMOVED) {
            None | Some(b"false") => Ok(()),
            Some(_) => Err(fields.form_error(REMOVED, "false")),
        }
    }

    /// Appends the log in RLP: a list of address, topics and data. Checks that the data is
    /// hexadecimal.
    pub(super) fn encode(&self, out: &mut Vec<u8>) -> Result<(), Error> {
        /// Bytes of an address in RLP: a header byte and 20 bytes.
        const ADDRESS_BYTES: usize = 21;
        /// Bytes of a hash in RLP: a header byte and 32 bytes.
        const HASH_BYTES: usize = 33;
        let data_bytes = self.data.len() / 2;
        let topics = RlpHeader { list: true, payload_length: HASH_BYTES * self.topic_count };
        // Data of one byte below 0x80 has no header in RLP. All other data has a header.
        let first_byte = self.data.first_chunk::<2>().and_then(|digits| {
            let mut byte = [0];
            hex::decode_to_slice(digits, &mut byte).ok().map(|()| byte[0])
        });
        let is_single_byte = data_bytes == 1 && first_byte.is_some_and(|byte| byte < 0x80);
        let data = RlpHeader { list: false, payload_length: data_bytes };
        let data_length = if is_single_byte { 1 } else { data.length_with_payload() };
        let payload_length = ADDRESS_BYTES + topics.length_with_payload() + data_length;
        RlpHeader { list: true, payload_length }.encode(out);
        self.address.encode(out);
        topics.encode(out);
        for topic in self.topics() {
            topic.encode(out);
        }
        if !is_single_byte {
            data.encode(out);
        }
        self.append_data(out)
    }

    /// Checks that the data is hexadecimal. `buffer` is overwritten. Call this function for a log
    /// that is not encoded.
    pub(super) fn check_data(&self, buffer: &mut Vec<u8>) -> Result<(), Error> {
        buffer.clear();
        self.append_data(buffer)
    }

    /// Appends the decoded data.
    fn append_data(&self, out: &mut Vec<u8>) -> Result<(), Error> {
        let start = out.len();
        out.resize(start + self.data.len() / 2, 0);
        hex::decode_to_slice(self.data, &mut out[start..])
            .map_err(|_| self.fields.form_error(DATA, Bytes::ALLOWED))
    }
}

/// Reads an array of topics into `topics` and returns their number.
fn read_topics(cursor: &mut Cursor<'_>, topics: &mut [B256; TOPICS_MAX]) -> Result<usize, Error> {
    cursor.elements(|index, cursor| {
        let raw = cursor.value()?;
        let Some(topic) = topics.get_mut(index) else {
            return Err(Error::malformed(raw, "at most four topics"));
        };
        *topic = B256::read(raw).ok_or_else(|| Error::malformed(raw, B256::ALLOWED))?;
        Ok(())
    })
}

/// The actual position of a log.
pub(super) struct LogPosition<'b> {
    pub(super) block: &'b Block,
    pub(super) transaction_hash: &'b B256,
    pub(super) transaction_index: u64,
    /// The index among the logs of the block.
    pub(super) log_index: u64,
}
