/*
 * A program that does not serialise the writers of a tree with SAMARA_TREE_CALLER_LOCK. A debug
 * build of the library notices the second one. (A release build does not, so this is not run with
 * one.)
 */
#include <pthread.h>

#include "check.h"

static struct samara_tree *tree;

static void *second_writer(void *arg)
{
    (void)arg;
    GIVES(-EBUSY, samara_tree_store(tree, 1, 2, entry(1)));
    return NULL;
}

/* Runs in the midst of a write. */
static void retain(void *ctx, void *what)
{
    pthread_t thread;
    (void)ctx, (void)what;
    CHECK(pthread_create(&thread, NULL, second_writer, NULL) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
}

int main(void)
{
    struct samara_options options;
    memset(&options, 0, sizeof(options));
    options.size = sizeof(options);
    options.flags = SAMARA_TREE_CALLER_LOCK;
    options.retain = retain;
    OK(samara_tree_new(&options, &tree));
    OK(samara_tree_store(tree, 0, 99, entry(1)));
    OK(samara_tree_store(tree, 40, 49, entry(2)));
    OK(samara_tree_store(tree, 200, 299, entry(3)));
    CHECK(count_entries(tree) == 4);
    OK(samara_tree_destroy(tree));
    puts("serial: ok");
    return 0;
}
