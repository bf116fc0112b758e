//! Finding the odd bytes of strings, many at a time, on x86-64.
//!
//! The only place of this crate with `unsafe`: vector instructions may be used only where the
//! processor has them, and the compiler wants that promised. SSE2 is a part of x86-64 itself, and
//! AVX2 is used after the processor was asked for it. Memory is read through slices alone.
//!
//! A byte is odd that is a quote, a backslash, a control character or not ASCII.
#![expect(unsafe_code, reason = "calls that promise what the processor has")]

use std::arch::x86_64::{
    _mm_cmpeq_epi8, _mm_cmplt_epi8, _mm_movemask_epi8, _mm_or_si128, _mm_set_epi64x, _mm_set1_epi8,
    _mm_xor_si128, _mm256_cmpeq_epi8, _mm256_cmpgt_epi8, _mm256_movemask_epi8, _mm256_or_si256,
    _mm256_set_epi64x, _mm256_set1_epi8, _mm256_xor_si256,
};

/// Turning this bit makes the quote a neighbour of the control characters: 0x22 becomes 0x20, and
/// 0x20 to 0x23 alone change places with each other.
const QUOTE_TURN: i8 = 2;
/// As signed bytes those that are not ASCII are negative, so that all odd ones but the backslash
/// are below this when turned.
const TURNED_PLAIN_MIN: i8 = 0x21;
const BACKSLASH: i8 = b'\\' as i8;

/// Either the offset of the first odd byte at or after `at`; or, as an error, an offset from which
/// fewer than sixteen bytes are left, with no odd one before it.
#[inline]
pub(super) fn plain_end(bytes: &[u8], at: usize) -> Result<usize, usize> {
    // SAFETY: SSE2 belongs to the x86-64 baseline (System V ABI, AMD64 supplement, section 1).
    unsafe { plain_end_sse2(bytes, at) }
}

/// The first 64 bytes that hold an odd one, in steps of 64 from `at` on: where they begin, and a bit
/// for each that is odd. Bytes behind the end count as odd.
#[inline]
pub(super) fn odd_block(bytes: &[u8], at: usize) -> (usize, u64) {
    if std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has just said that it has AVX2.
        unsafe { odd_block_avx2(bytes, at) }
    } else {
        odd_block_baseline(bytes, at)
    }
}

/// The same with what every x86-64 processor has.
pub(super) fn odd_block_baseline(bytes: &[u8], at: usize) -> (usize, u64) {
    // SAFETY: as in `plain_end`.
    unsafe { odd_block_sse2(bytes, at) }
}

#[inline]
#[target_feature(enable = "sse2")]
fn plain_end_sse2(bytes: &[u8], mut at: usize) -> Result<usize, usize> {
    while let Some(block) = bytes.get(at..).and_then(|rest| rest.first_chunk::<16>()) {
        let odd = odd_of_sixteen(block);
        if odd != 0 {
            return Ok(at + odd.trailing_zeros() as usize);
        }
        at += 16;
    }
    Err(at)
}

#[target_feature(enable = "avx2")]
fn odd_block_avx2(bytes: &[u8], at: usize) -> (usize, u64) {
    first_odd(bytes, at, |block| {
        let (halves, _) = block.as_chunks::<32>();
        let bits = |at: usize| u64::from(odd_of_thirty_two(&halves[at])) << (32 * at);
        bits(0) | bits(1)
    })
}

#[target_feature(enable = "sse2")]
fn odd_block_sse2(bytes: &[u8], at: usize) -> (usize, u64) {
    first_odd(bytes, at, |block| {
        let (quarters, _) = block.as_chunks::<16>();
        let bits = |at: usize| u64::from(odd_of_sixteen(&quarters[at])) << (16 * at);
        bits(0) | bits(1) | bits(2) | bits(3)
    })
}

#[inline(always)]
fn first_odd(bytes: &[u8], mut at: usize, odd_of: impl Fn(&[u8; 64]) -> u64) -> (usize, u64) {
    while let Some(block) = bytes.get(at..).and_then(|rest| rest.first_chunk()) {
        let odd = odd_of(block);
        if odd != 0 {
            return (at, odd);
        }
        at += 64;
    }
    let rest = bytes.len().saturating_sub(at);
    let odd = match bytes.last_chunk() {
        _ if rest == 0 => 0,
        Some(block) => odd_of(block) >> (64 - rest),
        None => {
            let mut block = [0; 64];
            block[..rest].copy_from_slice(&bytes[at..]);
            odd_of(&block)
        }
    };
    (at, odd | u64::MAX << rest)
}

#[inline]
#[target_feature(enable = "sse2")]
fn odd_of_sixteen(block: &[u8; 16]) -> u32 {
    let block = u128::from_le_bytes(*block);
    let block = _mm_set_epi64x((block >> 64) as i64, block as i64);
    let backslash = _mm_cmpeq_epi8(block, _mm_set1_epi8(BACKSLASH));
    let turned = _mm_xor_si128(block, _mm_set1_epi8(QUOTE_TURN));
    let others = _mm_cmplt_epi8(turned, _mm_set1_epi8(TURNED_PLAIN_MIN));
    _mm_movemask_epi8(_mm_or_si128(backslash, others)) as u32
}

#[inline]
#[target_feature(enable = "avx2")]
fn odd_of_thirty_two(block: &[u8; 32]) -> u32 {
    let (words, _) = block.as_chunks::<8>();
    let [a, b, c, d] = [0, 1, 2, 3].map(|at| i64::from_le_bytes(words[at]));
    let block = _mm256_set_epi64x(d, c, b, a);
    let backslash = _mm256_cmpeq_epi8(block, _mm256_set1_epi8(BACKSLASH));
    let turned = _mm256_xor_si256(block, _mm256_set1_epi8(QUOTE_TURN));
    let others = _mm256_cmpgt_epi8(_mm256_set1_epi8(TURNED_PLAIN_MIN), turned);
    _mm256_movemask_epi8(_mm256_or_si256(backslash, others)) as u32
}
