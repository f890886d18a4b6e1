/*
 * The default memory, when malloc has none, and a process that has no further key for
 * thread-specific data: the first calls of a thread return -ENOMEM, and do not abort. Later ones
 * try again. For glibc, whose functions are replaced.
 */
#include <dlfcn.h>
#include <pthread.h>

#include "check.h"

static __thread int none; /* whether this thread gets no memory */

void *__libc_malloc(size_t size);
void *__libc_calloc(size_t number, size_t size);
void *__libc_realloc(void *block, size_t size);
void *__libc_memalign(size_t align, size_t size);

void *malloc(size_t size)
{
    return none ? NULL : __libc_malloc(size);
}

void *calloc(size_t number, size_t size)
{
    return none ? NULL : __libc_calloc(number, size);
}

void *realloc(void *block, size_t size)
{
    return none ? NULL : __libc_realloc(block, size);
}

int posix_memalign(void **block, size_t align, size_t size)
{
    *block = none ? NULL : __libc_memalign(align, size);
    return *block ? 0 : ENOMEM;
}

void *aligned_alloc(size_t align, size_t size)
{
    return none ? NULL : __libc_memalign(align, size);
}

static int no_keys = 1; /* whether there is no further key */

int pthread_key_create(pthread_key_t *key, void (*destructor)(void *))
{
    int (*create)(pthread_key_t *, void (*)(void *));
    void *found = dlsym(RTLD_NEXT, "pthread_key_create");
    memcpy(&create, &found, sizeof(create));
    return no_keys ? EAGAIN : create(key, destructor);
}

static struct samara_tree *tree;

/* Without keys, writes do without the thread's cache of nodes, and reads are refused. */
static void *without_keys(void *arg)
{
    unsigned i;
    GIVES(-ENOMEM, samara_thread_register());
    GIVES(-ENOMEM, samara_read_lock());
    GIVES(-EPERM, samara_read_unlock());
    for (i = 0; i < 100; i++) {
        OK(samara_tree_store(tree, i, i, entry(i)));
    }
    no_keys = 0;
    OK(samara_read_lock());
    CHECK(samara_tree_load(tree, 99) == entry(99));
    OK(samara_read_unlock());
    for (i = 0; i < 100; i++) {
        OK(samara_tree_erase(tree, i, NULL));
    }
    return arg;
}

static void *thread(void *arg)
{
    unsigned i;
    none = 1;
    /* Later threads take over the record of an earlier one. */
    GIVES(*(unsigned *)arg == 0 ? -ENOMEM : 0, samara_read_lock());
    GIVES(*(unsigned *)arg == 0 ? -EPERM : 0, samara_read_unlock());
    /* Nodes are free in the pool, so some of these succeed. */
    for (i = 0; i < 2000; i++) {
        int result = samara_tree_store(tree, i, i, entry(i));
        CHECK(result == 0 || result == -ENOMEM);
    }
    none = 0;
    OK(samara_tree_store(tree, 0, 5, entry(6)));
    OK(samara_read_lock());
    CHECK(samara_tree_load(tree, 3) == entry(6));
    OK(samara_read_unlock());
    return arg;
}

int main(void)
{
    pthread_t other;
    unsigned i, round;
    tree = new_tree(0);
    CHECK(pthread_create(&other, NULL, without_keys, NULL) == 0);
    CHECK(pthread_join(other, NULL) == 0);
    OK(samara_thread_register()); /* takes over the record of that thread */
    for (round = 0; round < 3; round++) {
        for (i = 0; i < 2000; i++) {
            OK(samara_tree_store(tree, i, i, entry(i)));
        }
        OK(samara_tree_clear(tree));
        OK(samara_tree_barrier(tree));
        CHECK(pthread_create(&other, NULL, thread, &round) == 0);
        CHECK(pthread_join(other, NULL) == 0);
        OK(samara_tree_validate(tree));
    }
    OK(samara_tree_destroy(tree));
    puts("nomem: ok");
    return 0;
}
