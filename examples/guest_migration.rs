//! Moves the memory of a guest to another place while the guest runs (live migration, pre-copy).
//!
//! The machine in software stands for the second stage of VT-x: its CPUs are the guest's virtual
//! CPUs, and its addresses are guest-physical. Two virtual CPUs write to the guest's memory. The
//! host logs the writes by dirty bits, and copies in rounds: first all pages, then those that were
//! written since. When few are left, it stops the guest and copies these. At the end, the copy must
//! have the contents of the memory, word for word.
//!
//! ```sh
//! cargo run -p samara-examples --bin guest_migration
//! ```

use samara::machine::{
    Asid, Frame, FrameSource, Memory, NodePolicy, Owner, PageSize, Step, Translated, VirtAddr,
    VirtRange,
};
use samara::paging::{Attrs, Ept4, Error, Logging, Mapping, PageTables, Paging};
use samara::sim::{Arch, Config, Grace, Program, Sim, threads};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

type Tables = PageTables<Sim, Ept4, Grace>;

/// Virtual CPUs that run the guest's program. One more CPU is the host's.
const VCPUS: usize = 2;
/// The guest's memory: a block of 2 MiB at guest-physical address 0.
const PAGES: usize = 512;
const WORDS: usize = 512;
/// The host stops the guest when a round finds no more dirty pages than this.
const FEW: usize = 8;
const MOST_ROUNDS: usize = 100;

fn memory() -> Result<VirtRange, String> {
    VirtRange::new(VirtAddr::new(0), PageSize::Size2M.bytes()).ok_or("no such range".into())
}

/// A page of the guest, as the host sees it.
fn words(sim: &Sim, block: Frame, page: usize) -> Option<&[AtomicU64; WORDS]> {
    let base = sim.frame_ptr(block.checked_add(page as u64)?)?;
    // SAFETY: a frame of the guest, which all access by atomic words, freed at the end.
    Some(unsafe { base.cast().as_ref() })
}

/// The program of a virtual CPU: it writes to all of its half of the memory, and then, until it is
/// told to stop, to fewer and fewer pages. Counts its stores.
fn guest(sim: &Sim, tables: &Tables, vcpu: usize, stop: &AtomicBool) -> Result<u64, String> {
    // SAFETY: the guest needs no other mapping, and the tag is that of its tables.
    unsafe { tables.activate() };
    let (half, mut stores) = (PAGES / VCPUS, 0);
    // Relaxed: the host waits for the end of the program before it reads the last pages.
    while !stop.load(Ordering::Relaxed) {
        let hot = (half as u64 >> (stores / 512).min(6)).max(1);
        let page = vcpu * half + (stores % hot) as usize;
        let at = VirtAddr::new((page * 4096 + stores as usize % WORDS * 8) as u64);
        stores += 1;
        // SAFETY: the guest's memory. No page is protected, so no store faults for good.
        unsafe { sim.store(at, stores) }.map_err(|fault| fault.to_string())?;
    }
    Ok(stores)
}

/// The copies of the host, and its counts.
struct Copied {
    pages: Vec<[u64; WORDS]>,
    /// Pages copied in each round.
    rounds: Vec<usize>,
}

impl Copied {
    /// Copies the pages that were written since the last round.
    fn round(&mut self, sim: &Sim, tables: &Tables, block: Frame) -> Result<usize, Error> {
        let (mut pending, mut dirty) = (tables.no_flush(), Vec::new());
        let note = |page: Mapping| dirty.push((page.page.get() >> 12) as usize);
        let range = memory().map_err(|_| Error::Empty)?;
        // SAFETY: the host alone changes the tables.
        unsafe { tables.collect_dirty(range, Logging::DirtyBits, &mut pending, note) }?;
        // Writes until here are in the memory that is read below. Later ones leave new marks.
        pending.flush();
        dirty.iter().for_each(|page| self.copy(sim, block, *page));
        self.rounds.push(dirty.len());
        Ok(dirty.len())
    }

    fn copy(&mut self, sim: &Sim, block: Frame, page: usize) {
        if let (Some(from), Some(to)) = (words(sim, block, page), self.pages.get_mut(page)) {
            // Relaxed: a page that changes meanwhile is copied again.
            to.iter_mut().zip(from).for_each(|(to, from)| *to = from.load(Ordering::Relaxed));
        }
    }
}

/// The host: copies while the guest runs, stops it, copies the rest.
fn host(
    sim: &Sim,
    tables: &Tables,
    block: Frame,
    stop: &AtomicBool,
    running: &AtomicUsize,
) -> Result<Copied, Error> {
    let range = memory().map_err(|_| Error::Empty)?;
    let mut pending = tables.no_flush();
    // SAFETY: the host alone changes the tables.
    unsafe { tables.log_start(range, Logging::DirtyBits, &mut pending) }?;
    pending.flush();
    let mut copied = Copied { pages: vec![[0; WORDS]; PAGES], rounds: vec![PAGES] };
    (0..PAGES).for_each(|page| copied.copy(sim, block, page));
    for _ in 0..MOST_ROUNDS {
        (0..2000).for_each(|_| sim.relax());
        if copied.round(sim, tables, block)? <= FEW {
            break;
        }
    }
    // Relaxed: the wait below orders it.
    stop.store(true, Ordering::Relaxed);
    // Acquire: the guest's last stores are visible; pairs with the Release of its end.
    while running.load(Ordering::Acquire) != 0 {
        sim.relax();
    }
    copied.round(sim, tables, block)?;
    Ok(copied)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let config = Config { cpus: VCPUS + 1, arch: Arch::Ept, ..Config::default() };
    let sim = Sim::new(config)?;
    let paging = Paging::<Sim, Ept4>::try_new(sim.clone(), PageSize::Size1G)?;
    let range = memory()?;
    let (tables, block) = sim.on_cpu(0, || -> Result<_, Box<dyn std::error::Error>> {
        let tables = Tables::user(&paging, Asid(1), None)?;
        let block = sim.alloc(PageSize::Size2M.order(), NodePolicy::Local)?;
        // SAFETY: the block is ours.
        unsafe { sim.set_owner(block, Owner::User) }?;
        // SAFETY: the block is the guest's until the end. It is mapped by one entry of 2 MiB.
        unsafe { tables.map(range, block, Attrs::USER_RW) }.map_err(|failed| failed.error)?;
        Ok((tables, block))
    })?;

    let (stop, running) = (AtomicBool::new(false), AtomicUsize::new(VCPUS));
    let mut ends: Vec<_> = (0..VCPUS).map(|_| Ok(0)).collect();
    let mut moved = Err(Error::Empty);
    let mut programs: Vec<Program<'_>> = Vec::new();
    for (vcpu, end) in ends.iter_mut().enumerate() {
        let (sim, tables, stop, running) = (&sim, &tables, &stop, &running);
        programs.push(Box::new(move || {
            *end = guest(sim, tables, vcpu, stop);
            // Release: pairs with the Acquire of the host.
            running.fetch_sub(1, Ordering::Release);
        }));
    }
    programs.push(Box::new(|| moved = host(&sim, &tables, block, &stop, &running)));
    threads(&sim, programs)?;

    let copied = moved?;
    let stores = ends.into_iter().sum::<Result<u64, String>>()?;
    println!("the guest made {stores} stores; pages copied in each round: {:?}", copied.rounds);
    for (page, copy) in copied.pages.iter().enumerate() {
        let memory = words(&sim, block, page).ok_or("the guest's memory is gone")?;
        // Relaxed: the guest has stopped.
        if copy.iter().zip(memory).any(|(copy, word)| *copy != word.load(Ordering::Relaxed)) {
            return Err(format!("the copy of page {page} differs").into());
        }
    }
    println!("all {PAGES} pages of the copy are equal to the guest's");

    // The guest could go on here, with its large page again.
    sim.on_cpu(0, || -> Result<(), Box<dyn std::error::Error>> {
        let mut pending = tables.no_flush();
        // SAFETY: the guest does not run.
        let whole = unsafe { tables.rejoin(range.start(), &mut pending) }?;
        pending.flush();
        println!("its memory is {} again", if whole { "one page of 2 MiB" } else { "in pieces" });
        // SAFETY: the guest is gone.
        unsafe { tables.unmap(range, |_| ()) }.map_err(|failed| failed.error)?.flush();
        drop(tables);
        // SAFETY: it was unmapped and flushed, and nothing points to it.
        unsafe { sim.free(block) }?;
        if whole { Ok(()) } else { Err("the large page was not rebuilt".into()) }
    })?;
    println!("done: {} TLB flushes, no violation", sim.stats().flushes);
    Ok(())
}
