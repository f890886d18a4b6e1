//! A machine of memory and threads only: for measurements, and for Miri.
//!
//! [`Sim`](crate::Sim) checks every step, which costs as much as the measured code. Here a step
//! does nothing, as on silicon, and code runs as fast as in a kernel. CPUs are host threads, memory
//! is a block of the host's memory, and disabled interrupts are a count. There is no TLB, so
//! nothing goes stale and nothing is checked. Flushes are counted, those on other CPUs as IPIs.
//!
//! # Why it is right
//! - One thread at a time is a CPU, from the start to the end of [`Bare::on_cpu`]: each CPU has a
//!   flag, taken by an exchange.
//! - The machine lives that long, since the caller has a handle. So the thread's pointer to it is
//!   valid, without a reference count.
//! - A thread that is no CPU of the machine gets a panic when it asks for its CPU.
//! - Guards stay on their CPU: no section is open when a thread becomes a CPU or ceases to be one.

use crate::current_cpu;
use crate::drive::Program;
use ::grace::quiescent::{CpuSlot, Domain, Periods, Quiescent, Shared};
use machine::{
    Accounts, Asid, CpuId, CpuSet, Cpus, Fault, FaultKind, Flush, Frame, FrameError, FrameInfo,
    FrameRange, FrameSource, Frames, Irqs, Memory, NodeId, NodePolicy, Step, Tlb, Translated,
    VirtAddr,
};
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::cell::Cell;
use std::fmt;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The address where memory begins: 1 GiB.
const FIRST: u64 = 1 << 18;

struct Inner {
    memory: NonNull<u8>,
    layout: Layout,
    /// The address where frame 0 would be.
    origin: *mut u8,
    frames: Frames,
    taken: Box<[AtomicBool]>,
    shared: Shared,
    slots: Box<[CpuSlot]>,
    flushes: AtomicU64,
    ipis: AtomicU64,
}

// SAFETY: the memory is only handed out as frames; their users synchronize their accesses.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

impl Drop for Inner {
    fn drop(&mut self) {
        // SAFETY: `new` allocated it with this layout, and the last handle is gone.
        unsafe { dealloc(self.memory.as_ptr(), self.layout) }
    }
}

/// A machine without hardware: a handle, whose clones are the same machine.
///
/// ```
/// use machine::{Cpus, FrameSource, NodePolicy};
/// use sim::Bare;
///
/// let bare = Bare::new(2, 64).unwrap();
/// bare.threads((0..2).map(|_| Box::new(|| {
///     let frame = bare.alloc(0, NodePolicy::Local).unwrap();
///     // SAFETY: no pointer to it exists.
///     unsafe { bare.free(frame) }.unwrap();
/// }) as sim::Program).collect());
/// assert_eq!(bare.on_cpu(0, || bare.free_frames()), 64);
/// ```
#[derive(Clone)]
pub struct Bare(Arc<Inner>);

/// The identity of a thread. The code that sets it keeps the machine alive until it sets another.
/// On silicon it is in registers.
#[repr(align(64))]
struct CurrentCpu {
    machine: Cell<*const Inner>,
    cpu: Cell<CpuId>,
    /// The number of interrupt-disabled sections begun, and ended. Two counts, so that the end of a
    /// section does not wait for the store of its beginning.
    entered: Cell<u32>,
    left: Cell<u32>,
}

impl CurrentCpu {
    /// The number of open interrupt-disabled sections.
    fn depth(&self) -> u32 {
        self.entered.get().wrapping_sub(self.left.get())
    }
}

/// The identity of a thread before it is a CPU.
const FIRST_CPU: CpuId = CpuId::new(0).unwrap();

thread_local! {
    static HERE: CurrentCpu = const {
        CurrentCpu {
            machine: Cell::new(ptr::null()),
            cpu: Cell::new(FIRST_CPU),
            entered: Cell::new(0),
            left: Cell::new(0),
        }
    };
}

#[cold]
fn not_a_cpu() -> ! {
    panic!("this thread is not a CPU of this machine: use Bare::on_cpu")
}

/// Whether a section is open on the CPU that this thread is, if any: of the engine, or with
/// interrupts disabled.
fn in_section() -> bool {
    HERE.with(|here| {
        // SAFETY: the code that made this thread a CPU keeps the machine alive until the thread is
        // none.
        let machine = unsafe { here.machine.get().as_ref() };
        here.depth() != 0
            || machine.is_some_and(|machine| machine.slots[here.cpu.get().index()].is_in_section())
    })
}

/// Restores the previous identity of the thread.
struct Leave<'a> {
    bare: &'a Bare,
    machine: *const Inner,
    cpu: CpuId,
}

impl Drop for Leave<'_> {
    fn drop(&mut self) {
        if in_section() {
            current_cpu::lost_guard();
        }
        BareGrace::idle_enter();
        let cpu = HERE.with(|here| {
            here.machine.set(self.machine);
            here.cpu.replace(self.cpu)
        });
        // Release: this thread's accesses as the CPU come before those of the next thread; pairs
        // with `on_cpu`.
        self.bare.0.taken[cpu.index()].store(false, Ordering::Release);
    }
}

impl Bare {
    /// Makes a machine; `None` if the numbers are out of range, or there is not enough memory.
    pub fn new(cpus: usize, frames: u64) -> Option<Bare> {
        if cpus == 0 || cpus > machine::MAX_CPUS || frames == 0 {
            return None;
        }
        let span = FrameRange::new(Frame::new(FIRST)?, frames)?;
        let bytes = usize::try_from(frames).ok()?.checked_mul(4096)?;
        let layout = Layout::from_size_align(bytes, 4096).ok()?;
        let mut source = Frames::try_new(span, cpus).ok()?;
        // SAFETY: it is not of size 0.
        let memory = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        let inner = |frames| Inner {
            memory,
            layout,
            origin: memory.as_ptr().wrapping_sub((FIRST as usize) << 12),
            frames,
            taken: (0..cpus).map(|_| AtomicBool::new(false)).collect(),
            shared: Shared::new(),
            slots: (0..cpus).map(|_| CpuSlot::new()).collect(),
            flushes: AtomicU64::new(0),
            ipis: AtomicU64::new(0),
        };
        // SAFETY: the memory was just allocated for these frames.
        let added = unsafe { source.add(span, NodeId(0)) };
        // If the frames could not be added, this drops the memory.
        let bare = Bare(Arc::new(inner(source)));
        added.ok().map(|()| bare)
    }

    /// Runs `f` on this thread as a CPU.
    ///
    /// # Panics
    /// - There is no such CPU, or another thread runs as it.
    /// - A section is open, with a guard of [`BareGrace`] or with interrupts disabled: at the
    ///   beginning, on the CPU that the thread was before, or at the end. Guards stay on their CPU.
    ///
    /// # Aborts
    /// If `f` panics and leaves a section open, since its guard exists elsewhere or was forgotten.
    pub fn on_cpu<R>(&self, cpu: usize, f: impl FnOnce() -> R) -> R {
        assert!(!in_section(), "{}", current_cpu::BEGINS);
        let id = CpuId::new(cpu).zip(self.0.taken.get(cpu));
        let (id, taken) = id.unwrap_or_else(|| panic!("the machine has no cpu{cpu}"));
        // Acquire: pairs with the Release of `Leave`.
        assert!(!taken.swap(true, Ordering::Acquire), "a program already runs as cpu{cpu}");
        let _leave = HERE.with(|here| Leave {
            bare: self,
            machine: here.machine.replace(&*self.0),
            cpu: here.cpu.replace(id),
        });
        assert!(BareGrace::start(), "no memory to retire objects on this CPU");
        // A guard in the result is still dropped here, before `_leave`.
        let result = f();
        assert!(!in_section(), "{}", current_cpu::ENDS);
        result
    }

    /// Runs each program on its own thread, the first as CPU 0 and so on, and waits for all.
    ///
    /// # Panics
    /// A program panics, or there are more programs than CPUs.
    pub fn threads(&self, programs: Vec<Program<'_>>) {
        std::thread::scope(|scope| {
            for (cpu, program) in programs.into_iter().enumerate() {
                scope.spawn(move || self.on_cpu(cpu, program));
            }
        });
    }

    /// Completes all grace periods of [`BareGrace`], and frees all that was retired, if no other
    /// CPU runs. On any CPU. Returns whether nothing is left.
    pub fn settle(&self) -> bool {
        for _ in 0..64 {
            BareGrace::quiescent_state();
            BareGrace::reclaim(usize::MAX);
            if !BareGrace::is_pending() {
                return true;
            }
        }
        false
    }

    /// The address range where this thread keeps the state that is in registers on silicon: its
    /// CPU, and whether interrupts are disabled. For code that counts cache lines.
    pub fn registers() -> std::ops::Range<usize> {
        HERE.with(|here| {
            let start = ptr::from_ref(here).addr();
            start..start + size_of::<CurrentCpu>()
        })
    }

    /// The number of flushes that CPUs made of their own translations.
    pub fn flushes(&self) -> u64 {
        // Relaxed: a statistic.
        self.0.flushes.load(Ordering::Relaxed)
    }

    /// The number of IPIs that flushes on other CPUs would have taken.
    pub fn ipis(&self) -> u64 {
        // Relaxed: a statistic.
        self.0.ipis.load(Ordering::Relaxed)
    }
}

// SAFETY: a thread is the CPU that it has taken in `on_cpu`.
unsafe impl Cpus for Bare {
    fn count(&self) -> usize {
        self.0.taken.len()
    }

    #[inline]
    fn current(&self) -> CpuId {
        HERE.with(|here| {
            if !ptr::eq(here.machine.get(), &*self.0) {
                not_a_cpu();
            }
            here.cpu.get()
        })
    }

    fn online(&self) -> CpuSet {
        CpuSet::first(self.count())
    }
}

// SAFETY: there are no interrupts, and a thread stays the CPU that it is.
unsafe impl Irqs for Bare {
    #[inline]
    fn irq_enter(&self) {
        HERE.with(|here| here.entered.set(here.entered.get().wrapping_add(1)));
    }

    #[inline]
    unsafe fn irq_leave(&self) {
        HERE.with(|here| here.left.set(here.left.get().wrapping_add(1)));
    }

    fn irqs_enabled(&self) -> bool {
        HERE.with(|here| here.depth() == 0)
    }
}

// SAFETY: it yields the host's CPU, and does nothing else.
unsafe impl Step for Bare {
    fn relax(&self) {
        // There may be fewer host CPUs than CPUs.
        std::thread::yield_now();
    }
}

// SAFETY: there are no translations, and no table is ever active.
unsafe impl Tlb for Bare {
    fn flush(&self, _: Flush) {
        // Relaxed: a statistic.
        self.0.flushes.fetch_add(1, Ordering::Relaxed);
    }

    fn flush_on(&self, cpus: &CpuSet, what: Flush) {
        let mut others = *cpus;
        others.remove(self.current());
        if cpus.contains(self.current()) {
            self.flush(what);
        }
        if !others.is_empty() {
            // Relaxed: a statistic.
            self.0.ipis.fetch_add(others.len() as u64, Ordering::Relaxed);
        }
    }

    fn tags(&self) -> u32 {
        1
    }

    unsafe fn activate(&self, _: Frame, _: Asid, _: bool) {}

    fn active(&self) -> Option<(Frame, Asid)> {
        None
    }
}

// SAFETY: frames are pieces of one aligned block, which lives as long as a handle; the pointers
// have its provenance.
unsafe impl Memory for Bare {
    #[inline]
    fn frame_ptr(&self, frame: Frame) -> Option<NonNull<u8>> {
        // By the frame's address, as in an entry: nothing is shifted between a table and the next.
        // And by one addition: the pointer does not wait for the comparison.
        let start = frame.start().get();
        let at = self.0.origin.wrapping_add(start as usize);
        let inside = start.wrapping_sub(FIRST << 12) < self.0.layout.size() as u64;
        // SAFETY: within the block of memory, which does not begin at 0.
        inside.then(|| unsafe { NonNull::new_unchecked(at) })
    }
}

// SAFETY: as `Frames`.
unsafe impl FrameSource for Bare {
    #[inline]
    fn alloc(&self, order: u8, place: NodePolicy) -> Result<Frame, FrameError> {
        self.0.frames.alloc(self, order, place)
    }

    #[inline]
    unsafe fn recycle(&self, frame: Frame, info: &FrameInfo) {
        // SAFETY: the caller's promise is passed on.
        unsafe { self.0.frames.recycle(self, frame, info) }
    }

    #[inline]
    fn info(&self, frame: Frame) -> Option<&FrameInfo> {
        self.0.frames.info(frame)
    }

    fn accounts(&self) -> Option<&Accounts> {
        Some(self.0.frames.accounts())
    }

    fn nodes(&self) -> usize {
        self.0.frames.nodes()
    }

    #[inline]
    fn local_node(&self) -> NodeId {
        self.0.frames.local_node(self)
    }

    fn free_frames(&self) -> usize {
        self.0.frames.free_frames()
    }
}

/// No table is ever active, so every access faults.
impl Translated for Bare {
    unsafe fn read(&self, at: VirtAddr, into: &mut [u8]) -> Result<(), Fault> {
        if into.is_empty() { Ok(()) } else { Err(fault(at, false)) }
    }

    unsafe fn write(&self, at: VirtAddr, from: &[u8]) -> Result<(), Fault> {
        if from.is_empty() { Ok(()) } else { Err(fault(at, true)) }
    }

    unsafe fn load(&self, at: VirtAddr) -> Result<u64, Fault> {
        Err(fault(at, false))
    }

    unsafe fn store(&self, at: VirtAddr, _: u64) -> Result<(), Fault> {
        Err(fault(at, true))
    }
}

fn fault(address: VirtAddr, write: bool) -> Fault {
    Fault { address, write, kind: FaultKind::NotPresent }
}

impl fmt::Debug for Bare {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bare").field("cpus", &self.0.taken.len()).finish_non_exhaustive()
    }
}

/// The CPUs of the thread's [`Bare`] machine, for the engine.
#[derive(Clone, Copy, Debug)]
pub struct BareCpus(());

/// Reclamation by quiescent states of a [`Bare`] machine's CPUs. Programs pass them between
/// operations, as a kernel would. As with [`Grace`](crate::Grace), an object that is retired on one
/// machine must not be reachable on another.
pub type BareGrace = Quiescent<BareCpus>;

// SAFETY: a thread is one CPU, nothing interrupts it, and the state is its machine's.
unsafe impl Domain for BareCpus {
    const PREEMPTED: bool = false;
    type Exclusive = ();

    #[inline]
    fn cpu() -> usize {
        HERE.with(|here| here.cpu.get().index())
    }

    fn exclusive() {}

    #[inline]
    fn with<T>(f: impl FnOnce(Periods<'_>) -> T) -> T {
        let machine = HERE.with(|here| here.machine.get());
        // SAFETY: the code that made this thread a CPU keeps the machine alive until the thread is
        // none.
        let machine = unsafe { machine.as_ref() }.unwrap_or_else(|| not_a_cpu());
        f(Periods::new(&machine.shared, &machine.slots))
    }
}
