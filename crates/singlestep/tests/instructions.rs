//! Each kind of instruction accesses the memory that the manual says.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]
#![allow(missing_docs)]

mod common;
#[path = "../../trace/tests/common/needs.rs"]
mod needs;

use std::{arch::asm, hint::black_box};

use common::{Line, Page, lines, named};
use singlestep::{Counts, Region, operation};

/// Counts instructions that use the address of a line, as `{line}`, and two zero registers.
macro_rules! with_line {
    ($($instructions:literal),+) => {
        operation(|| Line(0u64), |line| {
            // SAFETY: they use only the line, which is borrowed, and these registers.
            unsafe {
                asm!(
                    $($instructions,)+
                    line = in(reg) &raw mut line.0, zero = inout(reg) 0u64 => _, other = inout(reg) 0u64 => _,
                );
            }
        })
        .regions(|line| vec![Region::of("line", line)])
        .runs(2)
        .count()
        .unwrap()
    };
}

#[test]
fn instructions_are_counted_one_by_one() {
    // The same without the instructions: the code that the compiler adds around them, with or
    // without optimisation.
    let none = with_line!("# {line} {zero} {other}");
    let op = with_line!(
        "nop",
        "mfence",
        "lfence",
        "sfence",
        "xchg [{line}], {zero}",
        "lock add dword ptr [{line} + 8 - 8], 1",
        "xchg {zero}, {other}",
        "cmp {zero}, {zero}",
        "jne 2f",
        "2:",
        "jmp 3f",
        "3:",
        "prefetcht0 [{line} + 4096]",
        "lea {zero}, [{line} + 8192]"
    );
    assert_eq!(op.atomics.largest, 2);
    assert_eq!(op.fences.largest, 3);
    assert_eq!(op.branches.largest - none.branches.largest, 1);
    assert_eq!((named(&none, "line"), named(&op, "line")), ((0, 0), (0, 1)));
    // An instruction that accesses no memory is in no area.
    assert_eq!(lines(&op.other), (0, 0));
    assert_eq!(op.instructions.largest - none.instructions.largest, 12);
    assert_eq!(op.instructions.least, op.instructions.largest);
}

#[test]
fn each_further_instruction_counts_once() {
    // SAFETY: does nothing.
    let ten = operation(|| (), |_| unsafe { asm!(".rept 10", "nop", ".endr") }).count().unwrap();
    // SAFETY: does nothing.
    let fifty = operation(|| (), |_| unsafe { asm!(".rept 50", "nop", ".endr") }).count().unwrap();
    assert_eq!(fifty.instructions.least - ten.instructions.least, 40);
    assert_eq!(fifty.instructions.largest - ten.instructions.largest, 40);
}

/// Counts an operation on two pages.
fn on_pages(op: impl FnMut(&mut (Page, Page))) -> Counts {
    let op = operation(|| (Page([1; 4096]), Page([2; 4096])), op);
    let regions =
        |pages: &(Page, Page)| vec![Region::of("from", &pages.0), Region::of("to", &pages.1)];
    op.regions(regions).runs(2).count().unwrap()
}

/// The lines of the first page that were read and written, and those of the second one.
fn pages(counts: &Counts) -> [(u64, u64); 2] {
    ["from", "to"].map(|name| named(counts, name))
}

#[test]
fn string_instructions_count_once_and_touch_all_bytes() {
    let forth = |length: usize| {
        // SAFETY: both pages are at least that long.
        on_pages(move |(from, to)| unsafe {
            asm!("rep movsb", inout("rcx") length => _,
                inout("rsi") from => _, inout("rdi") to => _);
        })
    };
    // Few and many repetitions are stepped differently. No repetition accesses nothing.
    let (none, few, some, many) = (forth(0), forth(3), forth(65), forth(4096));
    assert_eq!(pages(&none), [(0, 0), (0, 0)]);
    assert_eq!(pages(&few), [(1, 0), (0, 1)]);
    assert_eq!(pages(&some), [(2, 0), (0, 2)]);
    assert_eq!(pages(&many), [(64, 0), (0, 64)]);
    assert_eq!(none.instructions, many.instructions);
    assert_eq!(few.instructions, many.instructions);
    assert_eq!(some.instructions, many.instructions);
}

#[test]
fn string_instructions_run_backwards_too() {
    let back = |count: usize| {
        // SAFETY: this many quadwords below the last one are within the page.
        let counts = on_pages(move |(_, to)| unsafe {
            asm!("std", "rep stosq", "cld", inout("rcx") count => _,
                inout("rdi") (&raw mut to.0).cast::<u64>().add(511) => _, in("rax") 0);
        });
        named(&counts, "to")
    };
    assert_eq!((back(2), back(9), back(512)), ((0, 1), (0, 2), (0, 64)));
}

#[test]
fn a_comparison_stops_where_bytes_differ() {
    let counts = operation(
        || {
            let mut page = Page([0; 4096]);
            page.0[200] = 1;
            page
        },
        // SAFETY: scans at most the page.
        |page| unsafe {
            asm!("repe scasb", inout("rcx") 4096usize => _, inout("rdi") page => _, in("al") 0u8);
        },
    )
    .regions(|page| vec![Region::of("page", page)])
    .runs(1)
    .count()
    .unwrap();
    assert_eq!(named(&counts, "page"), (4, 0));
}

#[test]
fn the_librarys_memset_and_memcpy_touch_each_line_once() {
    // Sizes for each of the library's variants: masked, vectors, a loop, a string instruction.
    for (size, expected) in [(24, 1), (48, 1), (100, 2), (640, 10), (4096, 64)] {
        let counts = on_pages(|(from, to)| {
            let size = black_box(size);
            to.0[..size].copy_from_slice(&from.0[..size]);
            from.0[..size].fill(black_box(7));
        });
        assert_eq!(pages(&counts), [(0, expected); 2], "{size} bytes");
    }
}

#[test]
fn a_bit_instruction_reaches_beyond_its_operand() {
    let counts = operation(
        || Page([0; 4096]),
        // SAFETY: bits 0 and 8000 are within the page, and so is bit -8 from its middle.
        |page| unsafe {
            asm!("lock bts qword ptr [{page}], {bit}", "bt dword ptr [{page} + 2048], {back:e}",
                page = in(reg) page, bit = in(reg) 8000u64, back = in(reg) -8i32);
        },
    )
    .regions(|page| {
        let start = Region::of("", page).addresses().start;
        let line = |line: usize| start + 64 * line..start + 64 * (line + 1);
        vec![Region::new("1000", line(15)), Region::new("2047", line(31)), Region::of("all", page)]
    })
    .runs(1)
    .count()
    .unwrap();
    assert_eq!(named(&counts, "1000"), (0, 1));
    assert_eq!(named(&counts, "2047"), (1, 0));
    assert_eq!(named(&counts, "all"), (1, 1));
}

#[test]
fn masked_vectors_touch_the_elements_of_their_mask() {
    let found = std::arch::is_x86_feature_detected!("avx512bw");
    if !needs::has("avx512bw", found, None) {
        return;
    }
    // SAFETY: 64 bytes from the middle of a line are within the page. The processor has
    // AVX-512.
    let counts = on_pages(|(from, to)| unsafe {
        asm!(
            // Bytes 0 and 40: both lines of the vector.
            "mov {bits}, 1", "bts {bits}, 40", "kmovq k1, {bits}",
            "vmovdqu8 zmm0 {{k1}} {{z}}, [{from} + 32]",
            // Doublewords 0 to 3: the first line only.
            "mov {bits:e}, 15", "kmovd k7, {bits:e}",
            "vmovdqu32 [{to} + 32] {{k7}}, zmm0",
            // No element.
            "kxorq k7, k7, k7", "vmovdqu8 [{to} + 1024] {{k7}}, zmm0", "vzeroupper",
            from = in(reg) from, to = in(reg) to, bits = out(reg) _,
            out("zmm0") _, out("k1") _, out("k7") _,
        );
    });
    assert_eq!(pages(&counts), [(2, 0), (0, 1)]);
}

#[test]
fn masked_vectors_touch_the_elements_of_a_vector() {
    let found = std::arch::is_x86_feature_detected!("avx2");
    if !needs::has("avx2", found, None) {
        return;
    }
    // SAFETY: 32 bytes from the middle of a line are within the page. The processor has AVX2.
    let counts = on_pages(|(from, to)| unsafe {
        asm!(
            // Doublewords 0 and 7: both lines of the vector.
            "vpcmpeqd ymm1, ymm1, ymm1", "vpxor ymm2, ymm2, ymm2",
            "vpblendd ymm1, ymm2, ymm1, 0x81", "vpmaskmovd ymm0, ymm1, [{from} + 48]",
            // Quadword 3: the second line only.
            "vpcmpeqd ymm1, ymm1, ymm1", "vpblendd ymm1, ymm2, ymm1, 0xc0",
            "vpmaskmovq [{to} + 40], ymm1, ymm0",
            // Of four, the second; and none.
            "vpcmpeqd xmm1, xmm1, xmm1", "vpblendd xmm1, xmm2, xmm1, 2",
            "vmaskmovps xmm0, xmm1, [{from} + 1084]", "vmaskmovpd [{to} + 2048], ymm2, ymm0",
            "vzeroupper",
            from = in(reg) from, to = in(reg) to,
            out("ymm0") _, out("ymm1") _, out("ymm2") _,
        );
    });
    assert_eq!(pages(&counts), [(3, 0), (0, 1)]);
}

#[test]
fn a_conditional_move_reads_whether_it_moves_or_not() {
    // SAFETY: reads the first words of both pages.
    let counts = on_pages(|(from, to)| unsafe {
        asm!("cmp {0}, {0}", "cmove {0}, [{1}]", "cmp {0}, {0}", "cmovne {0}, [{2}]",
                inout(reg) 0u64 => _, in(reg) from, in(reg) to);
    });
    assert_eq!(pages(&counts), [(1, 0), (1, 0)]);
}
