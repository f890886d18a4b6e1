//! Prefetches.

/// Prefetches a cache line. Never faults.
///
/// In assembly: a kernel build disables vector registers, and then the intrinsic is not available.
/// The instruction itself uses no vector register.
#[cfg_attr(not(unoptimized), inline(always))]
pub(crate) fn prefetch<T>(place: *const T) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a hint, valid for any address; it has no effect that a program can observe.
    unsafe {
        core::arch::asm!(
            "prefetcht0 byte ptr [{}]",
            in(reg) place.addr(),
            options(nomem, nostack, preserves_flags)
        );
    }
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    // SAFETY: as above.
    unsafe {
        core::arch::asm!(
            "prfm pldl1keep, [{}]",
            in(reg) place.addr(),
            options(nomem, nostack, preserves_flags)
        );
    }
    #[cfg(not(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(miri))))]
    let _ = place;
}
