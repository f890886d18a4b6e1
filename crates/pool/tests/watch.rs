//! Threads whose end the program registers itself. In a process of its own, because there is one
//! registration for the process.
use pool::Pool;
use std::alloc::Layout;
use std::cell::Cell;
use std::ptr::NonNull;

const BLOCK: Layout = match Layout::from_size_align(256, 64) {
    Ok(layout) => layout,
    Err(_) => panic!("the layout is invalid"),
};

/// Stands for a key of POSIX threads.
struct Key;

impl Drop for Key {
    fn drop(&mut self) {
        Pool::thread_ended();
        // A later destructor uses the pool: nothing is kept.
        give(take());
    }
}

thread_local! {
    static KEY: Key = const { Key };
    static REFUSE: Cell<bool> = const { Cell::new(false) };
    static CALLS: Cell<u32> = const { Cell::new(0) };
}

fn take() -> NonNull<u8> {
    Pool::take(BLOCK).unwrap()
}

fn give(block: NonNull<u8>) {
    // SAFETY: the block is the test's, which uses it no more.
    unsafe { Pool::give_back(block, BLOCK) }
}

fn register() -> bool {
    CALLS.set(CALLS.get() + 1);
    // A registration that allocates is not asked again for that.
    give(take());
    !REFUSE.get() && KEY.try_with(|_| ()).is_ok()
}

#[test]
fn a_thread_keeps_blocks_if_its_end_is_watched() {
    assert!(Pool::watch_threads(register));
    assert!(!Pool::watch_threads(|| panic!("the second one is refused")));
    std::thread::spawn(|| {
        REFUSE.set(true);
        give(take());
        assert_eq!((Pool::stats().used, CALLS.get() > 0), (0, true));
        REFUSE.set(false);
        let blocks = [(); 200].map(|()| take());
        blocks.into_iter().for_each(give);
        assert!(Pool::stats().used > 0, "the thread keeps no blocks");
        let calls = CALLS.get();
        Pool::trim();
        give(take());
        assert_eq!(CALLS.get(), calls, "it was registered twice");
    })
    .join()
    .unwrap();
    assert_eq!(Pool::stats().used, 0, "blocks were lost");
    Pool::trim();
    assert_eq!(Pool::stats().held, 0);
}
