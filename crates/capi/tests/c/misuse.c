/* Misuse by a clumsy caller: each call answers with an errno, and the tree stays as it was. */
#include <pthread.h>
#include <unistd.h>

#include "check.h"

static void *no_alloc(void *ctx, size_t size, size_t align)
{
    (void)ctx, (void)size, (void)align;
    return NULL;
}

static void options(void)
{
    struct samara_options options;
    struct samara_tree *tree = (struct samara_tree *)entry(1);
    struct samara_rcu rcu;
    struct samara_allocator allocator;
    struct {
        struct samara_options options;
        char added[16];
    } later;
    memset(&options, 0, sizeof(options));
    memset(&rcu, 0, sizeof(rcu));
    GIVES(-EINVAL, samara_tree_new(NULL, NULL));
    GIVES(-EINVAL, samara_tree_new(&options, &tree)); /* no size */
    CHECK(tree == NULL);
    options.size = sizeof(options);
    options.flags = 8;
    GIVES(-EINVAL, samara_tree_new(&options, &tree));
    options.flags = SAMARA_TREE_EXCLUSIVE | SAMARA_TREE_CALLER_LOCK;
    GIVES(-EINVAL, samara_tree_new(&options, &tree));
    options.flags = 0;
    options.reserved = 1;
    GIVES(-EINVAL, samara_tree_new(&options, &tree));
    options.reserved = 0;
    options.rcu = &rcu; /* without functions */
    GIVES(-EINVAL, samara_tree_new(&options, &tree));
    options.rcu = NULL;
    OK(samara_tree_new(&options, &tree));
    OK(samara_tree_destroy(tree));
    OK(samara_tree_destroy(NULL));
    /* Those of a later version, whose new members are not used. */
    memset(&later, 0, sizeof(later));
    later.options.size = sizeof(later);
    OK(samara_tree_new(&later.options, &tree));
    OK(samara_tree_destroy(tree));
    later.added[9] = 1;
    GIVES(-EINVAL, samara_tree_new(&later.options, &tree));
    later.options.size = sizeof(later.options) - 1;
    GIVES(-EINVAL, samara_tree_new(&later.options, &tree));
    later.options.size = SIZE_MAX;
    GIVES(-EINVAL, samara_tree_new(&later.options, &tree));

    /* Too late, and without a function. */
    memset(&allocator, 0, sizeof(allocator));
    allocator.alloc = no_alloc;
    GIVES(-EINVAL, samara_set_allocator(&allocator));
    GIVES(-EBUSY, samara_set_allocator(NULL));
}

static void nulls(void)
{
    struct samara_range range;
    struct samara_cursor cursor;
    struct samara_stats stats;
    struct samara_tree *none = NULL, *tree = new_tree(0);
    uint64_t number = 1;
    OK(samara_read_lock());
    CHECK(samara_tree_load(none, 1) == NULL);
    GIVES(-EINVAL, samara_tree_lookup(none, 1, &range));
    GIVES(-EINVAL, samara_tree_find(none, 1, 2, &range));
    GIVES(-EINVAL, samara_tree_find_rev(none, 1, 2, &range));
    GIVES(-EINVAL, samara_tree_for_each(none, 1, 2, NULL, NULL));
    GIVES(-EINVAL, samara_tree_store(none, 1, 2, entry(1)));
    GIVES(-EINVAL, samara_tree_insert(none, 1, 2, entry(1), NULL));
    GIVES(-EINVAL, samara_tree_erase(none, 1, NULL));
    GIVES(-EINVAL, samara_tree_erase_range(none, 1, 2));
    GIVES(-EINVAL, samara_tree_set_end(none, 1, 2, NULL));
    GIVES(-EINVAL, samara_tree_clear(none));
    GIVES(-EINVAL, samara_tree_alloc(none, 1, 2, 1, 1, entry(1), &number));
    GIVES(-EINVAL, samara_tree_alloc_rev(none, 1, 2, 1, 1, entry(1), &number));
    GIVES(-EINVAL, samara_tree_alloc_cyclic(none, 1, 2, 1, 1, entry(1), &number, &number));
    GIVES(-EINVAL, samara_tree_find_free(none, 1, 2, 1, 1, &number));
    GIVES(-EINVAL, samara_tree_find_free_rev(none, 1, 2, 1, 1, &number));
    GIVES(-EINVAL, samara_tree_duplicate(none, &none));
    GIVES(-EINVAL, samara_tree_is_empty(none));
    GIVES(-EINVAL, samara_tree_largest_gap(none, &number));
    GIVES(-EINVAL, samara_tree_stats(none, &stats, sizeof(stats)));
    GIVES(-EINVAL, samara_tree_validate(none));
    GIVES(-EINVAL, samara_tree_defer(none, NULL, NULL, NULL));
    GIVES(-EINVAL, samara_tree_barrier(none));
    GIVES(-EINVAL, samara_tree_lock(none));
    GIVES(-EINVAL, samara_tree_trylock(none));
    GIVES(-EINVAL, samara_tree_unlock(none));
    GIVES(-EINVAL, samara_tree_preallocate(none, 1));
    GIVES(-EINVAL, samara_cursor_init(&cursor, none, 1));
    GIVES(-EINVAL, samara_cursor_init(NULL, tree, 1));
    GIVES(-EINVAL, samara_cursor_next(NULL, 1, &range));
    memset(&cursor, 0, sizeof(cursor));
    GIVES(-EINVAL, samara_cursor_next(&cursor, 1, &range));
    GIVES(-EINVAL, samara_cursor_prev(&cursor, 1, &range));
    GIVES(-EINVAL, samara_cursor_set(&cursor, 1));
    GIVES(-EINVAL, samara_cursor_pause(&cursor));
    GIVES(-EINVAL, samara_cursor_erase(&cursor, NULL));
    GIVES(-EINVAL, samara_cursor_store(&cursor, entry(1)));
    OK(samara_cursor_init(&cursor, tree, 1));
    GIVES(-EINVAL, samara_cursor_next(&cursor, 1, NULL));
    GIVES(-EINVAL, samara_cursor_erase(&cursor, NULL)); /* on no range */
    GIVES(-EINVAL, samara_cursor_store(&cursor, NULL));

    GIVES(-EINVAL, samara_tree_store(tree, 1, 2, NULL));
    GIVES(-EINVAL, samara_tree_store(tree, 2, 1, entry(1)));
    GIVES(-EINVAL, samara_tree_insert(tree, 2, 1, entry(1), NULL));
    GIVES(-EINVAL, samara_tree_insert(tree, 1, 2, NULL, NULL));
    GIVES(-EINVAL, samara_tree_erase_range(tree, 2, 1));
    GIVES(-EINVAL, samara_tree_find(tree, 2, 1, &range));
    GIVES(-EINVAL, samara_tree_find(tree, 1, 2, NULL));
    GIVES(-EINVAL, samara_tree_lookup(tree, 1, NULL));
    GIVES(-EINVAL, samara_tree_alloc(tree, 2, 1, 1, 1, entry(1), &number));
    GIVES(-EINVAL, samara_tree_alloc(tree, 1, 2, 0, 1, entry(1), &number));
    GIVES(-EINVAL, samara_tree_alloc(tree, 1, 2, 1, 3, entry(1), &number));
    GIVES(-EINVAL, samara_tree_alloc(tree, 1, 2, 1, 0, entry(1), &number));
    GIVES(-EINVAL, samara_tree_alloc(tree, 1, 2, 1, 1, NULL, &number));
    GIVES(-EINVAL, samara_tree_alloc(tree, 1, 2, 1, 1, entry(1), NULL));
    GIVES(-EINVAL, samara_tree_alloc_cyclic(tree, 1, 2, 1, 1, entry(1), NULL, &number));
    GIVES(-EINVAL, samara_tree_find_free_cyclic(tree, 1, 2, 1, 1, NULL, &number));
    GIVES(-EINVAL, samara_tree_find_free_cyclic(tree, 1, 2, 1, 1, &number, NULL));
    GIVES(-EINVAL, samara_tree_find_free_cyclic(tree, 2, 1, 1, 1, &number, &number));
    GIVES(-EINVAL, samara_tree_find_free_cyclic(tree, 1, 2, 0, 1, &number, &number));
    GIVES(-EINVAL, samara_tree_find_free(tree, 1, 2, 0, 1, &number));
    GIVES(-EINVAL, samara_tree_stats(tree, &stats, sizeof(stats) - 8));
    GIVES(-EINVAL, samara_tree_largest_gap(tree, NULL));
    GIVES(-EINVAL, samara_tree_defer(tree, NULL, NULL, NULL));
    OK(samara_tree_store(tree, 10, 19, entry(1)));
    GIVES(-EINVAL, samara_tree_set_end(tree, 15, 9, NULL));
    CHECK(number == 1 && count_entries(tree) == 1);
    OK(samara_read_unlock());
    OK(samara_tree_destroy(tree));
}

static struct samara_tree *shared;
static int callers_lock;

static void *other_thread(void *arg)
{
    struct samara_range range;
    struct samara_cursor *cursor = (struct samara_cursor *)arg;
    GIVES(-EPERM, samara_tree_unlock(shared));
    GIVES(-EBUSY, samara_tree_trylock(shared));
    GIVES(-EPERM, samara_tree_lookup(shared, 1, &range));
    if (callers_lock) {
        GIVES(-EBUSY, samara_tree_store(shared, 1, 1, entry(1)));
        GIVES(-EBUSY, samara_tree_barrier(shared));
    }
    OK(samara_read_lock());
    GIVES(-EPERM, samara_cursor_next(cursor, 9, &range)); /* another thread's */
    OK(samara_read_lock());
    /* The thread ends inside two sections. */
    return NULL;
}

static void sections_and_locks(void)
{
    struct samara_range range;
    struct samara_cursor cursor;
    uint64_t number;
    pthread_t thread;
    GIVES(-EPERM, samara_read_unlock());
    shared = new_tree(0);
    OK(samara_tree_store(shared, 1, 5, entry(1)));
    CHECK(samara_tree_load(shared, 1) == NULL); /* outside of a section */
    GIVES(-EPERM, samara_tree_lookup(shared, 1, &range));
    GIVES(-EPERM, samara_tree_find(shared, 1, 2, &range));
    GIVES(-EPERM, samara_tree_find_free(shared, 1, 2, 1, 1, &number));
    GIVES(-EPERM, samara_tree_find_free_cyclic(shared, 1, 2, 1, 1, &number, &number));
    GIVES(-EPERM, samara_tree_largest_gap(shared, &number));
    GIVES(-EPERM, samara_cursor_init(&cursor, shared, 1));
    GIVES(-EPERM, samara_tree_preallocate(shared, 1));
    GIVES(-EPERM, samara_tree_unlock(shared));

    /* A cursor after its section, and in the next one. */
    OK(samara_read_lock());
    OK(samara_read_lock());
    OK(samara_cursor_init(&cursor, shared, 1));
    OK(samara_read_unlock());
    OK(samara_cursor_next(&cursor, 9, &range));
    GIVES(-EDEADLK, samara_tree_barrier(shared));
    GIVES(-EDEADLK, samara_tree_destroy(shared));
    OK(samara_read_unlock());
    GIVES(-EPERM, samara_cursor_next(&cursor, 9, &range));
    OK(samara_read_lock());
    GIVES(-EPERM, samara_cursor_next(&cursor, 9, &range));
    GIVES(-EPERM, samara_cursor_erase(&cursor, NULL));
    OK(samara_read_unlock());

    /* A cursor after the lock. */
    OK(samara_tree_lock(shared));
    GIVES(-EBUSY, samara_tree_destroy(shared));
    GIVES(-EDEADLK, samara_tree_barrier(shared));
    GIVES(-EDEADLK, samara_tree_lock(shared));
    GIVES(-EDEADLK, samara_tree_trylock(shared));
    OK(samara_cursor_init(&cursor, shared, 1));
    OK(samara_cursor_next(&cursor, 9, &range));
    CHECK(pthread_create(&thread, NULL, other_thread, &cursor) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
    /* A read section under the lock, and a write in it: the cursor goes on. */
    OK(samara_read_lock());
    OK(samara_cursor_set(&cursor, 1));
    OK(samara_cursor_next(&cursor, 9, &range));
    OK(samara_tree_store(shared, 7, 8, entry(2)));
    OK(samara_cursor_next(&cursor, 9, &range));
    CHECK(range.first == 7 && range.entry == entry(2));
    OK(samara_read_unlock());
    OK(samara_cursor_prev(&cursor, 0, &range));
    CHECK(range.first == 1 && range.last == 5);
    OK(samara_tree_erase(shared, 7, NULL));
    OK(samara_tree_unlock(shared));
    GIVES(-EPERM, samara_cursor_next(&cursor, 9, &range));
    OK(samara_tree_lock(shared));
    GIVES(-EPERM, samara_cursor_next(&cursor, 9, &range));
    OK(samara_tree_unlock(shared));
    GIVES(-EPERM, samara_tree_unlock(shared));

    /* The sections of the thread that ended hold nothing up. */
    OK(samara_tree_erase(shared, 1, NULL));
    OK(samara_tree_barrier(shared));
    OK(samara_tree_destroy(shared));

    /* The lock of the caller: another session begins too early. */
    callers_lock = 1;
    shared = new_tree(SAMARA_TREE_CALLER_LOCK);
    OK(samara_tree_lock(shared));
    OK(samara_cursor_init(&cursor, shared, 1));
    CHECK(pthread_create(&thread, NULL, other_thread, &cursor) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
    OK(samara_tree_unlock(shared));
    OK(samara_tree_destroy(shared));
}

static int calls;

static void writes_in_callback(void *ctx, void *what)
{
    struct samara_tree *tree = (struct samara_tree *)ctx;
    (void)what;
    calls++;
    GIVES(-EDEADLK, samara_tree_store(tree, 1, 2, entry(1)));
    GIVES(-EDEADLK, samara_tree_erase(tree, 1, NULL));
    GIVES(-EDEADLK, samara_tree_clear(tree));
    GIVES(-EDEADLK, samara_tree_lock(tree));
    GIVES(-EDEADLK, samara_tree_unlock(tree));
    GIVES(-EDEADLK, samara_tree_barrier(tree));
    GIVES(-EDEADLK, samara_tree_destroy(tree));
    GIVES(-EDEADLK, samara_tree_validate(tree));
    OK(samara_read_lock());
    samara_tree_load(tree, 1);
    OK(samara_read_unlock());
}

static int writes_in_visit(void *ctx, const struct samara_range *range)
{
    return samara_tree_erase((struct samara_tree *)ctx, range->first, NULL);
}

static void callbacks(void)
{
    struct samara_options options;
    struct samara_tree *other = new_tree(0), *tree;
    unsigned i;
    memset(&options, 0, sizeof(options));
    options.size = sizeof(options);
    options.ctx = other;
    options.retain = writes_in_callback;
    options.release = writes_in_callback;
    OK(samara_tree_new(&options, &tree));
    OK(samara_tree_store(tree, 0, 99, entry(1)));
    OK(samara_tree_store(tree, 40, 49, entry(1)));
    CHECK(calls == 1);
    OK(samara_tree_erase_range(tree, 0, 99));
    OK(samara_tree_barrier(tree));
    CHECK(calls == 4);
    OK(samara_tree_destroy(tree));
    OK(samara_tree_store(other, 1, 2, entry(1)));
    OK(samara_tree_destroy(other));

    /* Visits that write: allowed in a section, refused under the lock. */
    tree = new_tree(0);
    for (i = 0; i < 100; i++) {
        OK(samara_tree_store(tree, i, i, entry(i)));
    }
    OK(samara_read_lock());
    OK(samara_tree_for_each(tree, 0, 49, writes_in_visit, tree));
    CHECK(count_entries(tree) == 50);
    OK(samara_read_unlock());
    OK(samara_tree_lock(tree));
    GIVES(-EBUSY, samara_tree_for_each(tree, 0, 99, writes_in_visit, tree));
    CHECK(count_entries(tree) == 49);
    OK(samara_tree_unlock(tree));
    OK(samara_tree_destroy(tree));
}

static void *waits(void *arg)
{
    OK(samara_tree_barrier(shared));
    *(int *)arg = 1;
    for (;;) {
        pause();
    }
    return NULL;
}

/* A thread that is cancelled while it waits for readers ends after the call. */
static void cancellation(void)
{
    pthread_t thread;
    void *result;
    int waited = 0;
    shared = new_tree(0);
    OK(samara_tree_store(shared, 1, 5, entry(1)));
    OK(samara_tree_erase(shared, 1, NULL));
    OK(samara_read_lock());
    CHECK(pthread_create(&thread, NULL, waits, &waited) == 0);
    usleep(20000);
    CHECK(pthread_cancel(thread) == 0);
    usleep(20000);
    OK(samara_read_unlock());
    CHECK(pthread_join(thread, &result) == 0);
    CHECK(result == PTHREAD_CANCELED && waited);
    OK(samara_tree_destroy(shared));
}

static struct samara_tree *left[2]; /* trees whose lock a thread has left held */

static void *leaves_locks(void *arg)
{
    OK(samara_tree_lock(left[0]));
    OK(samara_tree_store(left[0], 1, 5, entry(1)));
    OK(samara_tree_lock(left[1]));
    return arg;
}

static void *comes_later(void *arg)
{
    unsigned i;
    for (i = 0; i < 2; i++) {
        /* The stack of the thread that ended is often that of the next one. */
        GIVES(-EBUSY, samara_tree_trylock(left[i]));
        GIVES(-EPERM, samara_tree_unlock(left[i]));
        GIVES(-EBUSY, samara_tree_destroy(left[i]));
    }
    GIVES(-EBUSY, samara_tree_store(left[1], 1, 5, entry(1)));
    OK(samara_read_lock());
    CHECK(samara_tree_load(left[0], 3) == entry(1));
    OK(samara_read_unlock());
    return arg;
}

/* A thread that ends while it holds locks: they stay held, and no later thread has them. */
static void ended_owner(void)
{
    pthread_t thread;
    unsigned i;
    left[0] = new_tree(0);
    left[1] = new_tree(SAMARA_TREE_CALLER_LOCK);
    CHECK(pthread_create(&thread, NULL, leaves_locks, NULL) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
    for (i = 0; i < 3; i++) {
        CHECK(pthread_create(&thread, NULL, comes_later, NULL) == 0);
        CHECK(pthread_join(thread, NULL) == 0);
    }
    comes_later(NULL);
}

int main(void)
{
    choose_memory();
    options();
    nulls();
    sections_and_locks();
    callbacks();
    cancellation();
    ended_owner();
    puts("misuse: ok");
    return 0;
}
