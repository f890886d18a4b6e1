//! The numbers that trade one cost for another. Their conditions are checked below.

use vma::PAGE_SIZE;

/// Attempts of a fault without the mmap lock. Each that fails means that a call or a fault of
/// another CPU was faster.
pub(crate) const FAULT_ATTEMPTS: usize = 16;
/// A fault that is refused a reference to a slot of swap so often ends. It is more than the
/// attempts without the mmap lock.
pub(crate) const SLOT_REFUSALS: usize = 20;
/// The pages that a fault in a map of an object maps (`fault_around_bytes` of Linux, in pages).
pub(crate) const AROUND_PAGES: usize = 16;

/// The frames of one flush. A whole gather is 0.5 KiB of stack.
pub(crate) const GATHER_FRAMES: usize = 64;
/// The most pages of 4 KiB that wait for a TLB grace period, page tables included: 32 MiB. With two
/// ticks of 4 ms a period, threads unmap 4 GiB a second without an IPI.
pub(crate) const WAITING_PAGES: usize = 8192;
/// The most ranges that wait in one list: an insertion moves at most 4 KiB.
pub(crate) const WAITING_RANGES: usize = 256;
/// The longest range, in bytes, whose empty tables stay: to look at the 128 entries that stand for
/// it takes as long as to make three tables.
pub(crate) const KEPT_RANGE_BYTES: usize = 256 << 20;
/// The ranges that wait one by one in the way of a search for a place. Then it goes past all of
/// them.
pub(crate) const PASSED_RANGES: usize = 8;

/// The most pauses between two tries to get the mmap lock without performing requests.
pub(crate) const LOCK_PAUSES: u32 = 32;
/// The frames that a CPU takes from the limit of a group at once.
pub(crate) const GROUP_FRAMES: usize = 32;
/// The pages that a copy of a program's memory pins at once.
pub(crate) const COPIED_PAGES: usize = 8;
/// The pages that a pin which lasts brings in before it looks at them with the mmap lock.
pub(crate) const LONG_TERM_PAGES: usize = 32;
/// The looks for pinned pages before a seal fails because of them.
pub(crate) const PIN_LOOKS: usize = 64;
/// The bytes that reclaim looks at with the mmap lock held once.
pub(crate) const RECLAIM_BYTES: usize = 512 * PAGE_SIZE;
/// The anonymous pages that reclaim writes in one go.
pub(crate) const RECLAIM_PAGES: usize = 32;

const _: () = {
    assert!(SLOT_REFUSALS > FAULT_ATTEMPTS, "a fault tries with the mmap lock first");
    assert!(GATHER_FRAMES > 0, "a sweep goes on");
    assert!(AROUND_PAGES.is_power_of_two() && RECLAIM_BYTES.is_power_of_two(), "they are masks");
};
