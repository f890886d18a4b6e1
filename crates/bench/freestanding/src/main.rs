//! A worker of `samara-bench`, built like a kernel: without a standard library and vector
//! registers.
//!
//! It is compiled for `x86_64-unknown-none` (soft float), where neither the tree nor the compiler
//! may use SSE or AVX, and measures the tree with one owner. It makes Linux system calls itself, so
//! that it can run next to the other workers. `cargo bench -p samara-bench` builds it and runs it.
//! Alone:
//!
//! ```text
//! RUSTFLAGS="-Crelocation-model=static -Ccode-model=small" \
//!     cargo build --release --target x86_64-unknown-none
//! printf 'size 1000\nsample 0 load 0 40000000\n' | target/x86_64-unknown-none/release/freestanding
//! ```
#![no_std]
#![no_main]
// This program does not use all of the shared files.
#![allow(dead_code)]

extern crate alloc;

mod clock;
mod heap;
mod linux;

#[path = "../../src/adverse.rs"]
mod adverse;
#[path = "../../src/case.rs"]
mod case;
#[path = "../../src/maps/own.rs"]
mod own;
#[path = "../../src/peer.rs"]
mod peer;
#[path = "../../src/subject/mod.rs"]
mod subject;
#[path = "../../src/worker.rs"]
mod worker;
#[path = "../../src/workload.rs"]
mod workload;

use alloc::boxed::Box;
use alloc::format;
use alloc::rc::Rc;
use alloc::vec;
use alloc::vec::Vec;
use core::panic::PanicInfo;
use subject::{Bench, Subject};
use workload::Workload;

// Linux enters here with the stack aligned to 16 bytes. A function expects that alignment before
// its call.
core::arch::global_asm!(
    ".globl _start",
    "_start:",
    "xor ebp, ebp",
    "and rsp, -16",
    "call {main}",
    "ud2",
    main = sym main,
);

fn maps(work: &Rc<Workload>) -> Vec<Box<dyn Subject>> {
    vec![Box::new(Bench::<own::Owned>::new(work.clone()))]
}

/// Answers requests until there are no more.
extern "C" fn main() -> ! {
    let mut worker = worker::Worker::new(maps);
    let mut pending = Vec::new();
    let mut piece = [0; 256];
    loop {
        let read = linux::read(0, &mut piece);
        if read == 0 {
            linux::exit(0);
        }
        pending.extend_from_slice(&piece[..read]);
        while let Some(end) = pending.iter().position(|&byte| byte == b'\n') {
            let line: Vec<u8> = pending.drain(..=end).collect();
            let answer = match core::str::from_utf8(&line) {
                Ok(request) => worker.answer(request),
                Err(_) => "error not text".into(),
            };
            linux::write(1, format!("{answer}\n").as_bytes());
        }
    }
}

#[panic_handler]
fn panic(info: &PanicInfo<'_>) -> ! {
    linux::write(2, format!("{info}\n").as_bytes());
    linux::exit(101)
}
