//! A machine for loom models, with `--cfg loom` only: [`Model`] runs real page tables under loom.
//!
//! [`Sim`](crate::Sim) is sequentially consistent. Here loom chooses the order of the steps, and the
//! value that each load returns, as the orderings allow. Entries, the counts of frames and their
//! words are loom's atomics (`machine::word::Placed`). A table has only eight entries
//! ([`ENTRIES`](machine::ENTRIES)), and a frame eight words that matter.
//!
//! # What it models
//! - A CPU is a thread of the model ([`Model::spawn`]). Its TLB caches translations and upper
//!   entries, and keeps each until a flush covers it ([`Model::access`]). It evicts nothing: cached
//!   entries stay as harmful as they can be.
//! - A flush of another CPU waits for its access under way, and drops its cached entries: the IPI
//!   and its answer are one step, a lock of that TLB.
//! - Interrupts do not exist.
//! - No grace period ends while the threads run ([`ModelGrace`]). So no table is reused early, and
//!   that none would be is left to the models of `grace`, and to `Sim`.

mod engine;
mod tlb;

pub use engine::ModelGrace;

use machine::word::{MemoryWord, forget, model_begins, model_ends};
use machine::{
    Asid, Checker, CpuId, CpuSet, Cpus, ENTRIES, Flush, Frame, FrameError, FrameInfo, FrameRange,
    FrameSource, Irqs, Memory, ModelFrames, NodePolicy, SharedAccess, Step, Tlb, VirtAddr,
};
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::cell::{Cell, RefCell};
use std::fmt;
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// The frames of a model's machine.
pub const MODEL_FRAMES: u64 = 64;
/// The first of them.
const FIRST: u64 = 256;
/// The CPUs of a model's machine. Loom has no more threads.
pub const MODEL_CPUS: usize = 4;

loom::thread_local! {
    static CPU: Cell<usize> = Cell::new(0);
}

/// The memory of the machines of one host thread, one after the other.
struct Arena(NonNull<u8>);

const LAYOUT: Layout = match Layout::from_size_align(MODEL_FRAMES as usize * 4096, 4096) {
    Ok(layout) => layout,
    Err(_) => panic!(),
};

impl Arena {
    fn new() -> Arena {
        // SAFETY: it is not of size 0.
        let memory = NonNull::new(unsafe { alloc_zeroed(LAYOUT) });
        Arena(memory.unwrap_or_else(|| std::alloc::handle_alloc_error(LAYOUT)))
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: `new` allocated it. All machines of this host thread are gone.
        unsafe { dealloc(self.0.as_ptr(), LAYOUT) }
    }
}

thread_local! {
    static ARENA: Arena = Arena::new();
}

/// See [`Model::on_step`].
type Hook = dyn Fn(usize, Option<SharedAccess>);

struct Inner {
    hook: RefCell<Option<Rc<Hook>>>,
    memory: NonNull<u8>,
    frames: ModelFrames,
    cpus: [tlb::Cpu; MODEL_CPUS],
    levels: u8,
}

// SAFETY: the memory is only handed out as frames; their users synchronize their accesses. All
// threads of a model run on one host thread.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

/// A value that never leaves the host's thread, on which loom runs all of its threads.
struct OneThread<T>(T);

// SAFETY: as above.
unsafe impl<T> Send for OneThread<T> {}

impl<T> OneThread<T> {
    fn get(self) -> T {
        self.0
    }
}

/// A thread of a model, which is a CPU.
pub struct ModelThread<T>(loom::thread::JoinHandle<OneThread<T>>);

impl<T> ModelThread<T> {
    /// Waits for its end.
    ///
    /// # Errors
    /// The message of its panic.
    pub fn join(self) -> std::thread::Result<T> {
        self.0.join().map(OneThread::get)
    }
}

/// The words of a thread's stack: four times loom's own size, which a fault in `mm` fills.
const STACK: usize = 0x4000;

/// A machine for models: a handle, whose clones are the same machine. [`model`] makes one.
#[derive(Clone)]
pub struct Model(Arc<Inner>);

/// Runs `body` in each order of steps that loom finds, on a new machine, whose hardware walks
/// tables of x86-64 with this many levels. The calling thread is CPU 0. `preemptions` is the most
/// switches away from a thread that could go on; `None` tries all orders. The number of executions
/// is printed. `body` joins its threads.
///
/// # Panics
/// `body` does, in some order.
pub fn model(
    name: &'static str,
    levels: u8,
    preemptions: Option<usize>,
    body: impl Fn(&Model) + Send + Sync + 'static,
) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = preemptions;
    builder.max_branches = 100_000;
    let (executions, began) = (Arc::new(AtomicU64::new(0)), Instant::now());
    let count = Arc::clone(&executions);
    builder.check(move || {
        // Relaxed: one host thread.
        count.fetch_add(1, Ordering::Relaxed);
        model_begins();
        ModelGrace::begin();
        let model = Model::new(levels);
        body(&model);
        // SAFETY: the body has joined its threads, as it must.
        unsafe { ModelGrace::end() };
        drop(model);
        model_ends();
    });
    let executions = executions.load(Ordering::Relaxed);
    println!("{name}: {executions} executions in {:.1} s", began.elapsed().as_secs_f64());
}

impl Model {
    fn new(levels: u8) -> Model {
        let first = Frame::new(FIRST).unwrap_or_default();
        let span = FrameRange::new(first, MODEL_FRAMES).expect("a range of frames");
        Model(Arc::new(Inner {
            hook: RefCell::new(None),
            memory: ARENA.with(|arena| arena.0),
            frames: ModelFrames::new(span),
            cpus: Default::default(),
            levels,
        }))
    }

    /// Runs `f` on another CPU. Not on CPU 0, which is the model's first thread.
    pub fn spawn<T: 'static>(&self, cpu: usize, f: impl FnOnce() -> T + 'static) -> ModelThread<T> {
        assert!((1..MODEL_CPUS).contains(&cpu));
        let f = OneThread(f);
        let thread = loom::thread::Builder::new().stack_size(STACK).spawn(move || {
            CPU.with(|current| current.set(cpu));
            OneThread(f.get()())
        });
        ModelThread(thread.expect("loom's threads are not the host's"))
    }

    /// Makes this thread another CPU, for `f`. That CPU does nothing else meanwhile.
    pub fn as_cpu<T>(&self, cpu: usize, f: impl FnOnce() -> T) -> T {
        let before = CPU.with(|current| current.replace(cpu));
        let result = f();
        CPU.with(|current| current.set(before));
        result
    }

    /// Calls `hook` at each step of each CPU, and in each turn of a waiting loop, with the CPU and
    /// the access that follows; and with `None` after each allocation of a frame. It may wait by
    /// [`pause`](Self::pause): so a model lets CPUs take turns at chosen places.
    pub fn on_step(&self, hook: impl Fn(usize, Option<SharedAccess>) + 'static) {
        *self.0.hook.borrow_mut() = Some(Rc::new(hook));
    }

    /// Lets other threads run. For loops that wait in a hook, which has no machine.
    pub fn pause() {
        loom::thread::yield_now();
    }

    fn call_hook(&self, access: Option<SharedAccess>) {
        let hook = self.0.hook.borrow().clone();
        if let Some(hook) = hook {
            hook(self.current().index(), access);
        }
    }

    /// An access of the program on this CPU, by the cached translation if there is one: `f` is
    /// called with the frame. `None` is a page fault, which drops the cached translation. The CPU
    /// performs no flush meanwhile.
    pub fn access<T>(&self, at: VirtAddr, write: bool, f: impl FnOnce(Frame) -> T) -> Option<T> {
        let cpu = &self.0.cpus[self.current().index()];
        let mut tlb = cpu.lock();
        tlb.translate(self, self.0.levels, at, write).map(f)
    }

    /// Lets loom see the accesses to the words of a frame from here on. The calling CPU has
    /// prepared them.
    fn place(&self, frame: Frame) {
        if let Some(start) = self.frame_ptr(frame) {
            forget(start.addr().get()..start.addr().get() + 4096);
            // SAFETY: a frame; all its accesses are by words from here on.
            let words = unsafe { start.cast::<[MemoryWord; ENTRIES]>().as_ref() };
            words.iter().for_each(MemoryWord::place);
        }
    }

    /// A word of a frame.
    ///
    /// # Panics
    /// There is no such frame, or word.
    pub fn load(&self, frame: Frame, word: usize) -> u64 {
        // SAFETY: accesses by words only.
        unsafe { self.entry(frame, word) }.expect("a word of a frame").load()
    }

    /// Stores a word of a frame.
    ///
    /// # Panics
    /// There is no such frame, or word.
    pub fn store(&self, frame: Frame, word: usize, value: u64) {
        // SAFETY: accesses by words only.
        unsafe { self.entry(frame, word) }.expect("a word of a frame").store(value);
    }

    /// Whether a CPU could still use this frame, or another one than it, for `at`: its TLB has it.
    pub fn is_cached(&self, cpu: usize, at: VirtAddr, is: impl Fn(Frame) -> bool) -> bool {
        self.0.cpus[cpu].lock().has(at, is)
    }
}

// SAFETY: each thread of a model sets its CPU, and no two the same.
unsafe impl Cpus for Model {
    fn count(&self) -> usize {
        MODEL_CPUS
    }

    fn current(&self) -> CpuId {
        CpuId::new(CPU.with(Cell::get)).unwrap_or_default()
    }

    fn online(&self) -> CpuSet {
        CpuSet::first(MODEL_CPUS)
    }
}

// SAFETY: there are no interrupts, and a thread stays the CPU that it is.
unsafe impl Irqs for Model {
    fn irq_enter(&self) {}

    unsafe fn irq_leave(&self) {}

    fn irqs_enabled(&self) -> bool {
        true
    }
}

// SAFETY: it lets other threads run, and does nothing else; the hooks of models neither.
unsafe impl Step for Model {
    fn step(&self, access: SharedAccess) {
        self.call_hook(Some(access));
    }

    fn relax(&self) {
        self.call_hook(Some(SharedAccess::Other));
        Model::pause();
    }

    fn checker(&self) -> Option<&dyn Checker> {
        Some(self)
    }
}

/// The words of a constructed page are placed for loom.
impl Checker for Model {
    fn note_constructed(&self, frame: Frame, _: u8) {
        self.place(frame);
    }
}

// SAFETY: a flush drops all cached entries that it covers, with the TLB locked, which an access
// holds from its walk to its end.
unsafe impl Tlb for Model {
    fn flush(&self, what: Flush) {
        self.0.cpus[self.current().index()].lock().flush(what);
    }

    fn flush_on(&self, cpus: &CpuSet, what: Flush) {
        for cpu in cpus.iter() {
            if let Some(cpu) = self.0.cpus.get(cpu.index()) {
                cpu.lock().flush(what);
            }
        }
    }

    fn tags(&self) -> u32 {
        16
    }

    unsafe fn activate(&self, root: Frame, asid: Asid, keep: bool) {
        self.0.cpus[self.current().index()].lock().activate(root, asid, keep);
    }

    fn active(&self) -> Option<(Frame, Asid)> {
        self.0.cpus[self.current().index()].lock().active()
    }
}

// SAFETY: frames are pieces of one aligned block, which lives as long as the host thread.
unsafe impl Memory for Model {
    fn frame_ptr(&self, frame: Frame) -> Option<NonNull<u8>> {
        let index = frame.number().checked_sub(FIRST).filter(|index| *index < MODEL_FRAMES)?;
        // SAFETY: within the block.
        Some(unsafe { self.0.memory.add(index as usize * 4096) })
    }
}

// SAFETY: as `ModelFrames`.
unsafe impl FrameSource for Model {
    fn alloc(&self, order: u8, _: NodePolicy) -> Result<Frame, FrameError> {
        let frame = self.0.frames.alloc(order, |frame| self.place(frame))?;
        self.call_hook(None);
        Ok(frame)
    }

    unsafe fn recycle(&self, frame: Frame, info: &FrameInfo) {
        // SAFETY: passed on.
        unsafe { self.0.frames.recycle(frame, info) }
    }

    fn info(&self, frame: Frame) -> Option<&FrameInfo> {
        self.0.frames.info(frame)
    }

    fn free_frames(&self) -> usize {
        self.0.frames.free_frames()
    }
}

impl fmt::Debug for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Model").field("levels", &self.0.levels).finish_non_exhaustive()
    }
}
