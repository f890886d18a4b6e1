//! RLIMIT_DATA and RLIMIT_MEMLOCK, and the order of errors, as setrlimit(2), mlock(2) and mmap(2)
//! describe them. The oracle compares RLIMIT_AS and the sizes with the running kernel.

use vma::*;

const AT: usize = 0x4000_0000;
const HEAP: usize = 0x1000_0000;
const PRIVATE: MapFlags = MapFlags::PRIVATE.union(MapFlags::ANONYMOUS);

type Calls<'a> = Writer<'a, NoFile, grace::Single>;

fn with_calls(limits: Limits, test: impl FnOnce(&mut Calls<'_>)) {
    let layout =
        Layout { mmap_base: 0x7000_0000_0000, start_brk: HEAP, brk: HEAP, ..Layout::default() };
    let mut space = AddressSpace::<NoFile, grace::Single>::new(Profile::LINUX_6_18, layout);
    let mut calls = space.get_mut();
    calls.set_limits(limits);
    assert_eq!(calls.limits(), limits);
    test(&mut calls);
}

fn map(calls: &mut Calls<'_>, pages: usize, prot: u32, flags: MapFlags) -> Result<usize, Error> {
    let addr = if flags.contains(MapFlags::FIXED) { AT } else { 0 };
    let (len, flags) = (pages * PAGE_SIZE, flags | PRIVATE);
    calls.mmap(MapRequest { addr, flags, ..MapRequest::anonymous(len, prot) })
}

#[test]
fn only_private_writable_memory_is_data() {
    let limits = Limits { data: 4 * PAGE_SIZE, ..Limits::NONE };
    with_calls(limits, |calls| {
        let first = map(calls, 3, 3, MapFlags::empty()).unwrap();
        assert_eq!(map(calls, 2, 3, MapFlags::empty()), Err(Error::SizeLimit));
        assert_eq!(calls.sizes().data, 3 * PAGE_SIZE);
        // Stacks and read-only maps are no data.
        map(calls, 9, 3, MapFlags::GROWSDOWN).unwrap();
        let constant = map(calls, 9, 1, MapFlags::empty()).unwrap();
        assert_eq!(calls.mprotect(constant, 2 * PAGE_SIZE, 3, None), Err(Error::SizeLimit));
        calls.mprotect(constant, PAGE_SIZE, 3, None).unwrap();
        assert_eq!(calls.sizes().data, 4 * PAGE_SIZE);
        // From data to data is no growth; neither is another right.
        calls.mprotect(constant, PAGE_SIZE, 7, None).unwrap();
        // The heap counts alone, and with the rest.
        assert_eq!(calls.brk(HEAP + PAGE_SIZE), HEAP);
        calls.munmap(first, 2 * PAGE_SIZE).unwrap();
        assert_eq!(calls.brk(HEAP + 2 * PAGE_SIZE), HEAP + 2 * PAGE_SIZE);
        assert_eq!(calls.brk(HEAP + 5 * PAGE_SIZE), HEAP + 2 * PAGE_SIZE);
        assert_eq!(calls.sizes().data, 4 * PAGE_SIZE);
    });
}

/// Replaced pages are no growth for a fixed map, and a refused one changes only where VMAs are
/// split.
#[test]
fn a_fixed_map_grows_by_what_is_new() {
    let limits = Limits { address_space: 4 * PAGE_SIZE, ..Limits::NONE };
    with_calls(limits, |calls| {
        let whole = map(calls, 4, 3, MapFlags::FIXED).unwrap();
        assert_eq!(map(calls, 3, 1, MapFlags::FIXED), Ok(whole));
        assert_eq!(map(calls, 5, 1, MapFlags::FIXED), Err(Error::SizeLimit));
        assert_eq!((calls.sizes().total, calls.count()), (4 * PAGE_SIZE, 2));
        let grow = |new_len| RemapRequest {
            addr: AT,
            old_len: PAGE_SIZE,
            new_len,
            may_move: true,
            ..RemapRequest::default()
        };
        assert_eq!(calls.mremap(grow(2 * PAGE_SIZE)), Err(Error::SizeLimit));
        let left = RemapRequest { dont_unmap: Some(0), ..grow(PAGE_SIZE) };
        assert_eq!(calls.mremap(left), Err(Error::SizeLimit));
        assert_eq!(calls.expand_stack(AT - PAGE_SIZE, 1 << 20), Err(Error::Unmapped));
    });
}

#[test]
fn stacks_grow_within_the_limits() {
    let limits = Limits { address_space: 2 * PAGE_SIZE, ..Limits::NONE };
    with_calls(limits, |calls| {
        map(calls, 1, 3, MapFlags::FIXED | MapFlags::GROWSDOWN).unwrap();
        assert_eq!(calls.expand_stack(AT - 2 * PAGE_SIZE, 1 << 20), Err(Error::SizeLimit));
        calls.expand_stack(AT - PAGE_SIZE, 1 << 20).unwrap();
        assert_eq!(calls.sizes().stack, 2 * PAGE_SIZE);
    });
}

#[test]
fn locked_memory_has_a_limit() {
    let limits = Limits { locked: 4 * PAGE_SIZE, may_lock: false, ..Limits::NONE };
    with_calls(limits, |calls| {
        let at = map(calls, 6, 3, MapFlags::empty()).unwrap();
        assert_eq!(calls.mlock(at, 5 * PAGE_SIZE, false), Err(Error::LockLimit));
        calls.mlock(at, 4 * PAGE_SIZE, false).unwrap();
        // Pages that are locked already do not count twice.
        calls.mlock(at + PAGE_SIZE, 3 * PAGE_SIZE, false).unwrap();
        assert_eq!(calls.mlock(at + 3 * PAGE_SIZE, 2 * PAGE_SIZE, false), Err(Error::LockLimit));
        assert_eq!(map(calls, 1, 3, MapFlags::LOCKED), Err(Error::LockLimitAgain));
        assert_eq!(Error::LockLimitAgain.errno(), 11);
        let grow = RemapRequest {
            addr: at,
            old_len: PAGE_SIZE,
            new_len: 2 * PAGE_SIZE,
            may_move: true,
            ..RemapRequest::default()
        };
        assert_eq!(calls.mremap(grow), Err(Error::LockLimitAgain));
        assert_eq!(calls.sizes().locked, 4 * PAGE_SIZE);
        let all = LockAll { current: true, ..LockAll::default() };
        assert_eq!(calls.mlockall(all), Err(Error::LockLimit));
        calls.munlock(at, 2 * PAGE_SIZE).unwrap();
        assert_eq!(calls.sizes().locked, 2 * PAGE_SIZE);
        let future = LockAll { future: true, ..LockAll::default() };
        calls.mlockall(future).unwrap();
        assert_eq!(map(calls, 3, 3, MapFlags::empty()), Err(Error::LockLimitAgain));
        assert_eq!(calls.brk(HEAP + 3 * PAGE_SIZE), HEAP);
        map(calls, 1, 3, MapFlags::empty()).unwrap();
        assert_eq!(calls.sizes().locked, 3 * PAGE_SIZE);
    });
    let none = Limits { locked: 0, may_lock: false, ..Limits::NONE };
    with_calls(none, |calls| {
        let at = map(calls, 1, 3, MapFlags::empty()).unwrap();
        assert_eq!(calls.mlock(at, PAGE_SIZE, false), Err(Error::MayNotLock));
        assert_eq!(map(calls, 1, 3, MapFlags::LOCKED), Err(Error::MayNotLock));
        let all = LockAll { current: true, ..LockAll::default() };
        assert_eq!(calls.mlockall(all), Err(Error::MayNotLock));
    });
    with_calls(Limits { may_lock: true, ..none }, |calls| {
        map(calls, 9, 3, MapFlags::LOCKED).unwrap();
    });
}
