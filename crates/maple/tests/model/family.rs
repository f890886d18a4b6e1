//! Several trees that are duplicates of each other and share nodes, each compared with its own
//! model.

use crate::ledger::{Item, Ledger, Pool, with_budget};
use crate::play::{World, check, play, read};
use crate::run::settle;
use crate::script::{Event, Hold, Scale};
use grace::{Epoch, Reclaim, Single};
use maple::{MapleTree, Writer};
use std::collections::HashSet;
use std::sync::Arc;

/// The most trees that live at once.
const MOST: usize = 4;

type Tree<R> = MapleTree<Item<true>, R, Pool>;
type Write<'t, R> = Writer<'t, Item<true>, R, Pool>;

/// Trees with one owner each.
pub(crate) fn alone(scale: Scale, events: &[(u8, Event)]) {
    let nodes = Pool::live();
    let exact = |ledger: &Ledger, trees: &mut [(Tree<Single>, World)]| {
        let held: HashSet<u64> = trees
            .iter()
            .flat_map(|(_, world)| world.oracle.entries().map(|(_, value)| value))
            .collect();
        assert_eq!(ledger.live(), held.len(), "entries leaked or lost");
        let most: usize = trees.iter_mut().map(|(tree, _)| tree.get_mut().stats().nodes).sum();
        assert!(Pool::live() - nodes <= most as isize, "nodes leaked");
    };
    let ledger = run::<Single>(scale, events, |tree, _| (tree.get_mut(), true), exact);
    settle(&ledger, nodes, false);
}

/// Trees that have readers.
pub(crate) fn shared(scale: Scale, events: &[(u8, Event)]) {
    let nodes = Pool::live();
    let ledger = run::<Epoch>(scale, events, held, |_, _| ());
    settle(&ledger, nodes, true);
}

fn held(tree: &mut Tree<Epoch>, hold: Hold) -> (Write<'_, Epoch>, bool) {
    match hold {
        Hold::Alone => (tree.get_mut(), true),
        Hold::Shared => (tree.lock(), false),
    }
}

fn run<R: Reclaim>(
    scale: Scale,
    events: &[(u8, Event)],
    write: for<'t> fn(&'t mut Tree<R>, Hold) -> (Write<'t, R>, bool),
    count: impl Fn(&Ledger, &mut [(Tree<R>, World)]),
) -> Arc<Ledger> {
    let mut trees = vec![(Tree::<R>::new_in(), World::new(scale))];
    let ledger = trees[0].1.ledger.clone();
    for (which, event) in events {
        let n = trees.len();
        let which = usize::from(*which) % n;
        let (tree, world) = &mut trees[which];
        match event {
            Event::Session(session) => {
                let (mut writer, alone) = write(tree, session.hold);
                for op in &session.ops {
                    play(&mut writer, world, op, alone);
                }
                drop(writer);
                read(tree, world, &session.reader);
            }
            Event::Duplicate if n < MOST => {
                // The duplicate shares all nodes.
                let copy = with_budget(Some(0), || tree.get_mut().duplicate()).unwrap();
                let world = world.fork();
                trees.push((copy, world));
            }
            Event::End if n > 1 => drop(trees.swap_remove(which)),
            Event::Duplicate | Event::End => {}
        }
        for (tree, world) in &mut trees {
            check(&mut tree.get_mut(), &world.oracle);
        }
        count(&ledger, &mut trees);
    }
    ledger
}
