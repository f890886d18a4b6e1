//! Readers concurrently with a writer, and the ways to become the writer.

use crate::Index;
use crate::{Error, MapleTree};
use grace::{Epoch, Reclaim};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::vec::Vec;

/// After a cyclic allocation took the largest index, the next one that succeeds starts from the
/// beginning, and reports that once.
#[test]
fn a_cyclic_allocation_tells_that_it_wrapped() {
    const START: Index = Index::MAX - 2;
    let tree = MapleTree::<u32, Epoch>::new();
    let mut next = Index::MAX;
    assert_eq!(tree.alloc_cyclic(START..=Index::MAX, &mut next, 1).unwrap(), (Index::MAX, false));
    assert_eq!(next, START);
    // Neither a call that fails nor one that allocates elsewhere loses the mark.
    assert!(tree.lock().alloc_cyclic(Index::MAX..=Index::MAX, &mut Index::MAX.clone(), 9).is_err());
    assert_eq!(tree.alloc_cyclic(0..=9, &mut 5, 9).unwrap(), (5, false));
    let copy = tree.duplicate().unwrap();
    for tree in [tree, copy] {
        let mut next = next;
        let mut alloc = || tree.alloc_cyclic(START..=Index::MAX, &mut next, 2).unwrap();
        assert_eq!([alloc(), alloc()], [(START, true), (START + 1, false)]);
        // A search that wraps around also reports it.
        tree.erase(START).unwrap();
        assert_eq!(
            tree.alloc_cyclic(START..=Index::MAX, &mut next, 3).unwrap(),
            (START, true),
            "nothing is free from {next:#x} on"
        );
        assert_eq!(next, START + 1);
    }
    let mut own = MapleTree::<u32>::new();
    let mut next = Index::MAX;
    own.get_mut().alloc_cyclic(7..=Index::MAX, &mut next, 1).unwrap();
    let own = own.into_shared::<Epoch>();
    assert_eq!(own.alloc_cyclic(7..=Index::MAX, &mut next, 1).unwrap(), (7, true));
    assert_eq!(own.alloc_cyclic(7..=Index::MAX, &mut next, 1).unwrap(), (8, false));
}

#[test]
fn an_erased_entry_lives_as_long_as_the_guard() {
    static DROPS: AtomicUsize = AtomicUsize::new(0);
    struct CountsDrops(u32);
    impl Drop for CountsDrops {
        fn drop(&mut self) {
            DROPS.fetch_add(1, Ordering::Relaxed);
        }
    }
    let tree = MapleTree::<Arc<CountsDrops>, Epoch>::new();
    tree.store_range(3..=5, Arc::new(CountsDrops(7))).unwrap();
    let guard = tree.pin();
    let seen = tree.load(&guard, 4).unwrap();
    let erased = tree.erase(4).unwrap().unwrap().1;
    // Readers may hold a reference to it, so `into_inner` refuses.
    let erased = erased.into_inner().err().unwrap();
    assert_eq!(erased.get().0, 7);
    drop(erased);
    assert_eq!((seen.0, DROPS.load(Ordering::Relaxed)), (7, 0));
    drop(guard);
    // Guards of other tests may delay it, but not indefinitely.
    crate::patience::until("the entry is dropped", || {
        Epoch::pin().flush();
        DROPS.load(Ordering::Relaxed) != 0
    });
    assert_eq!(DROPS.load(Ordering::Relaxed), 1);
}

#[test]
fn a_cursor_goes_on_through_replaced_nodes() {
    let tree = MapleTree::<u32, Epoch>::new();
    let n = if cfg!(miri) { 60 } else { 3000 };
    for i in 0..n {
        tree.store_range(i * 10..=i * 10 + 4, i as u32).unwrap();
    }
    let guard = tree.pin();
    let mut cursor = tree.cursor(&guard, 0);
    let mut seen = Vec::new();
    let mut writer = tree.lock();
    while let Some((range, value)) = cursor.find(Index::MAX) {
        let at = *range.start();
        seen.push(value);
        // Erase the entry found, and change entries before and behind it: splits and merges
        // everywhere.
        writer.erase(at).unwrap();
        if value % 3 == 0 {
            writer.store_range(at + 5..=at + 9, value).unwrap();
        }
        if !cfg!(miri) || value % 8 == 0 {
            writer.validate().unwrap();
        }
    }
    drop(writer);
    seen.dedup();
    assert_eq!(seen, (0..n as u32).collect::<Vec<_>>());
}

#[test]
fn tokens() {
    let (tree, mut token) = MapleTree::<u32, Epoch>::with_token();
    let (other, mut wrong) = MapleTree::<u32, Epoch>::with_token();
    tree.writer(&mut token).unwrap().store_range(1..=2, 3).unwrap();
    assert_eq!(tree.writer(&mut wrong).err(), Some(Error::WrongToken));
    assert_eq!(other.writer(&mut token).err(), Some(Error::WrongToken));
    let (copy, mut own) = tree.writer(&mut token).unwrap().duplicate_with_token().unwrap();
    assert_eq!(copy.writer(&mut token).err(), Some(Error::WrongToken));
    copy.writer(&mut own).unwrap().clear();
    assert_eq!(tree.load(&tree.pin(), 2), Some(3));
    assert!(copy.is_empty());
}

#[test]
fn one_writer_at_a_time() {
    let tree = MapleTree::<u32, Epoch>::new();
    let held = tree.lock();
    assert!(thread::scope(|scope| scope.spawn(|| tree.try_lock().is_none()).join().unwrap()));
    drop(held);
    assert!(tree.try_lock().is_some());
}

#[test]
fn from_one_owner_to_shared() {
    let mut tree = MapleTree::<Arc<u32>>::new();
    let text = Arc::new(5);
    tree.get_mut().store_range(0..=99, text.clone()).unwrap();
    tree.get_mut().erase_range(10..=19).unwrap();
    assert_eq!(Arc::strong_count(&text), 3);
    let mut tree = tree.into_shared::<Epoch>();
    assert_eq!(tree.load(&tree.pin(), 5).as_deref(), Some(&5));
    tree.get_mut().clear();
    assert_eq!(Arc::strong_count(&text), 1);
    let mut tree = MapleTree::<u32>::new();
    tree.get_mut().store_range(4..=4, 4).unwrap();
    let (tree, mut token) = tree.into_shared_with_token::<Epoch>();
    assert_eq!(tree.writer(&mut token).unwrap().load(4), Some(4));
}

/// I1: an index that is mapped throughout is always found, with a value that it had. An index that
/// is never mapped is never found.
#[test]
fn readers_beside_a_writer() {
    let tree = MapleTree::<u32, Epoch>::new();
    let n = if cfg!(miri) { 16 } else { 500 };
    let rounds = if cfg!(miri) { 30 } else { 20_000 };
    // Even tens are toggled; odd tens are always mapped, to 1 or 2; 5 above each is never mapped.
    for i in 0..n {
        tree.store_range(i * 20 + 10..=i * 20 + 14, 1).unwrap();
    }
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut reads = 0usize;
            while !stop.load(Ordering::Acquire) || reads == 0 {
                let guard = tree.pin();
                for i in 0..n {
                    let always = i * 20 + 12;
                    assert!(matches!(tree.load(&guard, always), Some(1 | 2)));
                    let (range, _) = tree.lookup(&guard, always).unwrap();
                    assert_eq!(range, i * 20 + 10..=i * 20 + 14);
                    assert_eq!(tree.load(&guard, always + 4), None);
                    assert!(matches!(tree.load(&guard, i * 20), None | Some(3)));
                }
                let found = tree.iter(&guard, 0..=Index::MAX).filter(|&(_, value)| value != 3);
                assert_eq!(found.count(), n as usize);
                reads += 1;
            }
            reads
        });
        let mut dice = super::Dice(3);
        for _ in 0..rounds {
            let i = dice.roll(n);
            match dice.roll(3) {
                0 => tree.store_range(i * 20..=i * 20 + 5, 3).unwrap(),
                1 => tree.erase_range(i * 20..=i * 20 + 5).unwrap(),
                _ => tree.store_range(i * 20 + 10..=i * 20 + 14, 1 + (i % 2) as u32).unwrap(),
            }
        }
        stop.store(true, Ordering::Release);
        assert!(reader.join().unwrap() > 0);
    });
    tree.validate().unwrap();
}
