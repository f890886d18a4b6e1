//! Memory for tables when the frame source is empty: idle tables are reclaimed before an operation
//! fails.
//!
//! Empty tables lie in three places that the frame source cannot see: on this CPU's quicklists, on
//! other CPUs' quicklists, and in wait for a flush or a grace period. So before an operation fails
//! for lack of a table, [`PageTables::reclaim`] runs, with no lock and no guard held:
//!
//! - This CPU gives back its own lists.
//! - The other CPUs are asked for theirs ([`shortage`](crate::QuickLists::shortage)). Each CPU sees
//!   the request when it next uses a list, or at its timer interrupt. The fast path pays one load
//!   of its own cache line for this, and takes no lock.
//! - All CPUs are asked to take their timer interrupts soon
//!   ([`Cpus::hurry`](machine::Cpus::hurry)). There they pass a quiescent state, so grace periods
//!   end, and see the request. This is the expedited path: one IPI for each CPU, and only when no
//!   other memory is left.
//!
//! Then it waits for a bounded number of turns. It depends on no other CPU.
//!
//! # Where deferred frees may run
//! To free some of the pieces that wait for a grace period, the engine frees all of them: tables,
//! and pieces of other owners of the same `G`, whose frees may take locks of their own. A smaller
//! step would not do: there may be only one CPU, and then no other CPU frees them. So each function
//! that leads here documents it (see [`PageTables`]): its caller holds no lock that such a free
//! takes. Other locks and disabled interrupts are allowed; since other CPUs wait for them, less
//! memory is found. As long as there is memory, none of this happens.
//!
//! # Tables that are not found
//! They are not lost. [`Paging::waiting`] counts the tables that wait, and
//! [`held`](crate::QuickStats::held) the pages on the lists. A CPU that never passes a quiescent
//! state holds up all tables retired since its last one. They add up in `waiting`, and operations
//! fail with [`Error::Frames`] when nothing else is left. The tables of a
//! [`DeferredFlush`](crate::DeferredFlush) count there, too.

use crate::error::Error;
use crate::format::Format;
use crate::shared::Paging;
use crate::tables::PageTables;
use grace::Concurrent;
use machine::{FrameError, Machine};

/// Turns of waiting for other CPUs: some interrupts' worth.
const TURNS: u32 = 512;
/// Turns between two requests: a grace period takes three quiescent states of each CPU.
const ASK: u32 = 64;
/// The retries of an operation: another CPU may take the frames that were found.
const TRIES: u32 = 4;

/// Reclaims frames for tables; see the [module](self). Returns whether the source has some for one
/// now.
pub(crate) fn relieve<M: Machine, F: Format, G: Concurrent>(paging: &Paging<M, F>) -> bool {
    let (machine, quick) = (paging.machine(), paging.lists());
    for turn in 0..TURNS {
        let asked = quick.shortage();
        if quick.has_page() {
            return true;
        }
        let waiting = paging.waiting() != 0;
        if asked.is_empty() && !waiting {
            return false;
        }
        if turn % ASK == 0 {
            machine.hurry(&if waiting { machine.online() } else { asked });
        }
        if waiting {
            G::flush(&G::pin());
        }
        machine.relax();
    }
    quick.has_page()
}

/// Runs `what`, which may need memory for tables. If there is none, reclaims some and tries again.
pub(crate) fn with_memory<M: Machine, F: Format, G: Concurrent, T>(
    paging: &Paging<M, F>,
    mut what: impl FnMut() -> Result<T, Error>,
) -> Result<T, Error> {
    for _ in 0..TRIES {
        match what() {
            Err(Error::Frames(FrameError::OutOfFrames { .. })) if relieve::<M, F, G>(paging) => {}
            other => return other,
        }
    }
    what()
}

impl<M: Machine, F: Format, G: Concurrent> PageTables<M, F, G> {
    /// Gives empty tables back to the frame source: those of this CPU's lists, and as far as they
    /// can be had soon, those of other CPUs and those that wait for a grace period. Returns whether
    /// the frame source has frames for a table now.
    ///
    /// Operations on page tables call it before they fail. Call it yourself if you need frames for
    /// another purpose.
    ///
    /// Deferred frees may run (see [Context](Self#context)). Call it without a guard, which would
    /// hold up the grace periods that it waits for. It waits for other CPUs but depends on none.
    /// Costs up to one IPI per CPU for each request, and some hundred turns of waiting; nothing if
    /// no tables are idle.
    ///
    /// # Misuse
    /// With a lock held that a deferred free takes, it waits for itself.
    pub fn reclaim(&self) -> bool {
        relieve::<M, F, G>(self.paging())
    }

    pub(crate) fn with_memory<T>(
        &self,
        what: impl FnMut() -> Result<T, Error>,
    ) -> Result<T, Error> {
        with_memory::<M, F, G, T>(self.paging(), what)
    }
}
