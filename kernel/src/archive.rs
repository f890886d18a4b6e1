//! The archive that the loader put into memory (QEMU's `-initrd`): the files for `run`.
//!
//! Its first entry is [`ARGV`], and [`ENV`] is the second. Each holds words that end with a zero
//! byte. All other entries are the files of the root file system. Its memory is neither heap nor
//! frames, and the kernel maps it read-only. So its bytes stay as they are while the kernel runs.

use crate::cpio::{ArchiveEntry, Entries, Malformed};
use crate::layout::direct;
use alloc::vec::Vec;
use core::{ptr, slice};
use machine::PhysRange;
use spin::Once;

/// The path of the entry with the arguments. The first is the program's path in the archive.
pub(crate) const ARGV: &[u8] = b".samara/argv";
/// The path of the entry with the environment.
pub(crate) const ENV: &[u8] = b".samara/env";

static ARCHIVE: Once<&[u8]> = Once::new();

/// Makes this memory the archive.
///
/// # Safety
/// The direct map has the range, and no code ever writes to it.
pub(crate) unsafe fn start(range: PhysRange) {
    let at = ptr::with_exposed_provenance(direct(range.start()).get() as usize);
    // SAFETY: by the caller's promise.
    ARCHIVE.call_once(|| unsafe { slice::from_raw_parts(at, range.len() as usize) });
}

/// The contents of the archive.
#[derive(Debug)]
pub(crate) struct Archive {
    /// The arguments; the first is the program's path in the archive.
    pub(crate) argv: Vec<&'static [u8]>,
    /// The environment: words of the form `NAME=value`.
    pub(crate) env: Vec<&'static [u8]>,
    entries: Entries<'static>,
}

impl Archive {
    /// Reads the loader's archive to its end, so that [`Archive::files`] meets no error. Returns
    /// `None` if there is none. Allocates the two lists.
    pub(crate) fn read() -> Option<Result<Archive, Malformed>> {
        ARCHIVE.get().map(|archive| Archive::of(archive))
    }

    fn of(archive: &'static [u8]) -> Result<Archive, Malformed> {
        let mut entries = Entries::new(archive);
        let mut words = |path| {
            let entry = entries.next().ok_or(Malformed::Short)??;
            if entry.path != path {
                return Err(Malformed::Header);
            }
            // Each word ends with a zero, so nothing follows the last one.
            Ok(entry.data.split_inclusive(|byte| *byte == 0).map(ended).collect())
        };
        let (argv, env) = (words(ARGV)?, words(ENV)?);
        for entry in entries.clone() {
            entry?;
        }
        Ok(Archive { argv, env, entries })
    }

    /// The files, folders and links, in the archive's order: a folder before its entries. Does not
    /// allocate.
    pub(crate) fn files(&self) -> impl Iterator<Item = ArchiveEntry<'static>> + use<> {
        // `of` has read all of them.
        self.entries.clone().flatten()
    }
}

/// A word without the zero that ends it.
fn ended(word: &[u8]) -> &[u8] {
    word.strip_suffix(&[0]).unwrap_or(word)
}
