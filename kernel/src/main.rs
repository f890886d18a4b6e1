//! A small kernel that runs Samara on real page tables, TLBs and interrupts.
//!
//! It boots on x86-64 by the PVH protocol, and on AArch64 on QEMU's machine `virt`. It starts all
//! CPUs, and runs the command of its command line: trials of the crates and, on x86-64,
//! experiments, or a program of Linux. It has files in memory alone, and no devices except a
//! serial port, timers, and the controllers of interrupts. It is also a second implementation of
//! `machine`, to read next to your own.
//!
//! | module | contents |
//! |---|---|
//! | `arch` | the code for an architecture: boot, interrupts, faults, TLBs, time |
//! | `memory`, `heap` | the division of memory |
//! | `layout`, `space` | the kernel's address space, and its tables |
//! | `cpu` | the area of a CPU, its job, and which CPUs have started |
//! | `smp` | the start of the CPUs, and the programs that they run |
//! | `machine`, `grace` | the traits of `machine`, and the domain of `grace`, for this kernel |
//! | `command` | the commands: `test`, `bench`, `run` |
//! | `archive`, `cpio` | the files that the loader brings, and their format |
//! | `run`, `stats` | runs a program of the archive; the loop of a CPU; counts of calls |
//! | `task` | processes and threads, the queues of ready threads, timers, signals |
//! | `load` | ELF files, and the stack of a new program |
//! | `call` | system calls |
//! | `errno`, `lock` | error numbers, and locks, of these parts |
//! | `text`, `time` | texts for programs; the time of day |
//! | `futex` | threads that wait for a word of their memory |
//! | `file`, `path` | files in memory |
//! | `export` | files for the host, when the last program has ended |
//! | `random` | random numbers |
//! | `fair_lock` | the lock of the experiments' baselines |
//! | `channel`, `input` | a device to and from the host: output of programs; standard input |
//! | `progress` | a line for a trial that takes long |
//! | `console`, `fail`, `exit` | the kernel's output, the failure path, the exit code |
//!
//! Each uses those below it. A file knows a thread as a sleeper (`task::wait`), and the files that
//! show tasks implement traits of `file::pseudo`. So files are below tasks, except those.
//!
//! ```text
//!   command ------- run                            test, bench
//!                    |
//!           call, load, export
//!            |               |
//!   file::{proc, sysfs}  task::{exit, oom}         progress
//!             \           /
//!     task: processes, threads, signals
//!                    |
//!         file, path, futex, input
//!                    |
//!   task::{wait, timer, memory, pid}, stats        errno, lock, text, time
//!                    |
//!       space, machine, grace, smp
//!                    |
//!   arch: boot, traps, TLB, time                   memory, heap, cpu, console
//! ```
//!
//! The order of boot is in `start` of this file, and from the loader to there in
//! `arch/x86_64/boot/entry.rs`.
#![no_std]
#![no_main]
extern crate alloc;

mod arch;
mod backtrace;
mod channel;
mod clock;
mod command;
mod console;
mod cpu;
mod exit;
mod fail;
mod grace;
mod heap;
mod layout;
mod machine;
mod memory;
mod mutant;
mod progress;
mod smp;
mod space;
mod test;

// Programs and experiments run on x86-64 only.
#[cfg(target_arch = "x86_64")]
mod archive;
#[cfg(target_arch = "x86_64")]
mod bench;
#[cfg(target_arch = "x86_64")]
mod call;
#[cfg(target_arch = "x86_64")]
mod cpio;
#[cfg(target_arch = "x86_64")]
mod errno;
#[cfg(target_arch = "x86_64")]
mod export;
#[cfg(target_arch = "x86_64")]
mod fair_lock;
#[cfg(target_arch = "x86_64")]
mod file;
#[cfg(target_arch = "x86_64")]
mod futex;
#[cfg(target_arch = "x86_64")]
mod input;
#[cfg(target_arch = "x86_64")]
mod load;
#[cfg(target_arch = "x86_64")]
mod lock;
#[cfg(target_arch = "x86_64")]
mod path;
#[cfg(target_arch = "x86_64")]
mod random;
#[cfg(target_arch = "x86_64")]
mod run;
#[cfg(target_arch = "x86_64")]
mod stats;
#[cfg(target_arch = "x86_64")]
mod task;
#[cfg(target_arch = "x86_64")]
mod text;
#[cfg(target_arch = "x86_64")]
mod time;

#[cfg(target_arch = "x86_64")]
use crate::arch::{apic, icount, user};
use crate::arch::{boot, features, irqchip, section, trap};
use crate::boot::info::BootInfo;
use crate::layout::direct;
use crate::memory::Memory;
use ::machine::FrameRange;
use alloc::string::String;
use alloc::vec::Vec;
use paging::Cache;
use spin::Once;

/// The bytes of the command line that are kept.
const LINE: usize = 1024;

static COMMAND_LINE: Once<String> = Once::new();

/// The entry of the boot CPU, on a stack of the image, with the boot tables.
///
/// # Safety
/// `boot::entry` calls it once. `info` is the physical address of the loader's data.
#[unsafe(no_mangle)]
unsafe extern "C" fn start(info: u32) -> ! {
    // SAFETY: nothing runs before, and each call has what it needs from the one before.
    unsafe {
        cpu::area::start();
        features::start();
    }
    console::start();
    trap::start();
    // SAFETY: by the caller's promise.
    let info = unsafe { BootInfo::read(info) }.unwrap_or_else(|cause| panic!("{cause}"));
    // The loader's data may lie where the heap will be, so it is copied.
    let mut line = [0; LINE];
    let said = info.command_line();
    assert!(said.len() <= LINE, "the command line is longer than {LINE} bytes");
    line[..said.len()].copy_from_slice(said);
    let len = said.len();
    #[cfg(target_arch = "x86_64")]
    let archived = info.archive();
    // SAFETY: the loader's data is unmodified.
    let (cpus, complaint) = unsafe { info.cpus() };
    let memory = Memory::divide(&info).unwrap_or_else(|cause| panic!("{cause}"));
    // SAFETY: called once, with the boot tables, before any other CPU starts.
    unsafe { boot::prepare() };

    let heap = direct(memory.heap.start().start()).get() as usize;
    let bytes = (memory.heap.len() << 12) as usize;
    // SAFETY: no other code uses this memory, and the loader's data has been copied.
    let started = unsafe { heap::start(core::ptr::with_exposed_provenance_mut(heap), bytes) };
    assert!(started, "too little memory for a heap");
    COMMAND_LINE.call_once(|| String::from_utf8_lossy(&line[..len]).into_owned());
    // SAFETY: called once, on the boot CPU.
    unsafe { cpu::area::start_all(cpus.ids()) };
    #[cfg(target_arch = "x86_64")]
    arch::shootdown::start();
    let ranges: Vec<FrameRange> = memory.frames().collect();
    // SAFETY: the ranges are unused. The direct map of the boot tables has them, and so will ours.
    unsafe { machine::start_memory(&ranges, cpus.ids().len()) }
        .unwrap_or_else(|error| panic!("{error}"));
    // Only the boot tables map the data that a fault needs so far. The new data is in the heap,
    // which all tables map. SAFETY: the area is this CPU's, and the heap works.
    unsafe { trap::start_here(cpu::area::here()) };
    // SAFETY: called once, on the boot CPU, with the boot tables.
    unsafe { space::start(&memory) }
        .unwrap_or_else(|error| panic!("no tables for the kernel: {error}"));
    space::start_areas().unwrap_or_else(|error| panic!("no areas for the kernel: {error}"));
    #[cfg(target_arch = "x86_64")]
    if let Some(range) = archived {
        // SAFETY: `Memory::divide` left the range out, and the kernel's tables map it read-only.
        unsafe { archive::start(range) };
    }
    if memory.beyond > 0 {
        println!("{} MiB of memory are not used: this CPU has no pages of 1 GiB", memory.beyond);
    }
    if let Some(complaint) = complaint {
        println!("{complaint}");
    }
    let stack = smp::stack_of(0);
    // SAFETY: the stack is mapped and unused, and nothing on the old stack is needed any more.
    unsafe { section::continue_on(stack.start().get() + stack.len(), with_all_cpus) }
}

/// Starts interrupts, time and the other CPUs, and runs the command.
extern "C" fn with_all_cpus() -> ! {
    irqchip::start_all(|registers| {
        let at = space::vmap().ioremap(registers, Cache::Uncached);
        at.unwrap_or_else(|error| panic!("no addresses for the interrupt controller: {error}"))
    });
    // SAFETY: called once on this CPU, with interrupts off.
    unsafe { irqchip::start() };
    clock::start();
    smp::take_part();
    // SAFETY: called once, on the boot CPU; the areas and the stacks exist, the root is that of the
    // kernel's tables, and `start` has called `prepare`.
    if let Err(cpu) = unsafe { smp::start_others(space::tables().root().start()) } {
        panic!("cpu{cpu} does not start within 100 s: it hangs, or the host is very busy");
    }
    // SAFETY: a CPU starts with one section, which this ends.
    unsafe { cpu::area::irq_leave() };
    exit::exit(command::run(COMMAND_LINE.get().map_or("", |line| line)))
}
