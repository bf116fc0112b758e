//! SIMD search for the special bytes of strings on x86-64: quotes, backslashes, control characters
//! and bytes that are not ASCII.
//!
//! A function with SIMD instructions may run only on a processor that supports them. All x86-64
//! processors support SSE2. Before the code uses AVX2, it checks that the processor supports AVX2.
//! The code reads memory only through slices.
#![cfg(target_arch = "x86_64")]
#![expect(unsafe_code, reason = "calls of functions that need SSE2 or AVX2")]

use std::arch::x86_64::{
    _mm_cmpeq_epi8, _mm_cmplt_epi8, _mm_movemask_epi8, _mm_or_si128, _mm_set_epi64x, _mm_set1_epi8,
    _mm_xor_si128, _mm256_cmpeq_epi8, _mm256_cmpgt_epi8, _mm256_movemask_epi8, _mm256_or_si256,
    _mm256_set_epi64x, _mm256_set1_epi8, _mm256_xor_si256,
};

/// Flipping this bit of every byte turns the quote from 0x22 into 0x20. Among the ASCII bytes, only
/// the quote and the control characters are then below 0x21.
const QUOTE_BIT: i8 = 2;
/// With [`QUOTE_BIT`] flipped, all special bytes except the backslash are below this value. Bytes
/// that are not ASCII are negative as signed bytes.
const FLIPPED_PLAIN_MIN: i8 = 0x21;
const BACKSLASH: i8 = b'\\' as i8;

/// Returns the offset of the first special byte at or after `offset`.
///
/// # Errors
/// If no block of sixteen bytes has a special byte. The error is the offset of the remaining bytes,
/// which are fewer than sixteen.
#[inline]
pub(super) fn find_special(bytes: &[u8], offset: usize) -> Result<usize, usize> {
    // SAFETY: SSE2 belongs to the x86-64 baseline (System V ABI, AMD64 supplement, section 1).
    unsafe { find_special_sse2(bytes, offset) }
}

/// Returns the offset of the first 64-byte block with a special byte, and one bit per special byte.
/// The lowest bit stands for the block's first byte. The first block starts at `offset`. Bytes
/// beyond the end count as special.
#[inline]
pub(super) fn find_special_block(bytes: &[u8], offset: usize) -> (usize, u64) {
    if std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: the line above checks that the processor supports AVX2.
        unsafe { find_special_block_avx2(bytes, offset) }
    } else {
        find_special_block_baseline(bytes, offset)
    }
}

/// Implements [`find_special_block`] for every x86-64 processor.
pub(super) fn find_special_block_baseline(bytes: &[u8], offset: usize) -> (usize, u64) {
    // SAFETY: SSE2 belongs to the x86-64 baseline, as in `find_special`.
    unsafe { find_special_block_sse2(bytes, offset) }
}

#[inline]
#[target_feature(enable = "sse2")]
fn find_special_sse2(bytes: &[u8], mut offset: usize) -> Result<usize, usize> {
    while let Some(block) = bytes.get(offset..).and_then(|rest| rest.first_chunk::<16>()) {
        let special = special_bits_16(block);
        if special != 0 {
            return Ok(offset + special.trailing_zeros() as usize);
        }
        offset += 16;
    }
    Err(offset)
}

#[target_feature(enable = "avx2")]
fn find_special_block_avx2(bytes: &[u8], offset: usize) -> (usize, u64) {
    find_special_block_with(bytes, offset, |block| {
        let (halves, _) = block.as_chunks::<32>();
        let bits = |index: usize| u64::from(special_bits_32(&halves[index])) << (32 * index);
        bits(0) | bits(1)
    })
}

#[target_feature(enable = "sse2")]
fn find_special_block_sse2(bytes: &[u8], offset: usize) -> (usize, u64) {
    find_special_block_with(bytes, offset, |block| {
        let (quarters, _) = block.as_chunks::<16>();
        let bits = |index: usize| u64::from(special_bits_16(&quarters[index])) << (16 * index);
        bits(0) | bits(1) | bits(2) | bits(3)
    })
}

/// Implements [`find_special_block`] with a function that returns one bit per special byte of a
/// block.
#[inline(always)]
fn find_special_block_with(
    bytes: &[u8],
    mut offset: usize,
    special_bits: impl Fn(&[u8; 64]) -> u64,
) -> (usize, u64) {
    while let Some(block) = bytes.get(offset..).and_then(|rest| rest.first_chunk()) {
        let special = special_bits(block);
        if special != 0 {
            return (offset, special);
        }
        offset += 64;
    }
    // Fewer than 64 bytes remain. If the input is long enough, its last 64 bytes contain them.
    let remaining_bytes = bytes.len().saturating_sub(offset);
    let special = match bytes.last_chunk() {
        _ if remaining_bytes == 0 => 0,
        Some(block) => special_bits(block) >> (64 - remaining_bytes),
        None => {
            let mut block = [0; 64];
            block[..remaining_bytes].copy_from_slice(&bytes[offset..]);
            special_bits(&block)
        }
    };
    (offset, special | u64::MAX << remaining_bytes)
}

/// Returns one bit per special byte of 16 bytes.
#[inline]
#[target_feature(enable = "sse2")]
fn special_bits_16(block: &[u8; 16]) -> u32 {
    let block = u128::from_le_bytes(*block);
    let block = _mm_set_epi64x((block >> 64) as i64, block as i64);
    let backslash = _mm_cmpeq_epi8(block, _mm_set1_epi8(BACKSLASH));
    let flipped = _mm_xor_si128(block, _mm_set1_epi8(QUOTE_BIT));
    let quote_control_or_non_ascii = _mm_cmplt_epi8(flipped, _mm_set1_epi8(FLIPPED_PLAIN_MIN));
    _mm_movemask_epi8(_mm_or_si128(backslash, quote_control_or_non_ascii)) as u32
}

/// Returns one bit per special byte of 32 bytes.
#[inline]
#[target_feature(enable = "avx2")]
fn special_bits_32(block: &[u8; 32]) -> u32 {
    let (words, _) = block.as_chunks::<8>();
    let [word_0, word_1, word_2, word_3] =
        [0, 1, 2, 3].map(|index| i64::from_le_bytes(words[index]));
    let block = _mm256_set_epi64x(word_3, word_2, word_1, word_0);
    let backslash = _mm256_cmpeq_epi8(block, _mm256_set1_epi8(BACKSLASH));
    let flipped = _mm256_xor_si256(block, _mm256_set1_epi8(QUOTE_BIT));
    let quote_control_or_non_ascii =
        _mm256_cmpgt_epi8(_mm256_set1_epi8(FLIPPED_PLAIN_MIN), flipped);
    _mm256_movemask_epi8(_mm256_or_si256(backslash, quote_control_or_non_ascii)) as u32
}
