//! A small kernel that runs Samara where it is meant to live: on page tables, TLBs and interrupts
//! that nobody here wrote.
//!
//! It boots x86-64 by the PVH protocol, starts all CPUs, and runs what its command line says:
//! trials of the crates, experiments. It has no threads, no programs, no devices but a serial port
//! and the local APICs. What it is for: a second implementation of `machine`, to read beside your
//! own.
//!
//! | module | what |
//! |---|---|
//! | `boot` | from the loader to Rust; what the loader and ACPI say |
//! | `memory`, `heap` | what becomes of memory |
//! | `layout`, `space` | where what is mapped, and the tables for it |
//! | `cpu` | one CPU: its area, its tables, its features |
//! | `trap` | interrupts and faults; accesses that may fault |
//! | `apic`, `clock` | the timer, interrupts between CPUs; time |
//! | `turns` | where the emulator counts: CPUs side by side, and waiting that counts |
//! | `smp` | how CPUs start, and what they run |
//! | `machine`, `grace` | the traits of `machine`, and the domain of `grace`, for this kernel |
//! | `command` | what the command line asks for: `test`, `bench` |
//! | `fair` | the lock that the experiments' old ways get |
//! | `console`, `fail`, `exit` | what is said, and how it ends |
#![no_std]
#![no_main]
extern crate alloc;

mod apic;
mod bench;
mod boot;
mod clock;
mod command;
mod console;
mod cpu;
mod exit;
mod fail;
mod fair;
mod grace;
mod heap;
mod layout;
mod machine;
mod memory;
mod mutant;
mod smp;
mod space;
mod test;
mod trap;
mod turns;

use crate::boot::{acpi::CpuList, info::BootInfo};
use crate::layout::direct;
use crate::memory::Memory;
use ::machine::{FrameRange, PhysAddr, PhysRange};
use alloc::string::String;
use alloc::vec::Vec;
use core::arch::asm;
use paging::Cache;
use spin::Once;

/// Bytes of the command line that are kept.
const LINE: usize = 1024;

static COMMAND_LINE: Once<String> = Once::new();

/// Where the first CPU begins, on a stack of the image, with the first tables.
///
/// # Safety
/// From `boot::entry`, once; `info` is what the loader has left in EBX.
#[unsafe(no_mangle)]
unsafe extern "C" fn start(info: u32) -> ! {
    // SAFETY: this is the beginning, and the order is that in which each needs the one before.
    unsafe {
        cpu::area::start();
        cpu::features::start();
    }
    console::start();
    cpu::tables::load_handlers(false);
    // SAFETY: by the caller's promise.
    let info = unsafe { BootInfo::read(info) }.unwrap_or_else(|cause| panic!("{cause}"));
    // What the loader has left may lie where the heap will be.
    let mut line = [0; LINE];
    let said = info.command_line();
    assert!(said.len() <= LINE, "the command line is longer than {LINE} bytes");
    line[..said.len()].copy_from_slice(said);
    let len = said.len();
    // SAFETY: the tables that the loader speaks of, untouched.
    let (cpus, complaint) = unsafe { CpuList::read(info.rsdp(), apic::own_number()) };
    let memory = Memory::divide(&info).unwrap_or_else(|cause| panic!("{cause}"));
    copy_trampoline();

    let heap = direct(memory.heap.start().start()).get() as usize;
    let bytes = (memory.heap.len() << 12) as usize;
    // SAFETY: nobody else has it, and the loader's words have been copied.
    let started = unsafe { heap::start(core::ptr::with_exposed_provenance_mut(heap), bytes) };
    assert!(started, "too little memory for a heap");
    COMMAND_LINE.call_once(|| String::from_utf8_lossy(&line[..len]).into_owned());
    // SAFETY: once, on the first CPU.
    unsafe { cpu::area::start_all(cpus.apics()) };
    machine::shootdown::start();
    let ranges: Vec<FrameRange> = memory.frames().collect();
    // SAFETY: they are nobody's, and the first tables have them in the direct map, as ours will.
    unsafe { machine::start_memory(&ranges, cpus.apics().len()) }
        .unwrap_or_else(|error| panic!("{error}"));
    // The segments that a fault needs are where the first tables have them; these are in the heap,
    // which all tables have. SAFETY: this CPU's own; there is a heap.
    unsafe { (*cpu::area::here().tables.get()).load() };
    // SAFETY: once, on the first CPU, with the first tables.
    unsafe { space::start(&memory) }
        .unwrap_or_else(|error| panic!("no tables for the kernel: {error}"));
    space::start_areas().unwrap_or_else(|error| panic!("no areas for the kernel: {error}"));
    if let Some(complaint) = complaint {
        println!("{complaint}");
    }
    on_own_stack()
}

/// Copies the code that CPUs start with to a page that they can reach.
fn copy_trampoline() {
    unsafe extern "C" {
        static trampoline_start: u8;
        static trampoline_end: u8;
    }
    let (from, end) = (&raw const trampoline_start, &raw const trampoline_end);
    let to = direct(PhysAddr::new(boot::entry::TRAMPOLINE)).get() as *mut u8;
    // SAFETY: below 1 MiB nothing is anybody's, but firmware's, which leaves this page alone; the
    // first tables have both.
    unsafe { from.copy_to_nonoverlapping(to, end.addr() - from.addr()) };
}

/// Goes on on the stack of the first CPU, which has a guard.
fn on_own_stack() -> ! {
    let stack = smp::stack_of(0);
    // SAFETY: it is mapped, and nobody uses it; nothing of this stack is needed any more.
    unsafe {
        asm!(
            "mov rsp, {stack}", "xor ebp, ebp", "push rbp", "jmp {next}",
            stack = in(reg) stack.start().get() + stack.len(), next = sym with_all_cpus, options(noreturn)
        )
    }
}

/// Starts interrupts, time and the other CPUs, and does what the command line says.
extern "C" fn with_all_cpus() -> ! {
    let registers = PhysRange::new(PhysAddr::new(apic::registers()), 4096);
    let registers = registers.expect("an address of a device");
    let registers = space::vmap().ioremap(registers, Cache::Uncached);
    apic::start_all(registers.unwrap_or_else(|error| panic!("no addresses for the APIC: {error}")));
    // SAFETY: once on this CPU, interrupts off.
    unsafe { apic::start() };
    clock::start();
    smp::take_part();
    // SAFETY: once, on the first CPU; areas, stacks and the trampoline are there.
    if let Err(cpu) = unsafe { smp::start_others(space::tables().root().start()) } {
        panic!("cpu{cpu} does not start");
    }
    // SAFETY: a CPU begins with one section, which this ends.
    unsafe { cpu::area::irq_leave() };
    exit::exit(command::run(COMMAND_LINE.get().map_or("", |line| line)))
}
