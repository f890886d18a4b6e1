//! A reader of cpio archives of the format "newc" (`cpio -H newc`, Linux's initramfs).
//!
//! An entry is a header of 110 characters: the magic number and 13 numbers of eight hexadecimal
//! digits. The path follows, which ends with a zero byte, then the data. Both are padded to a
//! multiple of 4 bytes. An entry with the path [`TRAILER`] ends the archive.
//!
//! The archive comes from outside: every length is checked against the bytes that are there, so a
//! malformed archive is an error and never a panic. The reader copies nothing and does not
//! allocate. A step costs the header and a look at the path. This file needs only `core`, so a test
//! on the host compiles it, too.

/// The path that ends an archive.
const TRAILER: &[u8] = b"TRAILER!!!";
const MAGIC: &[u8] = b"070701";
const HEADER: usize = 110;
/// The places of the numbers that are used.
const MODE: usize = 1;
const DATA_LEN: usize = 6;
const PATH_LEN: usize = 11;

/// A file, a folder or a symbolic link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ArchiveEntry<'a> {
    /// Without a slash at its beginning.
    pub(crate) path: &'a [u8],
    /// The type and the permissions, as in `st_mode` of stat(2).
    pub(crate) mode: u32,
    /// The contents of a file, or the target of a link.
    pub(crate) data: &'a [u8],
}

/// The reason why an archive cannot be read further.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Malformed {
    /// The header has another magic number, or a number that is not hexadecimal.
    Header,
    /// The path does not end with its only zero byte.
    Path,
    /// It ends within an entry, or without the last one.
    Short,
}

impl core::fmt::Display for Malformed {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Malformed::Header => "the archive has an entry that is not cpio's newc",
            Malformed::Path => "the archive has an entry whose path has no end",
            Malformed::Short => "the archive is cut short",
        })
    }
}

/// Iterates over the entries in their order. After an error it ends.
#[derive(Clone, Debug)]
pub(crate) struct Entries<'a> {
    rest: &'a [u8],
    done: bool,
}

impl<'a> Entries<'a> {
    pub(crate) fn new(archive: &'a [u8]) -> Entries<'a> {
        Entries { rest: archive, done: false }
    }

    /// Returns `None` for the last entry, the trailer.
    fn step(&mut self) -> Result<Option<ArchiveEntry<'a>>, Malformed> {
        let header = self.rest.get(..HEADER).ok_or(Malformed::Short)?;
        if !header.starts_with(MAGIC) {
            return Err(Malformed::Header);
        }
        let path_len = number(header, PATH_LEN)? as usize;
        let data_len = number(header, DATA_LEN)? as usize;
        let mode = number(header, MODE)?;
        // No sum overflows: the lengths have 32 bits, `usize` has 64 on this machine.
        let path_end = HEADER + path_len;
        let data_start = path_end.next_multiple_of(4);
        let data_end = data_start + data_len;
        let path = self.rest.get(HEADER..path_end).ok_or(Malformed::Short)?;
        let Some((0, path)) = path.split_last() else { return Err(Malformed::Path) };
        if path.contains(&0) {
            return Err(Malformed::Path);
        }
        if path == TRAILER {
            return Ok(None);
        }
        let data = self.rest.get(data_start..data_end).ok_or(Malformed::Short)?;
        self.rest = self.rest.get(data_end.next_multiple_of(4)..).ok_or(Malformed::Short)?;
        let path = path.strip_prefix(b"/").unwrap_or(path);
        Ok(Some(ArchiveEntry { path, mode, data }))
    }
}

impl<'a> Iterator for Entries<'a> {
    type Item = Result<ArchiveEntry<'a>, Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.done {
            return None;
        }
        let step = self.step().transpose();
        self.done = !matches!(step, Some(Ok(_)));
        step
    }
}

/// A number of the header.
fn number(header: &[u8], place: usize) -> Result<u32, Malformed> {
    let digits = &header[MAGIC.len() + 8 * place..][..8];
    digits.iter().try_fold(0, |number, digit| {
        let digit = (*digit as char).to_digit(16).ok_or(Malformed::Header)?;
        Ok(number << 4 | digit)
    })
}
