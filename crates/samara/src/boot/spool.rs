//! The temporary file in which the archive of `--out` is collected. It has no name, so it is gone
//! when this process ends.
//!
//! The machine decides how much comes, so `--out-limit` bounds it: the piece that exceeds the limit
//! is an error, and is not written. Zeros become holes, which take no room. They count, because the
//! machine could send them without end.

use crate::cli::mib;
use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};

/// The bytes of a hole, at least.
const BLOCK: usize = 4096;

/// The archive, as far as it has come.
#[derive(Debug)]
pub(super) struct Spool {
    file: File,
    bytes: u64,
    /// The argument of `--out-limit`.
    limit: String,
}

impl Spool {
    /// # Errors
    /// There is no place for temporary files.
    pub(super) fn new(limit: &str) -> Result<Spool, String> {
        let file = tempfile::tempfile().map_err(|error| {
            let place = std::env::temp_dir();
            format!(
                "--out: no temporary file in {}: {error}; TMPDIR names another place",
                place.display()
            )
        })?;
        Ok(Spool { file, bytes: 0, limit: limit.into() })
    }

    /// The same file, for the thread that appends to it.
    ///
    /// # Errors
    /// There are no file descriptors left.
    pub(super) fn try_clone(&self) -> Result<Spool, String> {
        let file = self.file.try_clone().map_err(|error| format!("--out: {error}"))?;
        Ok(Spool { file, bytes: self.bytes, limit: self.limit.clone() })
    }

    /// Appends a piece.
    ///
    /// # Errors
    /// It is more than the limit, or cannot be written.
    pub(super) fn append(&mut self, piece: &[u8]) -> Result<(), String> {
        let most = mib(&self.limit).unwrap_or_default() << 20;
        let bytes = self.bytes.saturating_add(piece.len() as u64);
        if bytes > most {
            let what = format!("/out in the machine has more than --out-limit {}", self.limit);
            let cure = "let the program leave less there, or give a larger --out-limit";
            return Err(format!("--out: {what}, so nothing was written; {cure}"));
        }
        self.bytes = bytes;
        write_with_holes(&mut self.file, piece).map_err(|error| {
            let place = std::env::temp_dir();
            let cure = "TMPDIR names another place";
            format!("--out: cannot write in {}: {error}; {cure}", place.display())
        })
    }

    /// The whole file, at its beginning, and its length.
    ///
    /// # Errors
    /// The file system's.
    pub(super) fn finish(mut self) -> io::Result<(File, u64)> {
        // The clone that appends has the same position. A hole at the end does not yet count.
        let bytes = self.file.stream_position()?;
        self.file.set_len(bytes)?;
        self.file.rewind()?;
        Ok((self.file, bytes))
    }
}

/// Writes to a new file, and passes over blocks of zeros. The caller sets its length at the end.
///
/// # Errors
/// It cannot be written.
pub(super) fn write_with_holes(file: &mut File, mut bytes: &[u8]) -> io::Result<()> {
    let is_hole = |block: &[u8]| block.len() == BLOCK && block.iter().all(|byte| *byte == 0);
    while !bytes.is_empty() {
        let count = |hole| bytes.chunks(BLOCK).take_while(|block| is_hole(block) == hole).count();
        let (holes, blocks) = (count(true), count(false));
        let (now, rest) = bytes.split_at(bytes.len().min((holes + blocks) * BLOCK));
        match holes {
            0 => file.write_all(now)?,
            _ => drop(file.seek(SeekFrom::Current(now.len() as i64))?),
        }
        bytes = rest;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn zeros_are_holes_and_nothing_is_lost() {
        let mut bytes = vec![0; 1 << 20];
        bytes[300_000..300_010].fill(7);
        bytes[700_000] = 8;
        for piece in [1000, 4095, 61_440, 1 << 20] {
            let spool = Spool::new("1M").unwrap();
            let mut end = spool.try_clone().unwrap();
            bytes.chunks(piece).for_each(|piece| end.append(piece).unwrap());
            let (mut file, len) = spool.finish().unwrap();
            let mut read = Vec::new();
            file.read_to_end(&mut read).unwrap();
            assert!(read == bytes && len == 1 << 20, "{piece}");
            let used = file.metadata().unwrap().blocks() * 512;
            assert!(piece < BLOCK || used < 200 << 10, "{piece}: {used}");
        }
    }

    #[test]
    fn the_limit_is_the_last_byte_that_is_taken() {
        let mut spool = Spool::new("1M").unwrap();
        spool.append(&vec![1; 1 << 20]).unwrap();
        let more = spool.append(&[0]).unwrap_err();
        assert!(more.contains("more than --out-limit 1M, so nothing was written"), "{more}");
        assert_eq!(spool.finish().unwrap().1, 1 << 20);
    }
}
