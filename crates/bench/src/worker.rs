//! The worker: builds maps and times them, as requests on its standard input say.
//!
//! There is a process for each build of the tree: vector instructions chosen when compiled, chosen
//! at run time, or none. The driver asks them in turn, so that each round has all of them side by
//! side.
//!
//! | request | answer |
//! | --- | --- |
//! | `size N`, `size N spread`, `size N keys` | `ok`; the maps from here on have so many ranges |
//! | `list RANGE...` | `ok` and the number of ranges of the maps from here on: the others are free places for moves. A range is `FIRST-LAST` in hexadecimal digits |
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
use crate::workload::{Layout, Workload, with_free};
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
            ["size", size] => self.build(&Layout::Dense, number(size)?),
            ["size", size, "spread"] => self.build(&Layout::Spread, number(size)?),
            ["size", size, "keys"] => self.build(&Layout::Keys, number(size)?),
            ["list", ref ranges @ ..] => {
                let ranges =
                    ranges.iter().map(|word| range(word)).collect::<Result<Vec<_>, _>>()?;
                let sorted = ranges.windows(2).all(|pair| pair[0].1 < pair[1].0);
                if !sorted || ranges.iter().any(|&(first, last)| first > last) {
                    return Err("the ranges are not in ascending order");
                }
                // The largest size with enough free places.
                let size = (0..ranges.len()).rev().find(|&n| with_free(n) <= ranges.len());
                self.build(&Layout::Listed(ranges), size.unwrap_or(0))
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

    fn build(&mut self, layout: &Layout, size: usize) -> Result<String, &'static str> {
        if size < 4 {
            return Err("fewer than 4 ranges have nothing to measure");
        }
        // The old maps are dropped first, because they may be large.
        self.subjects.clear();
        self.subjects = (self.maps)(&Rc::new(Workload::laid_out(layout, size)));
        Ok(match layout {
            Layout::Listed(_) => format!("ok {size}"),
            _ => "ok".into(),
        })
    }

    /// The map at a place in the list.
    pub(crate) fn subject(&mut self, map: &str) -> Result<&mut Box<dyn Subject>, &'static str> {
        self.subjects.get_mut(number(map)?).ok_or("no such map")
    }
}

fn number(word: &str) -> Result<usize, &'static str> {
    word.parse().map_err(|_| "not a number")
}

/// A range as in a request: the first and the last index.
fn range(word: &str) -> Result<(usize, usize), &'static str> {
    let index = |digits| usize::from_str_radix(digits, 16).map_err(|_| "not a range");
    let (first, last) = word.split_once('-').ok_or("not a range")?;
    Ok((index(first)?, index(last)?))
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
