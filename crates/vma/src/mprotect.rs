//! mprotect and pkey_mprotect.

use crate::{
    Error, MappedFile, VmFlags, Vma,
    host::Host,
    mmap::range_end,
    pkey_set::KEYS,
    space::Writer,
    tree::{VmaPart, VmaRef},
};

/// `PROT_GROWSDOWN`: applies from the start of the stack's VMA.
const PROT_GROWSDOWN: u32 = 0x0100_0000;
const PROT_GROWSUP: u32 = 0x0200_0000;
const PROT_SEM: u32 = 8;

impl<F: MappedFile, R: grace::Reclaim, H: Host<F, R>> Writer<'_, F, R, H> {
    /// mprotect(2), and pkey_mprotect(2) if `pkey` is given. Goes from VMA to VMA and stops at the
    /// first hole or error. The part before it **has changed**, as in Linux (rule 8).
    ///
    /// One store into the tree for each VMA. May allocate.
    ///
    /// # Errors
    /// [`Error::Unmapped`] at a hole, [`Error::Access`] if the map may not have the permission or
    /// PR_SET_MDWE denies it, [`Error::Sealed`], [`Error::BadFlags`], [`Error::Unaligned`],
    /// [`Error::OutOfMemory`]. [`Error::KeyNotAllocated`]: a key from 16 on, and if the profile has
    /// protection keys, one that is not allocated; without them any of the 16 is taken.
    pub fn mprotect(
        &mut self,
        start: usize,
        len: usize,
        prot: u32,
        pkey: Option<u8>,
    ) -> Result<(), Error> {
        let grows = prot & (PROT_GROWSDOWN | PROT_GROWSUP);
        let prot = prot & !(PROT_GROWSDOWN | PROT_GROWSUP);
        if grows == PROT_GROWSDOWN | PROT_GROWSUP {
            return Err(Error::BadFlags);
        }
        let end = match range_end(start, len) {
            Ok(end) if end == start => return Ok(()),
            Ok(end) => end,
            Err(Error::BadRange) => return Err(Error::Unmapped),
            Err(other) => return Err(other),
        };
        if prot & !(7 | PROT_SEM) != 0 {
            return Err(Error::BadFlags);
        }
        if let Some(key) = pkey
            && (self.vmas.profile.protection_keys || key >= KEYS)
        {
            self.check_pkey(key)?;
        }
        let first =
            self.vmas.at_or_after(start).filter(|a| a.start < end).ok_or(Error::Unmapped)?;
        let mut at = start;
        if grows == PROT_GROWSUP {
            // On x86-64 no VMA grows upwards. Linux notices that only if a VMA is at `start`.
            return Err(if first.start > start { Error::Unmapped } else { Error::BadFlags });
        }
        if grows == PROT_GROWSDOWN {
            at = first.start;
            if !first.vma.flags.contains(VmFlags::GROWSDOWN) {
                return Err(Error::BadFlags);
            }
        }
        if first.start > at {
            return Err(Error::Unmapped);
        }
        let change = self.protected(first, prot, pkey)?;
        at = self.protect_one(first.middle(), at, end, change)?;
        while at < end {
            let look = self.vmas.look_at(at).ok_or(Error::Unmapped)?;
            let change = self.protected(look, prot, pkey)?;
            at = self.protect_one(look.middle(), at, end, change)?;
        }
        Ok(())
    }

    /// The contents of a VMA after the change; `None` if nothing changes.
    fn protected(
        &self,
        look: VmaRef<'_, F>,
        prot: u32,
        pkey: Option<u8>,
    ) -> Result<Option<Vma<F>>, Error> {
        let (old, access) = (look.vma.flags, VmFlags::from_prot(prot));
        let pkey = pkey.unwrap_or_else(|| self.pkey_after(old, prot));
        let reads = access.contains(VmFlags::READ) && old.contains(VmFlags::MAYEXEC);
        let access = match self.vmas.state.read_implies_exec() && reads {
            true => access | VmFlags::EXEC,
            false => access,
        };
        let flags = ((old - VmFlags::ACCESS) | access).with_pkey(pkey);
        let may = VmFlags::from_bits_retain((flags.bits() >> 4) & VmFlags::ACCESS.bits());
        if !(access - may).is_empty() {
            return Err(Error::Access);
        }
        if self.denies_exec(old, flags) {
            return Err(Error::Access);
        }
        if old.contains(VmFlags::SEALED) {
            return Err(Error::Sealed);
        }
        if flags == old {
            return Ok(None);
        }
        Ok(Some(Vma { flags: reaccount(look.vma, flags), ..Vma::clone(look.vma) }))
    }

    /// Changes the part of a VMA between `start` and `end`. Returns where to continue.
    fn protect_one(
        &mut self,
        middle: VmaPart,
        start: usize,
        end: usize,
        change: Option<Vma<F>>,
    ) -> Result<usize, Error> {
        let (whole, end) = (end, end.min(middle.end));
        let Some(vma) = change else { return Ok(end) };
        let (flags, len) = (vma.flags, end - start);
        if flags.contains(VmFlags::WRITE) {
            // Only memory that turns into data is checked.
            if self.may_expand(flags, len, 0).is_err() {
                self.may_expand(middle.flags, len, 0).map_or(Ok(()), |()| Err(Error::SizeLimit))?;
            }
        }
        let next = self.modify(middle, start, end, vma, end < whole)?;
        // Linux brings in the pages of a locked private VMA that becomes writable.
        let locked_private = VmFlags::WRITE | VmFlags::SHARED | VmFlags::LOCKED;
        let became_writable = flags.contains(VmFlags::WRITE);
        if middle.flags & locked_private == VmFlags::LOCKED && became_writable {
            self.populate_now(start, end);
        }
        Ok(next)
    }
}

/// The account flag after a change of permissions (rule 1).
fn reaccount<F: MappedFile>(vma: &Vma<F>, flags: VmFlags) -> VmFlags {
    let exempt =
        VmFlags::ACCOUNT | VmFlags::WRITE | VmFlags::HUGETLB | VmFlags::SHARED | VmFlags::NORESERVE;
    if flags.contains(VmFlags::WRITE) {
        if vma.flags.intersects(exempt) { flags } else { flags | VmFlags::ACCOUNT }
    } else if vma.is_anonymous() && !vma.anon.close().is_faulted() {
        flags - VmFlags::ACCOUNT
    } else {
        flags
    }
}
