//! Adopting the kernel's tables that a boot loader has made.
//!
//! The loader's tables become the kernel's [`PageTables`]: at the same place, so that no CPU has to
//! switch, and no page is mapped again.
//!
//! # Why it is correct
//! Two passes go through all tables from the top-level table on. The first checks each entry and
//! changes none. It marks the frame of each table as a table, so that a second entry that leads to
//! it is noticed. The marks are taken back if a check fails (I7).
//! The second pass cannot fail. It counts the entries of each table, and gives it the form of those
//! that this crate makes:
//! - an entry that translates nothing becomes 0, so a table that becomes empty is in its
//!   constructed state (I6);
//! - an entry that leads to a table becomes that of [`Format::table`]: it restricts no access, it
//!   says that the table is this space's own, and hardware changes nothing in it.
//!
//! No right of a page changes by that: the first pass refuses a page whose own entry allows more
//! than the entries above it. Then all CPUs flush, since they may have cached entries of tables
//! with fewer rights.
//!
//! Cost: two loads for each entry of each table, a store for each table, and one flush. No
//! allocation.

use crate::error::Error;
use crate::format::{Decoded, Flags, Format, Geometry, entry, is_grouped, start_at};
use crate::lock::LOCKED;
use crate::shared::Paging;
use crate::tables::PageTables;
use crate::tags::Tagged;
use alloc::sync::Arc;
use core::fmt;
use core::marker::PhantomData;
use core::sync::atomic::Ordering;
use grace::Concurrent;
use machine::{Entry, Flush, Frame, FrameInfo, Machine, Owner, PageSize, VirtAddr};

/// The reason why tables cannot be adopted. Nothing has changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AdoptError {
    /// [`Error::SecondKernel`] or [`Error::NotTheKernels`], as for [`PageTables::kernel`].
    Kernel(Error),
    /// The frame of the top-level table cannot be a table.
    Root(Frame, EntryFault),
    /// An entry is not as it must be.
    Entry {
        /// The level of its table; the lowest tables have level 0.
        level: u8,
        /// The first address that it decides about.
        at: VirtAddr,
        /// Its value.
        value: u64,
        /// Its fault.
        fault: EntryFault,
    },
}

/// The fault of an entry of tables that are to be adopted, or of the table that it leads to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum EntryFault {
    /// No valid entry has these bits.
    Malformed,
    /// The machine has no pages of this size: see [`Paging::largest`].
    Size(PageSize),
    /// A page of the kernel's half in the top-level table: other top-level tables would lack it.
    TopLevel,
    /// The page is in a [group](Format::GROUP): the kernel's tables have none.
    Grouped,
    /// The page's own entry allows these rights, and an entry above it forbids them.
    Rights(Flags),
    /// The frame source does not know the frame of the table, or it is not aligned to a table.
    Unknown(Frame),
    /// The frame of the table is not one of its own, with one reference, no pin and
    /// [`Owner::Raw`], as [`alloc_at`](machine::Frames::alloc_at) leaves it.
    NotRaw(Frame, Owner),
    /// The frame is a table already: another entry leads to it, or it is of other tables.
    Twice(Frame),
}

impl fmt::Display for AdoptError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AdoptError::Kernel(error) => error.fmt(f),
            AdoptError::Root(frame, fault) => {
                write!(f, "frame {frame} cannot be the top-level table: {fault}")
            }
            AdoptError::Entry { level, at, value, fault } => {
                write!(f, "the entry of level {level} for {at} is {value:#x}: {fault}")
            }
        }
    }
}

impl core::error::Error for AdoptError {}

impl fmt::Display for EntryFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EntryFault::Malformed => f.write_str("no valid entry has these bits"),
            EntryFault::Size(size) => write!(f, "the machine has no pages of {size:?}"),
            EntryFault::TopLevel => {
                f.write_str("a page of the kernel's half in the top-level table: map smaller pages")
            }
            EntryFault::Grouped => f.write_str("the page is in a group: map single pages"),
            EntryFault::Rights(rights) => write!(
                f,
                "the page allows {rights:?}, which an entry above it forbids: take them from the \
                 page, or allow them above"
            ),
            EntryFault::Unknown(frame) => write!(
                f,
                "frame {frame} begins no table of the frame source: add the memory, and allocate \
                 the frame there"
            ),
            EntryFault::NotRaw(frame, owner) => write!(
                f,
                "frame {frame} is not allocated for this table alone ({owner:?}): allocate it at \
                 its place"
            ),
            EntryFault::Twice(frame) => write!(
                f,
                "frame {frame} is a page table already: clear all entries but one that lead to it"
            ),
        }
    }
}

impl<M: Machine, F: Format, G: Concurrent> PageTables<M, F, G> {
    /// Makes the kernel's tables of those that a boot loader has made. It takes the place of
    /// [`kernel`](Self::kernel): a [`Paging`] has one such set, ever. The tables stay where they
    /// are, and every page translates as before. No CPU needs to [activate](Self::activate) them.
    /// From then on all calls work on them: pages are
    /// mapped and unmapped, large ones are split, and tables that become empty go to the
    /// quicklists.
    ///
    /// Both halves are adopted. The upper half is what [`user`](Self::user) gives to each space.
    /// The lower half, where a loader has its identity map, is in the kernel's tables alone: it
    /// translates while these are active, and not while a program's are. [`unmap`](Self::unmap) and
    /// [`prune`](Self::prune) remove it.
    ///
    /// # What the tables must be like
    /// - Each table has a frame of its own (a block, with a granule beyond 4 KiB), of the frame
    ///   source. The host has allocated it at its place ([`machine::Frames::alloc_at`]), by a call
    ///   for each, or by one call and [`split`](machine::FrameSource::split): one reference,
    ///   [`Owner::Raw`]. A frame source of the host's own has called [`FrameInfo::allocate`] for
    ///   it. The tables take that reference over.
    /// - Exactly one entry leads to each table. So there is no recursive entry, and the halves
    ///   share no table.
    /// - All entries are the format's. No page is larger than [`Paging::largest`], and none of the
    ///   kernel's half is in the top-level table. No page is in a [group](Format::GROUP).
    /// - No page has a right that an entry above it forbids. Entries of tables may lack rights
    ///   that no page below them has: they get them.
    ///
    /// Frames of pages are not checked, nor is any page's [`Flags::GLOBAL`]. Pages keep the bits of
    /// their entries that the format does not know until their first change. Memory types mean what
    /// the format says ([`PAT`](crate::PAT), [`MAIR`](crate::MAIR)). On AArch64 one top-level table
    /// translates both halves.
    ///
    /// ```
    /// use machine::{Frame, FrameSource, Memory, PageSize, NodePolicy, VirtAddr, VirtRange};
    /// use paging::{Attrs, Format, PageTables, Paging, X86_64L4};
    /// use sim::{Config, Grace, Sim};
    ///
    /// let sim = Sim::new(Config::default()).unwrap();
    /// let paging = Paging::<Sim, X86_64L4>::try_new(sim.clone(), PageSize::Size1G).unwrap();
    /// sim.on_cpu(0, || {
    ///     // The loader's tables: 2 MiB at the beginning of the kernel's half.
    ///     let tables = [(); 3].map(|()| sim.alloc(0, NodePolicy::Local).unwrap());
    ///     let memory = Frame::new(0x200).unwrap();
    ///     let entries = [
    ///         X86_64L4::table(tables[1]),
    ///         X86_64L4::table(tables[2]),
    ///         X86_64L4::page(PageSize::Size2M, memory, Attrs::KERNEL_RW),
    ///     ];
    ///     for ((table, entry), index) in tables.iter().zip(entries).zip([256, 0, 0]) {
    ///         let words = sim.frame_ptr(*table).unwrap().cast::<u64>().as_ptr();
    ///         // SAFETY: the frames are the loader's.
    ///         unsafe {
    ///             words.write_bytes(0, 512);
    ///             words.add(index).write(entry.unwrap());
    ///         }
    ///     }
    ///     // SAFETY: the loader has gone, and leaves its tables to this program.
    ///     let kernel = unsafe { PageTables::<_, _, Grace>::adopt(&paging, tables[0]) }.unwrap();
    ///     let at = VirtAddr::new(0xffff_8000_0000_0000);
    ///     // SAFETY: nothing uses the page.
    ///     unsafe {
    ///         kernel.split(at, PageSize::Size4K).unwrap().flush();
    ///         kernel.unmap(VirtRange::new(at, 0x1000).unwrap(), |_| ()).unwrap().flush();
    ///     }
    ///     assert!(kernel.walk(&<Grace as grace::Reclaim>::pin()).get(at).is_none());
    /// });
    /// ```
    ///
    /// # Context
    /// While the kernel starts, and not in an interrupt. It does not sleep or allocate. It flushes
    /// on all CPUs that are online.
    ///
    /// # Errors
    /// [`AdoptError`], with the level, the address and the value of the entry at fault. The tables,
    /// and the states of their frames, are as before.
    ///
    /// # Safety
    /// - *Tables*: the caller owns `root`, and each frame that is a table below it by the format
    ///   `F`, and gives them up: from this call on, no other code reads or changes these frames and
    ///   their states, or frees them. CPUs may translate by them meanwhile.
    /// - *Addresses*: the mapped addresses are the caller's to map, as for [`map`](Self::map).
    /// - *Tag*: a CPU that translates by them does so under tag 0.
    /// - *Later*: before the tables are dropped, other tables are active on all CPUs.
    pub unsafe fn adopt(paging: &Arc<Paging<M, F>>, root: Frame) -> Result<Self, AdoptError> {
        if F::SECOND_STAGE {
            return Err(AdoptError::Kernel(Error::NotTheKernels));
        }
        let machine = paging.machine();
        let loaders = Loaders::<M, F> { machine, largest: paging.largest(), format: PhantomData };
        let (at, top) = (VirtAddr::new(0), F::LEVELS - 1);
        loaders.mark(root, top).map_err(|fault| AdoptError::Root(root, fault))?;
        loaders.check(root, top, at, Flags::RIGHTS)?;
        // The last check: then the tables are known, though no other code has them yet.
        if !paging.kernel().set(root) {
            loaders.give_up(root, top);
            return Err(AdoptError::Kernel(Error::SecondKernel));
        }
        loaders.take(root, top);
        machine.flush_on(&machine.online(), Flush::All);
        Ok(Self::of_root(paging, root, Tagged::Kernel, None))
    }
}

/// Tables that a boot loader has made, all of them or none.
struct Loaders<'m, M, F> {
    machine: &'m M,
    largest: PageSize,
    format: PhantomData<F>,
}

impl<'m, M: Machine, F: Format> Loaders<'m, M, F> {
    /// The entries of a table that was marked.
    fn entries(&self, table: Frame) -> impl Iterator<Item = Entry<'m, M>> {
        let machine = self.machine;
        (0..F::ENTRIES).filter_map(move |index| {
            // SAFETY: a table of the caller of `adopt`.
            unsafe { entry::<M, F>(machine, table, index) }
        })
    }

    /// Marks a frame as a table, whose lock is held.
    fn mark(&self, table: Frame, level: u8) -> Result<(), EntryFault> {
        let info = self.machine.info(table).filter(|_| table.is_aligned(F::PAGE));
        let info = info.ok_or(EntryFault::Unknown(table))?;
        match info.owner() {
            Owner::Table(_) => return Err(EntryFault::Twice(table)),
            Owner::Raw if self.is_alone(info) => {}
            owner => return Err(EntryFault::NotRaw(table, owner)),
        }
        // SAFETY: the caller of `adopt` gives the table up, and it is one of this level, or no CPU
        // walks it.
        let marked = unsafe { self.machine.set_owner(table, Owner::Table(level)) };
        marked.map_err(|_| EntryFault::Unknown(table))?;
        self.set_word(table, LOCKED);
        Ok(())
    }

    fn is_alone(&self, info: &FrameInfo) -> bool {
        (info.refs(), info.pins(), info.order()) == (1, 0, F::PAGE.order())
    }

    fn set_word(&self, table: Frame, word: u32) {
        let Some(info) = self.machine.info(table) else { return };
        // SAFETY: a table of the caller of `adopt`, which no other code changes. Release: as the
        // drop of a lock.
        unsafe { info.word() }.store(word, Ordering::Release);
    }

    /// Checks all entries of a marked table, and marks and checks the tables below it. `rights` are
    /// those that the entries above leave. If it fails, none of these tables is marked.
    fn check(
        &self,
        table: Frame,
        level: u8,
        start: VirtAddr,
        rights: Flags,
    ) -> Result<(), AdoptError> {
        for entry in self.entries(table) {
            let at = self.address(start, level, entry.index());
            let value = entry.load();
            let fault = |fault| AdoptError::Entry { level, at, value, fault };
            let checked = match F::decode(value, level) {
                _ if is_grouped::<F>(value, level) => Err(fault(EntryFault::Grouped)),
                Decoded::Absent => continue,
                Decoded::Malformed => Err(fault(EntryFault::Malformed)),
                Decoded::Page(_, attrs) => {
                    self.check_page(level, at, attrs.flags, rights).map_err(fault)
                }
                Decoded::Table(below) => F::table(below)
                    .map_err(|_| EntryFault::Unknown(below))
                    .and_then(|_| self.mark(below, level - 1))
                    .map_err(fault)
                    .and_then(|()| {
                        let rights = rights & F::rights_below(value);
                        self.check(below, level - 1, at, rights)
                    }),
            };
            if let Err(error) = checked {
                self.give_up_before(table, level, entry.index());
                return Err(error);
            }
        }
        Ok(())
    }

    /// Checks a page with these flags, to which the entries above leave `rights`.
    fn check_page(
        &self,
        level: u8,
        at: VirtAddr,
        flags: Flags,
        rights: Flags,
    ) -> Result<(), EntryFault> {
        let size = F::size_at(level).ok_or(EntryFault::Malformed)?;
        let more = (flags & Flags::RIGHTS) - rights;
        match () {
            () if size > self.largest => Err(EntryFault::Size(size)),
            () if level == F::LEVELS - 1 && F::is_upper(at) => Err(EntryFault::TopLevel),
            () if flags.intersects(Flags::RWX) && !more.is_empty() => Err(EntryFault::Rights(more)),
            () => Ok(()),
        }
    }

    /// The first address that an entry decides about.
    fn address(&self, start: VirtAddr, level: u8, index: usize) -> VirtAddr {
        let at = VirtAddr::new(start.get() + ((index as u64) << F::shift(level)));
        // The upper half begins in the middle of the top-level table.
        let is_upper = level == F::LEVELS - 1 && index >= F::ENTRIES / 2;
        let high = if is_upper { F::upper_half().get() } else { 0 };
        start_at::<F>(VirtAddr::new(at.get() | high), level)
    }

    /// Takes back the marks of a table, and of those below it.
    fn give_up(&self, table: Frame, level: u8) {
        self.give_up_before(table, level, F::ENTRIES);
    }

    /// As [`give_up`](Self::give_up), where only the entries before `end` were checked.
    fn give_up_before(&self, table: Frame, level: u8, end: usize) {
        for entry in self.entries(table).take(end) {
            // Hardware does not change where it leads.
            if let Decoded::Table(below) = F::decode(entry.load(), level) {
                self.give_up(below, level - 1);
            }
        }
        self.set_word(table, 0);
        // SAFETY: as the caller of `adopt` had it.
        let _ = unsafe { self.machine.set_owner(table, Owner::Raw) };
    }

    /// Gives checked tables the form of this crate's, and unlocks them.
    fn take(&self, table: Frame, level: u8) {
        let mut count = 0;
        for entry in self.entries(table) {
            let value = entry.load();
            match F::decode(value, level) {
                Decoded::Absent if value != 0 => entry.store(0),
                Decoded::Absent => {}
                Decoded::Table(below) => {
                    self.take(below, level - 1);
                    // Hardware may have set an accessed bit, which is set in this one, too.
                    let _ = F::table(below).map(|value| entry.store(value));
                    count += 1;
                }
                Decoded::Page(..) | Decoded::Malformed => count += 1,
            }
        }
        self.set_word(table, count);
    }
}
