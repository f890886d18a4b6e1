//! The entries of a folder, as getdents64 shows them: taken at once, when a program reads from the
//! beginning.

use super::budget::Charge;
use crate::errno::Errno;
use alloc::vec::Vec;
use linux_raw_sys::errno::ENOMEM;

/// Takes the name, the inode number and the type of an entry.
pub(crate) type AddEntry<'a> = dyn FnMut(&[u8], u64, u8) -> Result<(), Errno> + 'a;

/// The entries of a folder: name, inode number, type.
pub(crate) struct Listing {
    pub(crate) entries: Vec<(Vec<u8>, u64, u8)>,
    _charge: Charge,
}

impl Listing {
    /// The entries that `list` adds.
    ///
    /// # Errors
    /// Those of `list`. ENOMEM.
    pub(super) fn new(
        list: impl FnOnce(&mut AddEntry<'_>) -> Result<(), Errno>,
    ) -> Result<Listing, Errno> {
        let mut entries = Vec::new();
        let mut bytes = 0;
        list(&mut |name, number, kind| {
            entries.try_reserve(1).map_err(|_| Errno(ENOMEM))?;
            bytes += 64 + name.len();
            entries.push((name.to_vec(), number, kind));
            Ok(())
        })?;
        let charge = Charge::new(bytes).map_err(|_| Errno(ENOMEM))?;
        Ok(Listing { entries, _charge: charge })
    }
}
