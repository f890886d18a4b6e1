//! Standard input of the first program: a pipe, into which this file puts the bytes of the host.
//!
//! So reads, polls and the end of file are those of pipes. The host sends nothing before a program
//! reads or polls the empty pipe: one that does not leaves the host's input alone. CPUs look for
//! new bytes in their loops, and so at each tick at the latest. The host sends frames, each four
//! bytes with a length and then so many bytes; the length 0 is the end.
//!
//! One CPU at a time moves bytes; the others go on. The lock is never held in an interrupt. If the
//! pipe is full, or memory is short, the rest stays in the device's buffers, and the host waits.

use crate::channel::{self, MessageKind, Received};
use crate::file::pipe::Pipe;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, Ordering};
use spin::Once;
use spin::mutex::SpinMutex;

struct Input {
    pipe: Arc<Pipe>,
    /// Nothing more comes, or no program can read it. Written with the lock.
    over: AtomicBool,
    state: SpinMutex<State>,
}

#[derive(Default)]
struct State {
    /// The host knows that a program reads.
    asked: bool,
    /// The head of the next frame, as far as it has come.
    head: [u8; 4],
    have: usize,
    /// Bytes of the frame that are still to come.
    rest: usize,
    left: Option<Received>,
}

static INPUT: Once<Input> = Once::new();

/// Makes this pipe standard input, and ends as one of its writers. Call it once.
pub(crate) fn start(pipe: Arc<Pipe>) {
    let over = AtomicBool::new(false);
    INPUT.call_once(|| Input { pipe, over, state: SpinMutex::default() });
}

/// Moves bytes that have come. Call it often, with no lock, and not in an interrupt. Three loads if
/// no program reads the input, or it has ended.
pub(crate) fn pump() {
    let Some(input) = INPUT.get() else { return };
    // Relaxed: a hint. If it is stale, the lock orders the second look.
    if input.over.load(Ordering::Relaxed) || !input.pipe.is_wanted() {
        return;
    }
    let Some(mut state) = input.state.try_lock() else { return };
    if !state.asked {
        state.asked = true;
        if !channel::send(MessageKind::Wanted, &[]) {
            input.end();
        }
    }
    if !input.is_over() {
        let left = state.left.take();
        state.left = channel::receive(left, |bytes| state.move_on(input, bytes));
    }
}

impl Input {
    fn end(&self) {
        // Relaxed: the lock is held.
        self.over.store(true, Ordering::Relaxed);
        self.pipe.close(false, true);
    }

    fn is_over(&self) -> bool {
        // Relaxed: the lock is held.
        self.over.load(Ordering::Relaxed)
    }
}

impl State {
    /// Uses bytes of the host, and returns how many.
    fn move_on(&mut self, input: &Input, bytes: &[u8]) -> usize {
        let mut used = 0;
        while used < bytes.len() && !input.is_over() {
            let bytes = &bytes[used..];
            if self.rest == 0 {
                self.head[self.have] = bytes[0];
                self.have = (self.have + 1) % self.head.len();
                used += 1;
                if self.have == 0 {
                    self.rest = u32::from_le_bytes(self.head) as usize;
                    if self.rest == 0 {
                        input.end();
                    }
                }
                continue;
            }
            match input.pipe.put(&bytes[..bytes.len().min(self.rest)], false) {
                Ok(0) => break,
                Ok(count) => {
                    used += count;
                    self.rest -= count;
                }
                // No memory: later.
                Err(_) if input.pipe.ready().readers => break,
                // No program can read it any more.
                Err(_) => input.end(),
            }
        }
        used
    }
}
