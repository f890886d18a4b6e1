//! Runs a script from beginning to end, in every mode of owning the tree.

use crate::ledger::{Item, Ledger, Pool};
use crate::play::{World, play, read};
use crate::script::{Hold, Scale, Session};
use grace::{Epoch, Reclaim, Single};
use maple::{MapleTree, OwnerLock, WriteToken};

/// The owner of the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// One owner.
    Single,
    /// Shared, with the tree's own lock.
    Lock,
    /// Shared, with the owner's token.
    Token,
    /// One owner for the first half of the sessions, then shared.
    Turns,
}

type Alone = MapleTree<Item, Single, Pool>;
type Locked = MapleTree<Item, Epoch, Pool>;
type Owned = MapleTree<Item, Epoch, Pool, OwnerLock>;

/// Runs the sessions, drops the tree, and waits until everything is freed.
pub(crate) fn run(mode: Mode, scale: Scale, sessions: &[Session]) {
    let mut world = World::new(scale);
    let nodes = Pool::live();
    match mode {
        Mode::Single => drop(alone(&mut world, sessions, nodes)),
        Mode::Lock => locked(Locked::new_in(), &mut world, sessions),
        Mode::Token => owned(Owned::with_token_in(), &mut world, sessions),
        Mode::Turns => {
            let (first, second) = sessions.split_at(sessions.len() / 2);
            let tree = alone(&mut world, first, nodes);
            if sessions.len().is_multiple_of(2) {
                locked(tree.into_shared(), &mut world, second);
            } else {
                owned(tree.into_shared_with_token(), &mut world, second);
            }
        }
    }
    settle(&world.ledger, nodes, mode != Mode::Single);
}

fn alone(world: &mut World, sessions: &[Session], nodes: isize) -> Alone {
    let mut tree = Alone::new_in();
    world.exact = true;
    for session in sessions {
        let mut writer = tree.get_mut();
        for op in &session.ops {
            play(&mut writer, world, op, true);
        }
        let stats = writer.stats();
        drop(writer);
        assert_eq!(Pool::live() - nodes, stats.nodes as isize, "nodes leaked or lost");
        assert_eq!(world.ledger.live(), world.oracle.len(), "entries leaked or lost");
        read(&tree, world, &session.reader);
    }
    world.exact = false;
    tree
}

fn locked(mut tree: Locked, world: &mut World, sessions: &[Session]) {
    for session in sessions {
        let alone = session.hold == Hold::Alone;
        let mut writer = if alone { tree.get_mut() } else { tree.lock() };
        for op in &session.ops {
            play(&mut writer, world, op, alone);
        }
        drop(writer);
        read(&tree, world, &session.reader);
    }
}

fn owned((mut tree, mut token): (Owned, WriteToken), world: &mut World, sessions: &[Session]) {
    for session in sessions {
        let alone = session.hold == Hold::Alone;
        let mut writer = if alone { tree.get_mut() } else { tree.writer(&mut token).unwrap() };
        for op in &session.ops {
            play(&mut writer, world, op, alone);
        }
        drop(writer);
        read(&tree, world, &session.reader);
    }
}

/// Waits until everything is freed. Each entry and node must be dropped exactly once.
pub(crate) fn settle(ledger: &Ledger, nodes: isize, deferred: bool) {
    let settled = || (ledger.live(), Pool::live()) == (0, nodes);
    if deferred {
        wait_until(settled);
    }
    assert!(settled(), "entries or nodes were not freed");
    assert_eq!(ledger.twice(), 0, "an entry was dropped twice");
}

/// Helps the collector until `holds` is true. Guards of other tests may delay that.
pub(crate) fn wait_until(holds: impl Fn() -> bool) {
    crate::patience::until("neither too few nor too many are freed", || {
        let holds = holds();
        if !holds {
            Epoch::pin().flush();
        }
        holds
    });
}
