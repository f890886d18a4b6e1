//! A small kernel that runs Samara on real page tables, TLBs and interrupts.
//!
//! It boots x86-64 by the PVH protocol, starts all CPUs, and runs the command of its command line:
//! trials of the crates, experiments, or a static program of Linux. It has files in memory alone,
//! and no devices except a serial port and the local APICs. It is also a second implementation of
//! `machine`, to read beside your own.
//!
//! | module | contents |
//! |---|---|
//! | `boot` | from the loader to Rust; the data of the loader and of ACPI |
//! | `memory`, `heap` | the division of memory |
//! | `layout`, `space` | the kernel's address space, and its tables |
//! | `cpu` | one CPU: its area, its tables, its features |
//! | `trap` | interrupts and faults; accesses that may fault |
//! | `apic`, `clock` | the timer, IPIs; time |
//! | `turns` | short turns of CPUs, where the emulator counts instructions |
//! | `smp` | the start of the CPUs, and the programs that they run |
//! | `machine`, `grace` | the traits of `machine`, and the domain of `grace`, for this kernel |
//! | `command` | the commands: `test`, `bench`, `run` |
//! | `archive`, `newc` | the files that the loader brings, and their format |
//! | `run`, `stats` | runs a program of the archive; what programs did |
//! | `user` | into a program and back, its registers, copies of its memory |
//! | `task` | processes and threads, the queues of ready threads, timers, signals |
//! | `load` | ELF files, and the stack of a new program |
//! | `call` | system calls |
//! | `futex` | threads that wait for a word of their memory |
//! | `file`, `path` | files in memory |
//! | `random` | random numbers |
//! | `fair` | the lock of the experiments' baselines |
//! | `output` | the output of programs |
//! | `console`, `fail`, `exit` | the kernel's output, the failure path, the exit code |
#![no_std]
#![no_main]
extern crate alloc;

mod apic;
mod archive;
mod bench;
mod boot;
mod call;
mod clock;
mod command;
mod console;
mod cpu;
mod exit;
mod fail;
mod fair;
mod file;
mod futex;
mod grace;
mod heap;
mod layout;
mod load;
mod machine;
mod memory;
mod mutant;
mod newc;
mod output;
mod path;
mod random;
mod run;
mod smp;
mod space;
mod stats;
mod task;
mod test;
mod trap;
mod turns;
mod user;

use crate::boot::{acpi::CpuList, info::BootInfo};
use crate::layout::direct;
use crate::memory::Memory;
use ::machine::{FrameRange, PhysAddr, PhysRange};
use alloc::string::String;
use alloc::vec::Vec;
use core::arch::asm;
use paging::Cache;
use spin::Once;

/// The bytes of the command line that are kept.
const LINE: usize = 1024;

static COMMAND_LINE: Once<String> = Once::new();

/// The entry of the boot CPU, on a stack of the image, with the boot tables.
///
/// # Safety
/// `boot::entry` calls it once. `info` is the loader's EBX.
#[unsafe(no_mangle)]
unsafe extern "C" fn start(info: u32) -> ! {
    // SAFETY: nothing runs before, and each call has what it needs from the one before.
    unsafe {
        cpu::area::start();
        cpu::features::start();
    }
    console::start();
    cpu::tables::load_handlers(false);
    // SAFETY: by the caller's promise.
    let info = unsafe { BootInfo::read(info) }.unwrap_or_else(|cause| panic!("{cause}"));
    // The loader's data may lie where the heap will be, so it is copied.
    let mut line = [0; LINE];
    let said = info.command_line();
    assert!(said.len() <= LINE, "the command line is longer than {LINE} bytes");
    line[..said.len()].copy_from_slice(said);
    let (len, archived) = (said.len(), info.archive());
    // SAFETY: these are the loader's tables, unmodified.
    let (cpus, complaint) = unsafe { CpuList::read(info.rsdp(), apic::own_number()) };
    let memory = Memory::divide(&info).unwrap_or_else(|cause| panic!("{cause}"));
    copy_trampoline();

    let heap = direct(memory.heap.start().start()).get() as usize;
    let bytes = (memory.heap.len() << 12) as usize;
    // SAFETY: no other code uses this memory, and the loader's data has been copied.
    let started = unsafe { heap::start(core::ptr::with_exposed_provenance_mut(heap), bytes) };
    assert!(started, "too little memory for a heap");
    COMMAND_LINE.call_once(|| String::from_utf8_lossy(&line[..len]).into_owned());
    // SAFETY: called once, on the boot CPU.
    unsafe { cpu::area::start_all(cpus.apics()) };
    machine::shootdown::start();
    let ranges: Vec<FrameRange> = memory.frames().collect();
    // SAFETY: the ranges are unused. The direct map of the boot tables has them, and so will ours.
    unsafe { machine::start_memory(&ranges, cpus.apics().len()) }
        .unwrap_or_else(|error| panic!("{error}"));
    // A fault needs segments. The current ones are mapped only by the boot tables; the new ones are
    // in the heap, which all tables map. SAFETY: they belong to this CPU, and the heap works.
    unsafe { (*cpu::area::here().tables.get()).load() };
    // SAFETY: called once, on the boot CPU, with the boot tables.
    unsafe { space::start(&memory) }
        .unwrap_or_else(|error| panic!("no tables for the kernel: {error}"));
    space::start_areas().unwrap_or_else(|error| panic!("no areas for the kernel: {error}"));
    if let Some(range) = archived {
        // SAFETY: `Memory::divide` left the range out, and the kernel's tables map it read-only.
        unsafe { archive::start(range) };
    }
    if let Some(complaint) = complaint {
        println!("{complaint}");
    }
    on_own_stack()
}

/// Copies the code that starts other CPUs to a page that they can reach.
fn copy_trampoline() {
    unsafe extern "C" {
        static trampoline_start: u8;
        static trampoline_end: u8;
    }
    let (from, end) = (&raw const trampoline_start, &raw const trampoline_end);
    let to = direct(PhysAddr::new(boot::entry::TRAMPOLINE)).get() as *mut u8;
    // SAFETY: only firmware uses memory below 1 MiB, and it does not use this page. The boot tables
    // map both addresses.
    unsafe { from.copy_to_nonoverlapping(to, end.addr() - from.addr()) };
}

/// Switches to the boot CPU's own stack, which has a guard page.
fn on_own_stack() -> ! {
    let stack = smp::stack_of(0);
    // SAFETY: the stack is mapped and unused, and nothing on the old stack is needed any more.
    unsafe {
        asm!(
            "mov rsp, {stack}", "xor ebp, ebp", "push rbp", "jmp {next}",
            stack = in(reg) stack.start().get() + stack.len(), next = sym with_all_cpus, options(noreturn)
        )
    }
}

/// Starts interrupts, time and the other CPUs, and runs the command.
extern "C" fn with_all_cpus() -> ! {
    let registers = PhysRange::new(PhysAddr::new(apic::registers()), 4096);
    let registers = registers.expect("an address of a device");
    let registers = space::vmap().ioremap(registers, Cache::Uncached);
    apic::start_all(registers.unwrap_or_else(|error| panic!("no addresses for the APIC: {error}")));
    // SAFETY: called once on this CPU, with interrupts off.
    unsafe { apic::start() };
    clock::start();
    smp::take_part();
    // SAFETY: called once, on the boot CPU; the areas, the stacks and the trampoline exist.
    if let Err(cpu) = unsafe { smp::start_others(space::tables().root().start()) } {
        panic!("cpu{cpu} does not start");
    }
    // SAFETY: a CPU starts with one section, which this ends.
    unsafe { cpu::area::irq_leave() };
    exit::exit(command::run(COMMAND_LINE.get().map_or("", |line| line)))
}
