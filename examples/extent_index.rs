//! The extents of a file: which run of its blocks lies where on the disk.
//!
//! ```sh
//! cargo run -p samara-examples --bin extent_index
//! ```

use samara::maple::{Error, RangeMap};

/// Extents by file block. An entry is the disk block of file block 0 if the extent reached so far:
/// it does not mention the extent's range, so the map may split an extent without changing it.
struct Extents(RangeMap<u64, i64>);

impl Extents {
    /// Blocks `file..file + blocks` now lie at `disk`; earlier extents there are replaced.
    fn write(&mut self, file: u64, blocks: u64, disk: i64) -> Result<(), Error> {
        self.0.store(file..file + blocks, disk - file as i64)?;
        Ok(())
    }

    /// Cuts the file off after `blocks` blocks.
    fn truncate(&mut self, blocks: u64) -> Result<(), Error> {
        self.0.erase_range(blocks..)
    }

    /// The place of a block on the disk, and the number of blocks of its extent from there on.
    fn find(&self, file: u64) -> Option<(i64, u64)> {
        let (range, offset) = self.0.lookup(file)?;
        Some((file as i64 + offset, range.end() - file + 1))
    }
}

fn main() -> Result<(), Error> {
    let mut extents = Extents(RangeMap::new());
    extents.write(0, 1000, 50_000)?;
    // Copy on write of ten blocks in the middle: one store cuts the extent in three.
    extents.write(400, 10, 90_000)?;
    extents.write(2000, 8, 70_000)?;
    extents.truncate(2004)?;

    for block in [0, 399, 405, 410, 1500, 2003, 2004] {
        match extents.find(block) {
            Some((disk, run)) => println!("block {block:>4}: disk block {disk}, {run} in a row"),
            None => println!("block {block:>4}: a hole"),
        }
    }
    let hole = extents.0.find_free(.., 100, 1)?;
    println!("the first hole of 100 blocks begins at {hole}");
    Ok(())
}
