//! Several threads that write, through the tree's lock and with a token.

use crate::engine::{Counting, Right};
use crate::memory::Pool;
use crate::{Tree, model, touching};
use loom::sync::{Arc, Mutex};
use loom::thread;
use maple::{MapleTree, OwnerLock};

#[test]
fn two_writers_and_a_reader() {
    model(|| {
        let tree = Arc::new(touching(2) as Tree);
        let spawn = |work: fn(&Tree)| {
            let tree = tree.clone();
            thread::spawn(move || work(&tree))
        };
        let one = spawn(|tree| tree.store_range(30..=39, 7).unwrap());
        let two = spawn(|tree| tree.erase_range(5..=9).unwrap());
        let guard = tree.pin();
        assert_eq!(tree.lookup(&guard, 15), Some((10..=19, 2)));
        drop(guard);
        one.join().unwrap();
        two.join().unwrap();
        let guard = tree.pin();
        let all: Vec<_> = tree.iter(&guard, 0..=usize::MAX).collect();
        assert_eq!(all, [(0..=4, 1), (10..=19, 2), (30..=39, 7)]);
        drop(guard);
        tree.validate().unwrap();
    });
}

#[test]
fn two_allocations_get_two_places() {
    model(|| {
        let tree = Arc::new(touching(2) as Tree);
        let other = {
            let tree = tree.clone();
            thread::spawn(move || tree.alloc_range(0..=99, 10, 1, 7).unwrap())
        };
        let mine = tree.alloc_range(0..=99, 10, 1, 8).unwrap();
        let theirs = other.join().unwrap();
        assert_eq!(mine.min(theirs), 20);
        assert_eq!(mine.max(theirs), 30);
        assert_eq!(tree.load(&tree.pin(), mine), Some(8));
        assert_eq!(tree.load(&tree.pin(), theirs), Some(7));
    });
}

#[test]
fn the_owner_of_the_token() {
    type Owned = MapleTree<u32, Counting<Right>, Pool<false>, OwnerLock>;
    model(|| {
        let (tree, token) = Owned::with_token_in();
        let space = Arc::new((tree, Mutex::new(token)));
        let other = {
            let space = space.clone();
            thread::spawn(move || {
                let mut token = space.1.lock().unwrap();
                space.0.writer(&mut token).unwrap().store_range(0..=9, 1).unwrap();
            })
        };
        {
            let mut token = space.1.lock().unwrap();
            space.0.writer(&mut token).unwrap().store_range(20..=29, 2).unwrap();
        }
        let guard = space.0.pin();
        assert_eq!(space.0.load(&guard, 25), Some(2));
        assert!(matches!(space.0.load(&guard, 5), None | Some(1)));
        drop(guard);
        other.join().unwrap();
        assert_eq!(space.0.load(&space.0.pin(), 5), Some(1));
    });
}
