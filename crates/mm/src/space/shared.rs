//! A shared value with weak references, whose allocation can fail: `alloc::sync::Arc` aborts
//! instead (I7). Spaces, objects, groups and promises of memory live in one.
//!
//! It is correct for the same reasons as `Arc`. All strong references together hold one weak one.
//! The user that drops the last strong reference drops the value, and the one that drops the last
//! weak reference frees the memory. Each sees what the others did before they dropped theirs.

use alloc::boxed::Box;
#[cfg(not(loom))]
use core::sync::atomic::{AtomicUsize, fence};
use core::{
    fmt,
    marker::PhantomData,
    mem::{ManuallyDrop, MaybeUninit},
    ops::Deref,
    ptr::NonNull,
    sync::atomic::Ordering,
};
#[cfg(loom)]
use loom::sync::atomic::{AtomicUsize, fence};

pub(crate) struct Inner<T: ?Sized> {
    /// The number of strong references, and [`CLOSED`].
    strong: AtomicUsize,
    weak: AtomicUsize,
    value: ManuallyDrop<T>,
}

/// No strong reference comes from a weak one any more.
const CLOSED: usize = 1 << (usize::BITS - 1);

/// A counted reference to a value that several users share, as `Arc`. Without heap, it returns an
/// error instead of aborting.
///
/// Objects are lent to maps in it: a `Shared` of a type that implements [`Object`](crate::Object)
/// becomes a `Shared<dyn Object<_>>` by `into`.
///
/// ```
/// # use mm::Shared;
/// let one = Shared::try_new(vec![1, 2])?;
/// let two = one.clone();
/// assert!(Shared::ptr_eq(&one, &two));
/// assert_eq!(two.len(), 2);
/// # Ok::<(), mm::Error>(())
/// ```
///
/// # Misuse
/// A forgotten reference keeps the value. At `isize::MAX` references a clone panics, and the count
/// is as before.
pub struct Shared<T: ?Sized>(NonNull<Inner<T>>, PhantomData<Inner<T>>);

/// A weak reference: it keeps the memory, and not the value.
pub struct WeakShared<T: ?Sized>(NonNull<Inner<T>>);

// SAFETY: as for `Arc`: it lends `&T` to several threads, and the last of them drops the `T`.
unsafe impl<T: Send + Sync + ?Sized> Send for Shared<T> {}
// SAFETY: as above.
unsafe impl<T: Send + Sync + ?Sized> Sync for Shared<T> {}
// SAFETY: as above.
unsafe impl<T: Send + Sync + ?Sized> Send for WeakShared<T> {}
// SAFETY: as above.
unsafe impl<T: Send + Sync + ?Sized> Sync for WeakShared<T> {}

/// Counts one more reference. The caller has one.
fn add(count: &AtomicUsize) {
    // Relaxed: the caller's reference keeps what is counted. The new one reaches another thread by
    // other synchronisation.
    if count.fetch_add(1, Ordering::Relaxed) > isize::MAX as usize {
        // Relaxed: as above. Undone, so that caught panics do not add up to an overflow.
        count.fetch_sub(1, Ordering::Relaxed);
        panic!("a value has isize::MAX references; are clones forgotten?");
    }
}

/// The memory for a shared value: allocated before steps that cannot be undone.
pub(crate) struct SharedRoom<T>(Box<MaybeUninit<Inner<T>>>);

impl<T> SharedRoom<T> {
    pub(crate) fn try_new() -> Result<Self, vma::Error> {
        let room = maple::try_box(MaybeUninit::uninit());
        room.map(SharedRoom).map_err(|_| vma::Error::OutOfMemory)
    }

    /// Puts the value there.
    pub(crate) fn put(mut self, value: T) -> Shared<T> {
        let (strong, weak) = (AtomicUsize::new(1), AtomicUsize::new(1));
        self.0.write(Inner { strong, weak, value: ManuallyDrop::new(value) });
        Shared(NonNull::from(Box::leak(self.0)).cast(), PhantomData)
    }
}

impl<T> Shared<T> {
    /// Moves a value to the heap, with one user. Allocates once; waits for nothing.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`](vma::Error::OutOfMemory); the value is dropped.
    pub fn try_new(value: T) -> Result<Self, vma::Error> {
        SharedRoom::try_new().map(|room| room.put(value))
    }
}

impl<T: ?Sized> Shared<T> {
    /// The same reference, to a trait object.
    ///
    /// # Safety
    /// `coerce` returns its argument, with another type.
    pub(crate) unsafe fn coerce<U: ?Sized>(
        self,
        coerce: impl FnOnce(*mut Inner<T>) -> *mut Inner<U>,
    ) -> Shared<U> {
        let inner = coerce(ManuallyDrop::new(self).0.as_ptr());
        // SAFETY: it comes from a pointer that is not null. The reference moves into the result.
        Shared(unsafe { NonNull::new_unchecked(inner) }, PhantomData)
    }

    /// Whether both are references to the same value.
    pub fn ptr_eq(a: &Self, b: &Self) -> bool {
        core::ptr::addr_eq(a.0.as_ptr(), b.0.as_ptr())
    }

    /// A weak reference to the value.
    pub fn downgrade(this: &Self) -> WeakShared<T> {
        add(&this.inner().weak);
        WeakShared(this.0)
    }

    /// Waits until this is the only strong reference, so that the caller drops the value. Weak
    /// references find nothing from now on. Calls `relax` while it waits. The other strong ones
    /// come from weak ones, and are not cloned.
    pub(crate) fn close(this: &Self, mut relax: impl FnMut()) {
        let strong = &this.inner().strong;
        // Relaxed: `drop` has the order.
        strong.fetch_or(CLOSED, Ordering::Relaxed);
        while strong.load(Ordering::Relaxed) != CLOSED | 1 {
            relax();
        }
    }

    fn inner(&self) -> &Inner<T> {
        // SAFETY: our reference keeps it alive.
        unsafe { self.0.as_ref() }
    }
}

impl<T: ?Sized> Clone for Shared<T> {
    /// Cost: one locked instruction.
    fn clone(&self) -> Self {
        add(&self.inner().strong);
        Shared(self.0, PhantomData)
    }
}

impl<T: fmt::Debug + ?Sized> fmt::Debug for Shared<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl<T: ?Sized> Deref for Shared<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.inner().value
    }
}

impl<T: ?Sized> Drop for Shared<T> {
    fn drop(&mut self) {
        // Release: our accesses to the value come before its end.
        if self.inner().strong.fetch_sub(1, Ordering::Release) & !CLOSED != 1 {
            return;
        }
        // Acquire: pairs with the Release of the other users.
        fence(Ordering::Acquire);
        // The weak reference of the strong ones, which is dropped also if the value panics.
        let _memory = WeakShared(self.0);
        // SAFETY: there is no strong reference any more, and none comes: `upgrade` finds 0. No
        // reference to the counts is made.
        unsafe { ManuallyDrop::drop(&mut (*self.0.as_ptr()).value) };
    }
}

impl<T: ?Sized> WeakShared<T> {
    fn counts(&self) -> (&AtomicUsize, &AtomicUsize) {
        let inner = self.0.as_ptr();
        // SAFETY: our reference keeps the memory. The value may be dropped at this moment, so no
        // reference to it is made.
        unsafe { (&(*inner).strong, &(*inner).weak) }
    }

    /// The value, if it still lives.
    pub fn upgrade(&self) -> Option<Shared<T>> {
        let more = |strong: usize| (strong != 0 && strong & CLOSED == 0).then(|| strong + 1);
        // Acquire: pairs with the Release that published the value. Relaxed on failure: nothing is
        // accessed then.
        let done = self.counts().0.fetch_update(Ordering::Acquire, Ordering::Relaxed, more);
        done.ok().map(|_| Shared(self.0, PhantomData))
    }

    /// As [`Shared::coerce`].
    ///
    /// # Safety
    /// As there.
    pub(crate) unsafe fn coerce<U: ?Sized>(
        self,
        coerce: impl FnOnce(*mut Inner<T>) -> *mut Inner<U>,
    ) -> WeakShared<U> {
        let inner = coerce(ManuallyDrop::new(self).0.as_ptr());
        // SAFETY: as there.
        WeakShared(unsafe { NonNull::new_unchecked(inner) })
    }

    /// Whether the value is gone for good, or goes.
    pub(crate) fn is_gone(&self) -> bool {
        // Relaxed: nothing is accessed.
        matches!(self.counts().0.load(Ordering::Relaxed), 0 | CLOSED..)
    }
}

impl<T: ?Sized> fmt::Debug for WeakShared<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WeakShared(..)")
    }
}

impl<T: ?Sized> Clone for WeakShared<T> {
    fn clone(&self) -> Self {
        add(self.counts().1);
        WeakShared(self.0)
    }
}

impl<T: ?Sized> Drop for WeakShared<T> {
    fn drop(&mut self) {
        // Release: our accesses to the counts come before the memory is freed.
        if self.counts().1.fetch_sub(1, Ordering::Release) == 1 {
            // Acquire: pairs with the Release of the other users.
            fence(Ordering::Acquire);
            // SAFETY: it came from a box, and there is no reference any more. The value, in its
            // `ManuallyDrop`, is dropped already.
            drop(unsafe { Box::from_raw(self.0.as_ptr()) });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::mappings::{Mappings, TakeBack, Visit, weak_visit};
    use alloc::sync::Arc;
    use core::ops::Range;
    use machine::{Frame, VirtAddr};

    #[cfg(not(loom))]
    use core::cell::Cell as Value;
    #[cfg(loom)]
    use loom::cell::Cell as Value;

    /// Says that it is dropped. A user reads the value.
    struct Space {
        value: Value<u32>,
        dropped: Arc<core::sync::atomic::AtomicBool>,
    }

    // SAFETY: users read the value, and the last one writes it.
    unsafe impl Sync for Space {}

    impl Visit for Space {
        fn take_back(&self, _: &TakeBack<'_>) {}

        fn is_changing(&self, _: *const ()) -> bool {
            false
        }

        fn maps(&self, _: Range<usize>, _: &Mappings) -> bool {
            self.value.get() == 1
        }

        fn may_write(&self, _: Range<usize>, _: &Mappings) -> bool {
            false
        }

        fn table_at(&self, _: VirtAddr) -> Option<Frame> {
            None
        }

        fn frame_at(&self, _: VirtAddr) -> Option<Frame> {
            None
        }
    }

    impl Drop for Space {
        fn drop(&mut self) {
            self.value.set(2);
            assert!(!self.dropped.swap(true, Ordering::SeqCst));
        }
    }

    /// A space; whether it was dropped.
    fn space() -> (Shared<Space>, Arc<core::sync::atomic::AtomicBool>) {
        let dropped = Arc::<core::sync::atomic::AtomicBool>::default();
        let space = Space { value: Value::new(1), dropped: Arc::clone(&dropped) };
        (SharedRoom::try_new().unwrap().put(space), dropped)
    }

    fn visit(weak: &WeakShared<dyn Visit>) -> Option<bool> {
        weak.upgrade().map(|space| space.maps(0..1, &Mappings::new()))
    }

    #[cfg(not(loom))]
    #[test]
    fn the_last_strong_reference_drops_the_value() {
        let (shared, dropped) = space();
        let weak = weak_visit(&shared);
        let (strong, other) = (weak.upgrade().unwrap(), weak.clone());
        drop(shared);
        assert_eq!((visit(&other), other.is_gone()), (Some(true), false));
        assert!(!dropped.load(Ordering::SeqCst));
        drop(strong);
        assert!(dropped.load(Ordering::SeqCst));
        assert_eq!((visit(&weak), weak.is_gone()), (None, true));
        drop(weak);
        assert_eq!(visit(&other), None);
    }

    #[cfg(not(loom))]
    #[test]
    fn a_closed_value_waits_for_its_visits() {
        let (shared, dropped) = space();
        let weak = weak_visit(&shared);
        let mut visits = weak.upgrade();
        Shared::close(&shared, || {
            assert!(weak.is_gone() && weak.upgrade().is_none());
            visits = None;
        });
        assert!(visits.is_none() && !dropped.load(Ordering::SeqCst));
        drop(shared);
        assert!(dropped.load(Ordering::SeqCst));
    }

    /// A visit during the end of a space: it finds the space whole, or nothing.
    #[cfg(loom)]
    #[test]
    fn loom_a_visit_during_the_end_of_a_space() {
        loom::model(|| {
            let (shared, dropped) = space();
            let weak = weak_visit(&shared);
            let other = loom::thread::spawn(move || visit(&weak));
            drop(shared);
            assert_ne!(other.join().unwrap(), Some(false));
            assert!(dropped.load(Ordering::SeqCst));
        });
    }

    /// The owner of a space drops it, also during a visit.
    #[cfg(loom)]
    #[test]
    fn loom_the_owner_of_a_space_drops_it() {
        loom::model(|| {
            let (shared, dropped) = space();
            let weak = weak_visit(&shared);
            let seen = Arc::clone(&dropped);
            let other = loom::thread::spawn(move || {
                let found = weak.upgrade();
                let lives = found.is_none() || !seen.load(Ordering::SeqCst);
                drop(found);
                lives && weak.upgrade().is_none_or(|_| !seen.load(Ordering::SeqCst))
            });
            Shared::close(&shared, loom::thread::yield_now);
            assert!(!dropped.load(Ordering::SeqCst), "a visit has dropped the space");
            drop(shared);
            assert!(dropped.load(Ordering::SeqCst));
            assert!(other.join().unwrap());
        });
    }
}
