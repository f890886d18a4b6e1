//! Cold pages of files.

use super::*;

/// A file whose pages say which they are.
struct Numbers(AtomicU64);

impl PageSource for Numbers {
    fn read(&self, index: u64, page: &mut [u8; PAGE]) -> Result<(), ObjectError> {
        self.0.fetch_add(1, Ordering::Relaxed);
        page[..8].copy_from_slice(&(index + 1).to_le_bytes());
        Ok(())
    }

    fn write(&self, _: u64, _: &[u8; PAGE]) -> Result<(), ObjectError> {
        Ok(())
    }

    crate::named!(1, "/numbers");
}

#[test]
fn cold_pages_of_files_go_back_to_them() {
    with_swap(256, |sim, shared, _, space| {
        let file = File::try_new(shared, Numbers(AtomicU64::new(0)), 4 * PAGE as u64).unwrap();
        let backing = Backing::open(file.clone(), true).unwrap();
        let at = space.mmap_object(0, 4 * PAGE, 3, MapFlags::SHARED, backing.clone(), 0).unwrap();
        (0..4).for_each(|page| assert_eq!(word(space, at + page * PAGE), page as u64 + 1));
        store(sim, space, at + 2 * PAGE, 30).unwrap();
        let other = new_space(shared, 2).unwrap();
        other.mmap_object(AT, PAGE, 1, MapFlags::SHARED | MapFlags::FIXED, backing, 0).unwrap();
        assert_eq!(word(&other, AT), 1);
        space.mlock(at, 4 * PAGE, false).unwrap();
        age(space);
        assert_eq!(space.reclaim(100).unwrap().taken(), 0);
        space.munlock(at, 4 * PAGE).unwrap();
        let done = space.reclaim(100).unwrap();
        // One is written, and another space maps one.
        assert_eq!((done.unmapped, done.evicted, done.swapped), (4, 2, 0));
        assert_eq!(space.totals().resident, 0);
        let read = file.source().0.load(Ordering::Relaxed);
        (0..4).for_each(|page| {
            let expected = if page == 2 { 30 } else { page as u64 + 1 };
            assert_eq!(word(space, at + page * PAGE), expected);
        });
        assert_eq!(file.source().0.load(Ordering::Relaxed), read + 2);
    });
}
