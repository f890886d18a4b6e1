//! `paging`: the loader's tables become the kernel's, and map, protect, replace and unmap pages.

use crate::boot::{self, OFFSET};
use crate::frames::Page;
use crate::tiny::{Format, Tables, Tiny};
use crate::{Outcome, println, trap};
use alloc::{boxed::Box, sync::Arc};
use machine::{FaultKind, PageSize, VirtAddr, VirtRange};
use paging::{Attrs, Error, Flags, Paging};

fn range(start: u64, end: u64) -> Result<VirtRange, Error> {
    let [start, end] = [start, end].map(VirtAddr::new);
    VirtRange::between(start, end).ok_or(Error::NotCanonical(start))
}

/// Adopts the loader's tables, which stay active, and are never dropped.
pub fn adopt() -> Outcome<&'static Arc<Tables>> {
    let paging = Paging::<Tiny, Format>::try_new(Tiny, PageSize::Size2M)?;
    // SAFETY: they are the loader's, and no other code uses them.
    let kernel = unsafe { Tables::adopt(&paging, boot::tables().start()) }?;
    let kernel = Box::leak(Box::new(Arc::new(kernel)));
    let code = boot::code();
    let start = OFFSET + code.start().get();
    restrict(kernel, start, start + code.len())?;
    // SAFETY: the store faults.
    let stored = unsafe { trap::store(start, 0) };
    assert_eq!(stored, Err(FaultKind::Protection), "code can be written");
    println!("paging: adopted the loader's tables; code is read-only: {code:?}");
    Ok(kernel)
}

/// Removes the identity map. Makes code and constants read-only, and the rest not executable.
fn restrict(kernel: &Tables, start: u64, end: u64) -> Result<(), Error> {
    let low = range(0, 1 << 30)?;
    let (data, code) = (Flags::READ | Flags::WRITE, Flags::READ | Flags::EXECUTE);
    // SAFETY: only `boot.rs` needed the low addresses. Nothing runs outside of the code, and
    // nothing writes there.
    unsafe {
        kernel.unmap(low, |_| ())?.flush();
        kernel.prune(low)?.flush();
        kernel.split(VirtAddr::new(start), PageSize::Size4K)?.flush();
        kernel.split(VirtAddr::new(end), PageSize::Size4K)?.flush();
        kernel.protect(range(OFFSET, start)?, data)?.flush();
        kernel.protect(range(start, end)?, code)?.flush();
        kernel.protect(range(end, OFFSET + (1 << 30))?, data)?.flush();
    }
    Ok(())
}

/// Maps two pages, and compares each change with the translations of the MMU.
pub fn change(kernel: &Tables) -> Result<(), Error> {
    let [first, b] = [Page::alloc()?, Page::alloc()?];
    let a = first.clone(); // The kernel counts two users of the frame. The other one ends:
    drop(first);
    const ONE: u64 = 0xffff_c900_4000_0000;
    const TWO: u64 = ONE + 4096;
    let (one, two, both) = (range(ONE, TWO)?, range(TWO, TWO + 4096)?, range(ONE, TWO + 4096)?);
    let (load, store) = (trap::load, trap::store);
    // SAFETY: no other code has these addresses. The frames are kept until they are unmapped. Other
    // accesses fault.
    unsafe {
        kernel.map(one, a.0, Attrs::KERNEL_RW)?;
        kernel.map(two, a.0, Attrs::KERNEL_RW)?;
        assert_eq!((store(ONE, 42), load(TWO)), (Ok(()), Ok(42)), "two addresses of one page");
        kernel.protect(two, Flags::READ)?.flush();
        assert_eq!((load(TWO), store(TWO, 1)), (Ok(42), Err(FaultKind::Protection)));
        kernel.map_over(one, b.0, Attrs::KERNEL_RW, |old| assert_eq!(old.frame, a.0))?.flush();
        assert_eq!((store(ONE, 43), load(ONE), load(TWO)), (Ok(()), Ok(43), Ok(42)));
        kernel.unmap(both, |_| ())?.flush();
        assert_eq!([load(ONE), load(TWO)], [Err(FaultKind::NotPresent); 2]);
    }
    println!("paging: mapped, protected, replaced and unmapped pages");
    Ok(())
}
