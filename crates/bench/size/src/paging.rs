//! Page tables.

use crate::any;
use crate::host::{Grace, Host};
use alloc::sync::Arc;
use core::hint::black_box;
use grace::Reclaim;
use machine::{Asid, Frame, PageSize, VirtAddr, VirtRange};
use paging::{Attrs, Flags, PageTables, Paging, X86_64L4};

pub(crate) type Tables = PageTables<Host, X86_64L4, Grace>;

pub(crate) fn range() -> Option<VirtRange> {
    VirtRange::new(VirtAddr::new(any()), any())
}

pub(crate) fn calls() {
    let Ok(paging) = Paging::<Host, X86_64L4>::try_new(Host, PageSize::Size1G) else { return };
    let Ok(kernel) = Tables::kernel(&paging).map(Arc::new) else { return };
    let Ok(user) = Tables::user(&paging, Asid(any()), Some(kernel.clone())) else { return };
    let Some(range) = range() else { return };
    // SAFETY: the program is not run. So for all of this function.
    unsafe {
        kernel.activate();
        for tables in [&*kernel, &user] {
            let frame = Frame::new(any()).unwrap_or_default();
            black_box(tables.map(range, frame, Attrs::KERNEL_RW).is_ok());
            black_box(tables.protect(range, Flags::READ).map(|flush| flush.flush()).is_ok());
            let gone = |page| {
                black_box(page);
            };
            black_box(tables.unmap(range, gone).map(|flush| flush.flush()).is_ok());
            black_box(tables.walk(&Grace::pin()).get(range.start()));
            let mut into = [Frame::default(); 4];
            black_box(tables.get_user_pages_fast_only(range.start(), true, &mut into).is_ok());
        }
    }
    paging.quick().tick();
}
