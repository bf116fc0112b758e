//! One log: its members, its encoding, and where it says that it stands.

use alloy_primitives::{Address, B256, Bytes, hex};
use alloy_rlp::{Encodable, Header as RlpHeader};

use super::Block;
use super::cursor::Cursor;
use super::fault::Fault;
use super::fields::{Fields, Layout, Value, digits, names};

names! {
    /// The members of a log that are read (execution-apis `src/schemas/receipt.yaml`, `Log`).
    LOG, OfLog:
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

/// As many as the machine's instructions can give (`LOG0` to `LOG4`).
const TOPICS_MAX: usize = 4;

/// A log as it was read.
pub(super) struct Log<'a> {
    pub(super) fields: Fields<'a, { LOG.len() }>,
    pub(super) address: Address,
    topics: [B256; TOPICS_MAX],
    topic_count: usize,
    /// Hexadecimal digits, not yet known to be such.
    data: &'a [u8],
}

impl<'a> Log<'a> {
    /// Reads the log that stands here.
    pub(super) fn read(
        cursor: &mut Cursor<'a>,
        layout: &mut Layout<{ LOG.len() }>,
    ) -> Result<Self, Fault> {
        let mut fields = layout.fields();
        let (mut topics, mut topic_count) = ([B256::ZERO; TOPICS_MAX], 0);
        cursor.open_object()?;
        while let Some(place) = cursor.member(&mut fields, layout)? {
            if place == TOPICS {
                topic_count = read_topics(cursor, &mut topics)
                    .map_err(|fault| fields.fault(TOPICS, fault))?;
            } else {
                fields.keep(place, cursor.value()?);
            }
        }
        fields.need_raw(TOPICS, "an array of up to four hashes")?;
        let address = fields.need(ADDRESS)?;
        let raw = fields.need_raw(DATA, Bytes::ALLOWED)?;
        let data = digits(raw).filter(|digits| digits.len() % 2 == 0);
        let Some(data) = data else {
            return Err(fields.fault(DATA, Fault::form(raw, Bytes::ALLOWED)));
        };
        Ok(Self { fields, address, topics, topic_count, data })
    }

    pub(super) fn topics(&self) -> &[B256] {
        &self.topics[..self.topic_count]
    }

    /// Checks where the log says that it stands.
    pub(super) fn check_place(&self, place: &LogPlace<'_>) -> Result<(), Fault> {
        let (fields, block) = (&self.fields, place.block);
        fields.need_same(BLOCK_HASH, &block.hash, "the block")?;
        fields.need_same(BLOCK_NUMBER, &block.number, "the block")?;
        fields.maybe_same(BLOCK_TIMESTAMP, &block.timestamp, "the block")?;
        fields.need_same(TX_HASH, place.transaction, "the transaction at this index")?;
        fields.need_same(TX_INDEX, &place.transaction_index, "the place of its transaction")?;
        fields.need_same(LOG_INDEX, &place.log_index, "counting the block's logs")?;
        match fields.raw(REMOVED) {
            None | Some(b"false") => Ok(()),
            Some(said) => Err(fields.fault(REMOVED, Fault::form(said, "false"))),
        }
    }

    /// Appends the log in RLP: address, topics, data.
    pub(super) fn encode(&self, out: &mut Vec<u8>) -> Result<(), Fault> {
        const WORD: usize = 33;
        let data_bytes = self.data.len() / 2;
        let topics = RlpHeader { list: true, payload_length: WORD * self.topic_count };
        // Only a single byte has a head or none depending on its value.
        let first = self.data.first_chunk::<2>().and_then(|digits| {
            let mut byte = [0];
            hex::decode_to_slice(digits, &mut byte).ok().map(|()| byte[0])
        });
        let bare = data_bytes == 1 && first.is_some_and(|byte| byte < 0x80);
        let data = RlpHeader { list: false, payload_length: data_bytes };
        let data_length = if bare { 1 } else { data.length_with_payload() };
        let payload_length = 21 + topics.length_with_payload() + data_length;
        RlpHeader { list: true, payload_length }.encode(out);
        self.address.encode(out);
        topics.encode(out);
        for topic in self.topics() {
            topic.encode(out);
        }
        if !bare {
            data.encode(out);
        }
        self.append_data(out)
    }

    /// Checks that the data are hexadecimal digits; what [`Log::encode`] does on its way.
    pub(super) fn check_data(&self, scratch: &mut Vec<u8>) -> Result<(), Fault> {
        scratch.clear();
        self.append_data(scratch)
    }

    fn append_data(&self, out: &mut Vec<u8>) -> Result<(), Fault> {
        let start = out.len();
        out.resize(start + self.data.len() / 2, 0);
        hex::decode_to_slice(self.data, &mut out[start..]).map_err(|_| {
            let said = self.fields.raw(DATA).unwrap_or_default();
            self.fields.fault(DATA, Fault::form(said, Bytes::ALLOWED))
        })
    }
}

fn read_topics(cursor: &mut Cursor<'_>, topics: &mut [B256; TOPICS_MAX]) -> Result<usize, Fault> {
    cursor.elements(|index, cursor| {
        let raw = cursor.value()?;
        let Some(topic) = topics.get_mut(index) else {
            return Err(Fault::form(raw, "at most four topics"));
        };
        *topic = B256::read(raw).ok_or_else(|| Fault::form(raw, B256::ALLOWED))?;
        Ok(())
    })
}

/// Where a log stands.
pub(super) struct LogPlace<'b> {
    pub(super) block: &'b Block,
    pub(super) transaction: &'b B256,
    pub(super) transaction_index: u64,
    /// Among the logs of the block.
    pub(super) log_index: u64,
}
