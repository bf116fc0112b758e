//! Asks the processor for memory that will be wanted soon. The standard library has no safe way to it
//! yet (`core::hint::prefetch_read` is unstable).

#![expect(unsafe_code, reason = "a hint to the processor, which neither reads nor faults")]

/// Asks for the cache lines of a value; does nothing where that is not known to help.
#[cfg(target_arch = "x86_64")]
pub(super) fn fetch<T>(value: &T) {
    use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};

    let first = std::ptr::from_ref(value).cast::<i8>();
    // The last byte may lie in the next line.
    let last = first.wrapping_add(size_of::<T>().saturating_sub(1));
    for address in [first, last] {
        // SAFETY: a prefetch is a hint: any address may be given to it, and SSE is part of x86-64.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(address) };
    }
}

/// Asks for nothing.
#[cfg(not(target_arch = "x86_64"))]
pub(super) fn fetch<T>(_value: &T) {}
