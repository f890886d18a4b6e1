/*
 * Each call on small trees: patterns of stores and erases, splits, gaps, searches in both
 * directions, the ends of the index range, cursors, duplicates. Runs once for each kind of tree.
 */
#include "check.h"

static uint32_t flags;

static struct samara_tree *begin(void)
{
    struct samara_tree *tree = new_tree(flags);
    OK(samara_read_lock());
    return tree;
}

static void end(struct samara_tree *tree)
{
    OK(samara_tree_validate(tree));
    OK(samara_read_unlock());
    OK(samara_tree_destroy(tree));
}

static void empty(void)
{
    struct samara_tree *tree = begin();
    struct samara_range range;
    uint64_t length, first;
    struct samara_stats stats;
    CHECK(samara_tree_is_empty(tree) == 1);
    HOLE(tree, 0);
    HOLE(tree, UINT64_MAX);
    GIVES(-ENOENT, samara_tree_find(tree, 0, UINT64_MAX, &range));
    GIVES(-ENOENT, samara_tree_find_rev(tree, 0, UINT64_MAX, &range));
    GIVES(-ENOENT, samara_tree_erase(tree, 7, &range));
    GIVES(-ENOENT, samara_tree_set_end(tree, 7, 9, &range));
    OK(samara_tree_erase_range(tree, 0, UINT64_MAX));
    OK(samara_tree_clear(tree));
    OK(samara_tree_largest_gap(tree, &length));
    CHECK(length == UINT64_MAX);
    OK(samara_tree_find_free(tree, 5, UINT64_MAX, 1, 1, &first));
    CHECK(first == 5);
    OK(samara_tree_find_free_rev(tree, 0, UINT64_MAX, UINT64_MAX, 1, &first));
    CHECK(first == 1);
    OK(samara_tree_stats(tree, &stats, sizeof(stats)));
    CHECK(stats.height == 0 && stats.nodes == 0 && stats.entries == 0 && stats.holes == 1);
    end(tree);
}

static void borders(void)
{
    struct samara_tree *tree = begin();
    struct samara_range range;
    OK(samara_tree_store(tree, 0, 0, entry(1)));
    OK(samara_tree_store(tree, UINT64_MAX, UINT64_MAX, entry(2)));
    IS(tree, 0, 0, 0, entry(1));
    IS(tree, UINT64_MAX, UINT64_MAX, UINT64_MAX, entry(2));
    HOLE(tree, 1);
    HOLE(tree, UINT64_MAX - 1);
    OK(samara_tree_find(tree, 1, UINT64_MAX, &range));
    CHECK(range.first == UINT64_MAX && range.entry == entry(2));
    OK(samara_tree_find_rev(tree, 0, UINT64_MAX - 1, &range));
    CHECK(range.last == 0 && range.entry == entry(1));
    GIVES(-ENOENT, samara_tree_find(tree, 1, UINT64_MAX - 1, &range));

    /* All indices, then a hole at each end. */
    OK(samara_tree_store(tree, 0, UINT64_MAX, entry(3)));
    IS(tree, UINT64_MAX / 2, 0, UINT64_MAX, entry(3));
    CHECK(count_entries(tree) == 1);
    OK(samara_tree_erase_range(tree, 0, 0));
    OK(samara_tree_erase_range(tree, UINT64_MAX, UINT64_MAX));
    IS(tree, 1, 1, UINT64_MAX - 1, entry(3));
    OK(samara_tree_set_end(tree, 9, UINT64_MAX, &range));
    CHECK(range.first == 1 && range.last == UINT64_MAX && range.entry == entry(3));
    OK(samara_tree_erase(tree, UINT64_MAX, &range));
    CHECK(range.first == 1 && range.last == UINT64_MAX && range.entry == entry(3));
    CHECK(samara_tree_is_empty(tree) == 1);
    end(tree);
}

static void splits(void)
{
    struct samara_tree *tree = begin();
    struct samara_range range;
    OK(samara_tree_store(tree, 100, 199, entry(1)));
    OK(samara_tree_store(tree, 140, 159, entry(2)));
    IS(tree, 100, 100, 139, entry(1));
    IS(tree, 150, 140, 159, entry(2));
    IS(tree, 199, 160, 199, entry(1));
    OK(samara_tree_erase_range(tree, 120, 149));
    IS(tree, 119, 100, 119, entry(1));
    HOLE(tree, 120);
    IS(tree, 150, 150, 159, entry(2));
    GIVES(-EEXIST, samara_tree_insert(tree, 110, 155, entry(3), &range));
    CHECK(range.first == 100 && range.last == 119 && range.entry == entry(1));
    GIVES(-EEXIST, samara_tree_insert(tree, 149, 1000, entry(3), NULL));
    OK(samara_tree_insert(tree, 120, 149, entry(3), &range));
    IS(tree, 120, 120, 149, entry(3));
    GIVES(-EEXIST, samara_tree_set_end(tree, 120, 150, &range));
    CHECK(range.first == 150 && range.entry == entry(2));
    OK(samara_tree_set_end(tree, 149, 130, NULL));
    IS(tree, 120, 120, 130, entry(3));
    HOLE(tree, 131);
    OK(samara_tree_set_end(tree, 199, 299, &range));
    CHECK(range.first == 160 && range.last == 299);
    /* Equal neighbours stay apart. */
    OK(samara_tree_store(tree, 300, 399, entry(1)));
    IS(tree, 299, 160, 299, entry(1));
    OK(samara_tree_erase(tree, 250, NULL));
    HOLE(tree, 160);
    IS(tree, 300, 300, 399, entry(1));
    end(tree);
}

/* Patterns that fill leaves, split and join nodes. */
static unsigned N = 3000;

static void patterns(void)
{
    struct samara_tree *tree = begin();
    struct samara_range range;
    unsigned i;
    /* Upwards, with holes. */
    for (i = 0; i < N; i++) {
        OK(samara_tree_insert(tree, i * 10, i * 10 + 5, entry(i), NULL));
    }
    CHECK(count_entries(tree) == N);
    OK(samara_tree_validate(tree));
    for (i = 0; i < N; i++) {
        IS(tree, i * 10 + 3, i * 10, i * 10 + 5, entry(i));
        HOLE(tree, i * 10 + 6);
        GIVES(i == N - 1 ? -ENOENT : 0, samara_tree_find(tree, i * 10 + 6, UINT64_MAX, &range));
        OK(samara_tree_find_rev(tree, 0, i * 10 + 9, &range));
        CHECK(range.entry == entry(i));
    }
    /* Every other one goes; the rest grows. */
    for (i = 0; i < N; i += 2) {
        OK(samara_tree_erase(tree, i * 10 + 5, &range));
        CHECK(range.first == i * 10 && range.last == i * 10 + 5 && range.entry == entry(i));
    }
    OK(samara_tree_validate(tree));
    for (i = 1; i < N; i += 2) {
        OK(samara_tree_set_end(tree, i * 10, i * 10 + 9, NULL));
    }
    CHECK(count_entries(tree) == N / 2);
    /* Downwards, into the holes. */
    for (i = N; i-- > 0;) {
        int busy = i % 2;
        GIVES(busy ? -EEXIST : 0, samara_tree_insert(tree, i * 10 + 2, i * 10 + 7, entry(i), NULL));
    }
    CHECK(count_entries(tree) == N);
    /* One store over most of it, then everything away but the ends. */
    OK(samara_tree_store(tree, 55, (N - 5) * 10, entry(9)));
    OK(samara_tree_validate(tree));
    IS(tree, N * 5, 55, (N - 5) * 10, entry(9));
    OK(samara_tree_erase_range(tree, 20, UINT64_MAX));
    CHECK(count_entries(tree) == 2);
    OK(samara_tree_clear(tree));
    CHECK(samara_tree_is_empty(tree) == 1);
    /* Far apart: leaves with bounds of 64 bits. */
    for (i = 0; i < 64; i++) {
        OK(samara_tree_store(tree, UINT64_C(1) << i, UINT64_C(1) << i, entry(i)));
    }
    for (i = 0; i < 64; i++) {
        IS(tree, UINT64_C(1) << i, UINT64_C(1) << i, UINT64_C(1) << i, entry(i));
    }
    end(tree);
}

static void gaps(void)
{
    struct samara_tree *tree = begin();
    uint64_t first, next, length;
    unsigned i;
    OK(samara_tree_alloc(tree, 0x1000, 0xffff, 0x1000, 0x1000, entry(1), &first));
    CHECK(first == 0x1000);
    OK(samara_tree_alloc(tree, 0x1000, 0xffff, 0x10, 1, entry(2), &first));
    CHECK(first == 0x2000);
    OK(samara_tree_alloc(tree, 0x1000, 0xffff, 0x1000, 0x1000, entry(3), &first));
    CHECK(first == 0x3000);
    OK(samara_tree_alloc_rev(tree, 0x1000, 0xffff, 0x1001, 0x1000, entry(4), &first));
    CHECK(first == 0xe000);
    OK(samara_tree_find_free_rev(tree, 0x1000, 0xffff, 0xffe, 1, &first));
    CHECK(first == 0xf002);
    GIVES(-ENOSPC, samara_tree_alloc(tree, 0x1000, 0x3fff, 0x1000, 1, entry(5), &first));
    GIVES(-ENOSPC, samara_tree_alloc(tree, 0x1000, 0xffff, 0x10000, 1, entry(5), &first));
    GIVES(-ENOSPC, samara_tree_find_free(tree, 0, 0, 2, 1, &first));
    OK(samara_tree_find_free(tree, 0x2000, UINT64_MAX, 0x20, 0x20, &first));
    CHECK(first == 0x2020);
    OK(samara_tree_largest_gap(tree, &length));
    CHECK(length == UINT64_MAX - 0xf000);

    /* Cyclic: forwards, around, and past what is taken. */
    OK(samara_tree_clear(tree));
    next = 8;
    for (i = 8; i < 10; i++) {
        uint64_t same = next, found;
        OK(samara_tree_find_free_cyclic(tree, 1, 9, 1, 1, &same, &found));
        OK(samara_tree_alloc_cyclic(tree, 1, 9, 1, 1, entry(i), &next, &first));
        CHECK(found == first && same == next);
        CHECK(first == i);
    }
    CHECK(next == 1);
    OK(samara_tree_alloc_cyclic(tree, 1, 9, 3, 2, entry(1), &next, &first));
    CHECK(first == 2 && next == 5);
    OK(samara_tree_erase(tree, 2, NULL));
    OK(samara_tree_alloc_cyclic(tree, 1, 9, 3, 1, entry(1), &next, &first));
    CHECK(first == 5 && next == 8);
    OK(samara_tree_alloc_cyclic(tree, 1, 9, 4, 1, entry(1), &next, &first));
    CHECK(first == 1 && next == 5);
    GIVES(-ENOSPC, samara_tree_alloc_cyclic(tree, 1, 9, 1, 1, entry(1), &next, &first));
    GIVES(-ENOSPC, samara_tree_find_free_cyclic(tree, 1, 9, 1, 1, &next, &first));
    CHECK(next == 5);
    /* At the very end, and from outside of the bounds. */
    next = UINT64_MAX;
    OK(samara_tree_alloc_cyclic(tree, 100, UINT64_MAX, 1, 1, entry(1), &next, &first));
    CHECK(first == UINT64_MAX && next == 100);
    next = 5;
    OK(samara_tree_alloc_cyclic(tree, 100, 200, 1, 1, entry(1), &next, &first));
    CHECK(first == 100 && next == 101);
    end(tree);
}

struct sum {
    uint64_t ranges;
    uint64_t last;
    uint64_t stop;
};

static int add(void *ctx, const struct samara_range *range)
{
    struct sum *sum = (struct sum *)ctx;
    CHECK(sum->ranges == 0 || range->first > sum->last);
    sum->ranges++;
    sum->last = range->last;
    return sum->ranges == sum->stop ? 77 : 0;
}

static void cursors(void)
{
    struct samara_tree *tree = begin();
    struct samara_cursor cursor;
    struct samara_range range;
    struct sum sum = {0, 0, 0};
    unsigned i;
    for (i = 0; i < N; i++) {
        OK(samara_tree_store(tree, i * 4, i * 4 + 1, entry(i)));
    }
    OK(samara_tree_for_each(tree, 0, UINT64_MAX, add, &sum));
    CHECK(sum.ranges == N && sum.last == N * 4 - 3);
    sum.ranges = 0;
    sum.stop = 3;
    GIVES(77, samara_tree_for_each(tree, 9, UINT64_MAX, add, &sum));
    CHECK(sum.ranges == 3 && sum.last == 17);

    OK(samara_cursor_init(&cursor, tree, 5));
    OK(samara_cursor_next(&cursor, UINT64_MAX, &range));
    CHECK(range.first == 4 && range.entry == entry(1));
    for (i = 2; i < N; i++) {
        OK(samara_cursor_next(&cursor, UINT64_MAX, &range));
        CHECK(range.first == i * 4 && range.entry == entry(i));
    }
    GIVES(-ENOENT, samara_cursor_next(&cursor, UINT64_MAX, &range));
    for (i = N; i-- > 0;) {
        OK(samara_cursor_prev(&cursor, 0, &range));
        CHECK(range.last == i * 4 + 1);
    }
    GIVES(-ENOENT, samara_cursor_prev(&cursor, 0, &range));
    OK(samara_cursor_set(&cursor, 4));
    OK(samara_cursor_next_or_hole(&cursor, 100, &range));
    CHECK(range.first == 4 && range.last == 5);
    OK(samara_cursor_next_or_hole(&cursor, 100, &range));
    CHECK(range.first == 6 && range.last == 7 && range.entry == NULL);
    OK(samara_cursor_prev_or_hole(&cursor, 0, &range));
    CHECK(range.first == 4 && range.entry == entry(1));
    GIVES(-ENOENT, samara_cursor_next(&cursor, 7, &range));

    /* Erasing and replacing while it moves. */
    OK(samara_cursor_set(&cursor, 0));
    for (i = 0; i < N; i++) {
        OK(samara_cursor_next(&cursor, UINT64_MAX, &range));
        CHECK(range.first == i * 4);
        if (i % 3 == 0) {
            struct samara_range removed;
            OK(samara_cursor_erase(&cursor, &removed));
            CHECK(removed.first == range.first && removed.entry == range.entry);
        } else if (i % 3 == 1) {
            OK(samara_cursor_store(&cursor, entry(i + 1000)));
        }
    }
    GIVES(-ENOENT, samara_cursor_next(&cursor, UINT64_MAX, &range));
    for (i = 0; i < N; i++) {
        if (i % 3 == 0) {
            HOLE(tree, i * 4);
        } else {
            IS(tree, i * 4, i * 4, i * 4 + 1, entry(i % 3 == 1 ? i + 1000 : i));
        }
    }
    /* A hole that is filled by the cursor. */
    OK(samara_cursor_set(&cursor, 0));
    OK(samara_cursor_next_or_hole(&cursor, UINT64_MAX, &range));
    CHECK(range.first == 0 && range.last == 3 && range.entry == NULL);
    GIVES(-ENOENT, samara_cursor_erase(&cursor, NULL));
    OK(samara_cursor_store(&cursor, entry(5)));
    IS(tree, 2, 0, 3, entry(5));
    /* Again at the same place: the change was the cursor's own. */
    OK(samara_cursor_store(&cursor, entry(8)));
    IS(tree, 2, 0, 3, entry(8));
    OK(samara_cursor_erase(&cursor, &range));
    CHECK(range.first == 0 && range.last == 3 && range.entry == entry(8));
    /* It is on the whole hole, which a move does not meet again. */
    OK(samara_tree_store(tree, 2, 2, entry(8)));
    OK(samara_cursor_set(&cursor, 2));
    OK(samara_cursor_next(&cursor, UINT64_MAX, &range));
    OK(samara_cursor_erase(&cursor, NULL));
    OK(samara_cursor_next_or_hole(&cursor, UINT64_MAX, &range));
    CHECK(range.first == 4 && range.entry != NULL);
    OK(samara_cursor_prev_or_hole(&cursor, 0, &range));
    CHECK(range.first == 0 && range.last == 3 && range.entry == NULL);
    GIVES(-ENOENT, samara_cursor_erase(&cursor, NULL));
    HOLE(tree, 2);
    OK(samara_cursor_store(&cursor, entry(9)));
    OK(samara_cursor_store(&cursor, entry(5)));
    IS(tree, 2, 0, 3, entry(5));
    /* But not if another call has changed it in between. */
    OK(samara_tree_store(tree, 0, 3, entry(8)));
    GIVES(-ESTALE, samara_cursor_store(&cursor, entry(9)));
    OK(samara_tree_store(tree, 0, 3, entry(5)));
    OK(samara_cursor_store(&cursor, entry(5)));
    /* Changed by another call since: nothing happens. */
    OK(samara_cursor_next(&cursor, UINT64_MAX, &range));
    OK(samara_tree_store(tree, range.first, range.first, entry(6)));
    GIVES(-ESTALE, samara_cursor_erase(&cursor, NULL));
    GIVES(-ESTALE, samara_cursor_store(&cursor, entry(7)));
    /* Paused, and continued in another section. */
    OK(samara_cursor_set(&cursor, 0));
    OK(samara_cursor_next(&cursor, UINT64_MAX, &range));
    OK(samara_cursor_pause(&cursor));
    OK(samara_read_unlock());
    OK(samara_read_lock());
    OK(samara_cursor_next(&cursor, UINT64_MAX, &range));
    CHECK(range.first == 4 && range.last == 4 && range.entry == entry(6));
    end(tree);
}

/* Under the lock: calls and a cursor read the writes before them. */
static void locked(void)
{
    struct samara_tree *tree = begin();
    struct samara_cursor cursor;
    struct samara_range range;
    unsigned i;
    OK(samara_read_unlock());
    if (flags & SAMARA_TREE_EXCLUSIVE) {
        GIVES(-EINVAL, samara_tree_lock(tree));
    } else {
        OK(samara_tree_lock(tree));
        GIVES(-EDEADLK, samara_tree_lock(tree));
        OK(samara_tree_preallocate(tree, 3));
    }
    OK(samara_cursor_init(&cursor, tree, 0));
    GIVES(-ENOENT, samara_cursor_next(&cursor, UINT64_MAX, &range));
    for (i = 0; i < 2000; i++) {
        OK(samara_tree_store(tree, i * 2, i * 2, entry(i)));
        IS(tree, i * 2, i * 2, i * 2, entry(i));
    }
    OK(samara_cursor_set(&cursor, 0));
    for (i = 0; i < 2000; i++) {
        OK(samara_cursor_next(&cursor, UINT64_MAX, &range));
        CHECK(range.first == i * 2);
        if (i % 2) {
            OK(samara_cursor_erase(&cursor, NULL));
            HOLE(tree, i * 2);
        } else {
            OK(samara_tree_erase(tree, i * 2, &range));
        }
    }
    CHECK(samara_tree_is_empty(tree) == 1);
    if (!(flags & SAMARA_TREE_EXCLUSIVE)) {
        OK(samara_tree_unlock(tree));
        OK(samara_tree_trylock(tree));
        OK(samara_tree_unlock(tree));
        OK(samara_tree_barrier(tree));
    }
    OK(samara_read_lock());
    end(tree);
}

static void duplicates(void)
{
    struct samara_tree *tree = begin(), *copy = NULL, *third = NULL;
    unsigned i;
    for (i = 0; i < 1000; i++) {
        OK(samara_tree_store(tree, i * 8, i * 8 + 3, entry(i)));
    }
    OK(samara_tree_duplicate(tree, &copy));
    OK(samara_tree_store(copy, 0, 3999, entry(1)));
    OK(samara_tree_duplicate(copy, &third));
    OK(samara_tree_clear(copy));
    OK(samara_tree_erase_range(tree, 4000, UINT64_MAX));
    CHECK(count_entries(tree) == 500 && count_entries(copy) == 0);
    CHECK(count_entries(third) == 501);
    IS(third, 17, 0, 3999, entry(1));
    IS(tree, 17, 16, 19, entry(2));
    OK(samara_tree_validate(copy));
    OK(samara_tree_validate(third));
    OK(samara_read_unlock());
    OK(samara_tree_destroy(copy));
    OK(samara_tree_destroy(third));
    OK(samara_read_lock());
    IS(tree, 3995, 3992, 3995, entry(499));
    end(tree);
}

/* Counted references: one for each range of each tree. */
static int counts[ENTRIES];
static int deferred;

static void retain(void *ctx, void *what)
{
    ((int *)ctx)[(char *)what - entry_cells]++;
}

static void release(void *ctx, void *what)
{
    int *count = &((int *)ctx)[(char *)what - entry_cells];
    CHECK(*count > 0);
    --*count;
}

static void drop(void *ctx, void *what)
{
    CHECK(ctx == &deferred && what == entry(3));
    deferred++;
}

static void store_counted(struct samara_tree *tree, uint64_t first, uint64_t last, unsigned n)
{
    counts[n]++;
    OK(samara_tree_store(tree, first, last, entry(n)));
}

static void settle(struct samara_tree *tree)
{
    OK(samara_read_unlock());
    OK(samara_tree_barrier(tree));
    OK(samara_read_lock());
}

static void counted(void)
{
    struct samara_options options;
    struct samara_tree *tree, *copy;
    struct samara_range range;
    struct samara_cursor cursor;
    unsigned i;
    memset(&options, 0, sizeof(options));
    options.size = sizeof(options);
    options.flags = flags;
    options.ctx = counts;
    options.retain = retain;
    options.release = release;
    OK(samara_tree_new(&options, &tree));
    OK(samara_read_lock());

    store_counted(tree, 0, 99, 1);
    store_counted(tree, 40, 59, 2); /* splits 1 */
    settle(tree);
    CHECK(counts[1] == 2 && counts[2] == 1);
    store_counted(tree, 30, 69, 3); /* covers 2, cuts both parts of 1 */
    settle(tree);
    CHECK(counts[1] == 2 && counts[2] == 0 && counts[3] == 1);
    if (!(flags & SAMARA_TREE_EXCLUSIVE)) {
        /* A reader that was there before holds releases up. */
        OK(samara_tree_erase_range(tree, 0, 200));
        CHECK(counts[1] == 2 && counts[3] == 1);
        settle(tree);
    } else {
        OK(samara_tree_erase_range(tree, 0, 200));
    }
    CHECK(counts[1] == 0 && counts[3] == 0);

    /* Erased with a result: the reference is the caller's. */
    store_counted(tree, 10, 19, 3);
    OK(samara_tree_erase(tree, 10, &range));
    settle(tree);
    CHECK(counts[3] == 1 && range.entry == entry(3));
    deferred = 0;
    OK(samara_tree_defer(tree, drop, &deferred, range.entry));
    CHECK(deferred == ((flags & SAMARA_TREE_EXCLUSIVE) != 0));
    settle(tree);
    CHECK(deferred == 1);
    counts[3] = 0;
    store_counted(tree, 10, 19, 3);
    OK(samara_tree_erase(tree, 10, NULL));
    settle(tree);
    CHECK(counts[3] == 0);

    /* Many, replaced one by one, by a cursor, and at once; and in duplicates. */
    for (i = 0; i < 1000; i++) {
        store_counted(tree, i * 10, i * 10 + 9, i);
    }
    for (i = 0; i < 1000; i += 2) {
        store_counted(tree, i * 10, i * 10 + 9, i + 2000);
    }
    OK(samara_cursor_init(&cursor, tree, 0));
    OK(samara_cursor_next(&cursor, UINT64_MAX, &range));
    counts[4000]++;
    OK(samara_cursor_store(&cursor, entry(4000)));
    OK(samara_cursor_next(&cursor, UINT64_MAX, &range));
    OK(samara_cursor_erase(&cursor, NULL));
    settle(tree);
    CHECK(counts[0] == 0 && counts[2000] == 0 && counts[4000] == 1 && counts[1] == 0);
    CHECK(counts[2] == 0 && counts[2002] == 1 && counts[3] == 1);
    OK(samara_tree_duplicate(tree, &copy));
    CHECK(counts[2002] == 2 && counts[3] == 2);
    store_counted(copy, 0, 4999, 5000);
    OK(samara_tree_clear(tree));
    settle(tree);
    settle(copy);
    CHECK(counts[3] == 0 && counts[4000] == 0 && counts[501] == 1 && counts[5000] == 1);
    GIVES(-EEXIST, samara_tree_insert(copy, 0, 1, entry(1), NULL));
    CHECK(counts[1] == 0);
    OK(samara_tree_validate(copy));
    OK(samara_tree_validate(tree));
    OK(samara_read_unlock());
    store_counted(tree, 0, 4999, 6000);
    OK(samara_tree_destroy(tree));
    OK(samara_tree_destroy(copy));
    for (i = 0; i < ENTRIES; i++) {
        CHECK(counts[i] == 0);
    }
}

/* Usage: basic [N] */
int main(int argc, char **argv)
{
    static const uint32_t kinds[] = {0, SAMARA_TREE_CALLER_LOCK, SAMARA_TREE_EXCLUSIVE};
    unsigned i;
    choose_memory();
    if (argc > 1) {
        N = (unsigned)strtoul(argv[1], NULL, 10);
    }
    CHECK(strcmp(samara_version(), "0.1.0") == 0);
    for (i = 0; i < 3; i++) {
        flags = kinds[i];
        empty();
        borders();
        splits();
        patterns();
        gaps();
        cursors();
        locked();
        duplicates();
        counted();
    }
    puts("basic: ok");
    return 0;
}
