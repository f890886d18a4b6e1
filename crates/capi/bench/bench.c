/*
 * The range tree against what C programs use for the job, in one run: an rbtree with augmented gaps
 * (rb.h), glib's GTree, and Judy. Prints tables in Markdown. campaign/capi-bench builds and runs
 * it.
 *
 *     bench [--short] [--malloc]
 *
 * With --malloc, the nodes of our trees come from malloc too, and not from the pool.
 *
 * Entry i of n is the range 16 i to 16 i + 7, so there is a hole of 8 between all. Orders are
 * random. The maps take turns in several rounds. Of one thread alone, a figure is the lowest of all
 * rounds, in time on the CPU; of several threads, it is the median.
 */
#include <Judy.h>
#include <glib.h>
#include <pthread.h>
#include <samara_range.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "rb.h"

#define FIRST(slot) ((uint64_t)(slot) * 16)
#define LAST(slot) (FIRST(slot) + 7)
#define LONG_HOLE 20

static int rounds = 5;
static uint64_t least_operations = 1000000;

static double nanoseconds(clockid_t clock)
{
    struct timespec time;
    clock_gettime(clock, &time);
    return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

/* The time of this thread on a CPU, so that other programs on the machine disturb little. */
static double now(void)
{
    return nanoseconds(CLOCK_THREAD_CPUTIME_ID);
}

static uint64_t random_next(uint64_t *state)
{
    uint64_t x = *state;
    x ^= x >> 12;
    x ^= x << 25;
    x ^= x >> 27;
    *state = x;
    return x * UINT64_C(0x2545f4914f6cdd1d);
}

static void must(int good, const char *what)
{
    if (!good) {
        fprintf(stderr, "bench: failed: %s\n", what);
        exit(1);
    }
}

/* What is measured of each map. `gap` takes the lowest hole of LONG_HOLE, and returns its place. */
struct kind {
    const char *name;
    void *(*make)(void);
    void (*destroy)(void *map);
    void *(*load)(void *map, uint64_t index);
    void (*insert)(void *map, uint64_t first, uint64_t last, void *entry);
    void (*erase)(void *map, uint64_t index);
    uint64_t (*iterate)(void *map); /* returns the number of ranges */
    uint64_t (*gap)(void *map, void *entry);
};

/* --- samara ---------------------------------------------------------------------------------- */

static void *make_samara(uint32_t flags)
{
    struct samara_options options = {0};
    struct samara_tree *tree;
    options.size = sizeof(options);
    options.flags = flags;
    must(samara_tree_new(&options, &tree) == 0, "samara_tree_new");
    return tree;
}

static void *make_shared(void)
{
    return make_samara(0);
}

static void *make_exclusive(void)
{
    return make_samara(SAMARA_TREE_EXCLUSIVE);
}

static void samara_destroy(void *map)
{
    must(samara_tree_destroy(map) == 0, "samara_tree_destroy");
}

static void *samara_load(void *map, uint64_t index)
{
    return samara_tree_load(map, index);
}

static void *samara_section_load(void *map, uint64_t index)
{
    void *entry;
    samara_read_lock();
    entry = samara_tree_load(map, index);
    samara_read_unlock();
    return entry;
}

static void samara_insert(void *map, uint64_t first, uint64_t last, void *entry)
{
    must(samara_tree_insert(map, first, last, entry, NULL) == 0, "samara_tree_insert");
}

static void samara_erase(void *map, uint64_t index)
{
    must(samara_tree_erase(map, index, NULL) == 0, "samara_tree_erase");
}

static int count_one(void *ctx, const struct samara_range *range)
{
    *(uint64_t *)ctx += range->entry != NULL;
    return 0;
}

static uint64_t samara_iterate(void *map)
{
    uint64_t count = 0;
    samara_read_lock();
    must(samara_tree_for_each(map, 0, UINT64_MAX, count_one, &count) == 0, "for_each");
    samara_read_unlock();
    return count;
}

static uint64_t samara_cursor_iterate(void *map)
{
    struct samara_cursor cursor;
    struct samara_range range;
    uint64_t count = 0;
    samara_read_lock();
    must(samara_cursor_init(&cursor, map, 0) == 0, "samara_cursor_init");
    while (samara_cursor_next(&cursor, UINT64_MAX, &range) == 0) {
        count++;
    }
    samara_read_unlock();
    return count;
}

static uint64_t samara_gap(void *map, void *entry)
{
    uint64_t first = 0;
    must(samara_tree_alloc(map, 0, UINT64_MAX, LONG_HOLE, 1, entry, &first) == 0, "alloc");
    return first;
}

/* --- the rbtree with gaps -------------------------------------------------------------------- */

struct rb_item {
    struct rb_node node;
    void *entry;
};

static void *rb_make(void)
{
    return calloc(1, sizeof(struct rb_tree));
}

static void rb_destroy(void *map)
{
    struct rb_tree *tree = map;
    must(rb_check(tree->root) >= 0, "the rbtree is no rbtree");
    while (tree->root) {
        struct rb_node *node = tree->root;
        rb_erase(tree, node);
        free(node);
    }
    free(tree);
}

static void *rb_load(void *map, uint64_t index)
{
    struct rb_node *node = rb_find(map, index);
    return node ? ((struct rb_item *)node)->entry : NULL;
}

static void rb_put(void *map, uint64_t first, uint64_t last, void *entry)
{
    struct rb_item *item = malloc(sizeof(*item));
    must(item != NULL, "malloc");
    item->node.first = first;
    item->node.last = last;
    item->entry = entry;
    must(rb_insert(map, &item->node) == 0, "rb_insert");
}

static void rb_remove(void *map, uint64_t index)
{
    struct rb_node *node = rb_find(map, index);
    must(node != NULL, "rb_find");
    rb_erase(map, node);
    free(node);
}

static uint64_t rb_iterate(void *map)
{
    struct rb_node *node;
    uint64_t count = 0;
    for (node = rb_first(map); node; node = rb_step(node, 1)) {
        count += ((struct rb_item *)node)->entry != NULL;
    }
    return count;
}

static uint64_t rb_gap(void *map, void *entry)
{
    uint64_t first = rb_lowest_hole(map, LONG_HOLE);
    must(first != UINT64_MAX, "rb_lowest_hole");
    rb_put(map, first, first + LONG_HOLE - 1, entry);
    return first;
}

/* --- GTree ----------------------------------------------------------------------------------- */

struct g_item {
    uint64_t first, last;
};

/* Ranges that overlap are equal, so a search for an index finds its range. */
static gint g_compare(gconstpointer left, gconstpointer right, gpointer ctx)
{
    const struct g_item *a = left, *b = right;
    (void)ctx;
    return a->last < b->first ? -1 : a->first > b->last;
}

static void *g_make(void)
{
    return g_tree_new_full(g_compare, NULL, free, NULL);
}

static void g_destroy(void *map)
{
    g_tree_destroy(map);
}

static void *g_load(void *map, uint64_t index)
{
    struct g_item key = {index, index};
    return g_tree_lookup(map, &key);
}

static void g_put(void *map, uint64_t first, uint64_t last, void *entry)
{
    struct g_item *key = malloc(sizeof(*key));
    must(key != NULL, "malloc");
    key->first = first;
    key->last = last;
    g_tree_insert(map, key, entry);
}

static void g_erase(void *map, uint64_t index)
{
    struct g_item key = {index, index};
    must(g_tree_remove(map, &key), "g_tree_remove");
}

static gboolean g_count(gpointer key, gpointer value, gpointer ctx)
{
    (void)key;
    *(uint64_t *)ctx += value != NULL;
    return FALSE;
}

static uint64_t g_iterate(void *map)
{
    uint64_t count = 0;
    g_tree_foreach(map, g_count, &count);
    return count;
}

/* --- Judy: by the last index ----------------------------------------------------------------- */

struct judy_item {
    uint64_t first;
    void *entry;
};

static void *judy_make(void)
{
    return calloc(1, sizeof(Pvoid_t));
}

static void judy_destroy(void *map)
{
    Word_t index = 0;
    Pvoid_t *array = map;
    PPvoid_t value;
    for (value = JudyLFirst(*array, &index, PJE0); value;
         value = JudyLNext(*array, &index, PJE0)) {
        free(*value);
    }
    JudyLFreeArray(array, PJE0);
    free(array);
}

static void *judy_load(void *map, uint64_t at)
{
    Word_t index = at;
    PPvoid_t value = JudyLFirst(*(Pvoid_t *)map, &index, PJE0);
    struct judy_item *item = value ? *value : NULL;
    return item && item->first <= at ? item->entry : NULL;
}

static void judy_insert(void *map, uint64_t first, uint64_t last, void *entry)
{
    struct judy_item *item = malloc(sizeof(*item));
    PPvoid_t value = JudyLIns(map, last, PJE0);
    must(item && value != PPJERR, "JudyLIns");
    item->first = first;
    item->entry = entry;
    *value = item;
}

static void judy_erase(void *map, uint64_t at)
{
    Word_t index = at;
    PPvoid_t value = JudyLFirst(*(Pvoid_t *)map, &index, PJE0);
    must(value != NULL, "JudyLFirst");
    free(*value);
    JudyLDel(map, index, PJE0);
}

static uint64_t judy_iterate(void *map)
{
    Word_t index = 0;
    uint64_t count = 0;
    PPvoid_t value;
    for (value = JudyLFirst(*(Pvoid_t *)map, &index, PJE0); value;
         value = JudyLNext(*(Pvoid_t *)map, &index, PJE0)) {
        count += ((struct judy_item *)*value)->entry != NULL;
    }
    return count;
}

static const struct kind kinds[] = {
    {"samara, exclusive", make_exclusive, samara_destroy, samara_load, samara_insert, samara_erase,
     samara_iterate, samara_gap},
    {"samara, shared", make_shared, samara_destroy, samara_section_load, samara_insert,
     samara_erase, samara_cursor_iterate, samara_gap},
    {"rbtree with gaps", rb_make, rb_destroy, rb_load, rb_put, rb_remove, rb_iterate, rb_gap},
    {"GTree", g_make, g_destroy, g_load, g_put, g_erase, g_iterate, NULL},
    {"Judy", judy_make, judy_destroy, judy_load, judy_insert, judy_erase, judy_iterate, NULL},
};

#define KINDS (sizeof(kinds) / sizeof(kinds[0]))
#define MOST_ROUNDS 16

enum { LOAD, INSERT, ERASE, ITERATE, GAP, OPERATIONS };
static const char *operations[OPERATIONS] = {
    "load", "insert in random order", "erase in random order", "iterate, per entry",
    "store into the lowest hole, and erase",
};

static int ascending(const void *left, const void *right)
{
    double a = *(const double *)left, b = *(const double *)right;
    return a < b ? -1 : a > b;
}

static double median(double *values, int n)
{
    qsort(values, (size_t)n, sizeof(*values), ascending);
    return values[n / 2];
}

static double lowest(double *values, int n)
{
    qsort(values, (size_t)n, sizeof(*values), ascending);
    return values[0];
}

/* Large maps take long, and their figures vary less. */
static int most(int wanted)
{
    return wanted < 2 ? wanted : 2;
}

static void shuffle(uint32_t *order, uint32_t n, uint64_t *random)
{
    uint32_t i;
    for (i = 0; i < n; i++) {
        order[i] = i;
    }
    for (i = n; i > 1; i--) {
        uint32_t other = (uint32_t)(random_next(random) % i), kept = order[i - 1];
        order[i - 1] = order[other];
        order[other] = kept;
    }
}

/* All figures of one map for one size, in nanoseconds an operation. */
static void measure(const struct kind *kind, uint32_t n, uint64_t seed, double *figures)
{
    uint64_t random = seed, done, passes, found = 0, repeat = least_operations / n + 1;
    uint32_t *order = malloc(n * sizeof(*order)), *back = malloc(n * sizeof(*back)), i;
    double insert = 0, erase = 0, began;
    void *map = NULL;
    must(order && back, "malloc");
    shuffle(order, n, &random);
    shuffle(back, n, &random);
    for (passes = 0; passes < repeat; passes++) {
        map = kind->make();
        began = now();
        for (i = 0; i < n; i++) {
            kind->insert(map, FIRST(order[i]), LAST(order[i]), &order[i]);
        }
        insert += now() - began;
        if (passes + 1 == repeat) {
            break; /* the last one stays for what follows */
        }
        began = now();
        for (i = 0; i < n; i++) {
            kind->erase(map, FIRST(back[i]) + 3);
        }
        erase += now() - began;
        kind->destroy(map);
    }
    figures[INSERT] = insert / (double)(repeat * n);

    began = now();
    for (done = 0; done < repeat; done++) {
        for (i = 0; i < n; i++) {
            found += kind->load(map, FIRST(back[i]) + (i & 7)) != NULL;
        }
    }
    figures[LOAD] = (now() - began) / (double)(repeat * n);
    must(found == repeat * n, "a load found nothing");

    began = now();
    for (done = 0; done < repeat; done++) {
        must(kind->iterate(map) == n, "iteration");
    }
    figures[ITERATE] = (now() - began) / (double)(repeat * n);

    figures[GAP] = -1;
    if (kind->gap) {
        /* Every 32nd entry goes, which leaves holes of 24. They are filled, and emptied again. */
        uint32_t holes = 0, filled, most = n < 256 ? n / 32 : n / 32 > 8192 ? 8192 : n / 32;
        uint64_t all = 0, *places = malloc((most + 1) * sizeof(*places));
        must(places != NULL, "malloc");
        for (i = 16; i < n && holes < most; i += 32) {
            kind->erase(map, FIRST(i));
            holes++;
        }
        began = now();
        while (all < least_operations / 4) {
            for (filled = 0; filled < holes; filled++) {
                places[filled] = kind->gap(map, map);
            }
            all += holes;
            for (filled = 0; filled < holes; filled++) {
                kind->erase(map, places[filled]);
            }
        }
        figures[GAP] = (now() - began) / (double)all;
        for (i = 16; holes > 0; i += 32, holes--) {
            kind->insert(map, FIRST(i), LAST(i), map);
        }
        free(places);
    }

    began = now();
    for (i = 0; i < n; i++) {
        kind->erase(map, FIRST(back[i]) + 3);
    }
    erase += now() - began;
    figures[ERASE] = erase / (double)(repeat * n);
    kind->destroy(map);
    free(order);
    free(back);
}

static void alone(void)
{
    static const uint32_t sizes[] = {100, 1000, 10000, 100000, 1000000};
    static double all[KINDS][OPERATIONS][5][MOST_ROUNDS];
    unsigned size, kind, operation;
    int round;
    for (size = 0; size < (rounds > 1 ? 5 : 4); size++) {
        for (round = 0; round < (sizes[size] < 100000 ? rounds : most(rounds)); round++) {
            for (kind = 0; kind < KINDS; kind++) {
                double figures[OPERATIONS];
                measure(&kinds[kind], sizes[size], 77 + (uint64_t)round, figures);
                for (operation = 0; operation < OPERATIONS; operation++) {
                    all[kind][operation][size][round] = figures[operation];
                }
            }
        }
    }
    for (operation = 0; operation < OPERATIONS; operation++) {
        printf("\n| %s, ns | 100 | 1,000 | 10,000 | 100,000 | 1,000,000 |\n",
               operations[operation]);
        printf("| --- | ---: | ---: | ---: | ---: | ---: |\n");
        for (kind = 0; kind < KINDS; kind++) {
            if (operation == GAP && !kinds[kind].gap) {
                continue;
            }
            printf("| %s |", kinds[kind].name);
            for (size = 0; size < 5; size++) {
                int done = sizes[size] < 100000 ? rounds : most(rounds);
                printf(" %.1f |", lowest(all[kind][operation][size], done));
            }
            printf("\n");
        }
    }
}

/* --- readers concurrent with a writer -------------------------------------------------------- */

enum { SECTIONS, LONG_SECTIONS, MUTEX, RWLOCK, LOCKS };
static const char *locks[LOCKS] = {
    "samara, a section for each load", "samara, a section for 64 loads", "rbtree and a mutex",
    "rbtree and an rwlock",
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_rwlock_t rwlock = PTHREAD_RWLOCK_INITIALIZER;
static void *shared_map;
static uint32_t shared_size;
static int shared_lock;
static atomic_int stop;

struct worker {
    pthread_t thread;
    uint64_t operations;
    uint64_t seed;
};

static void *read_loop(void *arg)
{
    struct worker *worker = arg;
    uint64_t random = worker->seed, done = 0, found = 0;
    while (!atomic_load_explicit(&stop, memory_order_relaxed)) {
        int i;
        if (shared_lock == LONG_SECTIONS) {
            samara_read_lock();
        }
        for (i = 0; i < 64; i++) {
            uint64_t index = FIRST(random_next(&random) % shared_size);
            switch (shared_lock) {
            case LONG_SECTIONS:
                found += samara_load(shared_map, index) != NULL;
                break;
            case SECTIONS:
                found += samara_section_load(shared_map, index) != NULL;
                break;
            case MUTEX:
                pthread_mutex_lock(&mutex);
                found += rb_load(shared_map, index) != NULL;
                pthread_mutex_unlock(&mutex);
                break;
            default:
                pthread_rwlock_rdlock(&rwlock);
                found += rb_load(shared_map, index) != NULL;
                pthread_rwlock_unlock(&rwlock);
            }
        }
        if (shared_lock == LONG_SECTIONS) {
            samara_read_unlock();
        }
        done += 64;
    }
    must(found > 0, "readers found nothing");
    worker->operations = done;
    return NULL;
}

/* Erases a range and stores it again. */
static void *write_loop(void *arg)
{
    struct worker *worker = arg;
    uint64_t random = worker->seed, done = 0;
    while (!atomic_load_explicit(&stop, memory_order_relaxed)) {
        uint64_t slot = random_next(&random) % shared_size;
        int step;
        for (step = 0; step < 2; step++) {
            if (shared_lock == MUTEX) {
                pthread_mutex_lock(&mutex);
            } else if (shared_lock == RWLOCK) {
                pthread_rwlock_wrlock(&rwlock);
            }
            if (shared_lock <= LONG_SECTIONS) {
                step ? samara_insert(shared_map, FIRST(slot), LAST(slot), &stop)
                     : samara_erase(shared_map, FIRST(slot));
            } else {
                step ? rb_put(shared_map, FIRST(slot), LAST(slot), &stop)
                     : rb_remove(shared_map, FIRST(slot));
            }
            if (shared_lock == MUTEX) {
                pthread_mutex_unlock(&mutex);
            } else if (shared_lock == RWLOCK) {
                pthread_rwlock_unlock(&rwlock);
            }
        }
        done += 2;
    }
    worker->operations = done;
    return NULL;
}

static void concurrent(int lock, uint32_t n, int readers, double *reads, double *writes)
{
    const struct kind *kind = lock <= LONG_SECTIONS ? &kinds[1] : &kinds[2];
    struct timespec time = {0, rounds > 3 ? 400000000 : 50000000};
    struct worker workers[8];
    double began;
    uint32_t i;
    int worker;
    shared_map = kind->make();
    shared_size = n;
    shared_lock = lock;
    for (i = 0; i < n; i++) {
        kind->insert(shared_map, FIRST(i), LAST(i), &stop);
    }
    atomic_store(&stop, 0);
    began = nanoseconds(CLOCK_MONOTONIC);
    for (worker = 0; worker <= readers; worker++) {
        workers[worker].seed = 5 + (uint64_t)worker;
        must(pthread_create(&workers[worker].thread, NULL, worker ? read_loop : write_loop,
                            &workers[worker]) == 0, "pthread_create");
    }
    nanosleep(&time, NULL);
    atomic_store(&stop, 1);
    *reads = 0;
    for (worker = 0; worker <= readers; worker++) {
        pthread_join(workers[worker].thread, NULL);
        *reads += worker ? (double)workers[worker].operations : 0;
    }
    began = nanoseconds(CLOCK_MONOTONIC) - began;
    *reads /= began / 1e3;
    *writes = (double)workers[0].operations / (began / 1e3);
    kind->destroy(shared_map);
}

static void together(void)
{
    static const uint32_t sizes[] = {1000, 100000};
    int size, lock, round, readers;
    for (readers = 1; readers <= 3; readers += 2) {
        printf("\n| %d reader%s and a writer, operations a microsecond | loads, 1,000 | writes, "
               "1,000 | loads, 100,000 | writes, 100,000 |\n", readers, readers > 1 ? "s" : "");
        printf("| --- | ---: | ---: | ---: | ---: |\n");
        static double reads[LOCKS][2][MOST_ROUNDS], writes[LOCKS][2][MOST_ROUNDS];
        for (size = 0; size < 2; size++) {
            for (round = 0; round < rounds; round++) {
                for (lock = 0; lock < LOCKS; lock++) {
                    concurrent(lock, sizes[size], readers, &reads[lock][size][round],
                           &writes[lock][size][round]);
                }
            }
        }
        for (lock = 0; lock < LOCKS; lock++) {
            printf("| %s |", locks[lock]);
            for (size = 0; size < 2; size++) {
                printf(" %.2f | %.2f |", median(reads[lock][size], rounds),
                       median(writes[lock][size], rounds));
            }
            printf("\n");
        }
    }
}

int main(int argc, char **argv)
{
    int i;
    for (i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--short") == 0) {
            rounds = 1;
            least_operations = 20000;
        } else if (strcmp(argv[i], "--malloc") == 0) {
            must(samara_set_allocator(NULL) == 0, "samara_set_allocator");
        } else {
            fprintf(stderr, "bench: unknown option %s\n", argv[i]);
            return 2;
        }
    }
    alone();
    together();
    return 0;
}
