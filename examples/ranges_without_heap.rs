//! Ranges of virtual addresses and frames for eight CPUs, from statics, while the heap is closed.
//!
//! A kernel's heap takes its memory from here, so this must not take memory from the heap. Each
//! thread is a CPU; its calls are those of a kernel.
//!
//! ```sh
//! cargo run --release -p samara-examples --bin ranges_without_heap
//! ```

use samara::machine::{
    CpuId, CpuSet, Cpus, Frame, FrameRange, Irqs, PhysAddr, Ranges, RangesError, Step, VirtAddr,
    VirtRange,
};
use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
    sync::Barrier,
    sync::atomic::{AtomicBool, Ordering::SeqCst},
    thread,
};

const CPUS: usize = 8;
const ROUNDS: usize = 20_000;

/// Addresses of areas. A CPU takes 16 MiB at a time.
static ADDRESSES: Ranges<VirtAddr, CPUS, 256> = Ranges::new(16 << 20);
/// Frames without states, for example of memory for devices. A CPU takes 1,024 at a time.
static FRAMES: Ranges<Frame, CPUS, 256> = Ranges::new(1024);

thread_local! {
    static CPU: Cell<usize> = const { Cell::new(0) };
}

/// A machine whose CPUs are threads. There are no interrupts.
struct Threads;

// SAFETY: each thread is given a number of its own.
unsafe impl Cpus for Threads {
    fn count(&self) -> usize {
        CPUS
    }
    fn current(&self) -> CpuId {
        CpuId::new(CPU.get()).unwrap_or_default()
    }
    fn online(&self) -> CpuSet {
        CpuSet::first(CPUS)
    }
}

// SAFETY: no handler runs, and a thread stays the CPU that it is.
unsafe impl Irqs for Threads {
    fn irq_enter(&self) {}
    unsafe fn irq_leave(&self) {}
    fn irqs_enabled(&self) -> bool {
        false
    }
}

// SAFETY: it yields to other threads, and does nothing else.
unsafe impl Step for Threads {
    fn relax(&self) {
        thread::yield_now();
    }
}

/// The heap, which can be closed: then an allocation ends the program.
struct Heap;
static CLOSED: AtomicBool = AtomicBool::new(false);

#[global_allocator]
static HEAP: Heap = Heap;

// SAFETY: those of the system, or none.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if CLOSED.load(SeqCst) {
            // A panic would need the heap.
            std::process::abort();
        }
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(block, layout) }
    }
}

fn main() -> Result<(), RangesError> {
    let range =
        |start, bytes| VirtRange::new(VirtAddr::new(start), bytes).ok_or(RangesError::Empty);
    let areas = range(0xffff_c900_0000_0000, 1 << 36)?;
    let memory = FrameRange::new(Frame::containing(PhysAddr::new(1 << 32)), 1 << 18);
    let memory = memory.ok_or(RangesError::Empty)?;
    ADDRESSES.add(&Threads, areas)?;
    FRAMES.add(&Threads, memory)?;
    // A device has its place.
    let registers = range(0xffff_c904_0000_0000, 0x4000)?;
    ADDRESSES.alloc_at(&Threads, registers)?;

    let gate = Barrier::new(CPUS);
    let results = thread::scope(|scope| {
        let cpus: [_; CPUS] = std::array::from_fn(|cpu| {
            let gate = &gate;
            scope.spawn(move || {
                CPU.set(cpu);
                gate.wait();
                CLOSED.store(true, SeqCst);
                let result = work(cpu);
                // The heap stays closed until all are done.
                gate.wait();
                CLOSED.store(false, SeqCst);
                result
            })
        });
        cpus.map(|cpu| cpu.join().unwrap_or(Err(RangesError::OutOfSpace)))
    });
    for result in results {
        result?;
    }

    ADDRESSES.free(&Threads, registers)?;
    assert_eq!(ADDRESSES.available(&Threads), areas.len());
    assert_eq!(FRAMES.available(&Threads), memory.len());
    println!("{CPUS} CPUs, {ROUNDS} rounds each: nothing lost, and no call of the heap");
    Ok(())
}

/// The calls of a CPU of a kernel: stacks with their frames, some of them at once, freed in another
/// order; and now and then a range at a place of its own.
fn work(cpu: usize) -> Result<(), RangesError> {
    let mut stacks = [None; 16];
    for round in 0..ROUNDS {
        let slot = &mut stacks[round * 7 % 16];
        if let Some((addresses, frames)) = slot.take() {
            ADDRESSES.free(&Threads, addresses)?;
            FRAMES.free(&Threads, frames)?;
        }
        let pages = 1 << (round % 4);
        let addresses = ADDRESSES.alloc(&Threads, pages << 12, 0x1000)?;
        *slot = Some((addresses, FRAMES.alloc(&Threads, pages, pages)?));
        if round % 1000 == 0 {
            let place = VirtAddr::new(0xffff_c908_0000_0000 + ((cpu as u64) << 24));
            let own = VirtRange::new(place, 0x20_0000).ok_or(RangesError::Empty)?;
            ADDRESSES.alloc_at(&Threads, own)?;
            ADDRESSES.free(&Threads, own)?;
        }
    }
    for (addresses, frames) in stacks.into_iter().flatten() {
        ADDRESSES.free(&Threads, addresses)?;
        FRAMES.free(&Threads, frames)?;
    }
    Ok(())
}
