//! The maps, each used as its documentation recommends.

mod brie;
mod btree;
mod locked;
mod own;
mod shared;
mod skiplist;
mod sources;

pub(crate) use crate::peer::Concurrent;
pub(crate) use locked::Locked;
pub(crate) use shared::{Shared, SharedEach};
pub(crate) use sources::{Malloc, Mimalloc};

use crate::peer::Peer;
use crate::subject::{Bench, Subject};
use crate::workload::Workload;
use std::rc::Rc;

/// All maps, empty. The others are compared with the first.
pub(crate) fn all(work: &Rc<Workload>) -> Vec<Box<dyn Subject>> {
    fn of<P: Peer + 'static>(work: &Rc<Workload>) -> Box<dyn Subject> {
        Box::new(Bench::<P>::new(work.clone()))
    }
    vec![
        of::<btree::Btree>(work),
        of::<btree::ByKey>(work),
        of::<brie::Brie>(work),
        of::<own::Owned>(work),
        of::<shared::Shared>(work),
        of::<shared::SharedEach>(work),
        of::<locked::Locked>(work),
        of::<skiplist::Skips>(work),
        of::<btree::ByEnd>(work),
        of::<own::Owned<Malloc>>(work),
        of::<own::Owned<Mimalloc>>(work),
        of::<shared::Shared<Malloc>>(work),
        of::<shared::Shared<Mimalloc>>(work),
        of::<shared::SharedEach<Malloc>>(work),
        of::<shared::SharedEach<Mimalloc>>(work),
    ]
}
