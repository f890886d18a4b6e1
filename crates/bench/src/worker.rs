//! The worker: builds maps and times them, as requests on its standard input say.
//!
//! There is a process for each build of the tree: vector instructions chosen when compiled, chosen
//! at run time, or none. The driver asks them in turn, so that each round has all of them side by
//! side.
//!
//! | request | answer |
//! | --- | --- |
//! | `size N` | `ok`; the maps from here on have so many ranges |
//! | `maps` | their names, with tabs between |
//! | `support MAP CASE` | `own`, `scan` or `missing` |
//! | `sample MAP CASE TURN NS` | nanoseconds, operations, and check of batches that take so long or longer |
//! | `bytes MAP holes`, `bytes MAP touching` | bytes for each range |
//!
//! `MAP` is a place in the list of names. A request that is not understood is answered with `error`
//! and the cause.

use crate::case::Case;
use crate::clock;
use crate::peer::Support;
use crate::subject::{Sample, Subject};
use crate::workload::Workload;
use alloc::boxed::Box;
use alloc::format;
use alloc::rc::Rc;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

/// Makes the maps of a worker.
pub(crate) type Maps = fn(&Rc<Workload>) -> Vec<Box<dyn Subject>>;

pub(crate) struct Worker {
    maps: Maps,
    subjects: Vec<Box<dyn Subject>>,
}

impl Worker {
    pub(crate) fn new(maps: Maps) -> Self {
        Worker { maps, subjects: Vec::new() }
    }

    /// The answer to a request, without a newline.
    pub(crate) fn answer(&mut self, request: &str) -> String {
        self.run(request).unwrap_or_else(|cause| format!("error {cause}: {request}"))
    }

    fn run(&mut self, request: &str) -> Result<String, &'static str> {
        let words: Vec<&str> = request.split_whitespace().collect();
        match words[..] {
            ["size", size] => {
                let size = number(size)?;
                if size < 4 {
                    return Err("fewer than 4 ranges have nothing to measure");
                }
                // The old maps are dropped first, because they may be large.
                self.subjects.clear();
                self.subjects = (self.maps)(&Rc::new(Workload::new(size)));
                Ok("ok".into())
            }
            ["maps"] => {
                let names: Vec<&str> = self.subjects.iter().map(|map| map.name()).collect();
                Ok(names.join("\t"))
            }
            ["support", map, case] => Ok(match self.subject(map)?.support(named(case)?) {
                Support::Own => "own",
                Support::Scan => "scan",
                Support::Missing => "missing",
            }
            .into()),
            ["sample", map, case, turn, slot] => {
                let (case, turn, slot) = (named(case)?, number(turn)?, number(slot)?);
                let sample = fill(&mut **self.subject(map)?, case, turn, slot as u64);
                Ok(format!("{} {} {}", sample.elapsed, sample.operations, sample.check))
            }
            ["bytes", map, "holes"] => Ok(self.subject(map)?.bytes_per_entry(false).to_string()),
            ["bytes", map, "touching"] => Ok(self.subject(map)?.bytes_per_entry(true).to_string()),
            _ => Err("not a request"),
        }
    }

    /// The map at a place in the list.
    pub(crate) fn subject(&mut self, map: &str) -> Result<&mut Box<dyn Subject>, &'static str> {
        self.subjects.get_mut(number(map)?).ok_or("no such map")
    }
}

fn number(word: &str) -> Result<usize, &'static str> {
    word.parse().map_err(|_| "not a number")
}

fn named(word: &str) -> Result<Case, &'static str> {
    Case::named(word).ok_or("no such case")
}

/// Runs batches until they have taken `slot` nanoseconds, or until they and their untimed parts
/// have taken several times that. Without the second limit the slot would take minutes where a few
/// writes need copies of a large map.
fn fill(subject: &mut dyn Subject, case: Case, turn: usize, slot: u64) -> Sample {
    // The first batch brings the map back into the caches. It counts only if it fills the slot.
    let first = subject.sample(case, turn);
    if first.elapsed >= slot {
        return first;
    }
    let start = clock::thread_time();
    let mut all = Sample { elapsed: 0, operations: 0, check: first.check };
    let mut next = turn;
    while all.elapsed < slot && clock::thread_time().saturating_sub(start) < 8 * slot {
        let sample = subject.sample(case, next);
        all.elapsed += sample.elapsed;
        all.operations += sample.operations;
        next += 1;
    }
    all
}
