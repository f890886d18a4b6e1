//! The maps, each used as its documentation recommends.

mod brie;
mod btree;
mod locked;
mod nodit;
mod own;
mod rangemap;
mod scc;
mod shared;
mod skiplist;
mod sources;

pub(crate) use crate::peer::Beside;
pub(crate) use locked::Locked;
pub(crate) use shared::{Shared, SharedEach};
pub(crate) use sources::{Malloc, Mimalloc};

use crate::subject::{Bench, Subject};
use crate::workload::Workload;
use std::rc::Rc;

/// All maps, empty. The others are compared with the first.
pub(crate) fn all(work: &Rc<Workload>) -> Vec<Box<dyn Subject>> {
    vec![
        Box::new(Bench::<btree::Btree>::new(work.clone())),
        Box::new(Bench::<btree::ByKey>::new(work.clone())),
        Box::new(Bench::<brie::Brie>::new(work.clone())),
        Box::new(Bench::<own::Owned>::new(work.clone())),
        Box::new(Bench::<shared::Shared>::new(work.clone())),
        Box::new(Bench::<shared::SharedEach>::new(work.clone())),
        Box::new(Bench::<locked::Locked>::new(work.clone())),
        Box::new(Bench::<rangemap::Ranges>::new(work.clone())),
        Box::new(Bench::<nodit::Nodit>::new(work.clone())),
        Box::new(Bench::<skiplist::Skips<true>>::new(work.clone())),
        Box::new(Bench::<skiplist::Skips<false>>::new(work.clone())),
        Box::new(Bench::<scc::Index<true>>::new(work.clone())),
        Box::new(Bench::<scc::Index<false>>::new(work.clone())),
        Box::new(Bench::<btree::ByEnd>::new(work.clone())),
        Box::new(Bench::<own::Owned<Malloc>>::new(work.clone())),
        Box::new(Bench::<own::Owned<Mimalloc>>::new(work.clone())),
        Box::new(Bench::<shared::Shared<Malloc>>::new(work.clone())),
        Box::new(Bench::<shared::Shared<Mimalloc>>::new(work.clone())),
        Box::new(Bench::<shared::SharedEach<Malloc>>::new(work.clone())),
        Box::new(Bench::<shared::SharedEach<Mimalloc>>::new(work.clone())),
    ]
}
