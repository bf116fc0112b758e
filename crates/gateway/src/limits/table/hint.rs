//! Memory hints for a large table with random access: `prefetch` asks the processor to load a value
//! into its cache, and `place_on_huge_pages` asks the system for huge pages. The standard library
//! has no stable function for either (`core::hint::prefetch_read` is unstable).

#![expect(unsafe_code, reason = "hints, which neither read nor write nor fault")]

/// Prefetches the cache lines of a value. Does nothing on processors other than x86-64.
#[cfg(target_arch = "x86_64")]
pub(super) fn prefetch<T>(value: &T) {
    use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};

    let first_byte = std::ptr::from_ref(value).cast::<i8>();
    // The last byte may be in the next line.
    let last_byte = first_byte.wrapping_add(size_of::<T>().saturating_sub(1));
    for address in [first_byte, last_byte] {
        // SAFETY: a prefetch is a hint, so any address is valid, and SSE is part of x86-64.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(address) };
    }
}

/// Does nothing on this processor.
#[cfg(not(target_arch = "x86_64"))]
pub(super) fn prefetch<T>(_value: &T) {}

/// Bytes of a huge page on most machines.
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Returns the number of extra values to allocate, so that `count` values can begin at the start of
/// a huge page. Returns 0 if the values do not fill a huge page.
pub(super) const fn spare_count<T>(count: usize) -> usize {
    if count * size_of::<T>() < HUGE_PAGE_BYTES {
        0
    } else {
        HUGE_PAGE_BYTES.div_ceil(size_of::<T>())
    }
}

/// Asks the system to put `count` values on huge pages, so that a random access needs no page table
/// walk. Returns the index of the first value to use. Returns 0 without asking if the values do not
/// fill a huge page, or if `values` has too few extra values ([`spare_count`]).
///
/// The allocator itself does not request huge pages, because it manages small pieces of memory.
pub(super) fn place_on_huge_pages<T>(values: &mut [T], count: usize) -> usize {
    let unaligned_bytes =
        values.as_ptr().addr().next_multiple_of(HUGE_PAGE_BYTES) - values.as_ptr().addr();
    let first_index = unaligned_bytes.div_ceil(size_of::<T>());
    let bytes = count * size_of::<T>() / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES;
    if bytes == 0
        || unaligned_bytes + bytes > size_of_val(values)
        || first_index + count > values.len()
    {
        return 0;
    }
    advise(values, unaligned_bytes, bytes);
    first_index
}

/// Asks the system for huge pages in a part of `values`. The part starts after `unaligned_bytes`
/// and has `bytes` bytes.
#[cfg(target_os = "linux")]
fn advise<T>(values: &mut [T], unaligned_bytes: usize, bytes: usize) {
    use rustix::mm::{Advice, madvise};

    let start = values.as_mut_ptr().wrapping_byte_add(unaligned_bytes).cast();
    // SAFETY: the pages are whole and within memory that this process owns; the advice does not
    // change their content. A system without huge pages rejects the advice, and nothing changes.
    let _refused = unsafe { madvise(start, bytes, Advice::LinuxHugepage) };
}

/// Does nothing on this system.
#[cfg(not(target_os = "linux"))]
fn advise<T>(_values: &mut [T], _before: usize, _bytes: usize) {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_that_fill_a_huge_page_begin_on_one() {
        type Value = [u64; 6];
        for count in [1, 1000, 43_690, 43_691, 87_382, 200_000] {
            let mut values: Vec<Value> = vec![[0; 6]; count + spare_count::<Value>(count)];
            let first_index = place_on_huge_pages(&mut values, count);
            assert!(first_index + count <= values.len(), "{count} from {first_index}");
            let within = values[first_index..].as_ptr().addr() % HUGE_PAGE_BYTES;
            let fills = count * size_of::<Value>() >= HUGE_PAGE_BYTES;
            assert!(!fills || within < size_of::<Value>(), "{count}: {within}");
            assert!(fills || first_index == 0, "{count} from {first_index}");
            values[first_index..].fill([1; 6]);
        }
    }
}
