//! The kernel as oracle for huge pages. The programs are those of the test `oracle`, in a window of
//! 8 MiB whose memory is mostly under MADV_HUGEPAGE.
//!
//! Compared: bytes, errnos, signals, listings; which pages are present, huge, zero or guards
//! (PAGEMAP_SCAN); mincore; Rss, Anonymous and AnonHugePages of smaps. Not compared:
//!
//! - steps that touch 2 MiB where Linux may have an empty page table: they are left out (`chunks`);
//! - present pages of forked children, as in the test `oracle`;
//! - the effects of MADV_COLLAPSE on shared memory, which is small in ours, as a fault makes it on
//!   Linux with `shmem_enabled` as it is by default;
//! - MADV_COLD, MADV_PAGEOUT, and MADV_FREE of pages that are there, for which Linux may split a
//!   huge page, and then unmaps its parts that hold zeros.
//!
//! Our runner looks at all pages after each step, by PAGEMAP_SCAN, which splits a huge page that
//! the end of a VMA cuts. On Linux the call that splits the VMA does.
//!
//! khugepaged may make a page huge at any time. So a difference counts if it shows twice. Comparing
//! takes about 200 microseconds a step: most of it clears huge pages.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]
#![allow(dead_code, reason = "this test uses some of the shared modules")]

use std::fs;

#[path = "../oracle/answers.rs"]
mod answers;
#[path = "../oracle/chunks.rs"]
mod chunks;
#[path = "../../../vma/tests/oracle/compare.rs"]
mod compare;
mod huge_random;
#[path = "../../../vma/tests/oracle/linux.rs"]
mod linux;
#[path = "../../../vma/tests/oracle/monitor.rs"]
mod monitor;
#[path = "../oracle/monitor_random.rs"]
mod monitor_random;
#[path = "../oracle/monitored.rs"]
mod monitored;
#[path = "../oracle/ours.rs"]
mod ours;
#[path = "../../../vma/tests/oracle/program.rs"]
mod program;
#[path = "../../../vma/tests/oracle/random.rs"]
mod random;
#[path = "../oracle/run.rs"]
mod run;

#[path = "../../../trace/tests/common/needs.rs"]
mod needs;

use linux::Linux;
use run::{Runner, all_as_on_linux};

/// The pages of the window: 8 MiB.
const PAGES: usize = 2048;
/// Programs that a plain run of the test carries out, and the steps of each.
const PROGRAMS: u64 = 100;
const STEPS: usize = 50;

/// A word of brackets in a file of `/sys/kernel/mm/transparent_hugepage`.
fn setting(name: &str) -> String {
    let text = fs::read_to_string(format!("/sys/kernel/mm/transparent_hugepage/{name}"));
    let text = text.unwrap_or_default();
    let chosen = text.split(['[', ']']).nth(1).unwrap_or(&text);
    chosen.trim().into()
}

#[test]
fn huge_pages_are_as_on_linux() {
    let has = setting("enabled") == "madvise"
        && setting("use_zero_page") == "1"
        && matches!(&*setting("hugepages-2048kB/enabled"), "inherit" | "madvise")
        && matches!(&*setting("defrag"), "always" | "madvise" | "defer+madvise");
    // No cure: the tests do not ask anyone to change a setting of the whole machine.
    let name = "huge pages under MADV_HUGEPAGE alone: \
                /sys/kernel/mm/transparent_hugepage/enabled is not `madvise`";
    if needs::has(name, has, None) {
        all_as_on_linux(&mut Linux::start(), |seed| huge_random::random(seed, STEPS));
    }
}
