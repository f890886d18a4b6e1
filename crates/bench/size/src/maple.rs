//! The tree, with readers, as a kernel uses it.

use crate::any;
use crate::host::Grace;
use alloc::sync::Arc;
use core::hint::black_box;
use grace::Reclaim;
use maple::{Global, Index, MapleTree};

type Tree = MapleTree<Arc<u64>, Grace, Global>;

pub(crate) fn calls() {
    let (at, end): (Index, Index) = (any(), any());
    let entry = || Arc::new(any::<u64>());
    let mut tree = Tree::new_in();
    {
        let guard = &Grace::pin();
        black_box(tree.load(guard, at));
        black_box(tree.lookup(guard, at));
        black_box(tree.find(guard, at..=end));
        black_box(tree.find_rev(guard, at..=end));
        black_box(tree.iter(guard, at..=end).count());
        black_box(tree.holes(guard, at..=end).count());
        black_box(tree.empty_area(guard, at..=end, at, end).is_ok());
        black_box(tree.empty_area_rev(guard, at..=end, at, end).is_ok());
        let mut cursor = tree.cursor(guard, at);
        black_box((cursor.walk(), cursor.next(end)));
        black_box(cursor.prev(end));
    }
    let mut writer = tree.lock();
    black_box(writer.store_range(at..=end, entry()).is_ok());
    black_box(writer.insert_range(at..=end, entry()).is_ok());
    black_box(writer.erase(at).is_ok());
    black_box(writer.set_end(at, end).is_ok());
    black_box(writer.erase_range(at..=end).is_ok());
    black_box(writer.alloc_range(at..=end, at, end, entry()).is_ok());
    black_box(writer.alloc_rrange(at..=end, at, end, entry()).is_ok());
    black_box(writer.preallocate(at..=end).is_ok());
    let mut cursor = writer.cursor(at);
    black_box(cursor.store(at..=end, entry()).is_ok());
    black_box(cursor.erase().is_ok());
    writer.clear();
    drop(writer);
    black_box(tree.get_mut().store_range(at..=end, entry()).is_ok());
}
