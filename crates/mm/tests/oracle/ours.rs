//! Our runner: an address space with pages, on the machine in software.

use std::{
    mem::ManuallyDrop,
    panic::{self, AssertUnwindSafe},
    sync::Arc,
};

use machine::{Asid, PageSize, Translated, VirtAddr};
use mm::{
    Access, AddressSpace, Backing, Error, FaultError, HugePages, Layout, Limits, LockAll, MapFlags,
    ObjectError, Profile, RemapRequest, Shmem, SyncFlags,
};
use paging::{Paging, X86_64L4};
use sim::{Config, Grace, Sim};
use vma::VmFlags;

use crate::{
    Runner,
    answers::said,
    chunks::{self, Chunks},
    compare::LEFT_OUT,
    monitor::Call,
    monitored::Monitor,
    program::{
        Advice, Copied, FILE_PAGES, Kind, Of, PAGE, PAGES, PROCESSES, Place, Span, Step, THREADS,
        Way, rights,
    },
};

/// The frames of the machine: with huge pages, enough for the whole window in each process, and for
/// blocks of which a part is still in use.
const FRAMES: u64 = if chunks::HAS_HUGE { 1 << 15 } else { 512 };
const MIDDLE: usize = 0x5555_5560_0000;
pub(crate) const WINDOW: usize = MIDDLE - PAGES / 2 * PAGE;
pub(crate) const END: usize = WINDOW + PAGES * PAGE;
const LAYOUT: Layout = Layout {
    start_brk: MIDDLE - (16 << 20),
    brk: MIDDLE,
    start_stack: 0,
    mmap_base: 0x7fff_0000_0000,
};

pub(crate) type Space = AddressSpace<Sim, X86_64L4, Grace>;

pub(crate) struct Ours;

impl Runner for Ours {
    /// Each thread is a CPU, with its own TLB. A CPU runs until a step gives the turn to another.
    fn run(&mut self, program: &[Step]) -> Vec<String> {
        let config = Config { cpus: THREADS, frames: FRAMES, ..Config::default() };
        let sim = Sim::new(config).unwrap();
        let paging: Arc<_> = Paging::try_new(sim.clone(), PageSize::Size1G).unwrap();
        let mut world = ManuallyDrop::new(sim.on_cpu(0, || World::new(&sim, &paging)));
        let mut answers = Vec::new();
        let ran = panic::catch_unwind(AssertUnwindSafe(|| {
            while answers.len() < program.len() {
                let cpu = world.cpu();
                sim.on_cpu(cpu, || world.run(cpu, &program[answers.len()..], &mut answers));
            }
        }));
        if let Err(cause) = ran {
            // The machine has halted, so the world cannot be taken down. The answer is a
            // difference, which is made small.
            let cause = cause.downcast_ref::<String>().map_or("a panic", |cause| &**cause);
            answers.push(cause.lines().next().unwrap_or_default().to_string());
            answers.resize(program.len(), String::new());
            return answers;
        }
        let world = ManuallyDrop::into_inner(world);
        sim.on_cpu(0, || drop(world));
        for cpu in 0..THREADS {
            sim.on_cpu(cpu, || {
                assert!(sim.settle());
                paging.quick().drain();
            });
        }
        sim.check_leaks().unwrap();
        answers
    }
}

/// A process: its space, and the thread that has its turn.
struct Alive {
    space: Space,
    chunks: Chunks,
    thread: usize,
}

/// The processes, and their file.
struct World<'a> {
    sim: &'a Sim,
    file: mm::Shared<Shmem<Sim>>,
    opened: Backing<Sim>,
    read_only: Backing<Sim>,
    /// By their numbers.
    processes: Vec<Option<Alive>>,
    /// The process that has the turn.
    now: usize,
    monitor: Arc<Monitor>,
}

impl<'a> World<'a> {
    fn new(sim: &'a Sim, paging: &Arc<Paging<Sim, X86_64L4>>) -> Self {
        let mut space = Space::try_new(paging, Asid(1), None, Profile::LINUX_6_18, LAYOUT).unwrap();
        let monitor = Arc::<Monitor>::default();
        space.set_userfault_handler(monitor.clone());
        if chunks::HAS_HUGE {
            space.set_huge_pages(HugePages::Madvise).unwrap();
        }
        let file = Shmem::memfd(paging, "pages", 1).unwrap();
        file.set_size((FILE_PAGES * PAGE) as u64).unwrap();
        let opened = Backing::open(file.clone(), true).unwrap();
        let read_only = Backing::open(file.clone(), false).unwrap();
        let processes = vec![Some(Alive { space, thread: 0, chunks: Chunks::default() })];
        World { sim, file, opened, read_only, processes, now: 0, monitor }
    }

    fn current(&self) -> &Alive {
        self.processes[self.now].as_ref().unwrap()
    }

    /// The CPU of the next step.
    fn cpu(&self) -> usize {
        self.current().thread
    }

    /// Takes steps as long as they are this CPU's.
    fn run(&mut self, cpu: usize, steps: &[Step], answers: &mut Vec<String>) {
        self.activate();
        for step in steps {
            let before = self.now;
            answers.push(self.step(*step));
            if self.cpu() != cpu {
                return;
            }
            if self.now != before {
                self.activate();
            }
        }
    }

    fn activate(&self) {
        // SAFETY: the test needs no other mapping, and no other tables have the tag.
        unsafe { self.current().space.activate() };
    }

    fn step(&mut self, step: Step) -> String {
        let process = self.now;
        if let Some(Alive { space, chunks, .. }) = &mut self.processes[process]
            && chunks.begin(space, step)
        {
            return LEFT_OUT.into();
        }
        let answer = self.carry_out(step);
        if let Some(Alive { space, chunks, .. }) = &mut self.processes[process] {
            chunks.end(space, step, &answer);
        }
        answer
    }

    fn carry_out(&mut self, step: Step) -> String {
        match step {
            Step::Fork if self.processes.len() == PROCESSES => "none".into(),
            Step::Fork => {
                let asid = Asid(self.processes.len() as u16 + 1);
                let Alive { space, thread, chunks } = self.current();
                let chunks = chunks.of_child(space);
                let child = Alive { space: space.fork(asid).unwrap(), thread: *thread, chunks };
                self.processes.push(Some(child));
                "ok".into()
            }
            Step::Thread { to } if to < THREADS => {
                self.processes[self.now].as_mut().unwrap().thread = to;
                "ok".into()
            }
            Step::Thread { .. } => "none".into(),
            Step::Switch { to } => self.switch(to),
            Step::PageMap(_)
            | Step::InCore(_)
            | Step::Smaps
            | Step::Chunks
            | Step::Monitor(Call::Scan { .. })
                if self.now != 0 =>
            {
                "of the first process only".into()
            }
            Step::Monitor(_) if self.now != 0 => "none".into(),
            Step::Monitor(call) => self.monitor.step(&self.current().space, call),
            Step::Exit { to } if self.now == 0 || to == self.now => "none".into(),
            Step::Exit { to } => {
                let before = self.now;
                let answer = self.switch(to);
                if self.now != before {
                    self.activate();
                    // The other CPUs are idle, so it is active nowhere.
                    self.processes[before] = None;
                }
                answer
            }
            _ => {
                let (space, file) = (&self.current().space, &self.file);
                let (opened, read_only) = (&self.opened, &self.read_only);
                Process { sim: self.sim, space, file, opened, read_only }.step(step)
            }
        }
    }

    fn switch(&mut self, to: usize) -> String {
        let Some(Some(_)) = self.processes.get(to) else { return "none".into() };
        self.now = to;
        "ok".into()
    }
}

fn shared(flags: VmFlags) -> char {
    if flags.contains(VmFlags::MAYSHARE) { 's' } else { 'p' }
}

struct Process<'a> {
    sim: &'a Sim,
    space: &'a Space,
    file: &'a mm::Shared<Shmem<Sim>>,
    opened: &'a Backing<Sim>,
    read_only: &'a Backing<Sim>,
}

fn place_flags(place: Place) -> MapFlags {
    match place {
        Place::Hint => MapFlags::empty(),
        Place::Fixed => MapFlags::FIXED,
        Place::NoReplace => MapFlags::FIXED_NOREPLACE,
    }
}

impl Process<'_> {
    fn step(&self, step: Step) -> String {
        let space = self.space;
        match step {
            Step::Map { span, prot, place, kind } => self.map(span, prot, place, kind),
            Step::Share { span: Span { at, len }, prot, place, of, offset } => {
                self.share(WINDOW + at, len, prot, place_flags(place), of, offset)
            }
            Step::SetSize { len } => said(self.file.set_size(len as u64).map_err(Error::from)),
            Step::Punch(Span { at, len }) => {
                let bytes = at as u64..(at + len) as u64;
                said(self.file.punch_hole(bytes).map_err(Error::from))
            }
            Step::Get { at } => {
                let mut byte = [0];
                match self.file.read(at as u64, &mut byte) {
                    0 => "nothing".into(),
                    _ => format!("= {:x}", byte[0]),
                }
            }
            Step::Put { at, byte } => {
                said(self.file.write(at as u64, &[byte]).map(drop).map_err(Error::from))
            }
            Step::Sync { span: Span { at, len }, flags } => {
                said(space.msync(WINDOW + at, len, SyncFlags::from_bits_retain(flags)))
            }
            Step::Fork
            | Step::Switch { .. }
            | Step::Exit { .. }
            | Step::Thread { .. }
            | Step::Monitor(_) => unreachable!(),
            Step::Unmap(Span { at, len }) => said(space.munmap(WINDOW + at, len)),
            Step::Protect { span: Span { at, len }, prot } => {
                said(space.mprotect(WINDOW + at, len, prot, None))
            }
            Step::Advise { span: Span { at, len }, advice } => {
                let advice = match advice {
                    Advice::DontNeed => mm::Advice::DontNeed,
                    Advice::DontNeedLocked => mm::Advice::DontNeedLocked,
                    Advice::Cold => mm::Advice::Cold,
                    Advice::Remove => mm::Advice::Remove,
                    Advice::Random => mm::Advice::Random,
                    Advice::Normal => mm::Advice::Normal,
                    Advice::PopulateRead => mm::Advice::PopulateRead,
                    Advice::PopulateWrite => mm::Advice::PopulateWrite,
                    Advice::GuardInstall => mm::Advice::GuardInstall,
                    Advice::GuardRemove => mm::Advice::GuardRemove,
                    Advice::HugePage => mm::Advice::HugePage,
                    Advice::NoHugePage => mm::Advice::NoHugePage,
                    Advice::Collapse => mm::Advice::Collapse,
                    Advice::Sequential => mm::Advice::Sequential,
                    Advice::WillNeed => mm::Advice::WillNeed,
                    Advice::DontFork => mm::Advice::DontFork,
                    Advice::DoFork => mm::Advice::DoFork,
                    Advice::DontDump => mm::Advice::DontDump,
                    Advice::DoDump => mm::Advice::DoDump,
                    Advice::WipeOnFork => mm::Advice::WipeOnFork,
                    Advice::KeepOnFork => mm::Advice::KeepOnFork,
                    Advice::Free => {
                        let _same = space.madvise(WINDOW + at, len, mm::Advice::DontNeed);
                        mm::Advice::Free
                    }
                };
                said(space.madvise(WINDOW + at, len, advice))
            }
            Step::Brk { to } => format!("at {:x}", space.brk(WINDOW + to).unwrap() - WINDOW),
            Step::Read { at } => match self.touch(WINDOW + at, None) {
                Ok(byte) => format!("= {byte:x}"),
                Err(signal) => signal.into(),
            },
            Step::Write { at, byte } => match self.touch(WINDOW + at, Some(byte)) {
                Ok(_) => "ok".into(),
                Err(signal) => signal.into(),
            },
            Step::InCore(Span { at, len }) => {
                let mut present = vec![0; len.div_ceil(PAGE)];
                match space.mincore(WINDOW + at, &mut present) {
                    Ok(()) => present.iter().map(|bit| if *bit == 1 { '1' } else { '0' }).collect(),
                    Err(error) => said(Err(error)),
                }
            }
            Step::PageMap(Span { at, len }) => {
                let first = (WINDOW + at) & !(PAGE - 1);
                let pages = (0..len.div_ceil(PAGE)).map(|number| first + number * PAGE);
                let present = |page| space.resident(page..page + PAGE) == 1;
                pages.map(|page| if present(page) { '1' } else { '0' }).collect()
            }
            Step::Maps => self.listing(),
            Step::Smaps => self.usage(),
            Step::Chunks => chunks::present(self.space),
            Step::Sizes => {
                let sizes = space.sizes();
                let kinds = [sizes.total, sizes.data, sizes.stack];
                kinds.map(|bytes| (bytes / 1024).to_string()).join(" ")
            }
            Step::Limit { bytes } => {
                let limit = if bytes == 0 { usize::MAX } else { bytes };
                space.set_limits(Limits { address_space: limit, ..Limits::NONE });
                "ok".into()
            }
            Step::Lock { span: Span { at, len }, on_fault } => {
                said(space.mlock(WINDOW + at, len, on_fault))
            }
            Step::Unlock(Span { at, len }) => said(space.munlock(WINDOW + at, len)),
            Step::LockAll { flags } => {
                let has = |flag| flags & flag != 0;
                let (current, future, on_fault) = (has(1), has(2), has(4));
                said(space.mlockall(LockAll { current, future, on_fault }))
            }
            Step::UnlockAll => said(space.munlockall()),
            Step::Copy { way, span, byte } => self.copy(way, span, byte),
            Step::Remap { span, len, way, to } => self.remap(span, len, way, WINDOW + to),
        }
    }

    fn map(&self, Span { at, len }: Span, prot: u32, place: Place, kind: Kind) -> String {
        let place = place_flags(place);
        let more = match kind {
            Kind::Lazy => MapFlags::empty(),
            Kind::Populate => MapFlags::POPULATE,
            Kind::GrowsDown => MapFlags::GROWSDOWN,
            Kind::Locked => MapFlags::LOCKED,
            Kind::NoReserve => MapFlags::NORESERVE,
            Kind::Stack => MapFlags::STACK,
        };
        let flags = MapFlags::PRIVATE | MapFlags::ANONYMOUS | place | more;
        self.placed(self.space.mmap(WINDOW + at, len, prot, flags), len)
    }

    fn share(
        &self,
        at: usize,
        len: usize,
        prot: u32,
        place: MapFlags,
        of: Of,
        offset: usize,
    ) -> String {
        let flags = place
            | match of {
                Of::Private | Of::ReadPrivate => MapFlags::PRIVATE,
                Of::Anonymous => MapFlags::SHARED | MapFlags::ANONYMOUS,
                Of::Shared | Of::ReadShared => MapFlags::SHARED,
                Of::SharedPopulate => MapFlags::SHARED | MapFlags::POPULATE,
                Of::PrivatePopulate => MapFlags::PRIVATE | MapFlags::POPULATE,
                Of::SharedLocked => MapFlags::SHARED | MapFlags::LOCKED,
                Of::PrivateLocked => MapFlags::PRIVATE | MapFlags::LOCKED,
            };
        let file = match of {
            Of::ReadShared | Of::ReadPrivate => self.read_only,
            _ => self.opened,
        };
        let done = match of {
            Of::Anonymous => self.space.mmap(at, len, prot, flags),
            _ => self.space.mmap_object(at, len, prot, flags, file.clone(), offset),
        };
        self.placed(done, len)
    }

    fn copy(&self, way: Copied, Span { at, len }: Span, byte: u8) -> String {
        let (at, mut bytes) = (WINDOW + at, vec![byte; len]);
        let done = match way {
            Copied::Read => self.space.read(at, &mut bytes),
            Copied::Peek => self.space.peek(at, &mut bytes),
            Copied::Write => self.space.write(at, &bytes),
            Copied::Poke => self.space.poke(at, &bytes),
        };
        match done.map_or_else(|error| error.copied, |()| len) {
            0 if len > 0 => "nothing".into(),
            0 => "0 bytes = 0 0".into(),
            copied => format!("{copied:x} bytes = {:x} {:x}", bytes[0], bytes[copied - 1]),
        }
    }

    fn remap(&self, Span { at, len }: Span, new_len: usize, way: Way, to: usize) -> String {
        let keeps = matches!(way, Way::DontUnmap | Way::FixedDontUnmap);
        let fixed = matches!(way, Way::Fixed | Way::FixedDontUnmap).then_some(to);
        let request = RemapRequest {
            addr: WINDOW + at,
            old_len: len,
            new_len,
            may_move: way != Way::Stay,
            fixed,
            dont_unmap: keeps.then_some(fixed.unwrap_or(0)),
        };
        self.placed(self.space.mremap(request), new_len)
    }

    fn placed(&self, done: Result<usize, Error>, len: usize) -> String {
        match done {
            Ok(at) if (WINDOW..END).contains(&at) => format!("at {:x}", at - WINDOW),
            Ok(at) => {
                self.space.munmap(at, len).unwrap();
                "elsewhere".into()
            }
            Err(error) => said(Err(error)),
        }
    }

    /// Reads the byte at an address, or writes one, as a program does.
    fn touch(&self, at: usize, byte: Option<u8>) -> Result<u8, &'static str> {
        let at = VirtAddr::new(at as u64);
        let access = if byte.is_some() { Access::Write } else { Access::Read };
        loop {
            let mut found = [byte.unwrap_or(0)];
            // SAFETY: a program's memory, which no Rust code holds a reference to.
            let done = unsafe {
                match byte {
                    Some(_) => self.sim.write(at, &found),
                    None => self.sim.read(at, &mut found),
                }
            };
            if done.is_ok() {
                return Ok(found[0]);
            }
            match self.space.handle_fault(at, access) {
                Ok(_) => {}
                Err(FaultError::Unmapped(_) | FaultError::Guard(_)) => return Err("SEGV maperr"),
                Err(FaultError::Denied(..)) => return Err("SEGV accerr"),
                Err(FaultError::Object(_, ObjectError::BeyondEnd) | FaultError::UserFault(_)) => {
                    return Err("BUS adrerr");
                }
                // Of a kernel without CONFIG_MEMORY_FAILURE; others say BUS_MCEERR_AR.
                Err(FaultError::Poisoned(_)) => return Err("BUS adrerr"),
                Err(error) => panic!("{error}"),
            }
        }
    }

    fn usage(&self) -> String {
        let mut vmas = Vec::new();
        self.space.for_each_vma(|range, _| {
            if range.start < END {
                let usage = self.space.usage(range.clone());
                let (start, end) = (range.start - WINDOW, range.end - WINDOW);
                let (resident, anonymous) = (usage.resident / 1024, usage.anonymous / 1024);
                let huge = usage.huge / 1024;
                vmas.push(format!("{start:x}-{end:x} {resident} {anonymous} {huge}"));
            }
        });
        vmas.join("; ")
    }

    fn listing(&self) -> String {
        let mut vmas = Vec::new();
        self.space.for_each_vma(|range, flags| {
            if range.start < END {
                let bits = [VmFlags::READ, VmFlags::WRITE, VmFlags::EXEC].into_iter().enumerate();
                let prot = bits.map(|(bit, flag)| (flags.contains(flag) as u32) << bit).sum();
                let (start, end) = (range.start - WINDOW, range.end - WINDOW);
                vmas.push(format!("{start:x}-{end:x} {}{}", rights(prot), shared(flags)));
            }
        });
        vmas.join("; ")
    }
}
