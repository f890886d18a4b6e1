//! When memory gives out: tables that nobody uses are found before an operation fails.
//!
//! Empty tables lie in three places where the frame source cannot see them: on the quicklists of
//! this CPU, on those of others, and in wait for a flush or the end of a grace period. So before an
//! operation fails for want of a table, [`PageTables::reclaim`] is called, with no lock and no
//! guard held:
//!
//! - this CPU gives back its own lists;
//! - the others are asked for theirs ([`shortage`](crate::QuickLists::shortage)): each sees that
//!   when it next uses a list, or at its timer interrupt; the fast path pays one load of its own
//!   line for it, and nobody takes a lock;
//! - all CPUs are asked to take their timer interrupts soon
//!   ([`Cpus::hurry`](machine::Cpus::hurry)), in which they announce, so that grace periods end,
//!   and see that they were asked. That is the expedited path: one interrupt for each CPU, and only
//!   where there is nothing left but what they have.
//!
//! Then it waits, some turns, and no longer: it depends on nobody.
//!
//! # Where deferred frees may run
//! To free what has waited for a grace period is to free all of it: tables, and what others have
//! retired through the same `G`, whose frees may take locks of theirs. Nothing less would do, as
//! there may be nobody else to free it: there may be one CPU. So all that comes here says so (see
//! [`PageTables`]): whoever calls it holds no lock that such a free takes. Other locks, and
//! interrupts that are off, are allowed; as others wait for them, less is found. As long as there
//! is memory, none of this is done.
//!
//! # What is not got
//! It is not lost: [`Paging::waiting`] says how many tables wait, the lists'
//! [`held`](crate::QuickStats::held) what lies there. A CPU that never announces holds up all
//! tables retired since, so those add up in `waiting`, and operations fail with [`Error::Frames`]
//! when nothing else is left. A debt that is kept ([`DeferredFlush`](crate::DeferredFlush)) counts
//! there too.

use crate::cursor::Error;
use crate::format::Format;
use crate::paging::Paging;
use crate::tables::PageTables;
use grace::Concurrent;
use machine::{FrameError, Machine};

/// Turns that are waited for others: some interrupts' worth.
const TURNS: u32 = 512;
/// Turns after which they are asked again: a grace period takes three announcements of each CPU.
const ASK: u32 = 64;
/// How often an operation is tried again: what was found may be taken by others.
const TRIES: u32 = 4;

/// Finds frames for tables; see the [module](self). Returns whether there are any now.
pub(crate) fn relieve<M: Machine, F: Format, G: Concurrent>(paging: &Paging<M, F>) -> bool {
    let (machine, quick) = (paging.machine(), paging.lists());
    for turn in 0..TURNS {
        let asked = quick.shortage();
        if machine.free_frames() != 0 {
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
    machine.free_frames() != 0
}

/// Does what may need memory for tables; where there is none, tries again when some was found.
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
    /// Memory is short: has empty tables given back to the frame source, those of other CPUs and
    /// those that wait for a grace period too, as far as they can be had soon. Returns whether the
    /// frame source has any frame now.
    ///
    /// Operations on page tables call it themselves before they fail. For who needs frames for
    /// something else.
    ///
    /// Where deferred frees may run (see [Context](Self#context)); without a guard, which would
    /// hold up what it waits for. It waits for others, but depends on none. An interrupt for each
    /// CPU, and up to some hundred turns of waiting; nothing if there is nothing to be had.
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
