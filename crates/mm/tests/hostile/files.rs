//! Files whose source calls back, during evictions.

use std::sync::{Arc, Mutex};

use mm::*;
use sim::{Failure, Program, Sim, seeded};

use super::*;

const SEEDS: u64 = if cfg!(debug_assertions) { 300 } else { 3_000 };

/// The first word of each page of a disk.
struct Disk {
    words: Mutex<[u64; 4]>,
    /// Called when page 1 is read.
    at_read: Work,
    at_write: Work,
}

impl Disk {
    fn new() -> Arc<Self> {
        let [at_read, at_write] = [(); 2].map(|()| Mutex::new(None));
        Arc::new(Disk { words: Mutex::new([1, 2, 3, 4]), at_read, at_write })
    }

    fn words(&self) -> [u64; 4] {
        *self.words.lock().unwrap()
    }
}

struct OnDisk(Arc<Disk>);

impl PageSource for OnDisk {
    fn read(&self, index: u64, into: &mut [u8; PAGE]) -> Result<(), ObjectError> {
        if index == 1 {
            run(&self.0.at_read);
        }
        into[..8].copy_from_slice(&self.0.words()[index as usize].to_le_bytes());
        Ok(())
    }

    fn write(&self, index: u64, from: &[u8; PAGE]) -> Result<(), ObjectError> {
        run(&self.0.at_write);
        let word = u64::from_le_bytes(from[..8].try_into().unwrap());
        self.0.words.lock().unwrap()[index as usize] = word;
        Ok(())
    }

    /// Page 1 is read with page 0.
    fn read_ahead(&self, index: u64) -> u64 {
        u64::from(index == 0)
    }

    crate::named!(12, "/disk/file");
}

type OurFile = mm::Shared<File<Sim, OnDisk>>;

fn with_file(test: impl FnOnce(&Space, &OurFile, &Arc<Disk>)) {
    with_space(256, |_, shared, space| {
        let disk = Disk::new();
        let file = File::try_new(shared, OnDisk(disk.clone()), 4 * PAGE as u64).unwrap();
        test(space, &file, &disk);
    });
}

/// The source evicts page 0 while page 1 is read, ahead of its use.
fn evict_at_read(file: &OurFile, disk: &Disk) {
    let file = file.clone();
    let evict = Box::new(move || assert!(CachedPages::evict(&*file, 0)));
    *disk.at_read.lock().unwrap() = Some(evict);
}

#[test]
fn a_read_brings_evicted_pages_in_again() {
    with_file(|_, file, disk| {
        evict_at_read(file, disk);
        let mut found = [0; 2 * PAGE];
        assert_eq!(file.read(0, &mut found), Ok(2 * PAGE));
        assert_eq!((found[0], found[PAGE]), (1, 2));
    });
}

#[test]
fn a_write_reaches_pages_that_were_evicted() {
    with_file(|_, file, disk| {
        evict_at_read(file, disk);
        file.write(0, &[7; 2 * PAGE]).unwrap();
        CachedPages::sync(&**file, 0..4).unwrap();
        let all = u64::from_ne_bytes([7; 8]);
        assert_eq!(disk.words(), [all, all, 3, 4]);
    });
}

/// The source panics while a page is written out: the next sync writes it.
#[test]
fn a_panic_in_write_back_loses_no_page() {
    with_file(|space, file, disk| {
        let opened = Backing::open(file.clone(), true).unwrap();
        space.mmap_object(AT, 4 * PAGE, 3, SHARED, opened, 0).unwrap();
        for page in [0, 2] {
            space.write(AT + page * PAGE, &9_u64.to_le_bytes()).unwrap();
        }
        let sync = || space.msync(AT, 4 * PAGE, SyncFlags::SYNC);
        *disk.at_write.lock().unwrap() = Some(Box::new(|| panic!("the disk")));
        panics(sync);
        sync().unwrap();
        assert_eq!(disk.words(), [9, 2, 9, 4]);
    });
}

/// One CPU writes to a page, by the file's call or by a map, and syncs it; another one evicts it
/// over and over. Each write reaches the disk.
fn writes_during_evictions(seed: u64) -> Result<(), Failure> {
    let disk = Disk::new();
    let (race, file) = Race::with(racing(2, 256), None, |shared, space| {
        let file = File::try_new(shared, OnDisk(disk.clone()), 4 * PAGE as u64).unwrap();
        let opened = Backing::open(file.clone(), true).unwrap();
        space.mmap_object(AT, PAGE, 3, SHARED, opened, 0).unwrap();
        file
    });
    let make = |cpu: usize| -> Program<'_> {
        let (space, file, disk) = (&race.space, &file, &disk);
        Box::new(move || {
            for turn in 1..4 {
                if cpu == 1 {
                    (0..4).for_each(|_| _ = CachedPages::evict(&**file, 0));
                    continue;
                }
                let word = 100 * turn as u64;
                match seed.is_multiple_of(2) {
                    true => file.write(0, &word.to_le_bytes()).unwrap(),
                    false => space.write(AT, &word.to_le_bytes()).unwrap(),
                }
                CachedPages::sync(&**file, 0..4).unwrap();
                assert_eq!(disk.words()[0], word, "turn {turn}");
            }
        })
    };
    seeded(&race.sim, seed, (0..2).map(make).collect())?;
    race.end(file)
}

#[test]
fn no_write_is_lost_during_evictions() {
    each_seed(SEEDS, writes_during_evictions);
}
