//! An allocator of small numbers, such as process ids: the lowest free one, or the next in turn.
//!
//! ```sh
//! cargo run -p samara-examples --bin id_allocator
//! ```

use samara::maple::{Error, RangeMap};

/// Numbers that are in use, each with the name of its user.
struct Ids {
    used: RangeMap<u32, &'static &'static str>,
}

impl Ids {
    const RANGE: std::ops::RangeInclusive<u32> = 1..=32_767;

    /// The lowest free number.
    fn lowest(&mut self, user: &'static &'static str) -> Result<u32, Error> {
        Ok(self.used.alloc(Self::RANGE, 1, 1, user)?)
    }

    /// The next free number after the last one, so that a number is not soon used again.
    fn in_turn(&mut self, user: &'static &'static str) -> Result<u32, Error> {
        Ok(self.used.alloc_next(Self::RANGE, user)?)
    }

    fn free(&mut self, id: u32) -> Result<(), Error> {
        self.used.erase(id)?;
        Ok(())
    }
}

fn main() -> Result<(), Error> {
    let mut ids = Ids { used: RangeMap::new() };
    let first: Vec<u32> = (0..5).map(|_| ids.in_turn(&"worker")).collect::<Result<_, Error>>()?;
    ids.free(first[1])?;
    println!("in use: {first:?}, and then {} was given back", first[1]);
    println!("the lowest free number is {}", ids.lowest(&"shell")?);
    println!("the next in turn is {}", ids.in_turn(&"worker")?);

    for (range, user) in &ids.used {
        println!("{:>5} {user}", range.start());
    }
    Ok(())
}
