//! Soft-dirty VMAs: those that are new since a moment (`echo 4 > /proc/PID/clear_refs`).
//!
//! An absent page has no bit that says whether it was written. A VMA that is new since the last
//! clearing has [`VmFlags::SOFTDIRTY`], so that a program that saves memory asks for all its pages.
//! The flag is sticky: a VMA that a new one joins gets it, too. Kernels without soft-dirty pages
//! never set it; it is set here from the first clearing on.

use crate::{Error, MappedFile, RefCounted, VmFlags, Vma, host::Host, space::Writer};

impl<F: MappedFile, R: grace::Reclaim, H: Host<F, R>> Writer<'_, F, R, H> {
    /// Takes [`VmFlags::SOFTDIRTY`] from all VMAs. Each one that is made from now on has it. A
    /// forked child goes on so.
    ///
    /// One store into the tree for each VMA that has the flag. Nothing merges. May allocate.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], with the VMAs below the failure changed.
    pub fn clear_soft_dirty(&mut self) -> Result<(), Error> {
        self.vmas.state.set_default_flags(self.vmas.state.default_flags() | VmFlags::SOFTDIRTY);
        let mut at = 0;
        while let Some(look) = self.vmas.at_or_after(at) {
            let middle = look.middle();
            at = middle.end;
            if look.vma.flags.contains(VmFlags::SOFTDIRTY) {
                let mut vma = Vma::clone(look.vma);
                vma.flags -= VmFlags::SOFTDIRTY;
                self.open(&mut vma);
                self.vmas.replace(middle, RefCounted::new(vma)?)?;
            }
        }
        Ok(())
    }
}
