//! Protection keys: which ones an address space has allocated, and the key of execute-only memory.
//!
//! x86-64 page tables can only allow to execute what they also allow to read. So Linux gives memory
//! with PROT_EXEC alone a protection key, whose reads each thread denies itself. The key is the
//! lowest that is free at the first mmap or mprotect that needs it, and stays that of the address
//! space. An mprotect that adds a right to such memory takes the key away. The program itself can
//! neither use nor free this key.
//!
//! Without [`Profile::protection_keys`](crate::Profile) no call here succeeds, and execute-only
//! memory is like any other.

use crate::{
    Error, MappedFile, VmFlags,
    host::Host,
    pkey_set::{KEYS, Pkeys},
    space::Writer,
};

/// `PROT_EXEC`, alone.
const EXEC_ONLY: u32 = 4;

impl<F: MappedFile, R: grace::Reclaim, H: Host<F, R>> Writer<'_, F, R, H> {
    /// pkey_alloc(2): allocates the lowest free protection key. The rights that a thread has with
    /// it are the host's task. Constant time.
    ///
    /// # Errors
    /// [`Error::NoKey`]: all 16 are allocated, or the profile has none.
    ///
    /// ```
    /// use vma::{AddressSpace, Error, Layout, Profile};
    /// # #[derive(Clone, PartialEq)]
    /// # struct File;
    /// # impl vma::MappedFile for File {
    /// #     fn writable(&self) -> bool { true }
    /// #     fn device(&self) -> (u32, u32) { (8, 1) }
    /// #     fn inode(&self) -> u64 { 1 }
    /// #     fn write_path(&self, _: &mut dyn core::fmt::Write) -> core::fmt::Result { Ok(()) }
    /// # }
    /// let profile = Profile { protection_keys: true, ..Profile::LINUX_6_18 };
    /// let mut space: AddressSpace<File, grace::Single> =
    ///     AddressSpace::new(profile, Layout::default());
    /// let mut writer = space.get_mut();
    /// assert_eq!(writer.pkey_alloc(), Ok(1));
    /// assert_eq!(writer.pkey_free(1), Ok(()));
    /// assert_eq!(writer.pkey_free(1), Err(Error::KeyNotAllocated));
    /// ```
    pub fn pkey_alloc(&mut self) -> Result<u8, Error> {
        if !self.vmas.profile.protection_keys {
            return Err(Error::NoKey);
        }
        let mut keys = self.vmas.state.pkeys();
        let key = keys.take_lowest().ok_or(Error::NoKey)?;
        self.vmas.state.set_pkeys(keys);
        Ok(key)
    }

    /// pkey_free(2): the key may be allocated again. VMAs that have it keep it. Constant time.
    ///
    /// # Errors
    /// [`Error::KeyNotAllocated`], also for the key of execute-only memory.
    pub fn pkey_free(&mut self, key: u8) -> Result<(), Error> {
        self.check_pkey(key)?;
        let keys = self.vmas.state.pkeys();
        self.vmas.state.set_pkeys(Pkeys { allocated: keys.allocated & !(1 << key), ..keys });
        Ok(())
    }

    /// Marks a key as allocated that another kernel has allocated, as [`adopt`](Self::adopt) takes
    /// a VMA of another kernel. `exec_only` says that it is the key of execute-only memory.
    /// Constant time.
    ///
    /// # Errors
    /// [`Error::NoKey`]: there is no such key, or the profile has none.
    pub fn adopt_pkey(&mut self, key: u8, exec_only: bool) -> Result<(), Error> {
        if !self.vmas.profile.protection_keys || key >= KEYS {
            return Err(Error::NoKey);
        }
        let mut keys = self.vmas.state.pkeys();
        keys.allocated |= 1 << key;
        if exec_only {
            keys.exec_only = Some(key);
        }
        self.vmas.state.set_pkeys(keys);
        Ok(())
    }

    /// Refuses a key that the program may not use.
    pub(crate) fn check_pkey(&self, key: u8) -> Result<(), Error> {
        let may = self.vmas.profile.protection_keys && self.vmas.state.pkeys().may_use(key);
        if may { Ok(()) } else { Err(Error::KeyNotAllocated) }
    }

    /// The key of execute-only memory, allocated now if there is none. `None` if no key is free.
    fn exec_only_key(&self) -> Option<u8> {
        if !self.vmas.profile.protection_keys {
            return None;
        }
        let mut keys = self.vmas.state.pkeys();
        if keys.exec_only.is_none() {
            keys.exec_only = Some(keys.take_lowest()?);
            self.vmas.state.set_pkeys(keys);
        }
        // Key 0 denies nothing. It is the lowest if the program has freed it.
        keys.exec_only.filter(|key| *key > 0)
    }

    /// The key of a new map.
    pub(crate) fn pkey_of_map(&self, prot: u32) -> u8 {
        if prot == EXEC_ONLY { self.exec_only_key().unwrap_or(0) } else { 0 }
    }

    /// The key of a VMA after an mprotect without a key.
    pub(crate) fn pkey_after(&self, old: VmFlags, prot: u32) -> u8 {
        if prot == EXEC_ONLY {
            return self.exec_only_key().unwrap_or(old.pkey());
        }
        let was_exec_only = old & VmFlags::ACCESS == VmFlags::EXEC
            && self.vmas.state.pkeys().exec_only == Some(old.pkey());
        if was_exec_only { 0 } else { old.pkey() }
    }
}
