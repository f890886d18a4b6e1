//! [`Chain`] under loom: each block that is pushed is taken once, and all writes before the push
//! are visible.

use super::Chain;
use crate::batch::{Batches, RetiredPiece};
use core::ptr::NonNull;
use loom::cell::UnsafeCell;
use loom::thread;
// Not loom's `Arc`, which cannot be dropped after a model has failed.
use std::sync::Arc;

/// A retired piece. Loom checks that its accesses are ordered.
type Piece = UnsafeCell<u32>;

struct World {
    chain: Chain,
    pieces: [Piece; 2],
}

unsafe fn free(piece: NonNull<()>) {
    // SAFETY: a piece of the model, which outlives it. Loom checks for concurrent accesses.
    unsafe { piece.cast::<Piece>().as_ref() }.with_mut(|piece| unsafe { *piece += 1 });
}

impl World {
    /// A CPU writes a piece, retires it, and becomes idle.
    fn leave(&self, piece: usize) {
        let piece = &self.pieces[piece];
        // SAFETY: no other thread has it yet. Loom checks that.
        piece.with_mut(|piece| unsafe { *piece = 1 });
        let mut batches = Batches::new();
        assert!(batches.push(RetiredPiece { ptr: NonNull::from(piece).cast(), free }, || 0));
        self.chain.push(batches.leave(|| 0));
    }

    /// A CPU frees the pieces that it finds.
    fn adopt(&self) {
        let mut batches = Batches::new();
        batches.adopt(&self.chain);
        while let Some(RetiredPiece { ptr, free }) = batches.pop_due(0) {
            // SAFETY: it has left its batch.
            unsafe { free(ptr) }
        }
    }
}

#[test]
fn loom_each_block_is_adopted_once() {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(|| {
        let world = Arc::new(World { chain: Chain::new(), pieces: [Piece::new(0), Piece::new(0)] });
        let run = |what: fn(&World)| {
            let world = Arc::clone(&world);
            thread::spawn(move || what(&world))
        };
        let others = [run(|world| world.leave(0)), run(World::adopt)];
        world.leave(1);
        world.adopt();
        others.into_iter().for_each(|other| other.join().unwrap());
        world.adopt();
        for piece in &world.pieces {
            // SAFETY: the other threads have ended.
            piece.with(|piece| assert_eq!(unsafe { *piece }, 2, "each is freed once"));
        }
    });
}
