//! Tells the processor and the system what a table is like: one place of many is wanted next, and it
//! is a random one. The standard library has no safe way to either (`core::hint::prefetch_read` is
//! unstable).

#![expect(unsafe_code, reason = "hints, which neither read nor write nor fault")]

/// Has the processor fetch the cache lines of a value; does nothing where that is not known to help.
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

/// Has the system lay what fills huge pages (2 MiB) on such, so that a random place costs no walk
/// through page tables beside its own fetch. The allocator asks for none: what it holds comes and
/// goes in small pieces.
#[cfg(target_os = "linux")]
pub(super) fn lay_on_huge_pages<T>(values: &mut [T]) {
    use rustix::mm::{Advice, madvise};

    const HUGE_PAGE: usize = 2 << 20;
    let all = values.as_mut_ptr_range();
    let before = all.start.addr().next_multiple_of(HUGE_PAGE) - all.start.addr();
    let bytes = size_of_val(values).saturating_sub(before) / HUGE_PAGE * HUGE_PAGE;
    if bytes > 0 {
        let first = all.start.wrapping_byte_add(before).cast();
        // SAFETY: whole pages within memory that is ours alone; the advice leaves what is in it as
        // it is. A system that has no huge pages refuses, which changes nothing.
        let _refused = unsafe { madvise(first, bytes, Advice::LinuxHugepage) };
    }
}

/// Does nothing.
#[cfg(not(target_os = "linux"))]
pub(super) fn lay_on_huge_pages<T>(_values: &mut [T]) {}
