//! The calls on an address space, next to the operations of the range tree that they cannot do
//! without: the search for a gap, the store, the erase, the move of an end, the duplicate.
//!
//! ```text
//! cargo bench -p samara-vma                    a table for 30 to 30,000 VMAs
//! cargo bench -p samara-vma -- --sizes 300     for these numbers of VMAs
//! cargo bench -p samara-vma -- --json          JSON lines instead of the table
//! ```
//!
//! Both sides are shared trees over [`grace::Epoch`], and take their lock for each operation. Each
//! figure is the least of the rounds, which take turns. The tree stores entries of the size of a
//! VMA.

use std::{fmt, hint::black_box, process::ExitCode, time::Instant};

use maple::{MapleTree, RefCounted};
use report::{Report, Row, Target};
use vma::{AddressSpace, Layout, MapFlags, MapRequest, MappedFile, Profile};

#[derive(Clone, PartialEq)]
struct File(u64);

impl MappedFile for File {
    fn writable(&self) -> bool {
        true
    }

    fn device(&self) -> (u32, u32) {
        (8, 1)
    }

    fn inode(&self) -> u64 {
        self.0
    }

    fn write_path(&self, out: &mut dyn fmt::Write) -> fmt::Result {
        out.write_str("/file")
    }
}

type Space = AddressSpace<File, grace::Epoch>;
type Contents = [u64; size_of::<vma::Vma<File>>() / 8];
type Tree = MapleTree<RefCounted<Contents>, grace::Epoch>;

const PAGE: usize = 0x1000;
const MMAP_BASE: usize = 0x7fff_0000_0000;
const HEAP: usize = 0x5555_0000_0000;
/// VMAs lie this far apart, from here on.
const APART: usize = 0x10_0000;
const FIRST: usize = 0x7000_0000_0000;
/// Maps made before they are unmapped again.
const BATCH: usize = 64;
const ROUNDS: usize = 15;

/// The start and the length of each VMA.
fn ranges(vmas: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..vmas).map(|i| (FIRST + i * APART, (8 + i % 7) * PAGE))
}

fn request(len: usize, prot: u32) -> MapRequest<File> {
    let flags = MapFlags::PRIVATE | MapFlags::ANONYMOUS;
    MapRequest { flags, ..MapRequest::anonymous(len, prot) }
}

fn space(vmas: usize) -> Space {
    let layout = Layout { mmap_base: MMAP_BASE, start_brk: HEAP, brk: HEAP, start_stack: 0 };
    let space =
        Space::new(Profile { max_map_count: usize::MAX / 2, ..Profile::LINUX_6_18 }, layout);
    let mut calls = space.write();
    for (i, (addr, len)) in ranges(vmas).enumerate() {
        let file = (i % 3 == 0).then_some(File(i as u64));
        let flags = MapFlags::PRIVATE | MapFlags::FIXED;
        let flags = if file.is_some() { flags } else { flags | MapFlags::ANONYMOUS };
        calls.mmap(MapRequest { addr, flags, file, ..request(len, 3) }).expect("memory");
        // Two in three have private pages.
        if i % 3 > 0 {
            calls.first_write(addr).expect("memory");
        }
    }
    assert_eq!(calls.brk(HEAP + 256 * PAGE), HEAP + 256 * PAGE);
    drop(calls);
    space
}

fn entry() -> RefCounted<Contents> {
    RefCounted::new([0; _]).expect("memory")
}

fn tree(vmas: usize) -> Tree {
    let tree = Tree::new();
    let mut writer = tree.lock();
    for (addr, len) in ranges(vmas).chain([(HEAP, 256 * PAGE)]) {
        writer.store_range(addr..=addr + len - 1, entry()).expect("memory");
    }
    drop(writer);
    tree
}

/// The nanoseconds of one of `n` repetitions.
fn time(n: usize, mut repeat: impl FnMut(usize)) -> f64 {
    let start = Instant::now();
    (0..n).for_each(&mut repeat);
    start.elapsed().as_nanos() as f64 / n as f64
}

/// The calls that are measured.
const CALLS: [&str; 6] = ["mmap", "munmap", "mprotect", "brk", "find", "fork"];

/// One round of the calls, in the order of [`CALLS`]. The second space is forked and does not
/// change.
fn round_of_calls([space, parent]: &[Space; 2], picks: &[usize]) -> [f64; 6] {
    let mut at = [0; BATCH];
    // Neighbours differ, so they do not merge.
    let prot = |i: usize| if i.is_multiple_of(2) { 1 } else { 3 };
    let mmap = time(BATCH, |i| at[i] = space.write().mmap(request(3 * PAGE, prot(i))).unwrap());
    let munmap = time(BATCH, |i| space.write().munmap(at[i], 3 * PAGE).unwrap());
    let mprotect = time(2 * picks.len(), |i| {
        let addr = FIRST + picks[i / 2] * APART;
        space.write().mprotect(addr, 3 * PAGE, prot(i), None).unwrap()
    });
    let brk = time(BATCH, |i| {
        black_box(space.write().brk(HEAP + (256 + 8 * (i % 2)) * PAGE));
    });
    let guard = space.pin();
    let find = time(picks.len(), |i| {
        black_box(space.find(&guard, FIRST + picks[i] * APART + i % 2 * APART / 2));
    });
    drop(guard);
    let mut children = Vec::with_capacity(BATCH);
    let fork = time(BATCH, |_| children.push(parent.write().fork().unwrap()));
    drop(children);
    [mmap, munmap, mprotect, brk, find, fork]
}

/// The same changes as operations of the tree.
fn round_of_operations([tree, parent]: &[Tree; 2], picks: &[usize]) -> [f64; 6] {
    let mut at = [0; BATCH];
    let mmap = time(BATCH, |i| {
        let mut writer = tree.lock();
        at[i] = writer.empty_area_rev(0x10000..=MMAP_BASE - 1, 3 * PAGE, 1).unwrap();
        writer.store_range(at[i]..=at[i] + 3 * PAGE - 1, entry()).unwrap();
    });
    let munmap = time(BATCH, |i| tree.lock().erase_range(at[i]..=at[i] + 3 * PAGE - 1).unwrap());
    let mprotect = time(2 * picks.len(), |i| {
        let addr = FIRST + picks[i / 2] * APART;
        let mut writer = tree.lock();
        let len = if i.is_multiple_of(2) { 3 } else { 8 + picks[i / 2] % 7 } * PAGE;
        black_box(writer.lookup(addr));
        writer.store_range(addr..=addr + len - 1, entry()).unwrap();
    });
    let brk = time(BATCH, |i| {
        black_box(tree.lock().set_end(HEAP, HEAP + (256 + 8 * (i % 2)) * PAGE - 1).unwrap());
    });
    let guard = tree.pin();
    let find = time(picks.len(), |i| {
        let addr = FIRST + picks[i] * APART + i % 2 * APART / 2;
        black_box(tree.find(&guard, addr..=usize::MAX));
    });
    drop(guard);
    let mut copies = Vec::with_capacity(BATCH);
    let fork = time(BATCH, |_| copies.push(parent.lock().duplicate().unwrap()));
    drop(copies);
    [mmap, munmap, mprotect, brk, find, fork]
}

fn measure(vmas: usize, report: &mut Report) {
    let (spaces, trees) = ([space(vmas), space(vmas)], [tree(vmas), tree(vmas)]);
    // In an order that no prefetcher knows.
    let picks: Vec<usize> = (0..vmas.min(2048)).map(|i| (i * 7919 + 13) % vmas).collect();
    let mut least = [[f64::INFINITY; 6]; 2];
    for _ in 0..ROUNDS {
        let rounds = [round_of_calls(&spaces, &picks), round_of_operations(&trees, &picks)];
        for (least, round) in least.iter_mut().zip(rounds) {
            least.iter_mut().zip(round).for_each(|(least, value)| *least = least.min(value));
        }
    }
    for (at, call) in CALLS.into_iter().enumerate() {
        for (implementation, least) in ["the call", "the tree's operations"].iter().zip(&least) {
            let row = Row::new("calls", call, implementation, 1, vmas);
            report.rows.push(row.with("time", least[at], "ns"));
        }
        if vmas == 300 && at < 4 {
            let ratio = least[0][at] / least[1][at];
            let name = format!("{call} of 300 VMAs, in the tree's operations");
            report.targets.push(Target::at_most("calls", name, ratio, 1.5));
        }
    }
    if vmas == 300 {
        report.targets.push(Target::at_most("calls", "fork of 300 VMAs, ns", least[0][5], 3000.0));
    }
}

/// The value of an option, and whether the option is there.
fn option(name: &str) -> Option<String> {
    std::env::args().skip_while(|arg| arg != name).nth(1)
}

fn main() -> ExitCode {
    let sizes = option("--sizes").unwrap_or_else(|| "30,300,3000,30000".into());
    let sizes: Result<Vec<usize>, _> = sizes.split(',').map(str::parse).collect();
    let Ok(sizes) = sizes else {
        eprintln!("error: --sizes takes numbers with commas between them, such as 30,300");
        return ExitCode::FAILURE;
    };
    let mut report = Report::default();
    for vmas in sizes {
        eprintln!("{vmas} VMAs");
        measure(vmas.max(1), &mut report);
    }
    match std::env::args().any(|arg| arg == "--json") {
        true => print!("{}", report.json_lines()),
        false => print!("{report}"),
    }
    ExitCode::SUCCESS
}
