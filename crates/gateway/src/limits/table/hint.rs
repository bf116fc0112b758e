//! Memory hints for a large table with random access: prefetch to the processor, and huge pages to
//! the system. The standard library has no safe way to either (`core::hint::prefetch_read` is
//! unstable).

#![expect(unsafe_code, reason = "hints, which neither read nor write nor fault")]

/// Prefetches the cache lines of a value. Does nothing on processors where that is not known to
/// help.
#[cfg(target_arch = "x86_64")]
pub(super) fn fetch<T>(value: &T) {
    use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};

    let first = std::ptr::from_ref(value).cast::<i8>();
    // The last byte may be in the next line.
    let last = first.wrapping_add(size_of::<T>().saturating_sub(1));
    for address in [first, last] {
        // SAFETY: a prefetch is a hint, so any address is valid, and SSE is part of x86-64.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(address) };
    }
}

/// Fetches nothing.
#[cfg(not(target_arch = "x86_64"))]
pub(super) fn fetch<T>(_value: &T) {}

/// Bytes of a huge page on most machines.
const HUGE_PAGE: usize = 2 << 20;

/// Returns how many extra values let `count` of them begin on a huge page, if they fill one.
pub(super) const fn spare<T>(count: usize) -> usize {
    if count * size_of::<T>() < HUGE_PAGE { 0 } else { HUGE_PAGE.div_ceil(size_of::<T>()) }
}

/// Asks the system to put these values on huge pages, if they fill at least one, so that a random
/// access needs no page table walk. Returns the index of the first value.
///
/// The allocator does not request huge pages itself: its memory comes and goes in small pieces.
pub(super) fn lay_on_huge_pages<T>(values: &mut [T], count: usize) -> usize {
    let before = values.as_ptr().addr().next_multiple_of(HUGE_PAGE) - values.as_ptr().addr();
    let first = before.div_ceil(size_of::<T>());
    let bytes = count * size_of::<T>() / HUGE_PAGE * HUGE_PAGE;
    if bytes == 0 || before + bytes > size_of_val(values) || first + count > values.len() {
        return 0;
    }
    advise(values, before, bytes);
    first
}

#[cfg(target_os = "linux")]
fn advise<T>(values: &mut [T], before: usize, bytes: usize) {
    use rustix::mm::{Advice, madvise};

    let start = values.as_mut_ptr().wrapping_byte_add(before).cast();
    // SAFETY: the pages are whole and within memory that this process owns; the advice does not
    // change their content. A system without huge pages rejects it, which has no effect.
    let _refused = unsafe { madvise(start, bytes, Advice::LinuxHugepage) };
}

/// Gives no advice.
#[cfg(not(target_os = "linux"))]
fn advise<T>(_values: &mut [T], _before: usize, _bytes: usize) {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fills_huge_pages_begins_on_one() {
        type Value = [u64; 6];
        for count in [1, 1000, 43_690, 43_691, 87_382, 200_000] {
            let mut values: Vec<Value> = vec![[0; 6]; count + spare::<Value>(count)];
            let first = lay_on_huge_pages(&mut values, count);
            assert!(first + count <= values.len(), "{count} from {first}");
            let within = values[first..].as_ptr().addr() % HUGE_PAGE;
            let fills = count * size_of::<Value>() >= HUGE_PAGE;
            assert!(!fills || within < size_of::<Value>(), "{count}: {within}");
            assert!(fills || first == 0, "{count} from {first}");
            values[first..].fill([1; 6]);
        }
    }
}
