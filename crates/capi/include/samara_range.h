/*
 * samara_range: a map from ranges of uint64_t to pointers, with lock-free readers and a search for
 * free space. Link with -lsamara_range; pkg-config knows it as samara_range.
 *
 *     struct samara_tree *tree;
 *     struct samara_range range;
 *     if (samara_tree_new(NULL, &tree) != 0)
 *         return -1;
 *     samara_tree_store(tree, 0x1000, 0x4fff, text);
 *     samara_tree_store(tree, 0x2000, 0x2fff, data);    // splits the first range
 *
 *     samara_read_lock();                               // no lock: any number of readers
 *     samara_tree_lookup(tree, 0x3000, &range);         // 0x3000 to 0x4fff, text
 *     samara_read_unlock();
 *     samara_tree_destroy(tree);
 *
 * Results. Calls return 0 or a negative errno, unless they say otherwise. After an error the tree
 * is as it was. -EINVAL, -EPERM, -EDEADLK and -EBUSY report misuse; a debug build of the library
 * also prints the cause to stderr. No call aborts: out of memory is -ENOMEM. -ENOTRECOVERABLE is a
 * bug of the library.
 *
 * Threads. Any number of threads may use a tree at once.
 *  - A reader is in a read section (samara_read_lock), which never waits. It may be a writer, too.
 *  - Each call that writes takes the tree's lock, or the thread holds it over several calls
 *    (samara_tree_lock). Under the lock a thread may read without a section.
 *  - With SAMARA_TREE_CALLER_LOCK the program serialises writers by a lock of its own: it holds it
 *    in each call that would wait for the tree's lock. With SAMARA_TREE_EXCLUSIVE it keeps readers
 *    out, too.
 * A tree must not be used by a call while samara_tree_destroy runs or afterwards.
 *
 * Entries. A pointer that a reader has found stays in use until its section ends, even if a writer
 * removes it meanwhile. So a program frees removed entries after the readers: by release in the
 * options of the tree, by samara_tree_defer, or after samara_tree_barrier. The tree frees its own
 * memory by the same rule, in later calls that write to it. Readers run none of these frees.
 *
 * Callbacks (allocators, retain, release, free of samara_tree_defer). They must not throw, longjmp
 * or end the thread, not even by a cancellation. They may read a tree in a read section. Calls that
 * write, and those that lock a tree, return -EDEADLK inside of them. A callback must not wait for a
 * lock that a thread may hold while it calls the library.
 *
 * Cursors, indices, forks. A cursor is used by one thread at a time. Indices go up to UINT64_MAX;
 * both ends of a range belong to it. No call is for signal handlers, and none is a cancellation
 * point. After fork in a program with several threads, the child must not use the library before
 * exec.
 */


#ifndef SAMARA_RANGE_H
#define SAMARA_RANGE_H

/* Generated from the crate samara-capi by cbindgen. Change its sources instead. */

#include <stddef.h>
#include <stdint.h>

#define SAMARA_RANGE_VERSION_MAJOR 0
#define SAMARA_RANGE_VERSION_MINOR 1
#define SAMARA_RANGE_VERSION_PATCH 0

/**
 * For `samara_options.flags`: the program serialises writers of the tree by a lock of its own.
 */
#define SAMARA_TREE_CALLER_LOCK 1

/**
 * For `samara_options.flags`: the tree has no readers concurrent with a writer. The program
 * serialises all calls on it; only calls that read may run at once. Writes are faster, and removed
 * entries are released at once. Read sections do not matter.
 */
#define SAMARA_TREE_EXCLUSIVE 2

/**
 * A range tree. Opaque.
 *
 * It contains no pointer of the caller's but the entries.
 */
struct samara_tree;

/**
 * The source of the library's memory. Both functions may be called by any thread that calls the
 * library, also at once, and with the lock of a tree held. They must not call the library, and
 * must not throw or `longjmp`.
 */
struct samara_allocator {
    /**
     * Passed to both functions.
     */
    void *ctx;
    /**
     * Returns `size` bytes, aligned to `align` (a power of two, at most 128), or NULL. `size` is
     * not 0.
     */
    void *(*alloc)(void *ctx, size_t size, size_t align);
    /**
     * Takes back memory that `alloc` returned for this size and alignment. `ptr` is not NULL.
     */
    void (*free)(void *ctx, void *ptr, size_t size, size_t align);
};

/**
 * The grace periods of the program. `samara_range_urcu.h` has one for liburcu. It must not change
 * while a tree uses it.
 */
struct samara_rcu {
    /**
     * Calls `samara_rcu_done(head)` once, after all read sections that exist now have ended.
     * `head` has 16 bytes for the use of this function, aligned to 8, and holds up to 31 retired
     * pieces. Called with the lock of a tree held. Must not fail, and must not call
     * `samara_rcu_done` before it returns.
     */
    void (*call)(void *head);
    /**
     * Waits until all read sections that exist now have ended.
     */
    void (*synchronize)(void);
    /**
     * Waits until `samara_rcu_done` has returned for each `call` so far.
     */
    void (*barrier)(void);
    /**
     * Whether the calling thread is in a read section: 0 or 1. May be NULL; then calls outside of
     * a section are not noticed.
     */
    int (*ongoing)(void);
};

/**
 * Options of a new tree. Set all of it to zero, then `size` to `sizeof(struct samara_options)`,
 * then the members that differ.
 */
struct samara_options {
    /**
     * The size of this structure in bytes. Later versions of the library may append members. An
     * older library refuses them only if they are not zero.
     */
    size_t size;
    /**
     * 0, `SAMARA_TREE_CALLER_LOCK` or `SAMARA_TREE_EXCLUSIVE`.
     */
    uint32_t flags;
    /**
     * 0.
     */
    uint32_t reserved;
    /**
     * Passed to `retain` and `release`.
     */
    void *ctx;
    /**
     * Takes one more reference to `entry`. Called when a write splits a range in two, and for each
     * range of a duplicate. Called with the tree's lock held, perhaps while other threads call
     * `release`: a count of references is atomic. It cannot fail. NULL: nothing.
     */
    void (*retain)(void *ctx, void *entry);
    /**
     * Gives one reference to `entry` back, when no reader can see it any more. Called once for
     * each range that has left the tree. Any call that writes to the tree may call it, on any
     * thread, perhaps with the tree's lock held; with `rcu`, the thread of `call_rcu` calls it.
     * NULL: nothing.
     */
    void (*release)(void *ctx, void *entry);
    /**
     * The grace periods of the program, which stays valid as long as the tree; NULL for those of
     * the library. Not with `SAMARA_TREE_EXCLUSIVE`.
     */
    const struct samara_rcu *rcu;
};

/**
 * A range of a tree.
 */
struct samara_range {
    /**
     * The first index.
     */
    uint64_t first;
    /**
     * The last index.
     */
    uint64_t last;
    /**
     * The entry; NULL for a hole.
     */
    void *entry;
};

/**
 * A position in a tree, for the stack or wherever the caller wants it. `samara_cursor_init` sets
 * it up; it holds no memory, so nothing needs to be undone. It must not be copied while it is
 * used. Opaque.
 */
struct samara_cursor {
    /**
     * Private.
     */
    uint64_t opaque[144];
};

/**
 * The size of a tree, from `samara_tree_stats`.
 */
struct samara_stats {
    /**
     * The number of levels; 0 for an empty tree.
     */
    uint64_t height;
    /**
     * The number of nodes, leaves included.
     */
    uint64_t nodes;
    /**
     * The number of leaves.
     */
    uint64_t leaves;
    /**
     * The number of ranges with an entry.
     */
    uint64_t entries;
    /**
     * The number of ranges without one.
     */
    uint64_t holes;
    /**
     * The bytes of the nodes, including nodes that are shared with duplicates.
     */
    uint64_t bytes;
    /**
     * The number of retired pieces that wait for readers: nodes, batches of about twenty nodes,
     * and entries to be released. Pieces that were given to the program's RCU are not counted.
     */
    uint64_t waiting;
    /**
     * The number of retired pieces that found no memory and are never freed. Always 0, unless the
     * library has a bug.
     */
    uint64_t leaked;
};

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * Chooses where the library gets memory, for the whole process and for good.
 *
 * By default, nodes come from a pool with a cache for each thread, and everything else from
 * `malloc`. With an allocator, everything comes from its functions. With NULL, everything comes
 * from `malloc`: tools such as valgrind and AddressSanitizer then see each node.
 *
 * Call it before everything else. The allocator is copied.
 *
 * Errors: -EINVAL if one of the functions is NULL; -EBUSY if the library has allocated memory
 * already. Does not wait or allocate. Any thread.
 */
int samara_set_allocator(const struct samara_allocator *allocator);

/**
 * Makes an empty tree with the given options (NULL for none), and stores it in `*out`.
 *
 * A tree maps ranges of `uint64_t`, first and last index included, to entries. An entry is any
 * pointer but NULL; the library never reads through it.
 *
 * Errors: -EINVAL, -ENOMEM; then `*out` is NULL. Any thread. Constant time; one allocation of
 * about a kilobyte.
 */
int samara_tree_new(const struct samara_options *options, struct samara_tree **out);

/**
 * Destroys a tree; NULL is no tree. Releases all entries. Memory and entries that the tree has
 * retired are freed and released before the call returns. With `rcu`, it calls `synchronize` and
 * `barrier`.
 *
 * No other call on the tree may run or follow, and no cursor may be used. It waits for read
 * sections that still use its entries.
 *
 * Errors: -EBUSY while the lock is held; -EDEADLK inside a read section or a callback. Then the
 * tree is as it was. May wait as long as the oldest read section; not if the tree is exclusive.
 * Time: the number of nodes, and of entries if there is a release callback.
 */
int samara_tree_destroy(struct samara_tree *tree);

/**
 * Begins a read section of the calling thread. Sections nest.
 *
 * Entries that are found inside a section stay valid until it ends: the tree does not release them
 * earlier, and memory given to `samara_tree_defer` is not freed earlier. One section serves all
 * trees, except those with `rcu` in their options: there the program's own `rcu_read_lock` counts.
 *
 * A section should be short. Memory that writers remove waits for the oldest section. The sections
 * of a thread end with the thread, after the destructors of its thread-specific data that run
 * earlier; a debug build prints that they were open.
 *
 * Errors: -ENOMEM, only until a call of the thread has succeeded (or `samara_thread_register`);
 * also if the process has no further key for thread-specific data. A later call tries again.
 * -EOVERFLOW after 2^32 - 1 nested sections. Cost: one atomic exchange in a cache line of the
 * thread's own; a nested section costs an increment. Never waits, and runs no callback but the
 * allocator's. Any thread; not for signal handlers.
 */
int samara_read_lock(void);

/**
 * Ends the read section that the calling thread began last.
 *
 * Errors: -EPERM if the thread is in none. Cost: a decrement, and at the outermost section a
 * store. Never waits, allocates or runs a callback.
 */
int samara_read_unlock(void);

/**
 * Registers the calling thread, so that its `samara_read_lock` cannot fail. Without this call, the
 * first `samara_read_lock` does it. The registration ends with the thread.
 *
 * Errors: -ENOMEM. Cost: the number of threads that have read at the same time so far.
 */
int samara_thread_register(void);

/**
 * Returns the entry at `index`, or NULL if there is none.
 *
 * The caller is in a read section, or holds the tree's lock over several calls, or the tree is
 * exclusive. The entry stays valid until the section ends or the lock is released.
 *
 * Misuse returns NULL; a debug build prints the cause. Never waits, allocates, or writes memory
 * that other threads use. Cost: O(log n); a node of three cache lines for each level.
 */
void *samara_tree_load(const struct samara_tree *tree, uint64_t index);

/**
 * Stores the range that holds `index` in `*out`, with its entry.
 *
 * Errors: -ENOENT if `index` has no entry; -EINVAL if a pointer is NULL; -EPERM if the caller is
 * neither in a read section nor holds the lock, and the tree is not exclusive. Otherwise as
 * `samara_tree_load`.
 */
int samara_tree_lookup(const struct samara_tree *tree, uint64_t index, struct samara_range *out);

/**
 * Stores the lowest range that overlaps `first` to `last` in `*out`, as a whole. To go through a
 * tree, a cursor or `samara_tree_for_each` is faster.
 *
 * Errors: -ENOENT if there is none; -EINVAL also if `first` > `last`; otherwise as
 * `samara_tree_lookup`. Cost: O(log n).
 */
int samara_tree_find(const struct samara_tree *tree,
                     uint64_t first,
                     uint64_t last,
                     struct samara_range *out);

/**
 * Stores the highest range that overlaps `first` to `last` in `*out`, as a whole. Errors and cost:
 * as `samara_tree_find`.
 */
int samara_tree_find_rev(const struct samara_tree *tree,
                         uint64_t first,
                         uint64_t last,
                         struct samara_range *out);

/**
 * Calls `visit` for each range that overlaps `first` to `last`, in order, until it returns
 * something else than 0, and returns that; 0 at the end.
 *
 * With a concurrent writer this is no snapshot: for each index, `visit` sees what the tree held at
 * some moment during the call. In a read section, `visit` may write to the tree. Under the lock,
 * and in an exclusive tree, it may not; then the call ends with -EBUSY. It must not destroy the
 * tree, end the read section or release the lock.
 *
 * Errors: -EINVAL, -EPERM as `samara_tree_find`. Cost: O(log n), and a few instructions for each
 * range.
 */
int samara_tree_for_each(const struct samara_tree *tree,
                         uint64_t first,
                         uint64_t last,
                         int (*visit)(void *ctx, const struct samara_range *range),
                         void *ctx);

/**
 * Sets a cursor up at `index`. The first move finds the range at the index, or the next one in its
 * direction.
 *
 * The caller is in a read section, or holds the tree's lock, or the tree is exclusive. The cursor
 * may be used until the section ends or the lock is released; after `samara_cursor_pause`, in
 * another section or under the lock. The tree must not be destroyed meanwhile.
 *
 * In a read section, it moves on while writers change the tree, and meets each index at most once.
 * Under the lock it shows the tree as it is, and continues after writes of its own thread.
 *
 * Errors: -EINVAL if a pointer is NULL; -EPERM. Constant time. No memory.
 */
int samara_cursor_init(struct samara_cursor *cursor,
                       const struct samara_tree *tree,
                       uint64_t index);

/**
 * Moves to the next range that begins at or before `limit`, and stores it in `*out`. After
 * `samara_cursor_init` or `samara_cursor_set`, that may be the range at the index.
 *
 * Errors: -ENOENT if there is none: then the cursor is behind `limit`, and
 * `samara_cursor_prev` turns back from there; -EINVAL if a pointer is NULL or the cursor was not
 * set up; -EPERM if its section or lock has ended. Never waits or allocates. Cost: a few
 * instructions in a leaf; the first move O(log n).
 */
int samara_cursor_next(struct samara_cursor *cursor, uint64_t limit, struct samara_range *out);

/**
 * Moves to the previous range that ends at or after `limit`, and stores it in `*out`. Otherwise as
 * `samara_cursor_next`.
 */
int samara_cursor_prev(struct samara_cursor *cursor, uint64_t limit, struct samara_range *out);

/**
 * As `samara_cursor_next`, but finds holes, too. Their entry is NULL. With a concurrent writer, a
 * hole may appear in parts.
 */
int samara_cursor_next_or_hole(struct samara_cursor *cursor,
                               uint64_t limit,
                               struct samara_range *out);

/**
 * As `samara_cursor_prev`, but finds holes, too. Their entry is NULL.
 */
int samara_cursor_prev_or_hole(struct samara_cursor *cursor,
                               uint64_t limit,
                               struct samara_range *out);

/**
 * Moves a cursor to `index`, as `samara_cursor_init` does.
 *
 * Errors: -EINVAL if the cursor is NULL or was not set up; -EPERM. Constant time.
 */
int samara_cursor_set(struct samara_cursor *cursor, uint64_t index);

/**
 * Prepares a cursor for use after the read section has ended or the lock was released. The next
 * move continues behind the present range, in the tree as it is then.
 *
 * Call it before the section ends. Errors: -EINVAL, -EPERM as `samara_cursor_set`. Constant time.
 */
int samara_cursor_pause(struct samara_cursor *cursor);

/**
 * Removes the range that the cursor is on. The cursor is then on the whole hole that this leaves,
 * with the free indices on both sides. The next move continues behind it (or before it), and
 * `samara_cursor_store` would fill all of it. `removed` is as for `samara_tree_erase`; NULL
 * releases the entry.
 *
 * Errors: -ENOENT if it is a hole; -ESTALE if a writer has changed it since; -EINVAL if the cursor
 * is on no range; -EPERM, -ENOMEM, -EDEADLK as for moves and `samara_tree_erase`. Waits for the
 * lock, unless this thread holds it. Cost: O(log n).
 */
int samara_cursor_erase(struct samara_cursor *cursor, struct samara_range *removed);

/**
 * Stores `entry` over the range or hole that the cursor is on, and releases the entry that was
 * there. The cursor stays there, and may store or erase again. The next move continues
 * behind it (or before it). The caller's reference goes to the tree; after an error it is still
 * the caller's.
 *
 * Errors: -ESTALE if another call has changed the range since; -EINVAL also if the entry is NULL;
 * otherwise as `samara_cursor_erase`.
 */
int samara_cursor_store(struct samara_cursor *cursor, void *entry);

/**
 * Stores `entry` over all indices from `first` to `last`. Ranges inside are removed. A range that
 * extends beyond one end keeps the rest; one that extends beyond both is split in two, which calls
 * `retain`.
 *
 * The caller's reference to `entry` goes to the tree. After an error it is still the caller's.
 *
 * Errors: -EINVAL if the tree or the entry is NULL or `first` > `last`; -ENOMEM; -EDEADLK in a
 * callback. Then the tree is as it was. Readers see the range as it was or as it is, never
 * between. Waits for the lock, unless this thread holds it. Cost: O(log n), plus the number of
 * nodes that are covered; with callbacks, plus the number of ranges that are covered.
 */
int samara_tree_store(struct samara_tree *tree, uint64_t first, uint64_t last, void *entry);

/**
 * Stores `entry` over all indices from `first` to `last` if none of them has an entry. The
 * caller's reference goes to the tree; after an error it is still the caller's.
 *
 * Errors: -EEXIST, and then the lowest range in the way is in `*occupied`, if that is not NULL;
 * otherwise as `samara_tree_store`. The entry in `*occupied` may be used only inside a read
 * section that began before, or under the lock. Cost: O(log n).
 */
int samara_tree_insert(struct samara_tree *tree,
                       uint64_t first,
                       uint64_t last,
                       void *entry,
                       struct samara_range *occupied);

/**
 * Removes the range that holds `index`.
 *
 * If `removed` is not NULL, it gets the range, and the tree's reference to the entry goes to the
 * caller. Readers may still use the entry: hand it to `samara_tree_defer`, or wait with
 * `samara_tree_barrier`. If `removed` is NULL, the tree releases the entry after the read sections
 * that can see it.
 *
 * Errors: -ENOENT if `index` has no entry; -EINVAL, -ENOMEM, -EDEADLK as `samara_tree_store`.
 * Cost: O(log n).
 */
int samara_tree_erase(struct samara_tree *tree, uint64_t index, struct samara_range *removed);

/**
 * Makes all indices from `first` to `last` a hole. Ranges inside are removed and released; a range
 * that extends beyond one end keeps the rest; one that extends beyond both is split in two, which
 * calls `retain`.
 *
 * Errors and cost: as `samara_tree_store`.
 */
int samara_tree_erase_range(struct samara_tree *tree, uint64_t first, uint64_t last);

/**
 * Moves the last index of the range that holds `index` to `last`, so that the range grows into the
 * hole behind it, or shrinks. `*changed`, if not NULL, gets the new range.
 *
 * Errors: -ENOENT if `index` has no entry; -EEXIST if another range is in the way, and then that
 * range is in `*changed`; -EINVAL also if the range begins after `last`; -ENOMEM, -EDEADLK as
 * `samara_tree_store`. Cost: O(log n).
 */
int samara_tree_set_end(struct samara_tree *tree,
                        uint64_t index,
                        uint64_t last,
                        struct samara_range *changed);

/**
 * Removes and releases all ranges. Readers see all of them or none.
 *
 * Errors: -EINVAL, -EDEADLK; -ENOMEM only if the tree has a release callback. Waits for the lock,
 * unless this thread holds it. Constant time; the frees take as long as there are nodes, and
 * entries with a callback.
 */
int samara_tree_clear(struct samara_tree *tree);

/**
 * Finds the lowest `size` free indices from `min` to `max` that begin at a multiple of `align` (a
 * power of two; 1 for any), stores `entry` over them, and the first of them in `*first`.
 *
 * If several holes in a row are long enough but fail by alignment, the place may be a higher one,
 * in a hole so long that it cannot fail. The caller's reference to `entry` goes to the tree; after
 * an error it is still the caller's.
 *
 * Readers may see the entry before this call returns. An entry that contains its own place is
 * complete for them only in this order: under `samara_tree_lock`, `samara_tree_find_free`, then
 * the place is written into the entry, then `samara_tree_store`.
 *
 * Errors: -ENOSPC; -EINVAL if a pointer is NULL, `min` > `max`, the size is 0 or the alignment is
 * no power of two; -ENOMEM, -EDEADLK as `samara_tree_store`. Cost: O(log n).
 */
int samara_tree_alloc(struct samara_tree *tree,
                      uint64_t min,
                      uint64_t max,
                      uint64_t size,
                      uint64_t align,
                      void *entry,
                      uint64_t *first);

/**
 * As `samara_tree_alloc`, but at the highest place.
 */
int samara_tree_alloc_rev(struct samara_tree *tree,
                          uint64_t min,
                          uint64_t max,
                          uint64_t size,
                          uint64_t align,
                          void *entry,
                          uint64_t *first);

/**
 * As `samara_tree_alloc`, but at the lowest place at or after `*next`; if there is none, at the
 * lowest place from `min` on. So an index that was freed is not used again soon. `*next` becomes
 * the index behind the place, or `min` if that is UINT64_MAX or behind `max`.
 *
 * `*next` belongs to the caller and is read and written under the tree's lock. Errors: as
 * `samara_tree_alloc`; `*next` then keeps its value.
 */
int samara_tree_alloc_cyclic(struct samara_tree *tree,
                             uint64_t min,
                             uint64_t max,
                             uint64_t size,
                             uint64_t align,
                             void *entry,
                             uint64_t *next,
                             uint64_t *first);

/**
 * Finds the lowest `size` free indices from `min` to `max` that begin at a multiple of `align`, as
 * `samara_tree_alloc` does, and stores nothing. Under the lock they stay free; concurrently with a
 * writer, they were free at some moment during the call.
 *
 * Errors: -ENOSPC; -EINVAL as `samara_tree_alloc`; -EPERM outside of a read section and of the
 * lock. Never waits or allocates. Cost: O(log n).
 */
int samara_tree_find_free(const struct samara_tree *tree,
                          uint64_t min,
                          uint64_t max,
                          uint64_t size,
                          uint64_t align,
                          uint64_t *first);

/**
 * As `samara_tree_find_free`, but the highest place.
 */
int samara_tree_find_free_rev(const struct samara_tree *tree,
                              uint64_t min,
                              uint64_t max,
                              uint64_t size,
                              uint64_t align,
                              uint64_t *first);

/**
 * As `samara_tree_find_free`, but the place that `samara_tree_alloc_cyclic` would take. `*next`
 * becomes the index behind it, as there: the next search skips the place, even if it stays free.
 */
int samara_tree_find_free_cyclic(const struct samara_tree *tree,
                                 uint64_t min,
                                 uint64_t max,
                                 uint64_t size,
                                 uint64_t align,
                                 uint64_t *next,
                                 uint64_t *first);

/**
 * Takes the tree's lock, for several calls that write. The thread may also read until it unlocks,
 * and sees exactly what it has written. With `SAMARA_TREE_CALLER_LOCK` it takes no lock: the
 * program holds its own until `samara_tree_unlock`.
 *
 * A single call that writes takes the lock by itself. Under the lock it is faster, above all for
 * writes near each other.
 *
 * A thread must unlock before it ends. Otherwise the lock stays held for good, as a mutex does:
 * calls that need it wait forever, or return -EBUSY if they do not wait. The tree cannot be
 * destroyed, but its readers are not disturbed.
 *
 * Errors: -EINVAL, also for an exclusive tree; -EDEADLK if the thread holds the lock already or in
 * a callback. Waits for the lock.
 */
int samara_tree_lock(struct samara_tree *tree);

/**
 * As `samara_tree_lock`, but does not wait: -EBUSY if another thread holds the lock.
 */
int samara_tree_trylock(struct samara_tree *tree);

/**
 * Releases the tree's lock. Entries that are found under the lock, outside of a read section, must
 * not be used afterwards.
 *
 * Errors: -EINVAL; -EPERM if the thread does not hold the lock. May run release callbacks.
 */
int samara_tree_unlock(struct samara_tree *tree);

/**
 * Makes a tree with the same ranges, entries and options, and stores it in `*out`.
 *
 * The trees share their nodes until one of them is written: the first write copies a node for each
 * level. `retain` is called for each range. Both trees then are independent.
 *
 * Errors: -EINVAL, -ENOMEM, -EDEADLK; then `*out` is NULL. Waits for the lock of the tree, unless
 * this thread holds it. Constant time; with a retain callback, the number of ranges.
 */
int samara_tree_duplicate(struct samara_tree *tree, struct samara_tree **out);

/**
 * Whether the tree has no entry: 1 or 0; -EINVAL for NULL. Constant time. Any thread, at any time.
 */
int samara_tree_is_empty(const struct samara_tree *tree);

/**
 * Stores the length of the longest hole in `*length`; UINT64_MAX also for an empty tree, whose
 * hole is one longer. With a concurrent writer it is a hint.
 *
 * Errors: -EINVAL, -EPERM as `samara_tree_lookup`. Constant time: it reads one node.
 */
int samara_tree_largest_gap(const struct samara_tree *tree, uint64_t *length);

/**
 * Stores the size of the tree in `*out`. `size` is `sizeof(struct samara_stats)`: a library with
 * more members fills those that the caller knows.
 *
 * Errors: -EINVAL, -EDEADLK. Waits for the lock, unless this thread holds it. Time: the number of
 * nodes.
 */
int samara_tree_stats(struct samara_tree *tree, struct samara_stats *out, size_t size);

/**
 * Checks every structural invariant of the tree; for tests.
 *
 * Errors: -EUCLEAN if one is broken, which is a bug of the library or stray writes of the program;
 * a debug build prints which one; -EINVAL, -EDEADLK. Waits for the lock, unless this thread holds
 * it. Time: the number of nodes and ranges.
 */
int samara_tree_validate(struct samara_tree *tree);

/**
 * Allocates the memory that the next `writes` stores, inserts, erases and set_ends need, wherever
 * they are: these do not fail with -ENOMEM. With callbacks, that holds for a write that removes at
 * most 31 ranges.
 *
 * The caller holds the lock; memory that is left over is freed at `samara_tree_unlock`. In an
 * exclusive tree it stays for later writes. With `writes` of 0, it is freed now.
 *
 * Errors: -EPERM if the thread does not hold the lock; -EINVAL, -EDEADLK; -ENOMEM, also at once if
 * it would be more than the machine's memory, and then nothing is preallocated. Cost: up to ten
 * nodes for each level and write, and as much memory for the pieces that the write retires.
 */
int samara_tree_preallocate(struct samara_tree *tree, size_t writes);

/**
 * Calls `free(ctx, ptr)` once no reader can see `ptr` any more: after the read sections that exist
 * now. For entries that `samara_tree_erase` has returned, and for memory that belongs to them.
 *
 * A later call that writes to this tree calls it, or `samara_tree_barrier`, or
 * `samara_tree_destroy`; in an exclusive tree, this call. `free` follows the rules of `release`.
 *
 * Errors: -EINVAL if the tree or `free` is NULL; -ENOMEM, -EDEADLK; then nothing is called. Waits
 * for the lock, unless this thread holds it. Constant time.
 */
int samara_tree_defer(struct samara_tree *tree,
                      void (*free)(void *ctx, void *ptr),
                      void *ctx,
                      void *ptr);

/**
 * Waits until everything that the tree has retired before this call is freed and released.
 *
 * Errors: -EINVAL; -EDEADLK inside a read section, in a callback, or while the thread holds the
 * lock. Waits for the lock, and for read sections. Runs release callbacks.
 */
int samara_tree_barrier(struct samara_tree *tree);

/**
 * The version of the library, such as "0.1.0".
 */
const char *samara_version(void);

/**
 * Frees the pieces in a head that was given to `samara_rcu.call`. Call it once for each head, when
 * the grace period is over. Only for the functions of a `samara_rcu`.
 *
 * Runs release callbacks. Never waits. Any thread.
 */
void samara_rcu_done(void *head);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* SAMARA_RANGE_H */
