//! A program that is built, not run: `./check size` reads the size of its code. It calls what a
//! kernel calls of the chosen crates, with arguments that the compiler cannot know. So all of it
//! is compiled in, and nothing else: the host is a stub.
#![no_std]
#![no_main]
extern crate alloc;

mod host;
#[cfg(feature = "maple")]
mod maple;
#[cfg(feature = "mm")]
mod mm;
#[cfg(feature = "paging")]
mod paging;
#[cfg(feature = "vmap")]
mod vmap;

use core::hint::black_box;

/// A value that the compiler does not know.
fn any<T: Default>() -> T {
    black_box(T::default())
}

/// The program.
#[unsafe(no_mangle)]
pub extern "C" fn _start() -> ! {
    #[cfg(feature = "maple")]
    maple::calls();
    #[cfg(feature = "paging")]
    paging::calls();
    #[cfg(feature = "vmap")]
    vmap::calls();
    #[cfg(feature = "mm")]
    mm::calls();
    loop {
        core::hint::spin_loop();
    }
}
