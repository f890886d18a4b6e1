/* Helpers of the test programs. These compile as C11 and as C++17. */
#ifndef CHECK_H
#define CHECK_H

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "samara_range.h"

#define CHECK(condition)                                                            \
    do {                                                                            \
        if (!(condition)) {                                                         \
            fprintf(stderr, "%s:%d: not true: %s\n", __FILE__, __LINE__, #condition); \
            exit(1);                                                                \
        }                                                                           \
    } while (0)

/* The call returns this number. */
#define GIVES(expected, call)                                                       \
    do {                                                                            \
        int result_ = (call);                                                       \
        if (result_ != (expected)) {                                                \
            fprintf(stderr, "%s:%d: %s gives %d, not %d\n", __FILE__, __LINE__, #call, \
                    result_, (int)(expected));                                      \
            exit(1);                                                                \
        }                                                                           \
    } while (0)

#define OK(call) GIVES(0, call)

/* Entries: addresses that tell their number. */
#define ENTRIES 65536
static char entry_cells[ENTRIES];

static inline void *entry(unsigned n)
{
    return &entry_cells[n % ENTRIES];
}

/* A generator of random numbers (xorshift64*). */
static inline uint64_t random_next(uint64_t *state)
{
    uint64_t x = *state;
    x ^= x >> 12;
    x ^= x << 25;
    x ^= x >> 27;
    *state = x;
    return x * UINT64_C(0x2545f4914f6cdd1d);
}

/* Under valgrind, nodes come from malloc, so that it sees each of them. */
static inline void choose_memory(void)
{
    if (getenv("SAMARA_TEST_MALLOC")) {
        OK(samara_set_allocator(NULL));
    }
}

static inline struct samara_tree *new_tree(uint32_t flags)
{
    struct samara_options options;
    struct samara_tree *tree = NULL;
    memset(&options, 0, sizeof(options));
    options.size = sizeof(options);
    options.flags = flags;
    OK(samara_tree_new(&options, &tree));
    CHECK(tree != NULL);
    return tree;
}

/* The tree has exactly this range at the index. */
#define IS(tree, index, from, to, what)                                             \
    do {                                                                            \
        struct samara_range range_;                                                 \
        OK(samara_tree_lookup(tree, index, &range_));                               \
        CHECK(range_.first == (from) && range_.last == (to) && range_.entry == (what)); \
        CHECK(samara_tree_load(tree, index) == (what));                             \
    } while (0)

/* The tree has no entry at the index. */
#define HOLE(tree, index)                                                           \
    do {                                                                            \
        struct samara_range range_;                                                 \
        GIVES(-ENOENT, samara_tree_lookup(tree, index, &range_));                   \
        CHECK(samara_tree_load(tree, index) == NULL);                               \
    } while (0)

static inline uint64_t count_entries(struct samara_tree *tree)
{
    struct samara_stats stats;
    OK(samara_tree_stats(tree, &stats, sizeof(stats)));
    CHECK(stats.leaked == 0);
    return stats.entries;
}

#endif
