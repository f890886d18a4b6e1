//! Quicklists and `get_user_pages_fast`, each beside what it replaces, on a host that is memory and threads.
//!
//! `cargo bench -p paging`. Ratios are what counts; each pair is measured in turns, in one run.

#[path = "../tests/host/mod.rs"]
mod host;

use host::{Grace, Host};
use machine::*;
use paging::*;
use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Barrier, Mutex, RwLock};
use std::time::{Duration, Instant};

type Space = PageTables<Host, X86_64L4, Grace>;

/// What is replaced, and what replaces it: ns to take a table, and to give it back.
type Pair = ((f64, f64), (f64, f64));

const ROUNDS: usize = 15;

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() {
    if std::env::args().any(|argument| argument == "--test") {
        return;
    }
    Host::be(0);
    quicklists();
    for writer in [false, true] {
        for threads in 1..=2 {
            gup(threads, writer);
        }
    }
}

/// Takes so many tables, then gives all back; ns for each that is taken, and what giving costs.
fn batch(take: impl Fn() -> Frame, give: impl Fn(Frame)) -> (f64, f64) {
    const TABLES: usize = 128;
    let mut taken = Vec::with_capacity(TABLES);
    let (mut taking, mut giving) = (Duration::ZERO, Duration::ZERO);
    for _ in 0..200 {
        let began = Instant::now();
        taken.extend((0..TABLES).map(|_| black_box(take())));
        taking += began.elapsed();
        let began = Instant::now();
        taken.drain(..).for_each(&give);
        giving += began.elapsed();
    }
    let each = |time: Duration| time.as_secs_f64() * 1e9 / (200 * TABLES) as f64;
    (each(taking), each(giving))
}

fn quicklists() {
    let host = Host::new(2, 8192);
    let paging = Paging::<Host, X86_64L4>::try_new(host.clone(), PageSize::Size1G).unwrap();
    let kernel = Arc::new(Space::kernel(&paging).unwrap());
    kernel.reserve(VirtRange::new(VirtAddr::new(0xffff_8000_0000_0000), 1 << 46).unwrap()).unwrap();
    drop(Space::user(&paging, Asid(1), Some(kernel.clone())).unwrap());
    for (name, list, level) in [
        ("pte", QUICK_TABLE, 0),
        ("pmd", QUICK_TABLE, 1),
        ("pud", QUICK_TABLE, 2),
        ("pgd", QUICK_ROOT, 3),
    ] {
        let quick = || {
            let page = paging.quick().alloc(list).unwrap();
            host.set_owner(page, Owner::Table(level)).unwrap();
            page
        };
        // SAFETY: as it was.
        let back = |page| unsafe { paging.quick().free(list, page) }.unwrap();
        // What they replace: the frame source, cleared; with the kernel's half, of the top.
        let made = || {
            let page = host.alloc(0, Place::Local).unwrap();
            let words = host.frame_ptr(page).unwrap().cast::<u64>();
            // SAFETY: just allocated.
            unsafe { words.write_bytes(0, 512) };
            if list == QUICK_ROOT {
                for index in 256..512 {
                    // SAFETY: tables, and a page of ours.
                    unsafe {
                        let entry = host.entry(kernel.root(), index).unwrap().load();
                        words.add(index).write(entry);
                    }
                }
            }
            host.set_owner(page, Owner::Table(level)).unwrap();
            page
        };
        // SAFETY: nobody uses it.
        let freed = |page| unsafe { host.free(page) }.unwrap();
        let rounds: Vec<_> =
            (0..ROUNDS).map(|_| (batch(made, freed), batch(quick, back))).collect();
        let of = |pick: fn(&Pair) -> f64| median(rounds.iter().map(pick).collect());
        let (old, new) = (of(|pair| pair.0.0), of(|pair| pair.1.0));
        let (old_back, new_back) = (of(|pair| pair.0.1), of(|pair| pair.1.1));
        println!(
            "{name}: alloc {old:.1} -> {new:.1} ns ({:.0}x); free {old_back:.1} -> {new_back:.1} ns",
            old / new
        );
    }
    println!("{:?}", paging.quick().stats(QUICK_TABLE));
}

/// What it replaces: the address space's lock for reading, then each page with its table's lock.
fn locked(space: &Space, lock: &RwLock<()>, range: VirtRange, into: &mut [Frame]) -> usize {
    let _guard = lock.read().unwrap();
    space.get_user_pages(range.start(), true, into, |_, _| false).map_or(0, Pins::keep)
}

fn gup(threads: usize, writer: bool) {
    const PAGES: u64 = 16;
    let host = Host::new(threads + 1, 4096);
    let paging = Paging::<Host, X86_64L4>::try_new(host.clone(), PageSize::Size1G).unwrap();
    let space = Space::user(&paging, Asid(1), None).unwrap();
    let lock = RwLock::new(());
    let mut all = Vec::new();
    let range =
        |cpu: usize| VirtRange::new(VirtAddr::new((cpu as u64 + 1) << 21), PAGES << 12).unwrap();
    for cpu in 0..=threads {
        space
            .map_with(range(cpu), Attrs::USER_RW, |_, _| {
                let frame = host.alloc(0, Place::Local)?;
                all.push(frame);
                Ok((frame, PageSize::Size4K))
            })
            .unwrap();
    }
    let run = |fast: bool| {
        let (stop, start) = (AtomicBool::new(false), Barrier::new(threads + 1));
        let total = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for cpu in 0..threads {
                let (space, lock, stop, start, total, host) =
                    (&space, &lock, &stop, &start, &total, &host);
                scope.spawn(move || {
                    Host::be(cpu);
                    let mut frames = [Frame::default(); 64 * PAGES as usize];
                    let mut times = Vec::new();
                    start.wait();
                    while !stop.load(Relaxed) {
                        let (began, mut pinned) = (Instant::now(), 0);
                        for into in frames.chunks_mut(PAGES as usize) {
                            pinned += if fast {
                                let at = range(cpu).start();
                                let pins = space.get_user_pages_fast(at, true, into, |_, _| false);
                                pins.map_or(0, Pins::keep)
                            } else {
                                locked(space, lock, range(cpu), into)
                            };
                        }
                        times.push(began.elapsed().as_secs_f64() * 1e9 / pinned as f64);
                        // SAFETY: pinned above, all of them: nothing is a hole.
                        unsafe { unpin(host, &frames) };
                        Grace::announce();
                    }
                    // Some microseconds each: the median is of those in which the host ran nobody else.
                    total.lock().unwrap().push(median(times));
                    Grace::away();
                });
            }
            Host::be(threads);
            start.wait();
            let began = Instant::now();
            while began.elapsed() < Duration::from_millis(60) {
                if writer {
                    let exclusive = || (!fast).then(|| lock.write().unwrap());
                    let own = range(threads);
                    let mut frames = Vec::new();
                    let guard = exclusive();
                    space.unmap(own, |page| frames.push(page.frame)).unwrap().flush();
                    drop(guard);
                    let place = |at: VirtAddr, _: PageSize| {
                        let index = (at.get() - own.start().get()) as usize >> 12;
                        Ok((frames[index], PageSize::Size4K))
                    };
                    // All memory may wait for a thread that does not run.
                    let map = || {
                        let _guard = exclusive();
                        space.map_with(own, Attrs::USER_RW, place).map_err(drop)
                    };
                    while map().is_err() {
                        std::thread::yield_now();
                        Grace::announce();
                        Grace::reclaim(usize::MAX);
                    }
                    Grace::announce();
                    Grace::reclaim(usize::MAX);
                } else {
                    std::thread::sleep(Duration::from_millis(5));
                }
            }
            stop.store(true, Relaxed);
            Grace::away();
        });
        median(total.into_inner().unwrap())
    };
    let rounds: Vec<(f64, f64)> = (0..9).map(|_| (run(false), run(true))).collect();
    let old = median(rounds.iter().map(|round| round.0).collect());
    let new = median(rounds.iter().map(|round| round.1).collect());
    let stats = paging.gup_stats();
    println!(
        "gup {threads} threads, writer {writer}: {old:.1} -> {new:.1} ns a page ({:.1}x); {stats:?}",
        old / new
    );
    Host::be(0);
    Host::settle();
}
