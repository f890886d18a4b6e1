//! A limit of frames for a group of address spaces, as memory control groups have it.
//!
//! The anonymous pages that the spaces of a group bring in count, and those of objects that were
//! made for the group. A frame counts from its allocation until it is free, whichever CPU drops the
//! last reference: its frame source keeps the accounts ([`machine::Accounts`]). A forked child
//! belongs to its parent's group.
//!
//! # Correctness
//! Each CPU has a stock of frames that it may still bring in. It fills the stock from what the
//! limit leaves, a batch at a time, and puts into it what it frees. So the frames that all CPUs
//! hold, in use or in stock, never exceed the limit; near the limit the stocks of all CPUs are
//! collected first.
//!
//! A CPU that moves frames between the limit, its stock and those that it has freed counts the
//! beginning and the end of the move: meanwhile they are nowhere. A charge fails only if no move
//! was under way since it began to collect.
//!
//! Cost of a charge: one locked instruction on a line of this CPU; for each batch three on the
//! group's.

use alloc::{boxed::Box, collections::TryReserveError};
use core::{
    fmt,
    sync::atomic::{AtomicUsize, Ordering, fence},
};

use machine::{Account, CpuId, Frame, Machine, PerCpu, SharedAccess, lock};
use spin::mutex::SpinMutex;

use crate::{Shared, thresholds::GROUP_FRAMES};

/// The host's answer when a group has reached its limit, or
/// [the frame source has no frame left](crate::AddressSpace::set_shortage_handler). Called with no
/// lock and no guard held, by the fault or the call that needs the frames.
///
/// # Misuse
/// It may panic, and call the space. One that always returns `true` without effect makes the fault
/// wait without end.
pub trait OnLimit: Send + Sync + 'static {
    /// Makes room: reclaims pages, kills a program, or raises the limit. Returns whether it has
    /// done something, so that the caller tries again.
    fn make_room(&self, needed: usize) -> bool;
}

impl OnLimit for () {
    fn make_room(&self, _: usize) -> bool {
        false
    }
}

/// Why there is no group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum GroupError {
    /// The frame source keeps no accounts ([`machine::FrameSource::accounts`]).
    NoAccounts,
    /// As many groups exist as there are accounts ([`machine::MAX_ACCOUNTS`]).
    TooMany,
    /// There is no memory for the counters.
    OutOfMemory,
    /// The group counts frames of another machine.
    Foreign,
}

impl From<TryReserveError> for GroupError {
    fn from(_: TryReserveError) -> Self {
        GroupError::OutOfMemory
    }
}

impl fmt::Display for GroupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            GroupError::NoAccounts => {
                "the frame source keeps no accounts: implement FrameSource::accounts"
            }
            GroupError::TooMany => "all accounts are in use: drop a group first",
            GroupError::OutOfMemory => "no memory for the counters of a group",
            GroupError::Foreign => "the group counts frames of another machine; make it with ours",
        })
    }
}

impl core::error::Error for GroupError {}

/// A group of address spaces, and its limit.
///
/// ```
/// use machine::{Asid, PageSize};
/// use mm::*;
/// use paging::{Paging, X86_64L4};
/// use sim::{Config, Grace, Sim};
///
/// let sim = Sim::new(Config { cpus: 1, ..Config::default() }).unwrap();
/// let shared = Paging::try_new(sim.clone(), PageSize::Size1G).unwrap();
/// sim.on_cpu(0, || {
///     let group = FrameGroup::try_new(&sim, 2, Box::new(())).unwrap();
///     let layout = Layout { mmap_base: 0x7000_0000, ..Layout::default() };
///     let mut space = AddressSpace::<Sim, X86_64L4, Grace>::try_new(
///         &shared, Asid(1), None, Profile::LINUX_6_18, layout,
///     )?;
///     space.set_group(&group).unwrap();
///     let at = space.mmap(0, 0x3000, 3, MapFlags::PRIVATE | MapFlags::ANONYMOUS)?;
///     let written = space.write(at, &[1; 0x3000]);
///     assert_eq!(written.unwrap_err().copied, 0x2000);
///     assert_eq!(group.used(), 2);
///     space.munmap(at, 0x3000)?;
///     assert_eq!(group.used(), 0);
///     Ok::<(), Error>(())
/// }).unwrap();
/// ```
///
/// # Misuse
/// A wrong count refuses or allows pages, and memory safety does not depend on it. An account with
/// frames that are still pinned stays open.
pub struct FrameGroup<M: Machine> {
    machine: M,
    account: Account,
    limit: AtomicUsize,
    /// Frames in use or in stock.
    taken: AtomicUsize,
    stocks: PerCpu<AtomicUsize>,
    /// The moves of frames that have begun, and those that have ended.
    moves: [AtomicUsize; 2],
    /// Held by a charge near the limit that collects the stocks.
    collecting: SpinMutex<()>,
    host: Box<dyn OnLimit>,
}

impl<M: Machine> FrameGroup<M> {
    /// A group of no spaces, with a limit in frames. Allocates.
    ///
    /// # Errors
    /// [`GroupError`].
    pub fn try_new(
        machine: &M,
        limit: usize,
        host: Box<dyn OnLimit>,
    ) -> Result<Shared<Self>, GroupError> {
        let stocks = PerCpu::try_new(machine.count(), |_| AtomicUsize::new(0))?;
        let accounts = machine.accounts().ok_or(GroupError::NoAccounts)?;
        let account = accounts.open().ok_or(GroupError::TooMany)?;
        let (limit, taken) = (AtomicUsize::new(limit), AtomicUsize::new(0));
        let (machine, collecting) = (machine.clone(), SpinMutex::new(()));
        let moves = [const { AtomicUsize::new(0) }; 2];
        let group = FrameGroup { machine, account, limit, taken, stocks, moves, collecting, host };
        Shared::try_new(group).map_err(|_| GroupError::OutOfMemory)
    }

    /// The limit, in frames.
    pub fn limit(&self) -> usize {
        // Relaxed: only the number counts.
        self.limit.load(Ordering::Relaxed)
    }

    /// Sets the limit. Pages beyond it stay, and no more are brought in.
    pub fn set_limit(&self, frames: usize) {
        // Relaxed: as in `limit`.
        self.limit.store(frames, Ordering::Relaxed);
    }

    /// The frames in use. Exact while none is brought in or freed. Collects the stocks of all CPUs:
    /// a few locked instructions for each.
    pub fn used(&self) -> usize {
        self.machine.step(SharedAccess::Other);
        let _collecting = lock(&self.machine, &self.collecting);
        self.collect();
        // Relaxed: only the number counts.
        self.taken.load(Ordering::Relaxed)
    }

    /// Whether it counts frames of this machine. Otherwise its account would be written into the
    /// states of other frames.
    pub(crate) fn check_home(&self, machine: &M) -> Result<(), GroupError> {
        let same = match (self.machine.accounts(), machine.accounts()) {
            (Some(ours), Some(other)) => core::ptr::eq(ours, other),
            _ => false,
        };
        if same { Ok(()) } else { Err(GroupError::Foreign) }
    }

    fn stock(&self, cpu: CpuId) -> Option<&AtomicUsize> {
        // A CPU that the machine does not have uses the first one's.
        self.stocks.get(cpu).or_else(|| self.stocks.iter().next())
    }

    fn take_freed(&self, cpu: CpuId) -> usize {
        self.machine.accounts().map_or(0, |accounts| accounts.take_freed(cpu, self.account))
    }

    /// Gives the stocks of all CPUs, and the frames that they have freed, back to the limit.
    fn collect(&self) {
        for (cpu, stock) in (0..).map_while(CpuId::new).zip(self.stocks.iter()) {
            // Relaxed, here and below: each frame is counted in one place at any moment, and only
            // the numbers count.
            let back = stock.swap(0, Ordering::Relaxed) + self.take_freed(cpu);
            self.taken.fetch_sub(back, Ordering::Relaxed);
        }
    }

    /// Takes frames from the limit, if it leaves so many.
    fn take(&self, frames: usize) -> bool {
        self.machine.step(SharedAccess::Other);
        let limit = self.limit();
        self.taken
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |taken| {
                taken.checked_add(frames).filter(|taken| *taken <= limit)
            })
            .is_ok()
    }

    /// Makes `frames` frames count that are about to be allocated. Returns false, and counts
    /// nothing, if the limit leaves too few.
    pub(crate) fn charge(&self, frames: usize) -> bool {
        let cpu = self.machine.current();
        let Some(stock) = self.stock(cpu) else { return false };
        self.machine.step(SharedAccess::Other);
        let own = || {
            let less = |has: usize| has.checked_sub(frames);
            stock.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok()
        };
        if own() || self.charge_batch(cpu, stock, frames) {
            return true;
        }
        self.machine.step(SharedAccess::Other);
        // One at a time: frames that another CPU is collecting at this moment are in no stock.
        let _collecting = lock(&self.machine, &self.collecting);
        loop {
            let [begun, ended] = &self.moves;
            // Acquire: pairs with the Release of `moving`, so this CPU sees the moves that have
            // ended. Read before the beginnings: if both are equal, no move is under way.
            let before = ended.load(Ordering::Acquire);
            // Relaxed, here and below: the fences order it.
            let none_under_way = begun.load(Ordering::Relaxed) == before;
            self.collect();
            if self.take(frames) {
                return true;
            }
            // Acquire: pairs with the Release of `moving`. A move that has hidden frames from this
            // look has begun, and that is seen.
            fence(Ordering::Acquire);
            if none_under_way && begun.load(Ordering::Relaxed) == before {
                return false;
            }
            self.machine.relax();
        }
    }

    /// Charges from what this CPU has freed, or from the limit, and fills the stock.
    fn charge_batch(&self, cpu: CpuId, stock: &AtomicUsize, frames: usize) -> bool {
        self.moving(|| {
            let freed = self.take_freed(cpu);
            if let Some(more) = freed.checked_sub(frames) {
                if more != 0 {
                    self.put(stock, more);
                }
                return true;
            }
            let lacks = frames - freed;
            if self.take(lacks + GROUP_FRAMES) {
                stock.fetch_add(GROUP_FRAMES, Ordering::Relaxed);
                return true;
            }
            let taken = self.take(lacks);
            if !taken {
                self.put(stock, freed);
            }
            taken
        })
    }

    /// Moves frames from one place to another.
    fn moving<T>(&self, moves: impl FnOnce() -> T) -> T {
        let [begun, ended] = &self.moves;
        // Relaxed: the fence orders it.
        begun.fetch_add(1, Ordering::Relaxed);
        // Release: pairs with the fence of `charge`. A CPU that misses the frames sees the
        // beginning.
        fence(Ordering::Release);
        let done = moves();
        // Release: pairs with `charge`: the frames are at their new place.
        ended.fetch_add(1, Ordering::Release);
        done
    }

    /// Undoes [`charge`](Self::charge) for frames that were not allocated.
    pub(crate) fn uncharge(&self, frames: usize) {
        match self.stock(self.machine.current()) {
            Some(stock) => self.put(stock, frames),
            None => {
                self.taken.fetch_sub(frames, Ordering::Relaxed);
            }
        }
    }

    /// Puts frames into a stock; a stock that is too large goes back to the limit.
    fn put(&self, stock: &AtomicUsize, frames: usize) {
        self.machine.step(SharedAccess::Other);
        let has = stock.fetch_add(frames, Ordering::Relaxed) + frames;
        if has > 2 * GROUP_FRAMES {
            self.moving(|| {
                let excess = stock.swap(0, Ordering::Relaxed);
                self.machine.step(SharedAccess::Other);
                self.taken.fetch_sub(excess, Ordering::Relaxed);
            });
        }
    }

    /// A block of frames that was charged is allocated: its source says when it is freed.
    ///
    /// # Safety
    /// As for [`machine::Accounts::charge`].
    pub(crate) unsafe fn note(&self, frame: Frame) {
        if let (Some(accounts), Some(info)) = (self.machine.accounts(), self.machine.info(frame)) {
            // SAFETY: passed on.
            unsafe { accounts.charge(info, self.account) };
        }
    }

    /// Asks the host to make room. Returns whether to try again.
    pub(crate) fn make_room(&self, needed: usize) -> bool {
        self.host.make_room(needed)
    }
}

impl<M: Machine> Drop for FrameGroup<M> {
    fn drop(&mut self) {
        // A frame that is still pinned keeps the account open, for good: the frame leads to it.
        self.collect();
        if *self.taken.get_mut() == 0
            && let Some(accounts) = self.machine.accounts()
        {
            accounts.close(self.account);
        }
    }
}

impl<M: Machine> fmt::Debug for FrameGroup<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FrameGroup")
            .field("limit", &self.limit())
            .field("used", &self.used())
            .finish_non_exhaustive()
    }
}
