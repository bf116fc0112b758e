//! The end of a plain run of string bytes, sixteen at a time, on x86-64.
//!
//! The only place of this crate with `unsafe`: vector instructions may be used only where the
//! processor has them, and the compiler wants that promised. SSE2 is a part of x86-64 itself, so
//! there is nothing to find out at run time. Memory is read through slices alone.
#![expect(unsafe_code, reason = "a call that promises what every x86-64 processor has")]

use std::arch::x86_64::{
    _mm_cmpeq_epi8, _mm_cmplt_epi8, _mm_movemask_epi8, _mm_or_si128, _mm_set_epi64x, _mm_set1_epi8,
};

/// Either the offset of the first byte at or after `at` that is a quote, a backslash, a control
/// character or not ASCII; or, as an error, an offset from which fewer than sixteen bytes are left,
/// with none of these before it.
#[inline]
pub(super) fn plain_end(bytes: &[u8], at: usize) -> Result<usize, usize> {
    // SAFETY: SSE2 belongs to the x86-64 baseline (System V ABI, AMD64 supplement, section 1).
    unsafe { find(bytes, at) }
}

#[inline]
#[target_feature(enable = "sse2")]
fn find(bytes: &[u8], mut at: usize) -> Result<usize, usize> {
    while let Some(block) = bytes.get(at..).and_then(|rest| rest.first_chunk::<16>()) {
        let block = u128::from_le_bytes(*block);
        let block = _mm_set_epi64x((block >> 64) as i64, block as i64);
        let quote = _mm_cmpeq_epi8(block, _mm_set1_epi8(b'"' as i8));
        let backslash = _mm_cmpeq_epi8(block, _mm_set1_epi8(b'\\' as i8));
        // As signed bytes those that are not ASCII are negative, so below space with the controls.
        let odd = _mm_cmplt_epi8(block, _mm_set1_epi8(b' ' as i8));
        let hits = _mm_movemask_epi8(_mm_or_si128(_mm_or_si128(quote, backslash), odd));
        if hits != 0 {
            return Ok(at + hits.trailing_zeros() as usize);
        }
        at += 16;
    }
    Err(at)
}
