//! Our runner: the calls of `vma`, with a map from pages to their bytes in place of page tables.

use std::collections::BTreeMap;

use vma::{
    AddressSpace, Error, Layout, Limits, MapFlags, MapRequest, NoFile, Profile, RemapRequest,
    VmFlags, Writer,
};

use crate::{
    Runner,
    program::{Advice, Kind, PAGE, PAGES, Place, Span, Step, Way, rights},
};

const MIDDLE: usize = 0x5555_5560_0000;
const WINDOW: usize = MIDDLE - PAGES / 2 * PAGE;
const END: usize = WINDOW + PAGES * PAGE;
const LAYOUT: Layout = Layout {
    start_brk: MIDDLE - (16 << 20),
    brk: MIDDLE,
    start_stack: 0,
    mmap_base: 0x7fff_0000_0000,
};
/// More than the window.
const STACK_LIMIT: usize = 8 << 20;

const MAPERR: &str = "SEGV maperr";
const ACCERR: &str = "SEGV accerr";

pub(crate) struct Model;

impl Runner for Model {
    fn run(&mut self, program: &[Step]) -> Vec<String> {
        let mut space = AddressSpace::<NoFile, grace::Single>::new(Profile::LINUX_6_18, LAYOUT);
        let mut process = Process { calls: space.get_mut(), pages: BTreeMap::new() };
        program.iter().map(|step| process.step(*step)).collect()
    }
}

struct Process<'a> {
    calls: Writer<'a, NoFile, grace::Single>,
    /// The present pages. A byte without an entry is 0.
    pages: BTreeMap<usize, BTreeMap<usize, u8>>,
}

fn said(result: Result<(), Error>) -> String {
    match result.map_err(Error::errno) {
        Ok(()) => "ok",
        Err(12) => "ENOMEM",
        Err(14) => "EFAULT",
        Err(17) => "EEXIST",
        Err(22) => "EINVAL",
        Err(_) => "an errno that no step gives",
    }
    .into()
}

/// Whether memory that is added to a VMA with these flags is populated at once.
fn populates(flags: VmFlags) -> bool {
    flags & (VmFlags::LOCKED | VmFlags::LOCKONFAULT) == VmFlags::LOCKED
}

fn page_of(at: usize) -> usize {
    at & !(PAGE - 1)
}

impl Process<'_> {
    fn step(&mut self, step: Step) -> String {
        match step {
            Step::Map { span, prot, place, kind } => self.map(span, prot, place, kind),
            Step::Unmap(Span { at, len }) => {
                let done = self.calls.munmap(WINDOW + at, len);
                self.forget_holes();
                said(done)
            }
            Step::Protect { span, prot } => said(self.protect(span, prot)),
            Step::Lock { span, on_fault } => said(self.lock(span, on_fault)),
            Step::Unlock(Span { at, len }) => said(self.calls.munlock(WINDOW + at, len)),
            Step::Advise { span, advice } => said(self.advise(span, advice)),
            Step::Remap { span, len, way, to } => self.remap(span, len, way, WINDOW + to),
            Step::Brk { to } => {
                let end = self.calls.brk(WINDOW + to);
                self.forget_holes();
                format!("at {:x}", end - WINDOW)
            }
            Step::Read { at } => match self.touch(WINDOW + at, None) {
                Ok(byte) => format!("= {byte:x}"),
                Err(signal) => signal.into(),
            },
            Step::Write { at, byte } => match self.touch(WINDOW + at, Some(byte)) {
                Ok(_) => "ok".into(),
                Err(signal) => signal.into(),
            },
            Step::InCore(Span { at, .. }) if !at.is_multiple_of(PAGE) => {
                said(Err(Error::Unaligned))
            }
            Step::InCore(span) if self.has_hole(span) => said(Err(Error::Unmapped)),
            Step::InCore(span) | Step::PageMap(span) => self.present(span),
            Step::Maps => self.listing(),
            Step::Sizes => {
                let sizes = self.calls.sizes();
                let kinds = [sizes.total, sizes.data, sizes.stack];
                kinds.map(|bytes| (bytes / 1024).to_string()).join(" ")
            }
            Step::Limit { bytes } => {
                let limit = if bytes == 0 { usize::MAX } else { bytes };
                self.calls.set_limits(Limits { address_space: limit, ..Limits::NONE });
                "ok".into()
            }
            _ => panic!("`mm` has this step: {step}"),
        }
    }

    fn map(&mut self, Span { at, len }: Span, prot: u32, place: Place, kind: Kind) -> String {
        let place = match place {
            Place::Hint => MapFlags::empty(),
            Place::Fixed => MapFlags::FIXED,
            Place::NoReplace => MapFlags::FIXED_NOREPLACE,
        };
        let more = match kind {
            Kind::Lazy => MapFlags::empty(),
            Kind::Populate => MapFlags::POPULATE,
            Kind::GrowsDown => MapFlags::GROWSDOWN,
            Kind::Locked | Kind::NoReserve | Kind::Stack => panic!("`mm` has these maps"),
        };
        let flags = MapFlags::PRIVATE | MapFlags::ANONYMOUS | place | more;
        let (addr, offset) = (WINDOW + at, 0);
        let request = MapRequest { addr, len, prot, flags, file: None, offset, driver_flags: None };
        let at = match self.calls.mmap(request) {
            Ok(at) if (WINDOW..END).contains(&at) => at,
            placed => return self.placed(placed, len),
        };
        let end = at + len;
        self.pages.retain(|page, _| !(at..end).contains(page));
        // PROT_NONE is refused at the first page.
        let all = (at..end).step_by(PAGE).filter(|_| kind == Kind::Populate);
        for page in all {
            let _refused = self.touch(page, (prot & 2 != 0).then_some(0));
        }
        self.placed(Ok(at), len)
    }

    /// Answers mmap and mremap. A map that was placed outside of the window goes away again.
    fn placed(&mut self, at: Result<usize, Error>, len: usize) -> String {
        match at {
            Ok(at) if (WINDOW..END).contains(&at) => format!("at {:x}", at - WINDOW),
            Ok(at) => {
                self.calls.munmap(at, len).unwrap();
                self.forget_holes();
                "elsewhere".into()
            }
            Err(error) => said(Err(error)),
        }
    }

    /// The start of the VMA of a page that is mapped.
    fn area_of(&self, page: usize) -> usize {
        self.calls.area_at(page).map_or(page, |area| area.start)
    }

    fn remap(&mut self, span: Span, new_len: usize, way: Way, to: usize) -> String {
        let keeps = matches!(way, Way::DontUnmap | Way::FixedDontUnmap);
        let fixed = matches!(way, Way::Fixed | Way::FixedDontUnmap).then_some(to);
        let request = RemapRequest {
            addr: WINDOW + span.at,
            old_len: span.len,
            new_len,
            may_move: way != Way::Stay,
            fixed,
            dont_unmap: keeps.then_some(fixed.unwrap_or(0)),
        };
        let from = WINDOW + span.at;
        // One call can move several VMAs. It leaves the target alone where the source has holes.
        let is_mapped = |page: &usize| self.calls.area_at(*page).is_some();
        let kept = span.len.min(new_len);
        let sources: Vec<usize> = (from..from + kept).step_by(PAGE).filter(is_mapped).collect();
        let areas: Vec<usize> = sources.iter().map(|&page| self.area_of(page)).collect();
        let done = self.calls.mremap(request);
        // A call that fails on the way has moved the VMAs before that whose target it unmapped.
        let failed = match (&done, fixed) {
            (Err(Error::SizeLimit), Some(to)) if span.len == new_len => {
                let target = |page: &usize| page.max(&from) - from + to;
                areas.iter().find(|area| self.calls.area_at(target(area)).is_none()).copied()
            }
            _ => None,
        };
        let moves = match (done.as_ref().ok().copied(), failed) {
            (Some(to), _) => Some((to, usize::MAX)),
            (None, Some(area)) => fixed.map(|to| (to, area)),
            (None, None) => None,
        };
        if let Some((to, failed)) = moves
            && to != from
        {
            let sources = sources.into_iter().zip(areas);
            let sources = sources.take_while(|&(_, area)| area != failed).map(|(page, _)| page);
            let mut moved = Vec::new();
            for page in sources {
                moved.push((page - from + to, self.pages.remove(&page)));
            }
            for (target, bytes) in moved {
                self.pages.remove(&target);
                self.pages.extend(bytes.map(|bytes| (target, bytes)));
            }
            if new_len != span.len {
                self.pages.retain(|page, _| !(to + kept..to + new_len).contains(page));
            }
        }
        if let Ok(to) = done
            && self.calls.area_at(to).is_some_and(|new| populates(new.vma.flags))
        {
            self.populate(&mut (to + kept..to + new_len).step_by(PAGE));
        }
        self.forget_holes();
        self.placed(done, new_len)
    }

    fn advise(&mut self, span: Span, advice: Advice) -> Result<(), Error> {
        let kind = match advice {
            Advice::DontNeed => vma::Advice::DontNeed,
            Advice::DontNeedLocked => vma::Advice::DontNeedLocked,
            Advice::Cold => vma::Advice::Cold,
            Advice::Remove => vma::Advice::Remove,
            Advice::Random => vma::Advice::Random,
            Advice::Normal => vma::Advice::Normal,
            Advice::PopulateRead => vma::Advice::PopulateRead,
            Advice::PopulateWrite => vma::Advice::PopulateWrite,
            Advice::GuardInstall | Advice::GuardRemove => panic!("`mm` has guard pages"),
            Advice::HugePage | Advice::NoHugePage | Advice::Collapse | Advice::Free => {
                panic!("`mm` has huge pages")
            }
            _ => panic!("`mm` has this advice"),
        };
        let start = WINDOW + span.at;
        let done = self.calls.madvise(start, span.len, kind);
        if !start.is_multiple_of(PAGE) {
            return done;
        }
        for page in (start..start + span.len).step_by(PAGE) {
            let flags = self.calls.area_at(page).map(|area| area.vma.flags);
            let locked = flags.is_some_and(|flags| flags.contains(VmFlags::LOCKED));
            match advice {
                // Holes are no obstacle.
                Advice::DontNeed if !locked => drop(self.pages.remove(&page)),
                Advice::DontNeedLocked => drop(self.pages.remove(&page)),
                Advice::PopulateRead if flags.is_some_and(|f| f.contains(VmFlags::READ)) => {
                    self.pages.entry(page).or_default();
                }
                Advice::PopulateWrite if flags.is_some_and(|f| f.contains(VmFlags::WRITE)) => {
                    self.pages.entry(page).or_default();
                }
                _ if done.is_err() && flags.is_some() => break,
                Advice::PopulateRead | Advice::PopulateWrite => break,
                _ => (),
            }
        }
        done
    }

    fn lock(&mut self, Span { at, len }: Span, on_fault: bool) -> Result<(), Error> {
        let start = page_of(WINDOW + at);
        let end = (WINDOW + at + len).next_multiple_of(PAGE);
        let done = self.calls.mlock(WINDOW + at, len, on_fault);
        let mut pages = (start..end).step_by(PAGE);
        if !on_fault && pages.clone().all(|page| self.calls.area_at(page).is_some()) {
            self.populate(&mut pages);
        }
        done
    }

    /// Stops at memory without rights.
    fn populate(&mut self, pages: &mut dyn Iterator<Item = usize>) {
        let access = |page| self.calls.area_at(page).unwrap().vma.flags & VmFlags::ACCESS;
        for page in pages.take_while(|page| !access(*page).is_empty()) {
            self.pages.entry(page).or_default();
        }
    }

    /// Memory that is locked and becomes writable is populated.
    fn protect(&mut self, Span { at, len }: Span, prot: u32) -> Result<(), Error> {
        let flags = |process: &Self, page| process.calls.area_at(page).map(|area| area.vma.flags);
        let pages = (page_of(WINDOW + at)..WINDOW + at + len).step_by(PAGE);
        let was: Vec<_> = pages.map(|page| (page, flags(self, page))).collect();
        let done = self.calls.mprotect(WINDOW + at, len, prot, None);
        let waits = VmFlags::LOCKED | VmFlags::WRITE | VmFlags::LOCKONFAULT;
        for (page, old) in was {
            let becomes = |flags: VmFlags| flags.contains(VmFlags::WRITE);
            if old.is_some_and(|old| old & waits == VmFlags::LOCKED)
                && flags(self, page).is_some_and(becomes)
            {
                self.pages.entry(page).or_default();
            }
        }
        done
    }

    /// Reads the byte at an address, or writes one. As on x86-64, any right allows to read.
    fn touch(&mut self, at: usize, byte: Option<u8>) -> Result<u8, &'static str> {
        if self.calls.area_at(at).is_none() {
            self.calls.expand_stack(at, STACK_LIMIT).map_err(|_| MAPERR)?;
        }
        let area = self.calls.area_at(at).ok_or(MAPERR)?;
        let needed = if byte.is_some() { VmFlags::WRITE } else { VmFlags::ACCESS };
        if !area.vma.flags.intersects(needed) {
            return Err(ACCERR);
        }
        let page = self.pages.entry(page_of(at)).or_default();
        if let Some(byte) = byte {
            self.calls.first_write(at).unwrap();
            page.insert(at % PAGE, byte);
        }
        Ok(page.get(&(at % PAGE)).copied().unwrap_or(0))
    }

    fn forget_holes(&mut self) {
        let calls = &self.calls;
        self.pages.retain(|page, _| calls.area_at(*page).is_some());
    }

    fn has_hole(&self, Span { at, len }: Span) -> bool {
        let mut pages = (WINDOW + at..WINDOW + at + len).step_by(PAGE);
        pages.any(|page| self.calls.area_at(page).is_none())
    }

    fn present(&self, Span { at, len }: Span) -> String {
        let first = page_of(WINDOW + at);
        let pages = (0..len.div_ceil(PAGE)).map(|number| first + number * PAGE);
        pages.map(|page| if self.pages.contains_key(&page) { '1' } else { '0' }).collect()
    }

    fn listing(&self) -> String {
        let vmas = self.calls.areas().filter(|area| area.start < END).map(|area| {
            let flags = area.vma.flags;
            let bits = [VmFlags::READ, VmFlags::WRITE, VmFlags::EXEC].into_iter().enumerate();
            let prot = bits.map(|(bit, flag)| (flags.contains(flag) as u32) << bit).sum();
            let (start, end) = (area.start - WINDOW, area.end - WINDOW);
            format!("{start:x}-{end:x} {}p", rights(prot))
        });
        vmas.collect::<Vec<_>>().join("; ")
    }
}
