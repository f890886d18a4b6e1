//! Areas of the kernel.

use crate::any;
use crate::host::{Grace, Host};
use crate::paging::{Tables, range};
use alloc::sync::Arc;
use core::hint::black_box;
use machine::{Frame, PageSize, PhysAddr, PhysRange, VirtAddr};
use paging::{Attrs, Cache, Paging, X86_64L4};
use vmap::{Options, TlbGrace, Vmap};

pub(crate) fn calls() {
    let Ok(paging) = Paging::<Host, X86_64L4>::try_new(Host, PageSize::Size1G) else { return };
    let Ok(kernel) = Tables::kernel(&paging) else { return };
    let Ok(tlb_grace) = TlbGrace::try_new(Host) else { return };
    let Some(range) = range() else { return };
    let at = VirtAddr::new(any());
    let frames = [Frame::default(); 4];
    // SAFETY: the program is not run. So for all of this function.
    unsafe {
        let options = Options::default();
        let areas =
            Vmap::<_, _, Grace>::try_new(Arc::new(kernel), tlb_grace.clone(), range, options);
        let Ok(areas) = areas else { return };
        black_box(areas.vmalloc(any()).is_ok());
        black_box(areas.vfree(at).is_ok());
        black_box(areas.vmap(&frames, Attrs::KERNEL_RW).is_ok());
        black_box(areas.vunmap(at).is_ok());
        black_box(areas.vm_map_ram(&frames, Attrs::KERNEL_RW).is_ok());
        black_box(areas.vm_unmap_ram(at, any()).is_ok());
        let device = PhysRange::new(PhysAddr::new(any()), any());
        black_box(device.map(|device| areas.ioremap(device, Cache::Uncached).is_ok()));
        areas.vm_unmap_aliases();
    }
    tlb_grace.tick();
}
