//! Serves methods that read the state. Balances and nonces follow from the chain's transactions. A
//! contract's code follows from its address.
//!
//! Storage, results of calls and gas estimates are hashes of the block's hash and the arguments. So
//! replies for different blocks, branches or calls always differ.

use alloy_primitives::{B256, KECCAK256_EMPTY, keccak256};
use bytes::Bytes;
use serde_json::Value;

use super::arguments::{BlockArgument, invalid};
use super::wording::{NOT_FOUND, REVERTED, SERVER_ERROR};
use super::{Call, RpcError, RpcResult, data, fixed, quantity};
use crate::world::block_index::BlockPosition;

/// The first four bytes of the input of a call that reverts.
pub(super) const SELECTOR_REVERTS: &str = "0xdeadbeef";
/// The return data of a call that reverts: `Error("no")`, as Solidity encodes it.
const REVERT_DATA: &str = "\"0x08c379a0000000000000000000000000000000000000000000000000000000000000002000000000000000000000000000000000000000000000000000000000000000026e6f000000000000000000000000000000000000000000000000000000000000\"";
/// The first bytes of every contract's code, before the contract's address. No part of the node
/// executes the code.
const CODE: [u8; 11] = [0x60, 0x80, 0x60, 0x40, 0x52, 0x34, 0x80, 0x15, 0x60, 0x0e, 0x57];
/// Gas of a transaction without any operation (yellow paper, appendix G).
const GAS_BASE: u64 = 21_000;

impl Call<'_> {
    pub(super) fn balance(&self) -> RpcResult {
        let address = self.arguments.address(0)?;
        let position = self.state_at(self.arguments.block(1)?)?;
        self.require_known(self.world.balance(position, address)).and_then(quantity)
    }

    pub(super) fn nonce(&self) -> RpcResult {
        let address = self.arguments.address(0)?;
        let position = self.state_at(self.arguments.block(1)?)?;
        self.require_known(self.world.nonce(position, address))
            .and_then(|nonce| quantity(nonce.into()))
    }

    pub(super) fn code(&self) -> RpcResult {
        let address = self.arguments.address(0)?;
        self.state_at(self.arguments.block(1)?)?;
        if !self.world.is_contract(address) {
            return fixed("\"0x\"");
        }
        data(&[&CODE[..], address.as_slice()].concat())
    }

    pub(super) fn storage(&self) -> RpcResult {
        let address = self.arguments.address(0)?;
        let slot = self.arguments.required(1)?.to_ascii_lowercase();
        let hash = self.hash_of(self.state_at(self.arguments.block(2)?)?)?;
        if !self.world.is_contract(address) {
            return data(B256::ZERO.as_slice());
        }
        // Different spellings of one slot must give the same value.
        let slot = slot.trim_matches('"').trim_start_matches("0x").trim_start_matches('0');
        data(&keccak256([hash.as_slice(), address.as_slice(), slot.as_bytes()].concat())[..])
    }

    pub(super) fn call(&self) -> RpcResult {
        data(&self.execute(self.arguments.block(1)?)?[..])
    }

    pub(super) fn estimate_gas(&self) -> RpcResult {
        let outcome = self.execute(self.arguments.block(1)?)?;
        let extra_gas = u16::from_be_bytes([outcome[0], outcome[1]]);
        quantity(u128::from(GAS_BASE + u64::from(extra_gas)))
    }

    pub(super) fn sha3(&self) -> RpcResult {
        let bytes = self.arguments.bytes(0)?;
        if bytes.is_empty() {
            return data(KECCAK256_EMPTY.as_slice());
        }
        data(keccak256(bytes).as_slice())
    }

    /// Executes the call object in argument 0. The outcome is a hash of the block, the object and
    /// the overrides in the arguments from index 2 on.
    fn execute(&self, argument: BlockArgument) -> Result<B256, RpcError> {
        let object = self.arguments.required(0)?;
        let position = self.state_at(argument)?;
        let mut preimage = self.hash_of(position)?.to_vec();
        let object = read_json(object, 0)?;
        let Value::Object(members) = &object else {
            return Err(invalid(
                0,
                "cannot unmarshal into Go value of type ethapi.TransactionArgs",
            ));
        };
        for name in ["input", "data"] {
            let input = members.get(name).and_then(Value::as_str);
            if input.is_some_and(|input| input.starts_with(SELECTOR_REVERTS)) {
                let revert_data = Some(Bytes::from_static(REVERT_DATA.as_bytes()));
                let message = "execution reverted: no".into();
                return Err(RpcError { code: REVERTED, message, data: revert_data });
            }
        }
        push_canonical(&mut preimage, &object);
        for (index, overrides) in self.arguments.iter().enumerate().skip(2) {
            push_canonical(&mut preimage, &read_json(overrides, index)?);
        }
        Ok(keccak256(preimage))
    }

    /// Returns the position of the block that an argument names. Fails if the block is unknown or
    /// its state is pruned.
    pub(super) fn state_at(&self, argument: BlockArgument) -> Result<BlockPosition, RpcError> {
        let (world, head) = (self.world, self.view.head);
        let client = self.view.retention.client;
        let position = match argument {
            BlockArgument::Latest => world.position(head, head),
            BlockArgument::Safe => world.position(head, world.safe_number(head)),
            BlockArgument::Finalized => world.position(head, world.finalized_number(head)),
            BlockArgument::Number(number) => world.position(head, number),
            BlockArgument::Hash { hash, strict } => {
                let Some(block) = world.block_by_hash(head, &hash) else {
                    return Err(RpcError::new(NOT_FOUND, "header for hash not found"));
                };
                let position = BlockPosition { branch: block.branch, number: block.header.number };
                if strict && !world.contains(head, position) {
                    return Err(RpcError::new(SERVER_ERROR, "hash is not currently canonical"));
                }
                Some(position)
            }
        };
        let Some(position) = position else { return Err(client.header_not_found()) };
        world.build_to(head);
        match self.view.retention.state_blocks {
            Some(retained_blocks) if position.number.saturating_add(retained_blocks) < head => {
                let root =
                    world.block_at(head, position.number).map(|block| block.header.state_root);
                Err(client.state_missing(position.number, root.unwrap_or_default()))
            }
            _ => Ok(position),
        }
    }

    fn hash_of(&self, position: BlockPosition) -> Result<B256, RpcError> {
        self.require_known(self.world.hash_of(position))
    }

    /// Returns a value of a block, or the client's error if the world no longer holds the block.
    fn require_known<T>(&self, value: Option<T>) -> Result<T, RpcError> {
        value.ok_or_else(|| self.view.retention.client.header_not_found())
    }
}

fn read_json(raw: &str, index: usize) -> Result<Value, RpcError> {
    serde_json::from_str(raw).map_err(|_| invalid(index, "cannot unmarshal"))
}

/// Appends JSON in a canonical form, independent of the order of members, of white space and of the
/// case of hex digits.
fn push_canonical(out: &mut Vec<u8>, value: &Value) {
    let text = serde_json::to_string(value).expect("parsed JSON can be printed");
    out.extend(text.bytes().map(|byte| byte.to_ascii_lowercase()));
}
