//! userfaultfd: faults that a part of the program resolves, its monitor.
//!
//! A thread that faults in registered memory is added to the [`Monitor`], and parked. The monitor
//! reads a message for each, brings the page in by an ioctl, and so wakes the threads that wait for
//! it; they begin their instruction again. As with UFFD_USER_MODE_ONLY, only accesses of programs
//! wait: a call with such memory fails with EFAULT.
//!
//! # Why each thread is woken
//! A thread is in the list before it looks once more whether the fault is still to be resolved. So
//! a monitor that resolves it either finds the thread in the list, or before that look. Closing the
//! last descriptor unregisters the memory, and then wakes all.

use super::budget::Charge;
use crate::call::Errno;
use crate::machine::Kernel;
use crate::task::{Space, Thread, WaitQueue, lock};
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering};
use linux_raw_sys::errno::{EINVAL, ENOMEM, ESRCH};
use machine::Cpus;
use mm::{Access, Uffd, UserFault, UserFaultHandler, UserFaultKind, UserFaultModes};
use spin::{Once, mutex::SpinMutex};

/// Features, by the numbers of UFFDIO_API.
const SIGBUS: u64 = 1 << 7;
const THREAD_ID: u64 = 1 << 8;
const EXACT_ADDRESS: u64 = 1 << 11;
const UNPOPULATED: u64 = 1 << 13;
const ASYNC: u64 = 1 << 15;
/// All that are here: also WP and MINOR faults, of shared memory, too, and of hugetlb, of which
/// there is none; POISON; MOVE. There are no messages of forks, moves and unmappings.
pub(crate) const FEATURES: u64 = 1
    | 1 << 4
    | 1 << 5
    | 1 << 9
    | SIGBUS
    | THREAD_ID
    | 1 << 10
    | EXACT_ADDRESS
    | 1 << 12
    | UNPOPULATED
    | 1 << 14
    | ASYNC
    | 1 << 16;
/// Set when the features were chosen.
const READY: u64 = 1 << 63;

/// The bits of the number by which `mm` knows a monitor.
mod id {
    pub(super) const ASYNC: u64 = 1;
    pub(super) const MARKS: u64 = 2;
    pub(super) const BITS: u32 = 2;
}

/// The bytes of a message.
pub(crate) const MESSAGE: usize = 32;
/// The heap that one uses, about.
const SIZE: usize = 256;

static NUMBER: AtomicU64 = AtomicU64::new(1);
static MONITORS: SpinMutex<BTreeMap<u64, Weak<Monitor>>> = SpinMutex::new(BTreeMap::new());

/// A thread that waits.
struct Waiting {
    thread: Arc<Thread>,
    /// The page.
    at: u64,
    message: [u64; MESSAGE / 8],
    is_read: bool,
}

/// What a descriptor of userfaultfd leads to. Dropping it unregisters its memory.
pub(crate) struct Monitor {
    number: u64,
    space: Weak<Space>,
    /// The features, and `READY`.
    features: AtomicU64,
    /// In the order of their faults.
    waiting: SpinMutex<Vec<Waiting>>,
    /// Woken when there is a message.
    pub(crate) changed: WaitQueue,
    _charge: Charge,
}

impl Monitor {
    /// # Errors
    /// ENOSPC: the budget is used up.
    pub(crate) fn new(space: &Arc<Space>) -> Result<Arc<Monitor>, Errno> {
        let monitor = Arc::new(Monitor {
            // Relaxed: only the number.
            number: NUMBER.fetch_add(1, Ordering::Relaxed),
            space: Arc::downgrade(space),
            features: AtomicU64::new(0),
            waiting: SpinMutex::new(Vec::new()),
            changed: WaitQueue::new(),
            _charge: Charge::new(SIZE)?,
        });
        lock(&MONITORS).insert(monitor.number, Arc::downgrade(&monitor));
        Ok(monitor)
    }

    /// Chooses the features.
    ///
    /// # Errors
    /// EINVAL: unknown ones, or it was called before.
    pub(crate) fn start(&self, features: u64) -> Result<(), Errno> {
        let marks = if features & ASYNC != 0 { UNPOPULATED } else { 0 };
        let (relaxed, chosen) = (Ordering::Relaxed, features | marks | READY);
        // Relaxed: only the number.
        let done = features & !FEATURES == 0
            && self.features.compare_exchange(0, chosen, relaxed, relaxed).is_ok();
        if done { Ok(()) } else { Err(Errno(EINVAL)) }
    }

    fn has(&self, feature: u64) -> bool {
        // Relaxed: as in `start`.
        self.features.load(Ordering::Relaxed) & feature != 0
    }

    /// Whether the features were chosen.
    pub(crate) fn is_ready(&self) -> bool {
        self.has(READY)
    }

    /// The number by which `mm` knows it.
    fn id(&self) -> u64 {
        let bit = |feature, bit| if self.has(feature) { bit } else { 0 };
        self.number << id::BITS | bit(ASYNC, id::ASYNC) | bit(UNPOPULATED, id::MARKS)
    }

    /// Its space.
    ///
    /// # Errors
    /// EINVAL: the features were not chosen. ESRCH: the program has ended.
    pub(crate) fn space(&self) -> Result<Arc<Space>, Errno> {
        match self.is_ready() {
            true => self.space.upgrade().ok_or(Errno(ESRCH)),
            false => Err(Errno(EINVAL)),
        }
    }

    /// UFFDIO_REGISTER.
    ///
    /// # Errors
    /// EINVAL, EBUSY, EPERM, ENOMEM, as in Linux.
    pub(crate) fn register(&self, range: [u64; 2], modes: u64) -> Result<(), Errno> {
        let (space, [at, len]) = (self.space()?, range);
        let modes = UserFaultModes::from_bits(modes as u32).filter(|_| modes >> 32 == 0);
        let modes = modes.filter(|modes| !modes.is_empty()).ok_or(Errno(EINVAL))?;
        let done = space.userfault_register(at as usize, len as usize, modes, Uffd::new(self.id()));
        done.map_err(no_hole)
    }

    /// UFFDIO_UNREGISTER.
    ///
    /// # Errors
    /// EINVAL, ENOMEM.
    pub(crate) fn unregister(&self, at: u64, len: u64) -> Result<(), Errno> {
        self.space()?.userfault_unregister(at as usize, len as usize).map_err(no_hole)?;
        self.wake(at..at + len);
        Ok(())
    }

    /// Wakes the threads that wait for pages of a range.
    pub(crate) fn wake(&self, range: Range<u64>) {
        let mut waiting = lock(&self.waiting);
        // One after another: no allocation.
        while let Some(place) = waiting.iter().position(|one| range.contains(&one.at)) {
            let one = waiting.remove(place);
            drop(waiting);
            one.thread.wake();
            waiting = lock(&self.waiting);
        }
    }

    /// Whether there is a message that was not read.
    pub(crate) fn has_message(&self) -> bool {
        lock(&self.waiting).iter().any(|one| !one.is_read)
    }

    /// The next message, and whose it is.
    pub(crate) fn take(&self) -> Option<([u64; MESSAGE / 8], Arc<Thread>)> {
        let mut waiting = lock(&self.waiting);
        let next = waiting.iter_mut().find(|one| !one.is_read)?;
        next.is_read = true;
        Some((next.message, Arc::clone(&next.thread)))
    }

    /// The message of a thread could not be delivered.
    pub(crate) fn put_back(&self, thread: &Arc<Thread>) {
        let mut waiting = lock(&self.waiting);
        let of = waiting.iter_mut().find(|one| Arc::ptr_eq(&one.thread, thread));
        of.into_iter().for_each(|one| one.is_read = false);
    }

    /// The thread does not wait any more.
    pub(crate) fn forget(&self, thread: &Arc<Thread>) {
        let mut waiting = lock(&self.waiting);
        if let Some(place) = waiting.iter().position(|one| Arc::ptr_eq(&one.thread, thread)) {
            let one = waiting.remove(place);
            drop(waiting);
            drop(one);
        }
    }

    /// Adds a thread that has begun to wait.
    fn add(&self, thread: &Arc<Thread>, fault: &UserFault) -> Result<(), Errno> {
        const PAGEFAULT: u64 = 0x12;
        let page = fault.at.get() & !0xfff;
        let kind = match fault.kind {
            UserFaultKind::Missing => 0,
            UserFaultKind::WriteProtected => 2,
            UserFaultKind::Minor => 4,
        };
        let flags = kind | u64::from(fault.access == Access::Write);
        let address = if self.has(EXACT_ADDRESS) { fault.at.get() } else { page };
        let tid = if self.has(THREAD_ID) { thread.tid.into() } else { 0 };
        let message = [PAGEFAULT, flags, address, tid];
        let mut waiting = lock(&self.waiting);
        waiting.try_reserve(1).map_err(|_| Errno(ENOMEM))?;
        waiting.push(Waiting { thread: Arc::clone(thread), at: page, message, is_read: false });
        drop(waiting);
        self.changed.wake_all();
        Ok(())
    }
}

/// The error of a call on a range in which nothing is mapped: EINVAL.
fn no_hole(error: mm::Error) -> Errno {
    match error {
        mm::Error::Vma(vma::Error::Unmapped) => Errno(EINVAL),
        other => other.into(),
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        lock(&MONITORS).remove(&self.number);
        if let (Some(space), true) = (self.space.upgrade(), self.is_ready()) {
            // Without memory it stays registered, and accesses there end with SIGBUS.
            let _ = space.userfault_close(self.id());
        }
        self.wake(0..u64::MAX);
    }
}

/// The monitors, as `mm` knows them.
pub(crate) struct Monitors;

/// The last fault of each CPU that is a monitor's. A CPU reads its own, right after `mm` has called
/// it: kernel code stays on its CPU.
static FOUND: Once<Box<[SpinMutex<Option<UserFault>>]>> = Once::new();

fn found() -> &'static SpinMutex<Option<UserFault>> {
    let all = FOUND.call_once(|| (0..Kernel.count()).map(|_| SpinMutex::new(None)).collect());
    &all[Kernel.current().index()]
}

impl UserFaultHandler for Monitors {
    /// The thread cannot wait here. The fault fails, and [`wait`] makes the thread wait.
    fn handle(&self, fault: UserFault) -> bool {
        *lock(found()) = Some(fault);
        false
    }

    fn is_write_protect_async(&self, uffd: u64) -> bool {
        uffd & id::ASYNC != 0
    }

    fn marks_absent_pages(&self, uffd: u64) -> bool {
        uffd & id::MARKS != 0
    }
}

/// What a thread does whose fault is a monitor's.
pub(crate) enum Then {
    /// It waits until this monitor, or a signal, wakes it.
    Wait(Weak<Monitor>),
    /// It goes on: the fault was resolved meanwhile.
    GoOn,
    /// It gets SIGBUS.
    Fail,
}

/// Lets a thread wait whose fault `mm` has just refused as a monitor's. `again` makes the fault
/// once more; it returns whether it is still the monitor's.
pub(crate) fn wait(thread: &Arc<Thread>, again: impl FnOnce() -> bool) -> Then {
    let Some(fault) = lock(found()).take() else { return Then::Fail };
    let monitor = lock(&MONITORS).get(&(fault.uffd >> id::BITS)).cloned();
    // It is being closed, or could not unregister its memory.
    let Some(monitor) = monitor else { return Then::Fail };
    let Some(strong) = monitor.upgrade() else { return Then::GoOn };
    if strong.has(SIGBUS) {
        return Then::Fail;
    }
    thread.begin_wait();
    if strong.add(thread, &fault).is_err() {
        thread.end_wait();
        return Then::Fail;
    }
    if again() {
        return Then::Wait(monitor);
    }
    thread.end_wait();
    strong.forget(thread);
    Then::GoOn
}
