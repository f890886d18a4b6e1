//! The kernel's tables, which get a top-level entry while the first spaces are made.

use super::world::{LEVELS, World, X86, pages};
use crate::error::Error;
use crate::tables::PageTables;
use alloc::sync::Arc;
use grace::Reclaim;
use machine::VirtAddr;
use sim::{Model, ModelGrace, model};

type Tables = PageTables<Model, X86, ModelGrace>;

/// In the kernel's half.
const KERNEL: VirtAddr = VirtAddr::new(!0 << 38 | 5 << 30);

/// Either the spaces have the entry, or the kernel's tables are refused it.
fn check(kernel: &Tables, grown: Result<(), Error>, spaces: &[Tables]) {
    let has = |tables: &Tables| {
        let level = tables.walk(&ModelGrace::pin()).find(KERNEL, 0).map(|spot| spot.level);
        level.expect("the entry is malformed") < LEVELS - 1
    };
    match grown {
        Ok(()) => assert!(spaces.iter().all(has), "a space lacks the entry"),
        Err(error) => {
            assert_eq!(error, Error::TopLevelFixed(KERNEL));
            assert!(!has(kernel) && !spaces.iter().any(has));
        }
    }
}

#[test]
fn an_entry_is_in_the_first_space_or_refused() {
    model("first space, reserve", LEVELS, Some(3), |model| {
        let world = World::new(model);
        let kernel = world.kernel();
        let make = world.maker(1, &kernel);
        let other = model.spawn(1, make);
        let grown = kernel.reserve(pages(KERNEL, 1));
        let space = other.join().unwrap();
        check(&kernel, grown, &[space]);
        drop(kernel);
        world.end();
    });
}

/// A space that finds the entries fixed has them all. (Three threads take long, and one preemption
/// is enough: the first space has its table when the entry comes.)
#[test]
fn an_entry_is_in_the_second_space_or_refused() {
    model("two spaces, reserve", LEVELS, Some(1), |model| {
        let world = World::new(model);
        let kernel = world.kernel();
        let there = Arc::clone(&kernel);
        let grower = model.spawn(1, move || there.reserve(pages(KERNEL, 1)));
        let makers = [1, 2].map(|tag| model.spawn(1 + usize::from(tag), world.maker(tag, &kernel)));
        let grown = grower.join().unwrap();
        let spaces = makers.map(|maker| maker.join().unwrap());
        check(&kernel, grown, &spaces);
        drop((spaces, kernel));
        world.end();
    });
}
