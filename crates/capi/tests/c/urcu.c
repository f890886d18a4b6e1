/*
 * Trees over the grace periods of liburcu: readers concurrent with a writer, batches with one
 * rcu_head, a barrier, misuse. The flavour is chosen by the program: compiled with URCU_MB,
 * URCU_QSBR or neither.
 */
#include <pthread.h>
#define URCU_API_MAP
#if defined(URCU_MB)
#include <urcu/urcu-mb.h>
#elif defined(URCU_QSBR)
#include <urcu/urcu-qsbr.h>
#else
#include <urcu.h>
#endif

#include "check.h"
#include "samara_range_urcu.h"

#define SPAN 1024
#define WRITES 10000
#define ALIVE UINT64_C(0x616c697665)

struct item {
    uint64_t alive;
    unsigned long references;
};

static struct samara_tree *tree;
static struct samara_rcu rcu;
static unsigned long items, heads;
static int stop;

/* Counts the heads, then hands them to liburcu. */
static void count_call(void *head)
{
    uatomic_inc(&heads);
    samara_urcu_call(head);
}

static struct item *new_item(void)
{
    struct item *item = (struct item *)malloc(sizeof(*item));
    CHECK(item);
    item->alive = ALIVE;
    item->references = 1;
    uatomic_inc(&items);
    return item;
}

static void retain(void *ctx, void *what)
{
    (void)ctx;
    uatomic_inc(&((struct item *)what)->references);
}

static void release(void *ctx, void *what)
{
    struct item *item = (struct item *)what;
    CHECK(ctx == &items && item->alive == ALIVE);
    if (uatomic_sub_return(&item->references, 1) == 0) {
        item->alive = 0;
        free(item);
        uatomic_dec(&items);
    }
}

static void *reader(void *arg)
{
    uint64_t random = 77;
    struct samara_cursor cursor;
    struct samara_range range;
    (void)arg;
    rcu_register_thread();
    while (!uatomic_read(&stop)) {
        struct item *item;
        unsigned i;
        rcu_read_lock();
        item = (struct item *)samara_tree_load(tree, random_next(&random) % SPAN);
        CHECK(!item || item->alive == ALIVE);
        OK(samara_cursor_init(&cursor, tree, random_next(&random) % SPAN));
        for (i = 0; i < 10 && samara_cursor_next(&cursor, SPAN, &range) == 0; i++) {
            CHECK(((struct item *)range.entry)->alive == ALIVE);
        }
        CHECK(!item || item->alive == ALIVE);
        rcu_read_unlock();
        rcu_quiescent_state(); /* nothing, but for QSBR */
    }
    rcu_unregister_thread();
    return NULL;
}

static void *bare_reader(void *arg)
{
    struct samara_range range;
    (void)arg;
    rcu_register_thread();
    if (rcu.ongoing) {
        GIVES(-EPERM, samara_tree_lookup(tree, 1, &range));
        OK(samara_read_lock()); /* of no use here */
        GIVES(-EPERM, samara_tree_lookup(tree, 1, &range));
        OK(samara_read_unlock());
    }
    rcu_unregister_thread();
    return NULL;
}

/* A thread that waits lets others end their grace periods. */
static void join(pthread_t thread)
{
#ifdef URCU_QSBR
    rcu_thread_offline();
#endif
    CHECK(pthread_join(thread, NULL) == 0);
#ifdef URCU_QSBR
    rcu_thread_online();
#endif
}

int main(void)
{
    struct samara_options options;
    struct samara_range range;
    struct samara_tree *copy;
    uint64_t random = 5;
    pthread_t thread;
    unsigned i;
    choose_memory();
    rcu_register_thread();
    memset(&options, 0, sizeof(options));
    options.size = sizeof(options);
    options.ctx = &items;
    options.retain = retain;
    options.release = release;
    rcu = samara_urcu;
    rcu.call = count_call;
    options.rcu = &rcu;
    OK(samara_tree_new(&options, &tree));
    OK(samara_tree_store(tree, 0, SPAN, new_item()));
    CHECK(pthread_create(&thread, NULL, bare_reader, NULL) == 0);
    join(thread);
    CHECK(pthread_create(&thread, NULL, reader, NULL) == 0);
    for (i = 0; i < WRITES; i++) {
        uint64_t first = random_next(&random) % SPAN, last = first + random_next(&random) % 8;
        if (i % 4 == 0) {
            OK(samara_tree_erase_range(tree, first, last));
        } else {
            OK(samara_tree_store(tree, first, last, new_item()));
        }
    }
    /* Each write has retired a leaf, and most of them an entry: far more than one for a head. */
    CHECK(uatomic_read(&heads) > 0 && uatomic_read(&heads) < WRITES / 10);
    OK(samara_tree_barrier(tree));
    CHECK(uatomic_read(&items) <= count_entries(tree));

    /* A section holds releases up; a barrier inside of one would never end. */
    OK(samara_tree_clear(tree));
    OK(samara_tree_store(tree, 5, 5, new_item()));
    OK(samara_tree_barrier(tree));
    CHECK(uatomic_read(&items) == 1);
    rcu_read_lock();
    OK(samara_tree_lookup(tree, 5, &range));
    OK(samara_tree_erase(tree, 5, NULL));
    if (rcu.ongoing) {
        GIVES(-EDEADLK, samara_tree_barrier(tree));
        GIVES(-EDEADLK, samara_tree_destroy(tree));
    }
    CHECK(((struct item *)range.entry)->alive == ALIVE);
    rcu_read_unlock();
    OK(samara_tree_barrier(tree));
    CHECK(uatomic_read(&items) == 0);

    OK(samara_tree_store(tree, 0, 999, new_item()));
    OK(samara_tree_store(tree, 10, 19, new_item()));
    OK(samara_tree_duplicate(tree, &copy));
    uatomic_set(&stop, 1);
    join(thread);
    OK(samara_tree_destroy(tree));
    CHECK(uatomic_read(&items) == 2);
    OK(samara_tree_destroy(copy));
    CHECK(uatomic_read(&items) == 0);
    rcu_unregister_thread();
    puts("urcu: ok");
    return 0;
}
