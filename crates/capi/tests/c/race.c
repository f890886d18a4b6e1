/*
 * A program with a bug, which ThreadSanitizer must report: it changes a structure after readers can
 * find it. Shows that the instrumented library does not hide races of the program.
 */
#include <pthread.h>

#include "check.h"

static struct samara_tree *tree;
static uint64_t item;

static void *reader(void *arg)
{
    uint64_t *found = NULL, *sum = (uint64_t *)arg;
    while (!found) {
        OK(samara_read_lock());
        found = (uint64_t *)samara_tree_load(tree, 5);
        if (found) {
            *sum += *found;
        }
        OK(samara_read_unlock());
    }
    return NULL;
}

int main(void)
{
    pthread_t thread;
    uint64_t sum = 0;
    tree = new_tree(0);
    CHECK(pthread_create(&thread, NULL, reader, &sum) == 0);
    item = 1;
    OK(samara_tree_store(tree, 0, 9, &item));
    item = 2; /* the bug */
    CHECK(pthread_join(thread, NULL) == 0);
    OK(samara_tree_destroy(tree));
    return 0;
}
