//! A reader in its section, a collector that has seen the section end, and the thread that frees.
//!
//! `RUSTFLAGS="--cfg loom" cargo test --release -p samara-grace --features std --lib loom`

use super::*;
use crate::batch::BATCH;
use core::ptr::NonNull;
use loom::cell::UnsafeCell;
use loom::sync::atomic::AtomicBool;
use loom::thread;
use std::vec::Vec;

#[derive(Default)]
struct Piece {
    contents: UnsafeCell<u32>,
}

unsafe fn free(ptr: NonNull<()>) {
    // SAFETY: the test keeps the piece. Loom checks for concurrent accesses.
    unsafe { ptr.cast::<Piece>().as_ref().contents.with_mut(|contents| *contents += 1) }
}

#[test]
fn loom_freed_after_the_section() {
    loom::model(|| {
        let pieces: Arc<Vec<Piece>> = Arc::new((0..BATCH).map(|_| Piece::default()).collect());
        let ended = Arc::new(AtomicBool::new(false));
        let reader = thread::spawn({
            let (pieces, ended) = (pieces.clone(), ended.clone());
            move || {
                // SAFETY: read in a section, which ends below.
                pieces.iter().for_each(|piece| {
                    piece.contents.with(|contents| unsafe {
                        assert_eq!(*contents, 0);
                    })
                });
                // Release: pairs with the collector's Acquire, as the end of a section does.
                ended.store(true, Ordering::Release);
            }
        });
        let home = ThreadBatches::new();
        let mut token = None;
        for piece in pieces.iter() {
            let ptr = NonNull::from(piece).cast();
            if let AddOutcome::Closed(closed) = home.add(RetiredPiece { ptr, free }) {
                token = Some(closed);
            }
        }
        let token = token.expect("one batch");
        let collector = thread::spawn(move || {
            // Acquire: pairs with the reader's Release.
            if ended.load(Ordering::Acquire) {
                token.pass();
            }
        });
        home.collect(|| ());
        reader.join().unwrap();
        collector.join().unwrap();
        home.collect(|| ());
        // Each piece is freed once, or not at all.
        let freed = u32::from(home.is_empty());
        for piece in pieces.iter() {
            // SAFETY: all other threads have ended.
            piece.contents.with(|contents| unsafe { assert_eq!(*contents, freed) });
        }
        // SAFETY: as above.
        home.leave().for_each(|left| unsafe { left.free() });
    });
}
