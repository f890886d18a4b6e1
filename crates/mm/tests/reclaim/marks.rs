//! Marks of pages that are in swap: they go and come with the page, and change there.

use crate::*;

/// Eight pages in swap, registered for write-protection.
fn with_swapped(test: impl FnOnce(&Space, usize)) {
    with_swap(256, |_, shared, ram, _| {
        let mut space = new_space(shared, 2).unwrap();
        space.set_userfault_handler(Arc::new(Never::default()));
        let at = space.mmap(AT, 8 * PAGE, 3, FIXED).unwrap();
        space.userfault_register(at, 8 * PAGE, UserFaultModes::WP, Uffd::new(1)).unwrap();
        space.write(at, &[1; 8 * PAGE]).unwrap();
        space.clear_referenced().unwrap();
        assert_eq!((space.reclaim(8).unwrap().swapped, ram.used()), (8, 8));
        test(&space, at);
    });
}

#[test]
fn a_page_in_swap_is_write_protected() {
    with_swapped(|space, at| {
        space.userfault_write_protect(at, 2 * PAGE, true).unwrap();
        let marks = pagemap::SWAPPED | pagemap::WRITE_PROTECTED;
        assert_eq!(pagemap_entry(space, at) & marks, marks);
        assert_eq!(pagemap_entry(space, at + 2 * PAGE) & marks, pagemap::SWAPPED);
        // One comes back by a write, one by a read.
        assert!(space.write(at, &[2]).is_err());
        assert_eq!(word(space, at + PAGE) & 0xff, 1);
        assert!(space.write(at + PAGE, &[2]).is_err());
        space.write(at + 2 * PAGE, &[2]).unwrap();
        space.userfault_write_protect(at, 2 * PAGE, false).unwrap();
        space.write(at, &[2]).unwrap();
        // The mark goes while the page is away.
        space.userfault_write_protect(at + 3 * PAGE, PAGE, true).unwrap();
        space.userfault_write_protect(at + 3 * PAGE, PAGE, false).unwrap();
        space.write(at + 3 * PAGE, &[2]).unwrap();
    });
}

#[test]
fn a_page_in_swap_becomes_clean() {
    with_swapped(|space, at| {
        assert!(pagemap_entry(space, at) & pagemap::SOFT_DIRTY != 0);
        space.clear_soft_dirty().unwrap();
        assert_eq!(
            pagemap_entry(space, at) & (pagemap::SOFT_DIRTY | pagemap::SWAPPED),
            pagemap::SWAPPED
        );
        assert_eq!(word(space, at) & 0xff, 1);
        assert_eq!(pagemap_entry(space, at) & pagemap::SOFT_DIRTY, 0, "a read is no write");
        space.write(at, &[2]).unwrap();
        space.write(at + PAGE, &[2]).unwrap();
        assert!(
            pagemap_entry(space, at) & pagemap_entry(space, at + PAGE) & pagemap::SOFT_DIRTY != 0
        );
    });
}
