//! A tiny kernel on Samara's crates, to start from. It uses `paging`, `vmap` and `mm`, one after
//! the other, and prints a line for each step that the MMU has confirmed. README.md says more.
#![no_std]
#![no_main]
extern crate alloc;

mod areas;
mod boot;
mod frames;
mod spaces;
mod tables;
mod tiny;
mod trap;

use crate::frames::census;
use crate::tiny::{Grace, Tables, Tiny};
use alloc::boxed::Box;
use core::{error::Error, fmt::Write, panic::PanicInfo};
use machine::{FrameSource, Memory, NodePolicy, PageSize};
use talc::{TalcLock, source::Manual};
use uart_16550::{Config, Uart16550Tty};

type Outcome<T> = Result<T, Box<dyn Error>>;

/// No handler interrupts code that uses the heap. So the only CPU never waits for its lock.
#[global_allocator]
static HEAP: TalcLock<spin::Mutex<()>, Manual> = TalcLock::new(Manual);

/// Prints a line on the first serial port.
macro_rules! println {
    ($($words:tt)*) => { $crate::print(format_args!($($words)*)) };
}
use println;

fn print(words: core::fmt::Arguments<'_>) {
    // SAFETY: no other code uses the port.
    if let Ok(mut port) = unsafe { Uart16550Tty::new_port(0x3f8, Config::default()) } {
        let _ = writeln!(port, "{words}");
    }
}

/// Ends QEMU, whose exit code is then `2 * code + 1`.
fn exit(code: u32) -> ! {
    // SAFETY: the port of `isa-debug-exit`.
    unsafe { x86_64::instructions::port::Port::new(0xf4).write(code) };
    loop {
        x86_64::instructions::hlt();
    }
}

#[panic_handler]
fn panic(info: &PanicInfo<'_>) -> ! {
    println!("{info}");
    exit(17)
}

/// `boot.rs` calls this, with interrupts off.
#[unsafe(no_mangle)]
extern "C" fn main(info: u64) -> ! {
    steps(info).unwrap_or_else(|error| panic!("{error}"));
    exit(16)
}

fn steps(info: u64) -> Outcome<()> {
    trap::start();
    // SAFETY: the loader's data, which are intact. Nothing but the image uses the memory.
    let memory = unsafe { boot::memory(info, frames::LIMIT) }.ok_or("no memory")?;
    println!("boot: in the upper half, on the loader's tables");
    // SAFETY: as above.
    unsafe { frames::start(memory) };
    let heap = Tiny.frame_ptr(Tiny.alloc(9, NodePolicy::Local)?).ok_or("no memory")?;
    // SAFETY: the block is the heap's from now on.
    unsafe { HEAP.lock().claim(heap.as_ptr(), PageSize::Size2M.bytes() as usize) };
    assert!(Grace::start(), "no heap");
    println!("machine: {} of {} frames are free", Tiny.free_frames(), memory.len());

    let kernel = tables::adopt()?;
    settle(kernel);
    let before = census();
    tables::change(kernel)?;
    let areas = areas::start(kernel)?;
    areas::allocate(&areas)?;
    areas::map_device(&areas)?;
    settle(kernel);
    let free = Tiny.free_frames();
    spaces::live(kernel)?;
    settle(kernel);
    assert_eq!((Tiny.free_frames(), census()), (free, before), "frames are lost");
    println!("frames: each is as before, or free, or a table of the kernel");
    Ok(())
}

/// Frees the objects that wait for a grace period, which a few quiescent states of the only CPU
/// end. Then gives back the tables that the quicklists keep.
fn settle(kernel: &Tables) {
    while Grace::is_pending() {
        Grace::quiescent_state();
        Grace::reclaim(usize::MAX);
    }
    kernel.paging().quick().drain();
}
