//! Operations whose counts are known in advance.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]
#![allow(missing_docs)]

mod common;

use std::{
    arch::asm,
    cell::Cell,
    hint::black_box,
    sync::atomic::{AtomicU64, Ordering::SeqCst},
};

use common::{Line, Page, lines, named};
use nix::{sched::sched_getaffinity, unistd::Pid};
use singlestep::{Counts, Region, operation};

#[test]
fn two_additions_are_two_atomics_on_two_written_lines() {
    let counts = operation(<[Line<AtomicU64>; 3]>::default, |counters| {
        counters[0].0.fetch_add(1, SeqCst);
        counters[1].0.fetch_add(1, SeqCst);
        black_box(counters[2].0.load(SeqCst));
    })
    .regions(|counters| vec![Region::of("counters", counters)])
    .runs(3)
    .count()
    .unwrap();
    assert_eq!(counts.runs, 3);
    assert_eq!(counts.atomics.largest, 2);
    assert_eq!(counts.region("counters").unwrap().atomics.least, 2);
    assert_eq!(named(&counts, "counters"), (1, 2));
    assert_eq!(counts.fences.largest, 0);
    assert_eq!(counts.syscalls.largest, 0);
}

#[test]
fn a_loop_reads_a_hundred_lines() {
    let counts = operation(
        || vec![Page([1; 4096]); 2],
        |pages| {
            let first = pages.as_ptr().cast::<u8>();
            for line in 0..100 {
                // SAFETY: within the two pages.
                black_box(unsafe { first.add(line * 64 + line % 64).read_volatile() });
            }
        },
    )
    .regions(|pages| vec![Region::of("pages", &pages[..])])
    .runs(2)
    .count()
    .unwrap();
    assert_eq!(named(&counts, "pages"), (100, 0));
    assert!(counts.branches.largest >= 100);
}

thread_local! {
    static LOCAL: Line<Cell<u64>> = const { Line(Cell::new(0)) };
}

#[test]
fn thread_locals_are_found() {
    let counts = operation(|| (), |_| LOCAL.with(|local| local.0.set(local.0.get() + 1)))
        .regions(|_| LOCAL.with(|local| vec![Region::of("local", local)]))
        .runs(2)
        .count()
        .unwrap();
    assert_eq!(named(&counts, "local"), (0, 1));
    // The access itself, through the base of the segment register.
    let counts = operation(
        || (),
        // SAFETY: the first word of the thread's control block is its own address.
        |_| unsafe { asm!("mov {0}, fs:[0]", out(reg) _) },
    )
    .regions(|_| {
        let base: usize;
        // SAFETY: as above.
        unsafe { asm!("mov {0}, fs:[0]", out(reg) base) };
        vec![Region::new("control block", base..base + 8)]
    })
    .runs(1)
    .count()
    .unwrap();
    assert_eq!(named(&counts, "control block"), (1, 0));
}

#[test]
fn the_stack_is_not_data() {
    let counts = operation(
        || (),
        |_| {
            let mut room = [0u8; 1024];
            for byte in black_box(&mut room).iter_mut().step_by(64) {
                // SAFETY: a reference to our own array.
                unsafe { (&raw mut *byte).write_volatile(1) };
            }
        },
    )
    .runs(2)
    .count()
    .unwrap();
    let (_, written) = lines(&counts.stack);
    assert!((16..32).contains(&written), "{counts}");
    assert_eq!(counts.data.written.largest, 0, "{counts}");
    // A frame of the caller to which the operation has a reference is data, although it lies on a
    // stack.
    let lent = Line(Cell::new(0u64));
    let counts = operation(|| &lent, |lent| lent.0.set(lent.0.get() + 1))
        .regions(|lent| vec![Region::of("lent", *lent)])
        .count()
        .unwrap();
    assert_eq!(named(&counts, "lent"), (0, 1));
    assert_eq!(lent.0.get(), 0, "only the child's copy changed");
}

#[test]
fn system_calls_are_reported() {
    let counts = operation(
        || (),
        |_| {
            // SAFETY: these calls have no arguments.
            unsafe { (libc::syscall(libc::SYS_getppid), libc::syscall(libc::SYS_getuid)) };
        },
    )
    .count()
    .unwrap();
    assert_eq!((counts.syscalls.least, counts.syscalls.largest), (2, 2));
}

#[test]
fn preparing_is_not_counted_and_runs_before_each_run() {
    let counts = operation(Vec::new, |taken: &mut Vec<u64>| taken.push(1))
        .prepare(|taken| {
            let before = taken.len();
            taken.clear();
            taken.reserve(4);
            assert!(before < 2);
            // SAFETY: the call has no arguments.
            unsafe { libc::syscall(libc::SYS_getppid) };
        })
        .regions(|taken| vec![Region::of("vector", taken)])
        .warm_up(1)
        .runs(5)
        .count()
        .unwrap();
    assert_eq!(counts.syscalls.largest, 0);
    assert_eq!(named(&counts, "vector"), (0, 1));
}

#[test]
fn runs_that_differ_show_their_spread() {
    let counts = operation(
        || (0usize, <[Line<u64>; 8]>::default()),
        |(n, lines)| {
            *n += 1;
            for line in lines.iter_mut().take(*n) {
                // SAFETY: our own element.
                unsafe { (&raw mut line.0).write_volatile(1) };
            }
        },
    )
    .regions(|(_, lines)| vec![Region::of("lines", lines)])
    .warm_up(0)
    .runs(4)
    .count()
    .unwrap();
    let written = counts.region("lines").unwrap().written;
    assert_eq!((written.least, written.mean, written.largest), (1, 2.5, 4));
}

/// Counts from a stack that is this many bytes deeper.
fn from_deeper<const BYTES: usize>() -> Counts {
    let room = [0u8; BYTES];
    black_box(&room);
    let op = |_: &mut ()| {
        black_box([1u64; 9]);
    };
    let counts = operation(|| (), op).runs(1).count().unwrap();
    black_box(&room);
    counts
}

#[test]
fn counts_do_not_depend_on_where_the_caller_stands() {
    let first = from_deeper::<0>();
    assert!(first.stack.lines.least > 0);
    assert_eq!(first.stack, from_deeper::<16>().stack);
    assert_eq!(first.stack, from_deeper::<32>().stack);
    assert_eq!(first.stack, from_deeper::<48>().stack);
}

#[test]
fn the_calling_thread_keeps_its_processors() {
    let mine = || sched_getaffinity(Pid::from_raw(0)).unwrap();
    let before = mine();
    operation(|| (), |_| ()).count().unwrap();
    assert!(mine() == before);
    operation(|| (), |_| panic!("while bound")).warm_up(0).count().unwrap_err();
    assert!(mine() == before);
}
