//! Files: the pages that a sync writes out, on the machine in software and in a plain model.

use std::{
    mem::ManuallyDrop,
    sync::{
        Arc, Mutex, OnceLock, Weak,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
};

use crate::common::*;
use machine::{Asid, Owner, Step};
use mm::*;
use proptest::{collection::vec, prelude::*};
use sim::{Config, Failure, Grace, Sim, seeded};

const PAGES: usize = 6;
/// On both sides of the border of two tables.
const SHARED: usize = 0x3fff_e000;
const PRIVATE: usize = 0x4800_0000;
const LEN: usize = PAGES * PAGE;

/// The first word of each page of a disk, and how often pages were read and written.
#[derive(Default)]
struct Disk {
    words: [u64; PAGES],
    reads: [usize; PAGES],
    writes: usize,
    fails: bool,
}

struct OnDisk {
    disk: Arc<Mutex<Disk>>,
    ahead: u64,
}

impl PageSource for OnDisk {
    fn read(&self, index: u64, into: &mut [u8; PAGE]) -> Result<(), ObjectError> {
        let mut disk = self.disk.lock().unwrap();
        disk.reads[index as usize] += 1;
        into[..8].copy_from_slice(&disk.words[index as usize].to_le_bytes());
        if disk.fails { Err(ObjectError::Failed) } else { Ok(()) }
    }

    fn write(&self, index: u64, from: &[u8; PAGE]) -> Result<(), ObjectError> {
        let mut disk = self.disk.lock().unwrap();
        if disk.fails {
            return Err(ObjectError::Failed);
        }
        disk.writes += 1;
        disk.words[index as usize] = u64::from_le_bytes(from[..8].try_into().unwrap());
        Ok(())
    }

    fn read_ahead(&self, _: u64) -> u64 {
        self.ahead
    }

    crate::named!(12, "/disk/file");
}

type OurFile = mm::Shared<File<Sim, OnDisk>>;

/// Runs `test` with a space that maps a file shared and privately.
fn with_file(ahead: u64, test: impl FnOnce(&Sim, &Space, &OurFile, &Mutex<Disk>)) {
    on_machine(Config { speculation: 50, ..one_cpu(256) }, None, |sim, shared| {
        let disk = Arc::new(Mutex::new(Disk { words: [1, 2, 3, 4, 5, 6], ..Disk::default() }));
        let space = new_space(shared, 1).unwrap();
        activate(&space);
        let source = OnDisk { disk: Arc::clone(&disk), ahead };
        let file = File::try_new(shared, source, LEN as u64).unwrap();
        for (at, kind) in [(SHARED, MapFlags::SHARED), (PRIVATE, MapFlags::PRIVATE)] {
            let opened = Backing::open(file.clone(), true).unwrap();
            space.mmap_object(at, LEN, 3, kind | MapFlags::FIXED, opened, 0).unwrap();
        }
        test(sim, &space, &file, &disk);
        space
    });
}

#[derive(Clone, Debug)]
enum Op {
    Load {
        page: usize,
        private: bool,
    },
    Store {
        page: usize,
        value: u64,
        private: bool,
    },
    /// By `AddressSpace::write`, through pins.
    Put {
        page: usize,
        value: u64,
    },
    /// By the file's own call.
    Write {
        page: usize,
        value: u64,
    },
    Sync {
        from: usize,
        len: usize,
    },
    Protect {
        from: usize,
        len: usize,
    },
    Discard {
        from: usize,
        len: usize,
    },
    Fork {
        page: usize,
        value: u64,
    },
}

fn op() -> impl Strategy<Value = Op> {
    let range = (0..PAGES, 1..4_usize).prop_map(|(from, len)| (from, len.min(PAGES - from)));
    let value = 10..u64::MAX;
    prop_oneof![
        4 => (0..PAGES, any::<bool>()).prop_map(|(page, private)| Op::Load { page, private }),
        6 => (0..PAGES, value.clone(), any::<bool>())
            .prop_map(|(page, value, private)| Op::Store { page, value, private }),
        2 => (0..PAGES, value.clone()).prop_map(|(page, value)| Op::Put { page, value }),
        1 => (0..PAGES, value.clone()).prop_map(|(page, value)| Op::Write { page, value }),
        4 => range.clone().prop_map(|(from, len)| Op::Sync { from, len }),
        1 => range.clone().prop_map(|(from, len)| Op::Protect { from, len }),
        1 => range.prop_map(|(from, len)| Op::Discard { from, len }),
        1 => (0..PAGES, value).prop_map(|(page, value)| Op::Fork { page, value }),
    ]
}

proptest! {
    #![proptest_config(cases(200, 2000))]

    /// A sync writes the pages that were written since the last one, and no others.
    #[test]
    fn a_sync_writes_what_was_written(ops in vec(op(), 1..60)) {
        with_file(0, |sim, space, file, disk| {
            let mut words = [1, 2, 3, 4, 5, 6];
            let (mut copies, mut written) = ([None; PAGES], [false; PAGES]);
            for op in &ops {
                match *op {
                    Op::Load { page, private } => {
                        let copy = copies[page].filter(|_| private);
                        let at = if private { PRIVATE } else { SHARED } + page * PAGE;
                        assert_eq!(load(sim, space, at), Ok(copy.unwrap_or(words[page])));
                    }
                    Op::Store { page, value, private: true } => {
                        store(sim, space, PRIVATE + page * PAGE, value).unwrap();
                        copies[page] = Some(value);
                    }
                    Op::Store { page, value, private: false } => {
                        store(sim, space, SHARED + page * PAGE, value).unwrap();
                        (words[page], written[page]) = (value, true);
                    }
                    Op::Put { page, value } => {
                        space.write(SHARED + page * PAGE, &value.to_le_bytes()).unwrap();
                        (words[page], written[page]) = (value, true);
                    }
                    Op::Write { page, value } => {
                        file.write((page * PAGE) as u64, &value.to_le_bytes()).unwrap();
                        (words[page], written[page]) = (value, true);
                    }
                    Op::Sync { from, len } => {
                        let before = disk.lock().unwrap().writes;
                        space.msync(SHARED + from * PAGE, len * PAGE, SyncFlags::SYNC).unwrap();
                        let range = from..from + len;
                        let due = written[range.clone()].iter().filter(|is| **is).count();
                        let disk = disk.lock().unwrap();
                        assert_eq!(disk.writes - before, due, "pages written out");
                        assert_eq!(disk.words[range.clone()], words[range.clone()]);
                        written[range].fill(false);
                    }
                    Op::Protect { from, len } => {
                        let at = SHARED + from * PAGE;
                        space.mprotect(at, len * PAGE, 1, None).unwrap();
                        space.mprotect(at, len * PAGE, 3, None).unwrap();
                    }
                    Op::Discard { from, len } => {
                        for at in [SHARED, PRIVATE] {
                            space.madvise(at + from * PAGE, len * PAGE, Advice::DontNeed).unwrap();
                        }
                        copies[from..from + len].fill(None);
                    }
                    Op::Fork { page, value } => {
                        let child = space.fork(Asid(2)).unwrap();
                        child.write(SHARED + page * PAGE, &value.to_le_bytes()).unwrap();
                        (words[page], written[page]) = (value, true);
                        drop(child);
                    }
                }
            }
            assert!(disk.lock().unwrap().reads.iter().all(|reads| *reads < 2), "read twice");
            file.sync(0..PAGES as u64).unwrap();
            assert_eq!(disk.lock().unwrap().words, words);
        });
    }
}

#[test]
fn pages_are_read_ahead() {
    with_file(2, |sim, space, _, disk| {
        // A frame that is not empty comes back.
        let used = space.mmap(0, PAGE, 3, crate::common::PRIVATE).unwrap();
        store(sim, space, used + 8, 99).unwrap();
        space.munmap(used, PAGE).unwrap();
        assert_eq!(load(sim, space, SHARED), Ok(1));
        assert_eq!(load(sim, space, SHARED + 8), Ok(0), "the source leaves the rest as it is");
        assert_eq!(disk.lock().unwrap().reads, [1, 1, 1, 0, 0, 0]);
        // Fault-around has mapped one of them. The other lies below another page table.
        assert_eq!(space.resident(SHARED..SHARED + LEN), 2);
    });
}

#[test]
fn pages_that_a_program_will_need_are_read() {
    with_file(0, |_, space, _, disk| {
        let reads = || disk.lock().unwrap().reads;
        space.madvise(SHARED + PAGE, 2 * PAGE, Advice::WillNeed).unwrap();
        assert_eq!(reads(), [0, 1, 1, 0, 0, 0]);
        space.madvise(PRIVATE, 4 * PAGE, Advice::WillNeed).unwrap();
        assert_eq!(reads(), [1, 1, 1, 1, 0, 0], "those that are there are not read again");
        assert_eq!(space.resident(SHARED..SHARED + LEN), 0, "they are not mapped");
        // A disk that fails is no error, and ends it.
        disk.lock().unwrap().fails = true;
        space.madvise(SHARED, LEN, Advice::WillNeed).unwrap();
        assert_eq!(reads(), [1, 1, 1, 1, 1, 0]);
        disk.lock().unwrap().fails = false;
    });
}

#[test]
fn a_page_that_is_written_by_a_pin_is_written_out() {
    with_file(0, |sim, space, _, disk| {
        let mut frames = [machine::Frame::default(); 1];
        let pins = space.pin_pages(SHARED, Access::Write, &mut frames).unwrap();
        space.msync(SHARED, PAGE, SyncFlags::SYNC).unwrap();
        pinned_words(sim, pins.frames()[0])[0].store(44, SeqCst);
        drop(pins);
        space.msync(SHARED, PAGE, SyncFlags::SYNC).unwrap();
        assert_eq!(disk.lock().unwrap().words[0], 44);
    });
}

/// A map may write beyond the end, within the last page.
#[test]
fn a_file_that_grows_has_zeros_behind_its_old_end() {
    with_file(0, |sim, space, file, _| {
        file.set_size(8).unwrap();
        store(sim, space, SHARED + 16, 7).unwrap();
        file.set_size(PAGE as u64).unwrap();
        assert_eq!(load(sim, space, SHARED + 16), Ok(0));
    });
}

#[test]
fn a_disk_that_fails_is_a_bus_error_and_loses_nothing() {
    with_file(0, |sim, space, file, disk| {
        store(sim, space, SHARED, 70).unwrap();
        disk.lock().unwrap().fails = true;
        assert!(matches!(
            load(sim, space, SHARED + PAGE),
            Err(FaultError::Object(_, ObjectError::Failed))
        ));
        assert_eq!(space.msync(SHARED, LEN, SyncFlags::SYNC).unwrap_err().errno(), 5);
        disk.lock().unwrap().fails = false;
        assert_eq!(load(sim, space, SHARED + PAGE), Ok(2));
        space.msync(SHARED, LEN, SyncFlags::SYNC).unwrap();
        assert_eq!(disk.lock().unwrap().words[0], 70);
        let _ = file;
    });
}

#[test]
fn the_end_of_a_file_writes_it_out() {
    let kept = Arc::new(Mutex::new(Disk::default()));
    on_machine(one_cpu(64), None, |_, shared| {
        let source = OnDisk { disk: Arc::clone(&kept), ahead: 0 };
        let file = File::try_new(shared, source, LEN as u64).unwrap();
        file.write(PAGE as u64, &9_u64.to_le_bytes()).unwrap();
        assert_eq!(file.write(LEN as u64, &[1]), Err(ObjectError::BeyondEnd));
    });
    assert_eq!(kept.lock().unwrap().words[1], 9);
}

const SEEDS: u64 = if cfg!(debug_assertions) { 60 } else { 1500 };

/// Bytes written before a sync began are on the disk when it ends, also if other CPUs write, and
/// fork, meanwhile.
fn during_writers(seed: u64) -> Result<(), Failure> {
    let config = Config { tick: Some(23), speculation: 100, ..racing(3, 160) };
    let disk = &Arc::new(Mutex::new(Disk::default()));
    let (race, file) = Race::with(config, None, |shared, space| {
        let source = OnDisk { disk: Arc::clone(disk), ahead: 0 };
        let file = File::try_new(shared, source, LEN as u64).unwrap();
        let opened = Backing::open(file.clone(), true).unwrap();
        let flags = MapFlags::SHARED | MapFlags::FIXED;
        space.mmap_object(SHARED, LEN, 3, flags, opened, 0).unwrap();
        ManuallyDrop::new(file)
    });
    let (sim, space) = (&race.sim, &*race.space);
    // Pages on both sides of the border; each has one writer.
    let pages = [1, 2];
    let ended = &[AtomicU64::new(0), AtomicU64::new(0)];
    let writer = |own: usize| {
        race.active(move || {
            for round in 1..=12_u64 {
                let at = SHARED + pages[own] * PAGE;
                match own == 0 {
                    // Through pins.
                    true => space.write(at, &round.to_le_bytes()).unwrap(),
                    false => store(sim, space, at, round).unwrap(),
                }
                sim.step(machine::SharedAccess::Other);
                // SeqCst: the driver runs one CPU at a time.
                ended[own].store(round, SeqCst);
                if own == 1 && round % 4 == 0 {
                    drop(space.fork(Asid(2)).unwrap());
                }
                Grace::reclaim(usize::MAX);
            }
        })
    };
    let syncs = race.active(|| {
        for _ in 0..6 {
            // SeqCst: as above.
            let least = [0, 1].map(|own| {
                sim.step(machine::SharedAccess::Other);
                ended[own].load(SeqCst)
            });
            space.msync(SHARED, LEN, SyncFlags::SYNC).unwrap();
            for own in [0, 1] {
                let found = disk.lock().unwrap().words[pages[own]];
                assert!(found >= least[own], "{found} on the disk, {} was written", least[own]);
            }
            Grace::reclaim(usize::MAX);
        }
    });
    seeded(sim, seed, vec![writer(0), writer(1), syncs])?;
    sim.on_cpu(0, || {
        space.msync(SHARED, LEN, SyncFlags::SYNC).unwrap();
        assert_eq!([1, 2].map(|page| disk.lock().unwrap().words[page]), [12, 12]);
    });
    race.end(ManuallyDrop::into_inner(file))
}

#[test]
fn a_sync_during_writers_loses_nothing() {
    each_seed(SEEDS, during_writers);
}

/// A fault of a userfaultfd asks where a file ends.
#[test]
fn the_question_for_the_end_takes_no_reference() {
    with_space(64, |sim, shared, space| {
        let source = OnDisk { disk: Arc::new(Mutex::new(Disk::default())), ahead: 0 };
        let file = File::try_new(shared, source, LEN as u64).unwrap();
        let opened = Backing::open(file.clone(), true).unwrap();
        let at = space.mmap_object(0, LEN, 1, MapFlags::SHARED, opened, 0).unwrap();
        load(sim, space, at).unwrap();
        assert!(!file.is_beyond_end(0) && !file.is_beyond_end(PAGES as u64 - 1));
        assert!(file.is_beyond_end(PAGES as u64));
        let shown = sim.allocated().into_iter().filter(|held| held.owner == Owner::User);
        // The file's, and the entry's.
        assert_eq!(shown.map(|held| held.counts).collect::<Vec<_>>(), [(2, 0)]);
    });
}

/// A disk of one page that is slow: while it is read for the first time, the page comes in another
/// way, is written, synced and evicted, and the file may be cut.
struct Slow {
    word: Mutex<u64>,
    file: OnceLock<WeakShared<File<Sim, SlowDisk>>>,
    cuts: bool,
}

struct SlowDisk(Arc<Slow>);

impl PageSource for SlowDisk {
    fn read(&self, _: u64, into: &mut [u8; PAGE]) -> Result<(), ObjectError> {
        let word = *self.0.word.lock().unwrap();
        into[..8].copy_from_slice(&word.to_le_bytes());
        let file = self.0.file.get().unwrap().upgrade().unwrap();
        if word == 1 && self.0.cuts {
            file.set_size(0)?;
            *self.0.word.lock().unwrap() = 0;
            file.set_size(PAGE as u64)?;
        } else if word == 1 {
            *self.0.word.lock().unwrap() = 2;
            file.write(0, &3_u64.to_le_bytes())?;
            file.sync(0..1)?;
            assert!(file.evict(0));
        }
        Ok(())
    }

    fn write(&self, _: u64, from: &[u8; PAGE]) -> Result<(), ObjectError> {
        *self.0.word.lock().unwrap() = u64::from_le_bytes(from[..8].try_into().unwrap());
        Ok(())
    }

    crate::named!(4, "/slow");
}

#[test]
fn what_was_read_before_a_page_was_lost_does_not_count() {
    for (cuts, word) in [(false, 3), (true, 0)] {
        with_space(64, |_, shared, _| {
            let slow = Arc::new(Slow { word: Mutex::new(1), file: OnceLock::new(), cuts });
            let file = File::try_new(shared, SlowDisk(slow.clone()), PAGE as u64).unwrap();
            assert!(slow.file.set(mm::Shared::downgrade(&file)).is_ok());
            let mut found = [9; 8];
            file.read(0, &mut found).unwrap();
            assert_eq!(u64::from_le_bytes(found), word);
        });
    }
}

/// A disk that writes down what it gets. While it gets the first page, a program writes to that
/// page again.
struct Interrupted {
    words: Mutex<Vec<u64>>,
    writer: Mutex<Option<(Sim, Weak<Space>)>>,
}

struct InterruptedDisk(Arc<Interrupted>);

impl PageSource for InterruptedDisk {
    fn read(&self, _: u64, _: &mut [u8; PAGE]) -> Result<(), ObjectError> {
        Ok(())
    }

    fn write(&self, _: u64, from: &[u8; PAGE]) -> Result<(), ObjectError> {
        self.0.words.lock().unwrap().push(u64::from_le_bytes(from[..8].try_into().unwrap()));
        if let Some((sim, space)) = self.0.writer.lock().unwrap().take() {
            store(&sim, &space.upgrade().unwrap(), SHARED, 2).unwrap();
        }
        Ok(())
    }

    crate::named!(5, "/interrupted");
}

/// What a program writes while its page is on the way to the disk, the next sync writes out.
#[test]
fn a_write_during_a_sync_is_synced_later() {
    on_machine(one_cpu(64), None, |sim, shared| {
        let space = Arc::new(new_space(shared, 2).unwrap());
        activate(&space);
        let writer = Mutex::new(Some((sim.clone(), Arc::downgrade(&space))));
        let disk = Arc::new(Interrupted { words: Mutex::default(), writer });
        let file = File::try_new(shared, InterruptedDisk(disk.clone()), PAGE as u64).unwrap();
        let opened = Backing::open(file.clone(), true).unwrap();
        space.mmap_object(SHARED, PAGE, 3, MapFlags::SHARED | MapFlags::FIXED, opened, 0).unwrap();
        store(sim, &space, SHARED, 1).unwrap();
        for synced in [&[1][..], &[1, 2], &[1, 2]] {
            file.sync(0..1).unwrap();
            assert_eq!(*disk.words.lock().unwrap(), synced);
        }
        space
    });
}

#[test]
fn a_written_page_is_evicted_only_after_its_sync() {
    with_space(64, |_, shared, _| {
        let disk = Arc::new(Interrupted { words: Mutex::default(), writer: Mutex::new(None) });
        let file = File::try_new(shared, InterruptedDisk(disk.clone()), PAGE as u64).unwrap();
        file.write(0, &7_u64.to_le_bytes()).unwrap();
        assert!(!file.evict(0), "its bytes are nowhere else");
        file.sync(0..1).unwrap();
        assert!(file.evict(0));
        assert_eq!(*disk.words.lock().unwrap(), [7]);
    });
}
