//! The memory for the tables of a frame source: from the heap, or given by the host before it has a
//! heap.
//!
//! Memory of the host is handed out from its start on, and never comes back: a frame source only
//! grows. A [`Slice`] is a boxed slice of either. The host promises that given memory is the
//! source's alone as long as the source exists, so a slice of it may be used as one from the heap.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::alloc::Layout;
use core::ops::{Deref, DerefMut};
use core::ptr::NonNull;
use core::slice;
use spin::mutex::SpinMutex;

/// There is no memory for a table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct NoMemory;

/// Where tables get their memory.
pub(crate) enum Storage {
    Heap,
    SetAside(SpinMutex<SetAside>),
}

/// The unused rest of the memory that the host has given.
pub(crate) struct SetAside {
    next: NonNull<u8>,
    left: usize,
}

// SAFETY: the memory is the storage's alone: promised at `given`.
unsafe impl Send for SetAside {}

impl Storage {
    /// # Safety
    /// The memory may be written, and no other code uses it as long as the storage and its slices
    /// exist.
    pub(crate) unsafe fn given(memory: NonNull<[u8]>) -> Storage {
        Storage::SetAside(SpinMutex::new(SetAside { next: memory.cast(), left: memory.len() }))
    }

    /// A slice of this many values.
    pub(crate) fn slice<T>(
        &self,
        len: usize,
        make: impl FnMut(usize) -> T,
    ) -> Result<Slice<T>, NoMemory> {
        self.collect((0..len).map(make))
    }

    /// A slice of one value.
    pub(crate) fn one<T>(&self, value: T) -> Result<Slice<T>, NoMemory> {
        self.collect([value].into_iter())
    }

    fn collect<T>(&self, values: impl ExactSizeIterator<Item = T>) -> Result<Slice<T>, NoMemory> {
        let len = values.len();
        let Storage::SetAside(given) = self else {
            let mut all = Vec::new();
            all.try_reserve_exact(len).map_err(|_| NoMemory)?;
            all.extend(values);
            return Ok(all.into_boxed_slice().into());
        };
        let layout = Layout::array::<T>(len).map_err(|_| NoMemory)?;
        let start = given.lock().take(layout).ok_or(NoMemory)?.cast();
        let mut slice = Slice { start, len: 0, on_heap: false };
        for value in values.take(len) {
            // SAFETY: within the new memory, which has the layout of an array.
            unsafe { start.add(slice.len).write(value) };
            slice.len += 1;
        }
        Ok(slice)
    }
}

impl SetAside {
    fn take(&mut self, layout: Layout) -> Option<NonNull<u8>> {
        let skipped = self.next.align_offset(layout.align());
        let used = skipped.checked_add(layout.size())?;
        self.left = self.left.checked_sub(used)?;
        // SAFETY: within the memory, since so much was left.
        let start = unsafe { self.next.add(skipped) };
        // SAFETY: as above.
        self.next = unsafe { start.add(layout.size()) };
        Some(start)
    }
}

/// A slice that it owns.
pub(crate) struct Slice<T> {
    start: NonNull<T>,
    len: usize,
    on_heap: bool,
}

// SAFETY: it owns its values, as a boxed slice does.
unsafe impl<T: Send> Send for Slice<T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for Slice<T> {}

impl<T> From<Box<[T]>> for Slice<T> {
    fn from(all: Box<[T]>) -> Self {
        let len = all.len();
        // No box is null, so the alternative never is.
        let start = NonNull::new(Box::into_raw(all)).map_or(NonNull::dangling(), NonNull::cast);
        Slice { start, len, on_heap: true }
    }
}

/// An empty slice.
impl<T> Default for Slice<T> {
    fn default() -> Self {
        Slice { start: NonNull::dangling(), len: 0, on_heap: false }
    }
}

impl<T> Deref for Slice<T> {
    type Target = [T];

    #[inline(always)]
    fn deref(&self) -> &[T] {
        // SAFETY: the memory has so many values, and is this slice's alone.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl<T> DerefMut for Slice<T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as above.
        unsafe { slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl<T> Drop for Slice<T> {
    fn drop(&mut self) {
        let all: *mut [T] = &mut **self;
        match self.on_heap {
            // SAFETY: it was a box, and becomes one once, here.
            true => drop(unsafe { Box::from_raw(all) }),
            // SAFETY: the values are dropped once, here.
            false => unsafe { all.drop_in_place() },
        }
    }
}
