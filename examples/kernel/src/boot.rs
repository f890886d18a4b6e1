//! Boot. QEMU's `-kernel` (PVH) enters at `start`, in 32-bit mode without paging. This code turns
//! paging on, and calls `main` in 64-bit mode, in the upper half.
//!
//! Its five page tables are "the loader's": large pages, writable and executable. They map 2 MiB at
//! the physical address, where `start` runs (`kernel.ld` puts it first), and the first GiB at
//! [`OFFSET`], where the kernel is linked. `tables.rs` adopts them, and makes them stricter.

use core::{arch::global_asm, ptr, slice};
use machine::{FrameRange, PhysAddr, PhysRange};

/// The first GiB of physical memory is mapped here.
pub const OFFSET: u64 = 0xffff_ffff_8000_0000;

global_asm!(
    r#"
.set OFFSET, 0xffffffff80000000
.section .note.pvh, "a", @note
    .long 4, 8, 18; .asciz "Xen"; .quad start - OFFSET

.section .data.boot, "aw", @progbits
.balign 4096
boot_tables:                            // 3: present, writable; 0x80: large; 0x100: global
top:        .quad low_upper - OFFSET + 3; .fill 510, 8, 0; .quad high_upper - OFFSET + 3
low_upper:  .quad low - OFFSET + 3; .fill 511, 8, 0
low:        .quad 0, 0x200083; .fill 510, 8, 0
high_upper: .fill 510, 8, 0; .quad high - OFFSET + 3, 0
high:       .set page, 0x183
            .rept 512; .quad page; .set page, page + 0x200000; .endr

.local stack
.comm stack, 0x20000, 16

.section .text.boot, "ax", @progbits
.global start, boot_tables
gdt:        .quad 0, 0x00af9b000000ffff // selector 8: 64-bit code
gdt_low:    .word 15; .quad gdt - OFFSET
gdt_high:   .word 15; .quad gdt
.code32
start:
    lgdt gdt_low - OFFSET
    mov $0xa0, %eax; mov %eax, %cr4                         // PAE, global pages
    mov $top - OFFSET, %eax; mov %eax, %cr3
    mov $0xc0000080, %ecx; rdmsr; or $0x900, %eax; wrmsr    // EFER: long mode, no-execute
    mov %cr0, %eax; or $0x80010000, %eax; mov %eax, %cr0    // paging, write protection
    ljmp $8, $long_mode - OFFSET
.code64
long_mode:
    movabs $upper_half, %rax
    jmp *%rax
upper_half:
    lgdt gdt_high(%rip)
    xor %eax, %eax; mov %eax, %ss
    lea stack + 0x20000(%rip), %rsp
    mov %ebx, %edi                                          // the loader's data
    call main
"#,
    options(att_syntax)
);

unsafe extern "C" {
    static boot_tables: [u8; 5 << 12];
    static code_start: u8;
    static data_start: u8;
    static data_end: u8;
}

/// The physical addresses from one symbol of the image to another.
fn between<A, B>(start: *const A, end: *const B) -> PhysRange {
    let [start, end] = [start.addr(), end.addr()].map(|at| PhysAddr::new(at as u64 - OFFSET));
    PhysRange::between(start, end).expect("`kernel.ld` orders them")
}

/// The loader's tables, the top-level one first.
pub fn tables() -> FrameRange {
    between(&raw const boot_tables, (&raw const boot_tables).wrapping_add(1)).whole_frames()
}

/// The code and constants of the image.
pub fn code() -> PhysRange {
    between(&raw const code_start, &raw const data_start)
}

/// The data of the image, from its boot tables to its stack.
pub fn data() -> PhysRange {
    between(&raw const data_start, &raw const data_end)
}

/// The frames from the image's data on, to the end of that range of memory or to `limit`. A kernel
/// that wants all memory uses the other ranges, too.
///
/// # Safety
/// `info` is the physical address that the loader has passed, and its data are intact.
pub unsafe fn memory(info: u64, limit: u64) -> Option<FrameRange> {
    let at = |physical: u64| ptr::with_exposed_provenance::<u64>((physical + OFFSET) as usize);
    // SAFETY: the caller's promise. In `hvm_start_info`, word 5 is the address of the memory map,
    // and word 6 the number of its entries. An entry is the start, the bytes, and the kind.
    let map = unsafe {
        let info = &*at(info).cast::<[u64; 7]>();
        slice::from_raw_parts(at(info[5]).cast::<[u64; 3]>(), info[6] as u32 as usize)
    };
    let data = data().start();
    let ram = map.iter().filter(|[_, _, kind]| *kind as u32 == 1);
    let mut ram = ram.filter_map(|[start, len, _]| PhysRange::new(PhysAddr::new(*start), *len));
    let end = ram.find(|range| range.contains(data))?.end()?.min(PhysAddr::new(limit));
    Some(PhysRange::between(data, end)?.whole_frames())
}
