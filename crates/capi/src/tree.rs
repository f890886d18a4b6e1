//! The handle of a tree: options, making, destroying.

use crate::cancel::Uncancelled;
use crate::engine::Guard;
use crate::errno::{Errno, border, misuse, not_null};
use crate::lock::Lock;
use crate::memory::{free_object, object};
use crate::queue::{Callback, Periods, Queue, in_callback};
use crate::rcu::{Rcu, samara_rcu};
use crate::thread::{DOMAIN, Local};
use crate::{Map, Session};
use core::cell::{Cell, UnsafeCell};
use core::ffi::{c_int, c_void};
use core::ptr::{self, NonNull};
use maple::WriteToken;
use std::sync::atomic::{AtomicBool, AtomicUsize};

/// For `samara_options.flags`: the program serialises writers of the tree by a lock of its own.
pub const SAMARA_TREE_CALLER_LOCK: u32 = 1;
/// For `samara_options.flags`: the tree has no readers concurrent with a writer. The program
/// serialises all calls on it; only calls that read may run at once. Writes are faster, and removed
/// entries are released at once. Read sections do not matter.
pub const SAMARA_TREE_EXCLUSIVE: u32 = 2;

/// Options of a new tree. Set all of it to zero, then `size` to `sizeof(struct samara_options)`,
/// then the members that differ.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(non_camel_case_types)]
pub struct samara_options {
    /// The size of this structure in bytes. Later versions of the library may append members. An
    /// older library refuses them only if they are not zero.
    pub size: usize,
    /// 0, `SAMARA_TREE_CALLER_LOCK` or `SAMARA_TREE_EXCLUSIVE`.
    pub flags: u32,
    /// 0.
    pub reserved: u32,
    /// Passed to `retain` and `release`.
    pub ctx: *mut c_void,
    /// Takes one more reference to `entry`. Called when a write splits a range in two, and for each
    /// range of a duplicate. Called with the tree's lock held, perhaps while other threads call
    /// `release`: a count of references is atomic. It cannot fail. NULL: nothing.
    pub retain: Option<unsafe extern "C" fn(ctx: *mut c_void, entry: *mut c_void)>,
    /// Gives one reference to `entry` back, when no reader can see it any more. Called once for
    /// each range that has left the tree. Any call that writes to the tree may call it, on any
    /// thread, perhaps with the tree's lock held; with `rcu`, the thread of `call_rcu` calls it.
    /// NULL: nothing.
    pub release: Option<unsafe extern "C" fn(ctx: *mut c_void, entry: *mut c_void)>,
    /// The grace periods of the program, which stays valid as long as the tree; NULL for those of
    /// the library. Not with `SAMARA_TREE_EXCLUSIVE`.
    pub rcu: *const samara_rcu,
}

/// The fields that stay the same while a tree lives.
#[repr(align(128))]
pub(crate) struct Fixed {
    pub(crate) flags: u32,
    pub(crate) ctx: *mut c_void,
    pub(crate) retain: Option<Callback>,
    pub(crate) release: Option<Callback>,
    rcu: Option<Rcu>,
    /// The options, for a duplicate.
    options: samara_options,
}

/// A range tree. Opaque.
///
/// It contains no pointer of the caller's but the entries.
#[repr(align(128))]
#[allow(non_camel_case_types)]
pub struct samara_tree {
    // Each of the large members is aligned to two cache lines and fills them. So readers, writers
    // and the fixed fields have cache lines of their own, in any order.
    /// Readers read it, the writer changes it.
    pub(crate) map: UnsafeCell<Map>,
    pub(crate) fixed: Fixed,
    pub(crate) lock: Lock,
    /// The id of the thread that holds the lock over several calls; 0 for none.
    pub(crate) owner: AtomicUsize,
    /// From here on only the writer has access.
    pub(crate) writer: WriterState,
}

/// The state of a tree that belongs to its writer.
#[repr(align(128))]
pub(crate) struct WriterState {
    pub(crate) token: UnsafeCell<WriteToken>,
    pub(crate) queue: UnsafeCell<Queue>,
    /// The writer of the tree, between the first write and the next barrier or unlock.
    pub(crate) session: UnsafeCell<Option<Session>>,
    /// The number of calls that run what was due, after they have released the lock.
    pub(crate) running: AtomicUsize,
    /// The number of changes so far.
    pub(crate) version: Cell<u64>,
    /// Whether a call writes; see `Held`.
    pub(crate) busy: AtomicBool,
    /// Whether the holder of the lock has preallocated nodes.
    pub(crate) preallocated: Cell<bool>,
    /// The number of times that the lock was held over several calls.
    pub(crate) sessions: Cell<u64>,
}

impl samara_tree {
    /// # Safety
    /// NULL, or a tree that is not destroyed as long as the result is used.
    #[inline(always)]
    pub(crate) unsafe fn from<'a>(tree: *const samara_tree, call: &str) -> Result<&'a Self, Errno> {
        // SAFETY: the caller's promise.
        match unsafe { tree.as_ref() } {
            Some(tree) => Ok(tree),
            None => Err(misuse(libc::EINVAL, call, "the tree is NULL")),
        }
    }

    #[inline(always)]
    pub(crate) fn is_exclusive(&self) -> bool {
        self.fixed.flags & SAMARA_TREE_EXCLUSIVE != 0
    }

    #[inline(always)]
    pub(crate) fn periods(&self) -> Periods {
        match &self.fixed.rcu {
            _ if self.is_exclusive() => Periods::None,
            None => Periods::Sections,
            // SAFETY: a tree outlives its writes. A block that was given to `call` does not refer
            // to it.
            Some(rcu) => Periods::Program(unsafe { &*ptr::from_ref(rcu) }),
        }
    }

    #[inline(always)]
    pub(crate) fn has_callbacks(&self) -> bool {
        self.fixed.retain.is_some() || self.fixed.release.is_some()
    }

    /// Calls `retain`.
    pub(crate) fn retain(&self, entry: NonNull<()>) {
        if let Some(retain) = self.fixed.retain {
            // SAFETY: the program's function, with an entry that it stored.
            in_callback(|| unsafe { retain(self.fixed.ctx, entry.as_ptr().cast()) });
        }
    }

    /// The map, for a call that may read: the thread is in a read section, holds the lock over
    /// several calls, or the tree is exclusive.
    #[inline(always)]
    pub(crate) fn reading(&self, call: &str) -> Result<(&Map, &'static Guard), Errno> {
        if !self.may_read() {
            return Err(misuse(libc::EPERM, call, "outside of a read section and of the lock"));
        }
        // SAFETY: the check above, or the program's promise for an exclusive tree.
        Ok(unsafe { (&*self.map.get(), Guard::new()) })
    }

    #[inline(always)]
    fn may_read(&self) -> bool {
        if self.is_exclusive() {
            return true;
        }
        Local::with(|local| {
            let in_section = match &self.fixed.rcu {
                None => local.section().is_some(),
                Some(rcu) => rcu.ongoing().unwrap_or(true),
            };
            in_section || self.is_owner(local)
        })
    }

    /// Whether only being the writer makes this thread's reads safe, so that it must not read on
    /// after it has written.
    pub(crate) fn reads_as_writer(&self) -> bool {
        self.is_exclusive()
            || Local::with(|local| {
                let in_section = match &self.fixed.rcu {
                    None => local.section().is_some(),
                    Some(rcu) => rcu.ongoing().unwrap_or(false),
                };
                !in_section && self.is_owner(local)
            })
    }

    /// Waits until all read sections that exist now have ended.
    pub(crate) fn wait(&self, call: &str) -> Result<(), Errno> {
        const CAUSE: &str = "it waits for read sections, and this thread is in one";
        let _uncancelled = Uncancelled::begin();
        match self.periods() {
            Periods::None => {}
            Periods::Program(rcu) if rcu.ongoing() == Some(true) => {
                return Err(misuse(libc::EDEADLK, call, CAUSE));
            }
            Periods::Program(rcu) => rcu.synchronize(),
            Periods::Sections => {
                if Local::with(Local::section).is_some() {
                    return Err(misuse(libc::EDEADLK, call, CAUSE));
                }
                let target = DOMAIN.target();
                let mut pause = 0;
                while !DOMAIN.is_over(target) {
                    // At first others may run; later this thread sleeps up to a millisecond.
                    let time = libc::timespec { tv_sec: 0, tv_nsec: pause };
                    // SAFETY: a valid time; the rest is not asked for.
                    unsafe { libc::nanosleep(&time, ptr::null_mut()) };
                    pause = (pause * 2).clamp(1_000, 1_000_000);
                }
            }
        }
        Ok(())
    }

    /// Makes a tree around a map.
    pub(crate) fn make(
        options: &samara_options,
        map: impl FnOnce() -> Result<(Map, WriteToken), Errno>,
    ) -> Result<NonNull<samara_tree>, Errno> {
        let block = object::<samara_tree>()?;
        let made = Self::at(block, options, map);
        if made.is_err() {
            // SAFETY: just allocated, and nothing was written.
            unsafe { free_object(block) }
        }
        made.map(|()| block)
    }

    fn at(
        block: NonNull<samara_tree>,
        options: &samara_options,
        map: impl FnOnce() -> Result<(Map, WriteToken), Errno>,
    ) -> Result<(), Errno> {
        // SAFETY: `options_of` has checked it.
        let rcu = unsafe { options.rcu.as_ref() }.and_then(Rcu::new);
        let (map, token) = map()?;
        let fixed = Fixed {
            flags: options.flags,
            ctx: options.ctx,
            retain: options.retain,
            release: options.release,
            rcu,
            options: *options,
        };
        let writer = WriterState {
            token: UnsafeCell::new(token),
            queue: UnsafeCell::new(Queue::new()),
            session: UnsafeCell::new(None),
            running: AtomicUsize::new(0),
            version: Cell::new(0),
            busy: AtomicBool::new(false),
            preallocated: Cell::new(false),
            sessions: Cell::new(0),
        };
        let (map, owner) = (UnsafeCell::new(map), AtomicUsize::new(0));
        // SAFETY: a fresh block of that layout.
        unsafe { block.write(samara_tree { map, fixed, lock: Lock::new(), owner, writer }) };
        // SAFETY: the tree is in its final place, and no other code has it.
        unsafe { block.as_ref() }.lock.init();
        Ok(())
    }

    pub(crate) fn options(&self) -> &samara_options {
        &self.fixed.options
    }
}

/// No later version has larger options.
const LARGEST_OPTIONS: usize = 4096;

/// The options of a new tree, checked. Those of a program that was built with a later header may be
/// longer; fields that this version does not know have to be zero.
unsafe fn options_of(options: *const samara_options, call: &str) -> Result<samara_options, Errno> {
    // SAFETY: all zeros is a valid value: no flags, no functions.
    let mut own: samara_options = unsafe { core::mem::zeroed() };
    if options.is_null() {
        return Ok(own);
    }
    let invalid = |cause| Err(misuse(libc::EINVAL, call, cause));
    // SAFETY: the caller passes options, of which `size` is the first member.
    let size = unsafe { options.cast::<usize>().read() };
    if !(size_of::<samara_options>()..=LARGEST_OPTIONS).contains(&size) {
        return invalid("options.size is not sizeof(struct samara_options)");
    }
    for at in size_of::<samara_options>()..size {
        // SAFETY: the caller passes so many bytes.
        if unsafe { options.cast::<u8>().add(at).read() } != 0 {
            return invalid("an option is set that this version of the library does not know");
        }
    }
    // SAFETY: as above.
    own = unsafe { *options };
    let exclusive = own.flags & SAMARA_TREE_EXCLUSIVE != 0;
    if own.flags & !(SAMARA_TREE_CALLER_LOCK | SAMARA_TREE_EXCLUSIVE) != 0 || own.reserved != 0 {
        return invalid("unknown flags");
    }
    if exclusive && (own.flags & SAMARA_TREE_CALLER_LOCK != 0 || !own.rcu.is_null()) {
        return invalid("an exclusive tree has neither a lock nor grace periods");
    }
    // SAFETY: the caller passes NULL or the functions of its RCU.
    if unsafe { own.rcu.as_ref() }.is_some_and(|rcu| Rcu::new(rcu).is_none()) {
        return invalid("options.rcu lacks a function");
    }
    Ok(own)
}

/// Makes an empty tree with the given options (NULL for none), and stores it in `*out`.
///
/// A tree maps ranges of `uint64_t`, first and last index included, to entries. An entry is any
/// pointer but NULL; the library never reads through it.
///
/// Errors: -EINVAL, -ENOMEM; then `*out` is NULL. Any thread. Constant time; one allocation of
/// about a kilobyte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn samara_tree_new(
    options: *const samara_options,
    out: *mut *mut samara_tree,
) -> c_int {
    const CALL: &str = "samara_tree_new";
    border(|| {
        not_null(out.is_null(), CALL, "out is NULL")?;
        // SAFETY: the caller passes a place for the result.
        unsafe { out.write(ptr::null_mut()) };
        // SAFETY: the caller passes NULL or options.
        let options = unsafe { options_of(options, CALL) }?;
        let tree = samara_tree::make(&options, || Ok(Map::with_token_in()))?;
        // SAFETY: as above.
        unsafe { out.write(tree.as_ptr()) };
        Ok(())
    })
}

/// Destroys a tree; NULL is no tree. Releases all entries. Memory and entries that the tree has
/// retired are freed and released before the call returns. With `rcu`, it calls `synchronize` and
/// `barrier`.
///
/// No other call on the tree may run or follow, and no cursor may be used. It waits for read
/// sections that still use its entries.
///
/// Errors: -EBUSY while the lock is held; -EDEADLK inside a read section or a callback. Then the
/// tree is as it was. May wait as long as the oldest read section; not if the tree is exclusive.
/// Time: the number of nodes, and of entries if there is a release callback.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn samara_tree_destroy(tree: *mut samara_tree) -> c_int {
    const CALL: &str = "samara_tree_destroy";
    let Some(tree) = NonNull::new(tree) else { return 0 };
    border(|| {
        // SAFETY: the caller passes a tree.
        let this = unsafe { tree.as_ref() };
        this.refuse_callback(CALL)?;
        this.lock.is_free(this, CALL)?;
        this.wait(CALL)?;
        // SAFETY: no other code uses the tree, and no section that could has remained.
        unsafe {
            if let Some(release) = this.fixed.release {
                let map = &mut *this.map.get();
                for (_, entry) in map.get_mut().iter(0..=usize::MAX) {
                    in_callback(|| release(this.fixed.ctx, entry.as_ptr().cast()));
                }
            }
            this.end_session_for_good();
            (*this.writer.queue.get()).finish();
            if let Periods::Program(rcu) = this.periods() {
                rcu.barrier();
            }
            this.lock.destroy();
            ptr::drop_in_place(tree.as_ptr());
            free_object(tree);
        }
        Ok(())
    })
}
