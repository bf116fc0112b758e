//! Tells the processor and the system what a table is like: one place of many is wanted next, and
//! it is a random one. The standard library has no safe way to either (`core::hint::prefetch_read`
//! is unstable).

#![expect(unsafe_code, reason = "hints, which neither read nor write nor fault")]

/// Has the processor fetch the cache lines of a value; does nothing where that is not known to
/// help.
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

/// Fetches nothing.
#[cfg(not(target_arch = "x86_64"))]
pub(super) fn fetch<T>(_value: &T) {}

/// Bytes of a huge page, as most machines have it.
const HUGE_PAGE: usize = 2 << 20;

/// How many values more it takes for so many to begin on a huge page, if they fill one.
pub(super) const fn spare<T>(count: usize) -> usize {
    if count * size_of::<T>() < HUGE_PAGE { 0 } else { HUGE_PAGE.div_ceil(size_of::<T>()) }
}

/// Has the system lay so many of these values on huge pages, as far as they fill some, so that a
/// random one costs no walk through page tables beside its own fetch. Where the first of them is.
///
/// The allocator asks for no huge pages itself: what it holds comes and goes in small pieces.
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
    // SAFETY: whole pages within memory that is ours alone; the advice leaves what is in it as it
    // is. A system that has no huge pages refuses, which changes nothing.
    let _refused = unsafe { madvise(start, bytes, Advice::LinuxHugepage) };
}

/// Says nothing.
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
