//! The system calls that the program needs, on x86-64.

use core::arch::asm;

const READ: usize = 0;
const WRITE: usize = 1;
const MMAP: usize = 9;
const MUNMAP: usize = 11;
const MADVISE: usize = 28;
const EXIT_GROUP: usize = 231;
const CLOCK_GETTIME: usize = 228;

/// Makes a system call. A result below zero is an error number.
///
/// # Safety
/// The obligations of the system call.
unsafe fn call(number: usize, args: [usize; 6]) -> isize {
    let result: isize;
    // SAFETY: the kernel preserves all registers but these. The caller answers for the effects on
    // memory.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number as isize => result,
            in("rdi") args[0],
            in("rsi") args[1],
            in("rdx") args[2],
            in("r10") args[3],
            in("r8") args[4],
            in("r9") args[5],
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    result
}

/// Reads some bytes. Returns none at the end or on an error; both end the program.
pub(crate) fn read(file: usize, into: &mut [u8]) -> usize {
    // SAFETY: the kernel writes within the slice.
    let read =
        unsafe { call(READ, [file, into.as_mut_ptr().expose_provenance(), into.len(), 0, 0, 0]) };
    usize::try_from(read).unwrap_or(0)
}

/// Writes all bytes. Ends the program if the reader has closed the pipe.
pub(crate) fn write(file: usize, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        // SAFETY: the kernel reads within the slice.
        let written = unsafe {
            call(WRITE, [file, bytes.as_ptr().expose_provenance(), bytes.len(), 0, 0, 0])
        };
        match usize::try_from(written) {
            Ok(written) => bytes = &bytes[written..],
            Err(_) => exit(1),
        }
    }
}

/// Ends the program.
pub(crate) fn exit(code: usize) -> ! {
    // SAFETY: it does not return.
    unsafe {
        call(EXIT_GROUP, [code, 0, 0, 0, 0, 0]);
        asm!("ud2", options(noreturn, nostack))
    }
}

/// Maps zeroed pages. Null if there are none.
pub(crate) fn map(bytes: usize) -> *mut u8 {
    const READ_WRITE: usize = 3;
    const PRIVATE_ANONYMOUS: usize = 0x22;
    // SAFETY: new memory overlaps nothing.
    let at = unsafe { call(MMAP, [0, bytes, READ_WRITE, PRIVATE_ANONYMOUS, usize::MAX, 0]) };
    if at < 0 { core::ptr::null_mut() } else { core::ptr::with_exposed_provenance_mut(at as usize) }
}

/// Asks for huge pages, which the host may have: a kernel's own memory is mapped by huge pages.
pub(crate) fn huge(at: *mut u8, bytes: usize) {
    const HUGE_PAGES: usize = 14;
    // SAFETY: advice changes nothing that the program can observe. Without huge pages, small pages
    // serve.
    unsafe { call(MADVISE, [at.expose_provenance(), bytes, HUGE_PAGES, 0, 0, 0]) };
}

/// Unmaps pages.
///
/// # Safety
/// They came from [`map`] with this length, and nothing uses them any more.
pub(crate) unsafe fn unmap(at: *mut u8, bytes: usize) {
    // SAFETY: the caller's obligations. The call cannot fail for pages that are mapped.
    unsafe { call(MUNMAP, [at.expose_provenance(), bytes, 0, 0, 0, 0]) };
}

/// Seconds and nanoseconds of a clock.
pub(crate) fn clock(id: usize) -> [u64; 2] {
    let mut time = [0u64; 2];
    // SAFETY: a `timespec` is two words on x86-64.
    unsafe { call(CLOCK_GETTIME, [id, time.as_mut_ptr().expose_provenance(), 0, 0, 0, 0]) };
    time
}
