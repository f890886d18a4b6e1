//! userfaultfd: faults that a part of the program resolves, its monitor.
//!
//! A thread that faults in registered memory is added to the [`Monitor`], and parked. The monitor
//! reads a message for each, brings the page in by an ioctl, and so wakes the threads that wait for
//! it; they begin their instruction again. As with UFFD_USER_MODE_ONLY, only accesses of programs
//! wait: a call with such memory fails with EFAULT.
//!
//! # Why each thread is woken
//! A thread is in the list before it looks once more (`run/cpu.rs`) whether the fault is still to
//! be resolved. So a monitor that resolves it either finds the thread in the list, or before that
//! look. Closing the last descriptor unregisters the memory, and then wakes all.

use super::budget::Charge;
use super::ready::Changed;
use super::userfault_events::{Event, Message, Told};
use crate::errno::Errno;
use crate::lock::lock;
use crate::machine::Kernel;
use crate::task::memory::Space;
use crate::task::wait::Sleeper;
use alloc::boxed::Box;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::ops::Range;
use core::ptr;
use core::sync::atomic::{AtomicU64, Ordering};
use linux_raw_sys::errno::{EINVAL, ENOMEM, ESRCH};
use machine::Cpus;
use mm::{
    Access, Uffd, UserFault, UserFaultEvent, UserFaultEvents, UserFaultHandler, UserFaultKind,
    UserFaultModes,
};
use spin::{Once, mutex::SpinMutex};

/// Features, by the numbers of UFFDIO_API.
const EVENT_FORK: u64 = 1 << 1;
const EVENT_REMAP: u64 = 1 << 2;
const EVENT_REMOVE: u64 = 1 << 3;
const EVENT_UNMAP: u64 = 1 << 6;
const SIGBUS: u64 = 1 << 7;
const THREAD_ID: u64 = 1 << 8;
const EXACT_ADDRESS: u64 = 1 << 11;
const UNPOPULATED: u64 = 1 << 13;
const ASYNC: u64 = 1 << 15;
/// All that are here, those of Linux 6.18: also WP and MINOR faults, of shared memory, too, and of
/// hugetlb, of which there is none; POISON; MOVE.
pub(crate) const FEATURES: u64 = (1 << 17) - 1;
/// Set when the features were chosen.
const READY: u64 = 1 << 63;

/// The bits of the number by which `mm` knows a monitor.
mod id {
    pub(super) const ASYNC: u64 = 1;
    pub(super) const MARKS: u64 = 2;
    /// The first of those of `mm::UserFaultEvents`.
    pub(super) const EVENTS: u32 = 2;
    pub(super) const BITS: u32 = 6;
}

/// The bytes of a message.
pub(crate) const MESSAGE: usize = 32;
/// The heap that one uses, about.
const SIZE: usize = 256;

static NUMBER: AtomicU64 = AtomicU64::new(1);
static MONITORS: SpinMutex<BTreeMap<u64, Known>> = SpinMutex::new(BTreeMap::new());

/// The state of a monitor that calls of `mm` read and change without keeping the monitor.
struct Known {
    monitor: Weak<Monitor>,
    features: u64,
    flags: u32,
    /// The changes of its memory of which it has not read.
    changing: usize,
}

/// Calls `use_it` with the [`Known`] of the monitor with this number of `mm`, unless it was closed.
fn known<T>(uffd: u64, use_it: impl FnOnce(&mut Known) -> T) -> Option<T> {
    lock(&MONITORS).get_mut(&(uffd >> id::BITS)).map(use_it)
}

/// The monitor with this number of `mm`.
pub(super) fn find(uffd: u64) -> Option<Arc<Monitor>> {
    known(uffd, |known| known.monitor.clone()).and_then(|monitor| monitor.upgrade())
}

/// The monitor has read of a change, or does not need to any more.
pub(super) fn end_change(uffd: u64) {
    known(uffd, |known| known.changing -= 1);
}

/// A thread that waits.
struct Waiting {
    thread: Arc<dyn Sleeper>,
    /// The page.
    at: u64,
    message: [u64; MESSAGE / 8],
    is_read: bool,
}

/// The file of a descriptor of userfaultfd. Dropping it unregisters its memory.
pub(crate) struct Monitor {
    number: u64,
    /// That of a child is known when the fork is done.
    space: Once<Weak<Space>>,
    /// O_NONBLOCK and O_CLOEXEC of the call that made it.
    flags: u32,
    /// The features, and `READY`.
    features: AtomicU64,
    /// In the order of their faults.
    waiting: SpinMutex<Vec<Waiting>>,
    /// The changes of its memory of which it has not read.
    events: SpinMutex<VecDeque<Event>>,
    /// Woken when there is a message.
    pub(crate) changed: Changed,
    _charge: Charge,
}

impl Monitor {
    /// # Errors
    /// ENOSPC: the budget is used up.
    pub(crate) fn new(space: &Arc<Space>, flags: u32) -> Result<Arc<Monitor>, Errno> {
        let monitor = Monitor::with(0, flags)?;
        monitor.set_space(space);
        Ok(monitor)
    }

    fn with(features: u64, flags: u32) -> Result<Arc<Monitor>, Errno> {
        let monitor = Arc::new(Monitor {
            // Relaxed: only the number.
            number: NUMBER.fetch_add(1, Ordering::Relaxed),
            space: Once::new(),
            flags,
            features: AtomicU64::new(features),
            waiting: SpinMutex::new(Vec::new()),
            events: SpinMutex::new(VecDeque::new()),
            changed: Changed::new(),
            _charge: Charge::new(SIZE)?,
        });
        let known = Known { monitor: Arc::downgrade(&monitor), features, flags, changing: 0 };
        lock(&MONITORS).insert(monitor.number, known);
        Ok(monitor)
    }

    /// Says whose memory it serves.
    pub(super) fn set_space(&self, space: &Arc<Space>) {
        self.space.call_once(|| Arc::downgrade(space));
    }

    /// The flags of the call that made it.
    pub(crate) fn flags(&self) -> u32 {
        self.flags
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
        if !done {
            return Err(Errno(EINVAL));
        }
        known(self.id(), |known| known.features = chosen);
        Ok(())
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
        let events = [
            (EVENT_FORK, UserFaultEvents::FORK),
            (EVENT_REMAP, UserFaultEvents::REMAP),
            (EVENT_REMOVE, UserFaultEvents::REMOVE),
            (EVENT_UNMAP, UserFaultEvents::UNMAP),
        ];
        let events = events.iter().fold(0, |bits, (feature, event)| {
            bits | bit(*feature, u64::from(event.bits()) << id::EVENTS)
        });
        self.number << id::BITS | events | bit(ASYNC, id::ASYNC) | bit(UNPOPULATED, id::MARKS)
    }

    /// Whether this is the monitor with this number of `mm`.
    pub(super) fn is(&self, uffd: u64) -> bool {
        uffd >> id::BITS == self.number
    }

    /// The monitor, as `mm` registers its memory.
    fn uffd(&self) -> Uffd {
        let (follows_fork, follows_remap) = (self.has(EVENT_FORK), self.has(EVENT_REMAP));
        Uffd { id: self.id(), follows_fork, follows_remap }
    }

    /// Whether its memory has changed, and it has not read of that.
    pub(crate) fn is_changing(&self) -> bool {
        known(self.id(), |known| known.changing > 0) == Some(true)
    }

    /// Its space.
    ///
    /// # Errors
    /// EINVAL: the features were not chosen. ESRCH: the program has ended.
    pub(crate) fn space(&self) -> Result<Arc<Space>, Errno> {
        match self.is_ready() {
            true => self.space.get().and_then(Weak::upgrade).ok_or(Errno(ESRCH)),
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
        let done = space.userfault_register(at as usize, len as usize, modes, self.uffd());
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
        lock(&self.waiting).iter().any(|one| !one.is_read) || !lock(&self.events).is_empty()
    }

    /// The next message: as in Linux, faults come first.
    pub(crate) fn take(&self) -> Option<Message> {
        let mut waiting = lock(&self.waiting);
        if let Some(next) = waiting.iter_mut().find(|one| !one.is_read) {
            next.is_read = true;
            return Some(Message::Fault(next.message, Arc::clone(&next.thread)));
        }
        drop(waiting);
        lock(&self.events).pop_front().map(Message::Event)
    }

    /// A message could not be delivered.
    pub(crate) fn put_back(&self, message: Message) {
        match message {
            Message::Fault(_, thread) => {
                let mut waiting = lock(&self.waiting);
                let of = waiting.iter_mut().find(|one| Arc::ptr_eq(&one.thread, &thread));
                of.into_iter().for_each(|one| one.is_read = false);
            }
            Message::Event(event) => {
                let mut events = lock(&self.events);
                // The call may have been given up meanwhile: it marks the event, then looks here.
                if !event.told.is_done() {
                    // There is room: it was here before.
                    events.push_front(event);
                }
            }
        }
    }

    /// Adds an event for which a call waits.
    ///
    /// # Errors
    /// ENOMEM.
    pub(super) fn post(&self, event: Event) -> Result<(), Errno> {
        let mut events = lock(&self.events);
        events.try_reserve(1).map_err(|_| Errno(ENOMEM))?;
        events.push_back(event);
        drop(events);
        self.changed.wake_all();
        Ok(())
    }

    /// No call waits for this event any more.
    pub(super) fn take_back(&self, told: &Arc<Told>) {
        let mut events = lock(&self.events);
        let place = events.iter().position(|event| Arc::ptr_eq(&event.told, told));
        let event = place.and_then(|place| events.remove(place));
        drop(events);
        // It may drop the monitor of a child.
        drop(event);
    }

    /// The thread does not wait any more.
    pub(crate) fn forget(&self, thread: &Arc<impl Sleeper>) {
        let mut waiting = lock(&self.waiting);
        let is_its = |one: &Waiting| ptr::addr_eq(Arc::as_ptr(&one.thread), Arc::as_ptr(thread));
        if let Some(place) = waiting.iter().position(is_its) {
            let one = waiting.remove(place);
            drop(waiting);
            drop(one);
        }
    }

    /// Whether a thread that faults gets SIGBUS.
    pub(crate) fn sends_sigbus(&self) -> bool {
        self.has(SIGBUS)
    }

    /// Adds a thread that has begun to wait, with its number.
    ///
    /// # Errors
    /// ENOMEM.
    pub(crate) fn add(
        &self,
        (thread, tid): (Arc<dyn Sleeper>, u32),
        fault: &UserFault,
    ) -> Result<(), Errno> {
        const PAGEFAULT: u64 = 0x12;
        let page = fault.at.get() & !0xfff;
        let kind = match fault.kind {
            UserFaultKind::Missing => 0,
            UserFaultKind::WriteProtected => 2,
            UserFaultKind::Minor => 4,
        };
        let flags = kind | u64::from(fault.access == Access::Write);
        let address = if self.has(EXACT_ADDRESS) { fault.at.get() } else { page };
        let tid = if self.has(THREAD_ID) { tid.into() } else { 0 };
        let message = [PAGEFAULT, flags, address, tid];
        let mut waiting = lock(&self.waiting);
        waiting.try_reserve(1).map_err(|_| Errno(ENOMEM))?;
        waiting.push(Waiting { thread, at: page, message, is_read: false });
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
        if let (Some(space), true) = (self.space.get().and_then(Weak::upgrade), self.is_ready()) {
            // Without memory it stays registered, and accesses there end with SIGBUS.
            let _ = space.userfault_close(self.id());
        }
        lock(&MONITORS).remove(&self.number);
        self.wake(0..u64::MAX);
        // The calls that wait for it go on.
        let events = core::mem::take(&mut *lock(&self.events));
        events.iter().for_each(|event| event.told.finish());
    }
}

/// The monitors, as `mm` knows them.
pub(crate) struct Monitors;

/// Faults and events of which `mm` has told a CPU in the call or fault under way. A CPU reads its
/// own, right after `mm` has called it: kernel code stays on its CPU.
#[derive(Default)]
pub(super) struct Found {
    /// The last fault that is a monitor's.
    fault: Option<UserFault>,
    pub(super) events: Vec<UserFaultEvent>,
    /// The monitors for the memory of a child that is being forked.
    pub(super) children: Vec<Arc<Monitor>>,
}

static FOUND: Once<Box<[SpinMutex<Found>]>> = Once::new();

pub(super) fn found() -> &'static SpinMutex<Found> {
    let all = FOUND.call_once(|| (0..Kernel.count()).map(|_| SpinMutex::default()).collect());
    &all[Kernel.current().index()]
}

impl UserFaultHandler for Monitors {
    /// The thread cannot wait here. The fault fails, and the thread waits afterwards.
    fn handle(&self, fault: UserFault) -> bool {
        lock(found()).fault = Some(fault);
        false
    }

    fn is_write_protect_async(&self, uffd: u64) -> bool {
        uffd & id::ASYNC != 0
    }

    fn marks_absent_pages(&self, uffd: u64) -> bool {
        uffd & id::MARKS != 0
    }

    fn events(&self, uffd: u64) -> UserFaultEvents {
        UserFaultEvents::from_bits_truncate((uffd >> id::EVENTS) as u32)
    }

    fn begin_change(&self, uffd: u64) {
        known(uffd, |known| known.changing += 1);
    }

    fn is_changing(&self, uffd: u64) -> bool {
        known(uffd, |known| known.changing > 0) == Some(true)
    }

    fn make_child(&self, uffd: u64) -> Option<u64> {
        let (features, flags) = known(uffd, |known| (known.features, known.flags))?;
        let mut found = lock(found());
        found.children.try_reserve(1).ok()?;
        let child = Monitor::with(features, flags).ok()?;
        let number = child.id();
        found.children.push(child);
        Some(number)
    }

    /// The call cannot wait here: [`Events::take`](super::userfault_events::Events::take) lets it
    /// wait later.
    fn deliver(&self, events: Vec<UserFaultEvent>) {
        lock(found()).events = events;
    }
}

/// The fault that `mm` has just refused on this CPU as a monitor's, and the monitor. None: the
/// monitor could not unregister its memory when it ended.
pub(crate) fn refused() -> Option<(UserFault, Weak<Monitor>)> {
    let fault = lock(found()).fault.take()?;
    known(fault.uffd, |known| known.monitor.clone()).map(|monitor| (fault, monitor))
}
