//! From the loader to Rust, and from reset to Rust: the instructions before a stack in high memory.
//!
//! The loader enters `pvh_start` by the PVH protocol: 32-bit, no paging, interrupts off, EBX at
//! the start info. Other CPUs enter `trampoline_start` in 16-bit mode, at a page below 1 MiB to
//! which it was copied. Both switch to long mode with the same boot tables. These map all physical
//! memory up to 512 GiB by pages of 1 GiB, at its own addresses and in the direct map, and the
//! first GiB at the kernel's linked addresses. For a CPU without such pages, the first entry fills
//! in tables of pages of 2 MiB, up to 4 GiB ([`mapped`]). They allow writes to code. The kernel's
//! own tables replace them as soon as they exist.

use core::arch::global_asm;
use raw_cpuid::CpuId;

/// The end of the memory that the boot tables map.
pub(crate) fn mapped() -> u64 {
    let more = CpuId::new().get_extended_processor_and_feature_identifiers();
    if more.is_some_and(|more| more.has_1gib_pages()) { 512 << 30 } else { 4 << 30 }
}

global_asm!(
    r#"
    # The note with the entry point: type 18 of Xen's.
    .section .note.pvh, "a", @note
    .balign 4
    .long 4, 4, 18
    .asciz "Xen"
    .balign 4
    .long pvh_start

    .section .boot, "awx", @progbits
    .code32
    .globl pvh_start
pvh_start:
    cli
    cld                             # the protocol leaves it open
    mov %ebx, boot_info
    # Is there memory up to the end of the image? A loader leaves out segments that do not fit,
    # and reports nothing.
    mov $loaded_end - 4, %edi
    mov (%edi), %eax
    mov $0x5a17a2a5, %edx
    mov %edx, (%edi)
    cmp %edx, (%edi)
    mov %eax, (%edi)
    mov $boot_no_memory, %esi
    jne 2f
    mov $boot_long, %ebp
    # The first tables consist of pages of 1 GiB, if the CPU has them.
    mov $0x80000001, %eax
    cpuid
    test $(1 << 26), %edx
    jnz to_long
    # It has none: 2048 pages of 2 MiB instead, up to 4 GiB, where the sum wraps.
    mov $boot_p2, %edi
    mov $0x83, %eax
6:  mov %eax, (%edi)
    add $8, %edi
    add $(2 << 20), %eax
    jnc 6b
    mov $boot_p3, %edi
    mov $1024, %ecx                 # all words of the table
    xor %eax, %eax
    rep stosl
    mov $boot_p3, %edi
    mov $boot_p2 + 3, %eax
7:  mov %eax, (%edi)
    add $8, %edi
    add $4096, %eax
    cmp $boot_p2 + 4 * 4096 + 3, %eax
    jne 7b
    movl $boot_p2 + 3, boot_p3_high + 510 * 8
    jmp to_long
    # There is no console yet: the message goes to the serial port, then the machine exits.
2:  mov $0x3f8, %dx
3:  lodsb
    test %al, %al
    jz 4f
    outb %al, %dx
    jmp 3b
4:  mov $0x13, %eax               # Exit::Panic
    mov $0xf4, %dx
    outl %eax, %dx
5:  hlt
    jmp 5b

    # Enters long mode and continues at EBP.
to_long:
    mov %cr4, %eax
    or $(1 << 5), %eax              # PAE
    mov %eax, %cr4
    mov $boot_p4, %eax
    mov %eax, %cr3
    mov $0xc0000080, %ecx           # EFER
    rdmsr
    or $(1 << 8 | 1 << 11), %eax    # long mode, no-execute
    wrmsr
    mov %cr0, %eax
    or $(1 << 31 | 1 << 16), %eax   # paging, write protection
    mov %eax, %cr0
    lgdt boot_gdt_pointer
    ljmp $0x08, $1f
    .code64
1:  xor %eax, %eax
    mov %eax, %ds
    mov %eax, %es
    mov %eax, %ss
    mov %eax, %fs
    mov %eax, %gs
    jmp *%rbp

boot_long:
    movabs $boot_stack_end, %rsp
    push $2                         # no flag of the loader's: not AC, which would turn SMAP off
    popfq
    mov boot_info, %edi
    xor %ebp, %ebp
    movabs $start, %rax
    push %rbp                       # as if called
    jmp *%rax

ap_long:
    # Continues at the high address: the next tables do not map this one.
    movabs $ap_high, %rax
    jmp *%rax

    # Copied to `place::UNMAPPED`; all of its addresses are relative to that.
    .code16
    .globl trampoline_start
trampoline_start:
    cli
    xor %ax, %ax
    mov %ax, %ds
    lgdtl 0x8000 + (trampoline_gdt - trampoline_start)
    mov %cr0, %eax
    or $1, %eax
    mov %eax, %cr0
    ljmpl $0x18, $ap_32
    .balign 8
trampoline_gdt:
    .word 31
    .long boot_gdt
    .globl trampoline_end
trampoline_end:

    .code32
ap_32:
    mov $0x10, %eax
    mov %eax, %ds
    mov %eax, %es
    mov %eax, %ss
    mov $ap_long, %ebp
    jmp to_long

    .balign 8
boot_gdt:
    .quad 0
    .quad 0x00af9a000000ffff        # 0x08: 64-bit code
    .quad 0x00cf92000000ffff        # 0x10: data
    .quad 0x00cf9a000000ffff        # 0x18: 32-bit code
boot_gdt_pointer:
    .word 31
    .long boot_gdt
boot_info:
    .long 0
boot_no_memory:
    .ascii "samara: too little memory for the kernel's image: "
    .asciz "give the machine {least} MiB at least\r\n"

    .balign 4096
boot_p4:
    .quad boot_p3 + 3
    .fill 272, 8, 0
    .quad boot_p3 + 3               # 273: the direct map
    .fill 237, 8, 0
    .quad boot_p3_high + 3
boot_p3:
    .set gib, 0
    .rept 512
    .quad (gib << 30) + 0x83
    .set gib, gib + 1
    .endr
boot_p3_high:
    .fill 510, 8, 0
    .quad 0x83
    .quad 0
boot_p2:
    .fill 4 * 512, 8, 0             # for a CPU without pages of 1 GiB

    .section .text.ap_high, "ax", @progbits
    .code64
ap_high:
    mov ap_table(%rip), %rax
    mov %rax, %cr3
    mov ap_stack(%rip), %rsp
    mov ap_area(%rip), %rdi
    xor %ebp, %ebp
    push %rbp
    jmp start_ap

    .section .bss.boot_stack, "aw", @nobits
    .balign 4096
    .fill 65536, 1, 0
boot_stack_end:
    .text
    "#,
    least = const crate::memory::LEAST_MIB,
    options(att_syntax)
);
