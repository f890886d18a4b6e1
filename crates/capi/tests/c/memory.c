/*
 * Out of memory: each allocation of each call fails in turn. The call returns -ENOMEM, the tree is
 * as it was, and once there is memory again the call succeeds. At the end nothing has leaked.
 */
#include <pthread.h>

#include "check.h"

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static long countdown = -1; /* allocations until they fail; -1: none fails */
static long blocks, bytes, failures;

static void *allocate(void *ctx, size_t size, size_t align)
{
    void *block = NULL;
    CHECK(ctx == &blocks && size > 0 && align <= 128);
    pthread_mutex_lock(&mutex);
    if (countdown == 0) {
        failures++;
    } else if (posix_memalign(&block, align < sizeof(void *) ? sizeof(void *) : align, size) == 0) {
        countdown -= countdown > 0;
        blocks++;
        bytes += (long)size;
        memset(block, 0xa5, size);
    }
    pthread_mutex_unlock(&mutex);
    return block;
}

static void deallocate(void *ctx, void *block, size_t size, size_t align)
{
    CHECK(ctx == &blocks && block && align <= 128);
    memset(block, 0x5a, size);
    pthread_mutex_lock(&mutex);
    blocks--;
    bytes -= (long)size;
    pthread_mutex_unlock(&mutex);
    free(block);
}

static int references;
static struct samara_tree *written; /* the tree whose write calls `retain`, for a test */

static void retain(void *ctx, void *what)
{
    (void)ctx, (void)what;
    references++;
    if (written) {
        long before = blocks;
        GIVES(-EDEADLK, samara_tree_preallocate(written, 3));
        GIVES(-EDEADLK, samara_tree_preallocate(written, 0));
        CHECK(blocks == before);
    }
}

static void release(void *ctx, void *what)
{
    (void)ctx, (void)what;
    references--;
}

struct digest {
    uint64_t ranges, sum;
};

static int digest_one(void *ctx, const struct samara_range *range)
{
    struct digest *digest = (struct digest *)ctx;
    digest->ranges++;
    digest->sum = digest->sum * 31 + (range->first ^ (range->last << 20) ^ (uintptr_t)range->entry);
    return 0;
}

static struct digest digest(struct samara_tree *tree)
{
    struct digest digest = {0, 0};
    OK(samara_read_lock());
    OK(samara_tree_for_each(tree, 0, UINT64_MAX, digest_one, &digest));
    OK(samara_read_unlock());
    return digest;
}

static long calls_that_failed;

/* Runs the call with ever more memory, until it succeeds. */
#define EACH(tree, call)                                                            \
    do {                                                                            \
        long most_;                                                                 \
        for (most_ = 0;; most_++) {                                                 \
            struct digest before_ = digest(tree), after_;                           \
            int references_ = references, result_;                                  \
            countdown = most_;                                                      \
            result_ = (call);                                                       \
            countdown = -1;                                                         \
            if (result_ == 0) {                                                     \
                break;                                                              \
            }                                                                       \
            CHECK(result_ == -ENOMEM);                                              \
            CHECK(most_ < 1000);                                                    \
            calls_that_failed++;                                                    \
            after_ = digest(tree);                                                  \
            CHECK(before_.ranges == after_.ranges && before_.sum == after_.sum);    \
            CHECK(references == references_);                                       \
            OK(samara_tree_validate(tree));                                         \
        }                                                                           \
    } while (0)

static struct samara_tree *make(uint32_t flags, int counted)
{
    struct samara_options options;
    struct samara_tree *tree;
    memset(&options, 0, sizeof(options));
    options.size = sizeof(options);
    options.flags = flags;
    if (counted) {
        options.retain = retain;
        options.release = release;
    }
    countdown = 0;
    GIVES(-ENOMEM, samara_tree_new(&options, &tree));
    CHECK(tree == NULL);
    countdown = -1;
    OK(samara_tree_new(&options, &tree));
    return tree;
}

static void nothing(void *ctx, void *what)
{
    (void)what;
    ++*(int *)ctx;
}

static void calls(uint32_t flags, int counted, int locked)
{
    struct samara_tree *tree = make(flags, counted), *copy = NULL;
    struct samara_cursor cursor;
    struct samara_range range;
    uint64_t first, next = 0;
    int ran = 0;
    unsigned i;
    references = 0;
    if (locked) {
        OK(samara_tree_lock(tree));
    } else {
        OK(samara_read_lock());
    }
    for (i = 0; i < 300; i++) {
        EACH(tree, samara_tree_store(tree, i * 10, i * 10 + 5, entry(i)));
    }
    EACH(tree, samara_tree_store(tree, 2, 3, entry(1)));
    EACH(tree, samara_tree_store(tree, 100, 1999, entry(2)));
    EACH(tree, samara_tree_insert(tree, 2996, 2996, entry(3), NULL));
    EACH(tree, samara_tree_erase(tree, 500, NULL));
    EACH(tree, samara_tree_erase(tree, 2500, &range));
    EACH(tree, samara_tree_erase_range(tree, 2000, 2400));
    EACH(tree, samara_tree_set_end(tree, 2900, 2909, NULL));
    EACH(tree, samara_tree_set_end(tree, 2900, 2901, NULL));
    for (i = 0; i < 40; i++) {
        EACH(tree, samara_tree_alloc(tree, 0, UINT64_MAX, 2, 2, entry(i), &first));
        EACH(tree, samara_tree_alloc_rev(tree, 0, 2800, 2, 2, entry(i), &first));
        EACH(tree, samara_tree_alloc_cyclic(tree, 0, 2800, 2, 2, entry(i), &next, &first));
    }
    OK(samara_cursor_init(&cursor, tree, 0));
    for (i = 0; i < 40; i++) {
        OK(samara_cursor_next(&cursor, UINT64_MAX, &range));
        if (i % 2) {
            EACH(tree, samara_cursor_erase(&cursor, NULL));
        } else {
            EACH(tree, samara_cursor_store(&cursor, entry(i)));
        }
    }
    EACH(tree, samara_tree_duplicate(tree, &copy));
    EACH(copy, samara_tree_store(copy, 2000, 2600, entry(9)));
    EACH(tree, samara_tree_defer(tree, nothing, &ran, entry(1)));
    if (locked) {
        EACH(tree, samara_tree_preallocate(tree, 4));
        countdown = 0;
        OK(samara_tree_erase(tree, 2800, &range));
        OK(samara_tree_erase(tree, 2810, &range));
        countdown = -1;
    }
    EACH(tree, samara_tree_clear(tree));
    CHECK(count_entries(tree) == 0);
    if (locked) {
        OK(samara_tree_unlock(tree));
    } else {
        OK(samara_read_unlock());
    }
    /* Retired pieces are freed without any memory, too. */
    countdown = 0;
    OK(samara_tree_barrier(tree));
    CHECK(ran == 1);
    OK(samara_tree_destroy(copy));
    OK(samara_tree_destroy(tree));
    countdown = -1;
}

/* Random writes while there is hardly any memory, during a section that never ends. */
static void hardly_any(void)
{
    struct samara_tree *tree = make(0, 1);
    uint64_t random = 7;
    unsigned i, done = 0, refused = 0;
    OK(samara_read_lock());
    for (i = 0; i < 20000; i++) {
        uint64_t first = random_next(&random) % 4000, length = 1 + random_next(&random) % 40;
        int result;
        if (i % 64 == 0) {
            countdown = (long)(random_next(&random) % 40);
        }
        result = i % 3 ? samara_tree_store(tree, first, first + length, entry(i))
                       : samara_tree_erase_range(tree, first, first + 3 * length);
        CHECK(result == 0 || result == -ENOMEM);
        done += result == 0;
        refused += result != 0;
        if (i % 500 == 0) {
            OK(samara_tree_validate(tree));
            count_entries(tree); /* checks that no retired piece has leaked */
        }
    }
    CHECK(done > 1000 && refused > 1000);
    count_entries(tree);
    countdown = -1;
    OK(samara_read_unlock());
    OK(samara_tree_destroy(tree));
}

static int random_write(struct samara_tree *tree, uint64_t *random, unsigned length)
{
    uint64_t first = random_next(random) % 20000, last = first + random_next(random) % length;
    void *what = entry(1 + (unsigned)(random_next(random) % 1000));
    switch (random_next(random) % 8) {
    case 0:
        return samara_tree_erase(tree, first, NULL);
    case 1:
        return samara_tree_erase_range(tree, first, last);
    case 2:
        return samara_tree_set_end(tree, first, last, NULL);
    case 3:
        return samara_tree_insert(tree, first, last, what, NULL);
    default:
        return samara_tree_store(tree, first, last, what);
    }
}

/* While no allocation succeeds, as many writes do as were preallocated. */
static void preallocated(uint32_t flags, int counted)
{
    struct samara_tree *tree = make(flags, counted), *copy = NULL;
    int exclusive = (flags & SAMARA_TREE_EXCLUSIVE) != 0;
    uint64_t random = 11 + flags;
    unsigned round, i, writes;
    for (round = 0; round < 400; round++) {
        long before;
        writes = 1 + random_next(&random) % 40;
        OK(samara_read_lock());
        if (!exclusive) {
            OK(samara_tree_lock(tree));
        }
        if (round % 8 == 0) {
            OK(samara_tree_duplicate(tree, &copy)); /* it shares all nodes */
        }
        before = blocks;
        GIVES(-ENOMEM, samara_tree_preallocate(tree, 1000000000));
        GIVES(-ENOMEM, samara_tree_preallocate(tree, SIZE_MAX));
        countdown = 5;
        GIVES(-ENOMEM, samara_tree_preallocate(tree, 100));
        CHECK(blocks <= before);
        countdown = -1;
        OK(samara_tree_preallocate(tree, writes));
        countdown = 0;
        for (i = 0; i < writes; i++) {
            CHECK(random_write(tree, &random, counted || i % 8 ? 31 : 500) != -ENOMEM);
        }
        countdown = -1;
        if (exclusive) {
            before = blocks;
            OK(samara_tree_preallocate(tree, 20));
            OK(samara_tree_preallocate(tree, 0));
            CHECK(blocks <= before + 16); /* a tree keeps a few for later writes */
        } else {
            OK(samara_tree_unlock(tree));
        }
        OK(samara_read_unlock());
        OK(samara_tree_validate(tree));
        if (copy) {
            OK(samara_tree_destroy(copy));
            copy = NULL;
        }
    }
    CHECK(count_entries(tree) > 100);
    OK(samara_tree_destroy(tree));
}

/* Preallocated memory stays when a callback of the write tries to change it. */
static void preallocated_in_callback(uint32_t flags)
{
    struct samara_tree *tree = make(flags, 1);
    int exclusive = (flags & SAMARA_TREE_EXCLUSIVE) != 0, before;
    if (!exclusive) {
        OK(samara_tree_lock(tree));
    }
    OK(samara_tree_store(tree, 0, 99, entry(1)));
    OK(samara_tree_preallocate(tree, 2));
    written = tree;
    before = references;
    countdown = 0;
    OK(samara_tree_store(tree, 40, 49, entry(2)));
    OK(samara_tree_store(tree, 10, 19, entry(3)));
    countdown = -1;
    CHECK(references == before + 2);
    written = NULL;
    if (!exclusive) {
        OK(samara_tree_unlock(tree));
    }
    OK(samara_tree_destroy(tree));
}

static void *first_section(void *arg)
{
    (void)arg;
    countdown = 0;
    GIVES(-ENOMEM, samara_read_lock());
    GIVES(-ENOMEM, samara_thread_register());
    GIVES(-EPERM, samara_read_unlock());
    countdown = -1;
    OK(samara_thread_register());
    countdown = 0;
    OK(samara_read_lock());
    OK(samara_read_unlock());
    countdown = -1;
    return NULL;
}

int main(void)
{
    struct samara_allocator allocator = {&blocks, allocate, deallocate};
    pthread_t thread;
    long records;
    OK(samara_set_allocator(&allocator));
    GIVES(-EBUSY, samara_set_allocator(&allocator));
    /* The record of a thread stays for later threads. */
    CHECK(pthread_create(&thread, NULL, first_section, NULL) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
    records = blocks;
    CHECK(records == 1);
    calls(0, 0, 0);
    calls(0, 1, 0);
    calls(0, 0, 1);
    calls(0, 1, 1);
    calls(SAMARA_TREE_CALLER_LOCK, 1, 1);
    calls(SAMARA_TREE_EXCLUSIVE, 0, 0);
    calls(SAMARA_TREE_EXCLUSIVE, 1, 0);
    hardly_any();
    preallocated(0, 0);
    preallocated(0, 1);
    preallocated(SAMARA_TREE_CALLER_LOCK, 1);
    preallocated(SAMARA_TREE_EXCLUSIVE, 0);
    preallocated(SAMARA_TREE_EXCLUSIVE, 1);
    preallocated_in_callback(0);
    preallocated_in_callback(SAMARA_TREE_CALLER_LOCK);
    preallocated_in_callback(SAMARA_TREE_EXCLUSIVE);
    CHECK(calls_that_failed > 1000 && failures >= calls_that_failed);
    CHECK(blocks == records && bytes == 128 * records);
    puts("memory: ok");
    return 0;
}
