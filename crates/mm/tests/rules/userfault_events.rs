//! Events of userfaultfd: forks, moves, removals and unmappings of registered memory.

use std::sync::{
    Arc, Mutex, Weak,
    atomic::{AtomicUsize, Ordering::SeqCst},
};

use crate::common::*;
use machine::Asid;
use mm::*;

const ALL: u32 = 15;
/// The number of a userfaultfd begins with the events that it wants.
const EVENTS: u32 = 4;

/// A host whose monitors read each event at once, after a look at the memory.
#[derive(Default)]
struct Host {
    space: Mutex<Weak<Space>>,
    changing: AtomicUsize,
    children: AtomicUsize,
    told: Mutex<Vec<UserFaultEvent>>,
    /// The first byte of this page when the last event came, if it was there.
    watched: Mutex<(usize, Option<u8>)>,
    faults: Mutex<Vec<u64>>,
    refuses: bool,
}

impl UserFaultHandler for Host {
    fn handle(&self, fault: UserFault) -> bool {
        self.faults.lock().unwrap().push(fault.uffd);
        false
    }

    fn events(&self, uffd: u64) -> UserFaultEvents {
        UserFaultEvents::from_bits_truncate((uffd & 15) as u32)
    }

    fn begin_change(&self, _: u64) {
        self.changing.fetch_add(1, SeqCst);
    }

    fn is_changing(&self, _: u64) -> bool {
        self.changing.load(SeqCst) > 0
    }

    fn make_child(&self, uffd: u64) -> Option<u64> {
        let number = 0x100 * (1 + self.children.fetch_add(1, SeqCst) as u64);
        (!self.refuses).then_some(number << EVENTS | uffd & 15)
    }

    fn deliver(&self, events: Vec<UserFaultEvent>) {
        let space = self.space.lock().unwrap().upgrade().unwrap();
        let mut watched = self.watched.lock().unwrap();
        let mut byte = [0];
        watched.1 = space.read(watched.0, &mut byte).ok().map(|()| byte[0]);
        self.changing.fetch_sub(events.len(), SeqCst);
        self.told.lock().unwrap().extend(events);
    }
}

impl Host {
    fn told(&self) -> Vec<UserFaultEvent> {
        assert_eq!(self.changing.load(SeqCst), 0, "each change has one event");
        core::mem::take(&mut self.told.lock().unwrap())
    }
}

fn uffd(number: u64, events: u32) -> Uffd {
    let id = number << EVENTS | u64::from(events);
    Uffd { id, follows_fork: events & 1 != 0, follows_remap: events & 2 != 0 }
}

fn with_host(host: Host, test: impl FnOnce(&Arc<Host>, &Space)) {
    with_space(4096, |_, shared, _| {
        let host = Arc::new(host);
        let mut space = new_space(shared, 2).unwrap();
        space.set_userfault_handler(host.clone());
        let space = Arc::new(space);
        *host.space.lock().unwrap() = Arc::downgrade(&space);
        test(&host, &space);
    });
}

/// Maps pages and registers them.
fn registered(space: &Space, at: usize, pages: usize, uffd: Uffd) -> usize {
    let at = space.mmap(at, pages * PAGE, 3, if at == 0 { PRIVATE } else { FIXED }).unwrap();
    space.userfault_register(at, pages * PAGE, UserFaultModes::MISSING, uffd).unwrap();
    at
}

fn event(uffd: Uffd, change: UserFaultChange) -> UserFaultEvent {
    UserFaultEvent { uffd: uffd.id, change }
}

fn unmap(uffd: Uffd, from: usize, to: usize) -> UserFaultEvent {
    event(uffd, UserFaultChange::Unmap(from..to))
}

fn is_registered(space: &Space, at: usize) -> bool {
    matches!(space.read(at, &mut [0]).map_err(|e| e.error), Err(FaultError::UserFault(_)))
}

#[test]
fn calls_that_unmap_tell_each_userfaultfd_once() {
    with_host(Host::default(), |host, space| {
        let at = 0x4000_0000;
        let (one, two, deaf) = (uffd(1, ALL), uffd(2, 8), uffd(3, 7));
        registered(space, at, 12, one);
        registered(space, at + 4 * PAGE, 2, two);
        registered(space, at + 6 * PAGE, 2, deaf);
        host.told();
        space.munmap(at + PAGE, 9 * PAGE - 5).unwrap();
        let end = at + 10 * PAGE;
        assert_eq!(host.told(), [unmap(one, at + PAGE, end), unmap(two, at + PAGE, end)]);
        // A map over it; not one that finds the place taken, and not one that is a hint.
        space.mmap(at, PAGE, 3, FIXED | MapFlags::FIXED_NOREPLACE).unwrap_err();
        space.mmap(at, PAGE, 3, PRIVATE).unwrap();
        assert_eq!(host.told(), []);
        space.mmap(at, 8 * PAGE, 3, FIXED).unwrap();
        assert_eq!(host.told(), [unmap(one, at, at + 8 * PAGE)]);
        space.munmap(at, 8 * PAGE).unwrap();
        assert_eq!(host.told(), []);
        // A call that fails, and the end of the program, tell nothing.
        space.munmap(at + 1, PAGE).unwrap_err();
        space.exec(Layout { mmap_base: BASE, ..Layout::default() }).unwrap();
        assert_eq!(host.told(), []);
    });
}

#[test]
fn the_heap_and_a_shrinking_map_tell_of_their_ends() {
    with_host(Host::default(), |host, space| {
        let one = uffd(1, ALL);
        let heap = space.brk(0).unwrap();
        space.brk(heap + 8 * PAGE).unwrap();
        let heap = heap.next_multiple_of(PAGE);
        space.userfault_register(heap, 8 * PAGE, UserFaultModes::MISSING, one).unwrap();
        assert_eq!(host.told(), []);
        space.brk(heap + 3 * PAGE - 7).unwrap();
        assert_eq!(host.told(), [unmap(one, heap + 3 * PAGE, heap + 8 * PAGE)]);
        let at = registered(space, 0, 8, one);
        assert_eq!(space.mremap(RemapRequest::resizing(at, 8 * PAGE, 2 * PAGE)), Ok(at));
        assert_eq!(host.told(), [unmap(one, at + 2 * PAGE, at + 8 * PAGE)]);
        // It grows in place: nothing has moved.
        assert_eq!(space.mremap(RemapRequest::resizing(at, 2 * PAGE, 3 * PAGE)), Ok(at));
        assert_eq!(host.told(), []);
        assert!(is_registered(space, at + 2 * PAGE));
    });
}

#[test]
fn a_move_keeps_the_registration_and_tells_in_order() {
    with_host(Host::default(), |host, space| {
        let (one, target) = (uffd(1, ALL), uffd(2, 8));
        let (at, to) = (0x4000_0000, 0x5000_0000);
        registered(space, at, 8, one);
        registered(space, to, 8, target);
        let request = RemapRequest { old_len: 8 * PAGE, ..RemapRequest::moving(at, 6 * PAGE, to) };
        space.mremap(request).unwrap();
        let moved = UserFaultChange::Remap { from: at, to, len: 6 * PAGE };
        assert_eq!(
            host.told(),
            [
                unmap(target, to, to + 6 * PAGE),
                event(one, moved),
                unmap(one, at + 6 * PAGE, at + 8 * PAGE),
                unmap(one, at, at + 6 * PAGE),
            ]
        );
        assert!(is_registered(space, to));
        // The source stays.
        let dont_unmap = Some(0);
        let stays = RemapRequest { dont_unmap, ..RemapRequest::resizing(to, 6 * PAGE, 6 * PAGE) };
        let third = space.mremap(stays).unwrap();
        let moved = UserFaultChange::Remap { from: to, to: third, len: 6 * PAGE };
        assert_eq!(host.told(), [event(one, moved)]);
        assert!(is_registered(space, third) && is_registered(space, to));
        // One that does not follow moves loses the memory.
        let lost = uffd(3, 8);
        registered(space, at, 2, lost);
        let request = RemapRequest { old_len: 2 * PAGE, new_len: 2 * PAGE, ..request };
        space.munmap(to, 8 * PAGE).unwrap();
        host.told();
        space.mremap(request).unwrap();
        assert_eq!(host.told(), [unmap(lost, at, at + 2 * PAGE)]);
        assert!(!is_registered(space, to));
        // A move that fails has unmapped its target, but not the rest.
        registered(space, at, 1, one);
        registered(space, to, 2, one);
        host.told();
        let old_len = usize::MAX / 4 + 1;
        let request = RemapRequest { old_len, ..RemapRequest::moving(to, PAGE, at) };
        space.mremap(request).unwrap_err();
        assert_eq!(host.told(), [unmap(one, at, at + PAGE)]);
    });
}

#[test]
fn a_removal_is_told_of_before_it_is_done() {
    with_host(Host::default(), |host, space| {
        let (one, deaf) = (uffd(1, ALL), uffd(2, 8));
        let at = 0x4000_0000;
        registered(space, at, 8, one);
        registered(space, at + 2 * PAGE, 2, deaf);
        host.told();
        for advice in [Advice::DontNeed, Advice::Free] {
            space.userfault_copy(at + PAGE, &[7; PAGE], false).unwrap();
            host.watched.lock().unwrap().0 = at + PAGE;
            space.madvise(at + PAGE, 5 * PAGE - 1, advice).unwrap();
            let removed = |from, to| event(one, UserFaultChange::Remove(from..to));
            let told = [removed(at + PAGE, at + 2 * PAGE), removed(at + 4 * PAGE, at + 6 * PAGE)];
            assert_eq!(host.told(), told);
            assert_eq!(host.watched.lock().unwrap().1, Some(7));
            assert!(is_registered(space, at + PAGE), "{advice:?}");
        }
        // The call stops at locked memory, and tells of no more.
        space.mmap(at + 2 * PAGE, PAGE, 3, FIXED | MapFlags::LOCKED).unwrap();
        host.told();
        space.madvise(at, 8 * PAGE, Advice::DontNeed).unwrap_err();
        let first = UserFaultChange::Remove(at..at + 2 * PAGE);
        assert_eq!(host.told(), [event(one, first)]);
        // Other advice removes nothing.
        space.madvise(at, PAGE, Advice::Cold).unwrap();
        space.madvise(at + 1, PAGE, Advice::DontNeed).unwrap_err();
        assert_eq!(host.told(), []);
    });
}

#[test]
fn a_child_has_userfaultfds_of_its_own() {
    with_host(Host::default(), |host, space| {
        let (one, two, deaf) = (uffd(1, ALL), uffd(2, 1), uffd(3, 8));
        let at = 0x4000_0000;
        registered(space, at, 6, one);
        registered(space, at + PAGE, 1, two);
        registered(space, at + 2 * PAGE, 1, deaf);
        host.told();
        space.userfault_copy(at, &[5; PAGE], false).unwrap();
        let child = space.fork(Asid(3)).unwrap();
        let forked = |of: Uffd, child| event(of, UserFaultChange::Fork { child });
        let numbers = [0x100 << EVENTS | 15, 0x200 << EVENTS | 1];
        assert_eq!(host.told(), [forked(one, numbers[0]), forked(two, numbers[1])]);
        assert_eq!(byte(&child, at), 5);
        for page in [1, 2, 3] {
            let missing = child.read(at + page * PAGE, &mut [0]).is_err();
            assert_eq!(missing, page != 2, "page {page}");
            space.read(at + page * PAGE, &mut [0]).unwrap_err();
        }
        let faults = core::mem::take(&mut *host.faults.lock().unwrap());
        assert_eq!(faults, [numbers[1], two.id, deaf.id, numbers[0], one.id]);
        // Its changes are told of, too.
        let (first, end) = (Uffd { id: numbers[0], ..one }, at + 6 * PAGE);
        child.munmap(end - PAGE, PAGE).unwrap();
        assert_eq!(host.told(), [unmap(first, end - PAGE, end)]);
        // The child's is its own: closed there, the parent keeps its registration.
        child.userfault_close(numbers[0]).unwrap();
        assert!(!is_registered(&child, at + 4 * PAGE) && is_registered(space, at + 4 * PAGE));
        child.userfault_copy(at + PAGE, &[6; PAGE], false).unwrap();
        // A child of the child is told of, too.
        let third = child.fork(Asid(4)).unwrap();
        let second = Uffd { id: numbers[1], ..two };
        let last = 0x300 << EVENTS | 1;
        assert_eq!(host.told(), [forked(second, last)]);
        third.munmap(at, 6 * PAGE).unwrap();
        assert_eq!(host.told(), []);
    });
}

#[test]
fn a_fork_without_memory_for_a_userfaultfd_fails() {
    with_host(Host { refuses: true, ..Host::default() }, |host, space| {
        registered(space, 0, 2, uffd(1, ALL));
        assert_eq!(space.fork(Asid(3)).unwrap_err().errno(), 12);
        assert_eq!(host.told(), []);
    });
}

/// While an event is not read, the calls of the monitor fail.
#[test]
fn a_monitor_that_has_not_read_an_event_waits() {
    with_host(Host::default(), |host, space| {
        let at = registered(space, 0, 8, uffd(1, ALL));
        space.userfault_register(at, PAGE, UserFaultModes::WP, uffd(1, ALL)).unwrap();
        let source = space.mmap(0, PAGE, 3, PRIVATE).unwrap();
        space.write(source, &[1]).unwrap();
        let refused = |what: &str, done: Result<(), Error>| {
            let error = done.unwrap_err();
            assert_eq!((error, error.errno()), (UserFaultError::Changing.into(), 11), "{what}");
        };
        host.changing.store(1, SeqCst);
        let error = |failed: Resolved| failed.error;
        let far = at + 2 * PAGE;
        refused("copy", space.userfault_copy(far, &[1; PAGE], false).map_err(error));
        refused("zeropage", space.userfault_zeropage(far, PAGE).map_err(error));
        refused("poison", space.userfault_poison(far, PAGE).map_err(error));
        refused("protect", space.userfault_write_protect(at, PAGE, true));
        refused("move", space.userfault_move(far, source, PAGE, false).map_err(error));
        host.changing.store(0, SeqCst);
        space.userfault_move(far, source, PAGE, false).unwrap();
        space.userfault_write_protect(at, PAGE, true).unwrap();
    });
}
