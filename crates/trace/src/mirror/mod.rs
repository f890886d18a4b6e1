//! Our own address spaces, driven by the records of a trace and compared with the kernel's.
//!
//! Each record is carried out on [`vma`] as if the program had called us. After it, our listing
//! must equal the kernel's byte for byte, and every address that the rules determine must equal the
//! kernel's choice. The mirror does not know the source of the records: a file and a live program
//! look the same.
//!
//! | module | contents |
//! |---|---|
//! | `calls`, `settle` | a call carried out on our space; the effect of one that failed half-way |
//! | `adopt`, `resync` | VMAs taken over from a record, and from the kernel's listing after a mismatch |
//! | `space`, `compare`, `neighbours` | one space; the comparisons; those around a change |
//! | `change`, `shadow` | records as changes of spaces; other spaces that follow them, such as those with pages |
//! | `owners`, `stacks`, `lifetimes`, `peak` | the call that mapped each byte last; calls with stacks; lifetimes of maps; the moment of the peak |
//! | `queries` | the tracer's questions about VMAs |
//! | `file`, `rings`, `personality` | mapped files, aio rings, READ_IMPLIES_EXEC |

mod adopt;
mod calls;
mod change;
mod compare;
mod file;
#[cfg(test)]
mod fixtures;
mod lifetimes;
mod neighbours;
mod owners;
mod peak;
mod personality;
mod queries;
mod resync;
mod rings;
mod settle;
mod shadow;
mod space;
mod stacks;

use std::{collections::HashMap, time::Instant};

use vma::{AddressSpace, Layout, Profile, VmFlags};

use crate::{
    abi::UFFDIO_API,
    record::{Call, Doubt, FileId, MmId, Op, Record},
    report::{Difference, SpaceReport, Summary},
};
use calls::{CallContext, OurOutcome, perform};
pub use change::SpaceChange;
pub use file::File;
use lifetimes::Lifetimes;
use owners::Owners;
use personality::Personalities;
use rings::Rings;
use shadow::SpaceWriter;
pub use shadow::{NoShadow, Shadow};

/// The reclamation engine of our trees. One thread uses each tree, so nothing waits, and files are
/// released at once.
type Engine = grace::Single;

/// The reason why a record is not valid at its place: a description of what was expected.
pub type Expected = String;

/// Our side of a run: all mirrored address spaces.
///
/// ```
/// use trace::{mirror::{Mirror, Verdict}, record::Record};
/// let mut mirror = Mirror::new(vma::Profile::LINUX_6_18);
/// let exec = Record::Exec {
///     mm: 1, tid: 7, vmas: 0, brk: 0, start_brk: 0, start_stack: 0, mmap_base: 0,
///     exe: "/bin/x".into(),
/// };
/// assert_eq!(mirror.apply(&exec, || None), Ok(Verdict::Agrees));
/// assert_eq!(mirror.compare(1, ""), Ok(Verdict::Agrees));
/// assert_eq!(mirror.finish().total.listings, 1);
/// ```
pub struct Mirror<B = NoShadow> {
    shadow: B,
    profile: Profile,
    spaces: HashMap<MmId, MirroredSpace>,
    files: HashMap<FileId, File>,
    newest: Option<MmId>,
    /// The program's first process: the one that executed the first program.
    root: Option<u32>,
    personalities: Personalities,
    /// The features of each userfaultfd.
    userfaults: HashMap<usize, usize>,
    summary: Summary,
    /// Reused for every listing.
    text: String,
}

/// One address space, with the mirror's knowledge of it.
struct MirroredSpace {
    space: AddressSpace<File, Engine>,
    figures: SpaceReport,
    vsyscall: Option<String>,
    driver_flags: Option<VmFlags>,
    /// Whether the thread of the newest call has READ_IMPLIES_EXEC.
    reads_execute: bool,
    last_call: Option<Call>,
    /// Whether the rules determined the effect of the newest call.
    determined: bool,
    /// Whether a mismatch was found. Its consequences are not counted again.
    tainted: bool,
    /// The reason why its records may be wrong, if there is one.
    doubt: Option<Doubt>,
    /// The call that mapped each byte; `None` until a call has a stack.
    owners: Option<Owners>,
    rings: Rings,
    lives: Lifetimes,
}

/// The result of a comparison.
///
/// ```
/// use trace::mirror::{Mirror, Verdict};
/// let mut mirror = Mirror::new(vma::Profile::LINUX_6_18);
/// assert!(mirror.compare(9, "").is_err(), "nothing is known of address space 9");
/// assert_ne!(Verdict::Agrees, Verdict::Differs);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Nothing was compared, or both sides agreed.
    Agrees,
    /// The first mismatch of this address space. The summary has it if it is the first of the run.
    Differs,
    /// The first difference of an address space whose records may be wrong.
    CannotTell(Doubt),
    /// A difference that may follow from an earlier one.
    DiffersAgain,
}

impl Mirror {
    /// A mirror without address spaces.
    pub fn new(profile: Profile) -> Self {
        Mirror::with_shadow(profile, NoShadow)
    }
}

impl<B: Shadow> Mirror<B> {
    /// A mirror without address spaces, and the shadow that follows it. Only a replay is followed:
    /// the calls for live runs ([`take_over`](Mirror::take_over)) make no changes.
    pub fn with_shadow(profile: Profile, shadow: B) -> Self {
        Mirror {
            shadow,
            profile,
            spaces: HashMap::new(),
            files: HashMap::new(),
            newest: None,
            root: None,
            personalities: Personalities::default(),
            userfaults: HashMap::new(),
            summary: Summary::default(),
            text: String::new(),
        }
    }

    /// The counts of all address spaces that have ended.
    pub fn summary_mut(&mut self) -> &mut Summary {
        &mut self.summary
    }

    /// The spaces that follow the mirror.
    pub fn shadow_mut(&mut self) -> &mut B {
        &mut self.shadow
    }

    /// Calls so far, of all address spaces alive.
    pub fn finish(self) -> Summary {
        self.finish_shadow().0
    }

    /// As [`finish`](Self::finish); also returns what followed the mirror.
    pub fn finish_shadow(mut self) -> (Summary, B) {
        let mut left: Vec<MmId> = self.spaces.keys().copied().collect();
        left.sort_unstable();
        self.finished();
        for mm in left {
            self.end(mm);
        }
        (self.summary, self.shadow)
    }

    /// Carries out one record. Failed comparisons are counted. The first of the run is kept in the
    /// summary, with the `place` where it was found.
    ///
    /// # Errors
    /// A description of what was expected, if the record refers to something unknown.
    pub fn apply(
        &mut self,
        record: &Record,
        place: impl Fn() -> Option<String>,
    ) -> Result<Verdict, Expected> {
        let difference = self.carry_out(record)?;
        let Some((mm, difference)) = difference else { return Ok(Verdict::Agrees) };
        Ok(self.mismatch(mm, difference, place()))
    }

    fn carry_out(&mut self, record: &Record) -> Result<Option<(MmId, Difference)>, Expected> {
        match record {
            Record::Exec { mm, tid, brk, start_brk, start_stack, mmap_base, exe, .. } => {
                self.personalities.exec(*tid);
                self.began(*tid);
                let layout = Layout {
                    start_brk: *start_brk,
                    brk: *brk,
                    start_stack: *start_stack,
                    mmap_base: *mmap_base,
                };
                let space = AddressSpace::new(self.profile, layout);
                self.open(*mm, *tid, exe.clone(), space, None)?;
                self.shadow.exec(*mm, self.profile, layout);
                self.newest = Some(*mm);
            }
            Record::File(desc) => {
                self.files.insert(desc.id, File::new(desc.clone()));
            }
            Record::Vma(vma) => {
                let mm = self.newest.ok_or("an X line before the first V line")?;
                self.adopt(mm, vma)?;
            }
            Record::Vsyscall(line) => {
                let mm = self.newest.ok_or("an X line before the first Y line")?;
                self.known(mm)?.vsyscall = Some(line.clone());
            }
            Record::Call(call) => return self.call(call).map(|d| d.map(|d| (call.mm, d))),
            Record::DriverFlags { mm, flags } => self.known(*mm)?.driver_flags = Some(*flags),
            Record::Adopt { mm, vma } => {
                let difference = self.adopted_by_call(*mm, vma)?;
                self.count_adopted(*mm);
                return Ok(difference);
            }
            Record::Fault { mm, addr } => self.fault(*mm, *addr)?,
            Record::Grow { mm, end, start } => self.grow(*mm, *end, *start)?,
            Record::Settled { mm, start, end, flags } => self.settle(*mm, *start, *end, *flags)?,
            Record::Rename { file, path } => {
                self.files
                    .get(file)
                    .ok_or_else(|| format!("a file that a D line introduced, not {file}"))?
                    .rename(path);
            }
            Record::Fork { mm, child, tid, child_tid } => {
                self.personalities.inherit(*tid, *child_tid);
                self.fork(*mm, *child, *child_tid)?;
            }
            Record::Share { mm, tid, child_tid, .. } => {
                self.personalities.inherit(*tid, *child_tid);
                self.known(*mm)?;
            }
            Record::Check { mm, lines, hash } => return self.check(*mm, *lines, *hash),
            Record::Listing(listing) => return self.last_listing(listing),
            Record::Doubt { mm, cause } => self.known(*mm)?.doubt = Some(*cause),
            Record::ExitMmap { mm } => {
                // A trace may end an address space that began before the trace.
                self.ended(*mm);
                self.end(*mm);
            }
            Record::Image(image) => self.summary.stacks.add_image(image.clone()),
            Record::Stack(stack) => self.summary.stacks.add_stack(stack.clone()),
            Record::Symbol(symbol) => self.summary.stacks.add_symbol(symbol.clone()),
        }
        Ok(None)
    }

    fn known(&mut self, mm: MmId) -> Result<&mut MirroredSpace, Expected> {
        self.spaces.get_mut(&mm).ok_or_else(|| unknown(mm))
    }

    /// Does `work` with the address space, which it may change.
    fn change_space<T>(
        &mut self,
        mm: MmId,
        work: impl FnOnce(&mut SpaceWriter<'_>) -> T,
    ) -> Result<(&mut MirroredSpace, T), Expected> {
        let mirrored = self.spaces.get_mut(&mm).ok_or_else(|| unknown(mm))?;
        let (writer, owners) = (mirrored.space.get_mut(), mirrored.owners.as_mut());
        let done = work(&mut SpaceWriter { mm, writer, shadow: &mut self.shadow, owners });
        Ok((mirrored, done))
    }

    fn open(
        &mut self,
        mm: MmId,
        pid: u32,
        exe: String,
        space: AddressSpace<File, Engine>,
        vsyscall: Option<String>,
    ) -> Result<(), Expected> {
        if self.spaces.contains_key(&mm) {
            return Err(format!("a new number for a new address space; {mm} is in use"));
        }
        let figures = SpaceReport { mm, pid, exe, ..Default::default() };
        let mirrored = MirroredSpace {
            space,
            figures,
            vsyscall,
            driver_flags: None,
            reads_execute: false,
            last_call: None,
            determined: true,
            tainted: false,
            doubt: None,
            owners: None,
            rings: Rings::default(),
            lives: Lifetimes::default(),
        };
        self.spaces.insert(mm, mirrored);
        Ok(())
    }

    fn end(&mut self, mm: MmId) {
        self.keep_picture(mm, true);
        let Some(mut mirrored) = self.spaces.remove(&mm) else { return };
        self.shadow.end(mm);
        mirrored.lives.left().for_each(|life| self.summary.lives.add(life.bytes, life.lived));
        mirrored.measure();
        self.summary.timeline.end(mm);
        self.summary.add(mirrored.figures);
    }

    fn call(&mut self, call: &Call) -> Result<Option<Difference>, Expected> {
        self.personalities.call(call);
        self.keep_picture(call.mm, false);
        self.begin_owned(call)?;
        let features = self.features(call);
        let file = self.file(call.file)?;
        let reads_execute = self.personalities.reads_execute(call.tid);
        let mirrored = self.known(call.mm)?;
        let driver_flags = if call.op == Op::Mmap { mirrored.driver_flags.take() } else { None };
        mirrored.figures.stats.call(call.op, call.failed());
        mirrored.last_call = Some(call.clone());
        let brk = mirrored.space.get_mut().layout().brk;
        let ring = mirrored.destroyed_ring(call);
        let changed = std::mem::replace(&mut mirrored.reads_execute, reads_execute);
        if changed != reads_execute {
            self.change_space(call.mm, |space| {
                // It cannot fail.
                let _ = space.change(SpaceChange::SetReadImpliesExec(reads_execute));
            })?;
        }
        let context = CallContext { file, driver_flags, features, ring };
        let (mirrored, (ours, took)) = self.change_space(call.mm, |space| {
            let begun = Instant::now();
            let ours = perform(space, call, context);
            (ours, begun.elapsed())
        })?;
        mirrored.determined = ours != OurOutcome::Unknown;
        mirrored.move_ring(call);
        let mapped_now = mirrored.owners.as_mut().map_or(0, Owners::take_mapped);
        let stats = &mut mirrored.figures.stats;
        let result = match ours {
            OurOutcome::Unknown => None,
            OurOutcome::Result(result) => Some(result),
            OurOutcome::Address(addr) => {
                stats.predictable += 1;
                stats.predicted += u64::from(addr as isize == call.result);
                Some(addr as isize)
            }
        };
        let ended = mirrored.lives.call(call);
        let (vmas, mapped) = mirrored.size();
        let peak = &mut mirrored.figures.stats.vmas_peak;
        *peak = (*peak).max(vmas);
        if let Some(at) = call.at {
            self.summary.timeline.call(at, call.mm, (vmas, mapped));
        }
        self.summary.outcomes.entry(call.op).or_default().add(call, brk);
        for life in ended {
            self.summary.lives.add(life.bytes, life.lived);
            self.count_ended(life);
        }
        self.count_stack(call, mapped_now);
        if ours != OurOutcome::Unknown {
            self.summary.time(call.op, Some(took), None);
        }
        Ok(result
            .filter(|&result| result != call.result)
            .map(|ours| Difference::Result { ours, kernel: call.result }))
    }

    /// The features of the userfaultfd that an ioctl acts on. Its UFFDIO_API requested them.
    fn features(&mut self, call: &Call) -> usize {
        if call.op != Op::Ioctl {
            return 0;
        }
        let request = call.args[1] as u32;
        if let (UFFDIO_API, 0, Some([_, features, _])) = (request, call.result, call.memory) {
            self.userfaults.insert(call.args[0], features);
        }
        self.userfaults.get(&call.args[0]).copied().unwrap_or(0)
    }

    fn fault(&mut self, mm: MmId, addr: usize) -> Result<(), Expected> {
        let (mirrored, result) =
            self.change_space(mm, |space| space.change(SpaceChange::FirstWrite(addr)))?;
        mirrored.tolerate(result, || format!("a VMA at {addr:x} to fault in"))
    }

    fn grow(&mut self, mm: MmId, end: usize, start: usize) -> Result<(), Expected> {
        let (mirrored, result) =
            self.change_space(mm, |space| space.change(SpaceChange::GrowDown { end, start }))?;
        mirrored
            .tolerate(result, || format!("a stack that ends at {end:x} and can grow to {start:x}"))
    }

    fn fork(&mut self, mm: MmId, child: MmId, tid: u32) -> Result<(), Expected> {
        let parent = self.known(mm)?;
        let mut space = parent.space.get_mut().fork().map_err(|error| error.to_string())?;
        let owners = parent.owners.as_mut().map(|owners| owners.fork(&space.get_mut()));
        let (vsyscall, exe) = (parent.vsyscall.clone(), parent.figures.exe.clone());
        let (tainted, doubt, reads_execute) = (parent.tainted, parent.doubt, parent.reads_execute);
        self.open(child, tid, exe, space, vsyscall)?;
        self.shadow.fork(mm, child);
        let child = self.known(child)?;
        (child.tainted, child.doubt, child.reads_execute) = (tainted, doubt, reads_execute);
        child.owners = owners;
        Ok(())
    }

    /// Adds the kernel's time for the newest call of that kind.
    pub fn kernel_time(&mut self, op: Op, took: std::time::Duration) {
        self.summary.time(op, None, Some(took));
    }

    /// Removes the files that are no longer mapped, and returns their numbers.
    pub fn released(&mut self) -> Vec<FileId> {
        let gone: Vec<FileId> =
            self.files.iter().filter(|(_, file)| !file.is_mapped()).map(|(&id, _)| id).collect();
        for id in &gone {
            self.files.remove(id);
        }
        gone
    }
}

fn unknown(mm: MmId) -> Expected {
    format!("an address space that exists, not {mm}")
}
