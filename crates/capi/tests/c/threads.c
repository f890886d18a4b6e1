/*
 * Readers concurrent with writers. The entries are structures of the program, which release frees:
 * a reader that saw a freed one would be noticed by its contents, by valgrind and by
 * ThreadSanitizer. Usage: threads [WRITES]
 */
#include <pthread.h>
#include <sched.h>

#include "check.h"

#define SPAN 4096 /* indices */
#define ALIVE UINT64_C(0x616c697665)

struct item {
    uint64_t alive;
    uint64_t number;
    int references; /* under count_lock */
};

static struct samara_tree *tree;
static pthread_mutex_t callers_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t count_lock = PTHREAD_MUTEX_INITIALIZER;
static uint32_t flags;
static unsigned writes = 20000;
static long items;
static int stop; /* under count_lock */

static struct item *new_item(uint64_t number)
{
    struct item *item = (struct item *)malloc(sizeof(*item));
    CHECK(item);
    item->alive = ALIVE;
    item->number = number;
    item->references = 1;
    pthread_mutex_lock(&count_lock);
    items++;
    pthread_mutex_unlock(&count_lock);
    return item;
}

static void retain(void *ctx, void *what)
{
    CHECK(ctx == &items && ((struct item *)what)->alive == ALIVE);
    pthread_mutex_lock(&count_lock);
    ((struct item *)what)->references++;
    pthread_mutex_unlock(&count_lock);
}

static void release(void *ctx, void *what)
{
    struct item *item = (struct item *)what;
    int last;
    CHECK(ctx == &items && item->alive == ALIVE);
    pthread_mutex_lock(&count_lock);
    last = --item->references == 0;
    items -= last;
    pthread_mutex_unlock(&count_lock);
    if (last) {
        item->alive = 0;
        free(item);
    }
}

static int stopped(void)
{
    int result;
    pthread_mutex_lock(&count_lock);
    result = stop;
    pthread_mutex_unlock(&count_lock);
    return result;
}

static void *reader(void *arg)
{
    uint64_t random = 1000 + (uint64_t)(uintptr_t)arg;
    struct samara_cursor cursor;
    struct samara_range range;
    do {
        uint64_t index = random_next(&random) % SPAN, last = 0;
        struct item *item;
        unsigned i;
        OK(samara_read_lock());
        item = (struct item *)samara_tree_load(tree, index);
        if (item) {
            CHECK(item->alive == ALIVE);
        }
        /* The first index is never free. */
        OK(samara_tree_lookup(tree, 0, &range));
        CHECK(((struct item *)range.entry)->alive == ALIVE);
        OK(samara_read_lock());
        OK(samara_cursor_init(&cursor, tree, index));
        for (i = 0; i < 20 && samara_cursor_next(&cursor, UINT64_MAX, &range) == 0; i++) {
            CHECK(i == 0 || range.first > last);
            CHECK(((struct item *)range.entry)->alive == ALIVE);
            last = range.last;
        }
        OK(samara_read_unlock());
        if (item) {
            CHECK(item->alive == ALIVE);
        }
        OK(samara_read_unlock());
    } while (!stopped());
    return NULL;
}

static void write_once(uint64_t *random, uint64_t n)
{
    uint64_t first = 1 + random_next(random) % (SPAN - 1), last = first + random_next(random) % 30;
    struct samara_range range;
    struct item *item;
    switch (random_next(random) % 8) {
    case 0:
        OK(samara_tree_erase_range(tree, first, last));
        break;
    case 1:
        if (samara_tree_erase(tree, first, &range) == 0) {
            OK(samara_tree_defer(tree, release, &items, range.entry));
            if (range.first == 0) {
                OK(samara_tree_store(tree, 0, 0, new_item(n)));
            }
        }
        break;
    case 2:
        /* The first index gets another entry; it is never without. */
        OK(samara_tree_store(tree, 0, 0, new_item(n)));
        break;
    case 3:
        item = new_item(n);
        if (samara_tree_insert(tree, first, last, item, NULL) != 0) {
            release(&items, item);
        }
        break;
    default:
        OK(samara_tree_store(tree, first, last, new_item(n)));
    }
}

static void *writer(void *arg)
{
    uint64_t random = (uint64_t)(uintptr_t)arg, n;
    for (n = 0; n < writes; n++) {
        if (flags & SAMARA_TREE_CALLER_LOCK) {
            pthread_mutex_lock(&callers_lock);
            write_once(&random, n);
            pthread_mutex_unlock(&callers_lock);
        } else if (n % 4 == 0) {
            write_once(&random, n);
        } else {
            unsigned i;
            OK(samara_tree_lock(tree));
            for (i = 0; i < 5; i++) {
                write_once(&random, n);
            }
            OK(samara_tree_unlock(tree));
            n += 4;
        }
        if (n % 1024 == 0 && !(flags & SAMARA_TREE_CALLER_LOCK)) {
            OK(samara_tree_barrier(tree));
        }
    }
    return NULL;
}

/* Threads that come, read once and go: their records are used again. */
static void *short_reader(void *arg)
{
    (void)arg;
    OK(samara_read_lock());
    CHECK(((struct item *)samara_tree_load(tree, 0))->alive == ALIVE);
    OK(samara_read_unlock());
    return NULL;
}

static void play(uint32_t kind)
{
    struct samara_options options;
    pthread_t readers[2], writers[2], brief;
    unsigned i;
    memset(&options, 0, sizeof(options));
    flags = kind;
    options.size = sizeof(options);
    options.flags = flags;
    options.ctx = &items;
    options.retain = retain;
    options.release = release;
    stop = 0;
    OK(samara_tree_new(&options, &tree));
    OK(samara_tree_store(tree, 0, SPAN, new_item(0)));
    OK(samara_tree_store(tree, 0, 0, new_item(0)));
    for (i = 0; i < 2; i++) {
        CHECK(pthread_create(&readers[i], NULL, reader, (void *)(uintptr_t)(i + 1)) == 0);
        CHECK(pthread_create(&writers[i], NULL, writer, (void *)(uintptr_t)(i + 1)) == 0);
    }
    for (i = 0; i < 20; i++) {
        CHECK(pthread_create(&brief, NULL, short_reader, NULL) == 0);
        CHECK(pthread_join(brief, NULL) == 0);
    }
    for (i = 0; i < 2; i++) {
        CHECK(pthread_join(writers[i], NULL) == 0);
    }
    pthread_mutex_lock(&count_lock);
    stop = 1;
    pthread_mutex_unlock(&count_lock);
    for (i = 0; i < 2; i++) {
        CHECK(pthread_join(readers[i], NULL) == 0);
    }
    OK(samara_tree_validate(tree));
    OK(samara_tree_destroy(tree));
    CHECK(items == 0);
}

int main(int argc, char **argv)
{
    if (argc > 1) {
        writes = (unsigned)strtoul(argv[1], NULL, 10);
    }
    choose_memory();
    play(0);
    play(SAMARA_TREE_CALLER_LOCK);
    puts("threads: ok");
    return 0;
}
