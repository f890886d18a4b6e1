//! Tests that replaying many forks of a large address space takes memory only for the differences,
//! and not for a copy per fork.
//!
//! The trace is generated: `vmas` maps of one page, then `forks` children that all live until the
//! end.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    fmt::Write as _,
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
};

/// The bytes allocated now, and the peak. Relaxed: one thread counts and reads.
static NOW: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

struct Counting;

// SAFETY: returns memory of the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // Relaxed: counts only, see above.
        let now = NOW.fetch_add(layout.size(), Relaxed) + layout.size();
        PEAK.fetch_max(now, Relaxed);
        // SAFETY: the caller upholds the same contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // Relaxed: counts only, see above.
        NOW.fetch_sub(layout.size(), Relaxed);
        // SAFETY: the block came from the system's allocator.
        unsafe { System.dealloc(block, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// A trace in which `forks` children of an address space with `vmas` VMAs end last.
fn generate(vmas: usize, forks: usize) -> String {
    let mut out = String::from(
        "# vmtrace 1 kernel=6.18 page=4096 overcommit=0 thp=madvise\n\
         X 1 7 vmas=0 brk=5000 start_brk=5000 start_stack=7ffffff00000 mmap_base=7ffff0000000 \
         exe=/bin/x\n",
    );
    for i in 0..vmas {
        let at = 0x1000_0000_0000 + i * 0x2000;
        writeln!(out, "M 1 7 mmap {at:x} 1000 3 32 ffffffff 0 f0 = {at:x}").unwrap();
    }
    for child in 2..forks + 2 {
        writeln!(out, "K 1 {child} 7 {}", child + 7).unwrap();
        writeln!(out, "M {child} 7 munmap 100000000000 1000 = 0").unwrap();
    }
    for mm in 1..forks + 2 {
        writeln!(out, "Q {mm}").unwrap();
    }
    out
}

#[test]
fn children_share_common_vmas() {
    const VMAS: usize = 2000;
    const FORKS: usize = 1000;
    let trace = generate(VMAS, FORKS);
    // Relaxed: counts of this thread only.
    let before = NOW.load(Relaxed);
    PEAK.store(before, Relaxed);
    let summary = trace::replay::replay(trace.as_bytes(), "generated").unwrap();
    let peak = PEAK.load(Relaxed) - before;
    assert_eq!(summary.total.mismatches, 0);
    assert_eq!(summary.total.calls(), (VMAS + FORKS) as u64);
    // Copies would take more than 100 bytes per VMA, which is 200 MB in all.
    assert!(peak < 20 << 20, "{peak} bytes");
}
