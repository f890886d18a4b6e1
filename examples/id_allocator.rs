//! An allocator of small numbers, such as process ids: the lowest free one, or the next in turn.
//!
//! ```sh
//! cargo run -p samara-examples --bin id_allocator
//! ```

use samara::maple::{Error, MapleTree};

/// Numbers that are in use, each with the name of its user.
struct Ids {
    used: MapleTree<&'static &'static str>,
    next: usize,
}

impl Ids {
    const RANGE: std::ops::RangeInclusive<usize> = 1..=32_767;

    /// The lowest free number.
    fn lowest(&mut self, user: &'static &'static str) -> Result<usize, Error> {
        let mut writer = self.used.get_mut();
        Ok(writer.alloc_range(Self::RANGE, 1, 1, user)?)
    }

    /// The next free number after the last one, so that a number is not soon used again.
    fn in_turn(&mut self, user: &'static &'static str) -> Result<usize, Error> {
        let mut writer = self.used.get_mut();
        Ok(writer.alloc_cyclic(Self::RANGE, &mut self.next, user)?.0)
    }

    fn free(&mut self, id: usize) -> Result<(), Error> {
        self.used.get_mut().erase(id)?;
        Ok(())
    }
}

fn main() -> Result<(), Error> {
    let mut ids = Ids { used: MapleTree::new(), next: 1 };
    let first: Vec<usize> = (0..5).map(|_| ids.in_turn(&"worker")).collect::<Result<_, Error>>()?;
    ids.free(first[1])?;
    println!("in use: {first:?}, and then {} was given back", first[1]);
    println!("the lowest free number is {}", ids.lowest(&"shell")?);
    println!("the next in turn is {}", ids.in_turn(&"worker")?);

    let guard = ids.used.pin();
    for (range, user) in ids.used.iter(&guard, Ids::RANGE) {
        println!("{:>5} {user}", range.start());
    }
    Ok(())
}
