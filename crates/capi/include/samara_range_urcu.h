#ifndef SAMARA_RANGE_URCU_H
#define SAMARA_RANGE_URCU_H

/*
 * Trees over the grace periods of liburcu (https://liburcu.org), for programs that use it already.
 *
 * Include the header of a flavour first, with its short names, and link that flavour. So <urcu.h>,
 * or "#define URCU_API_MAP" and <urcu/urcu-mb.h>. The library itself does not link liburcu.
 *
 *     struct samara_options options = { sizeof(options), 0, 0, NULL, NULL, NULL, &samara_urcu };
 *     samara_tree_new(&options, &tree);
 *
 * Readers of such a tree use rcu_read_lock() and rcu_read_unlock() of the program, and not
 * samara_read_lock(). Threads that read or write it are registered with rcu_register_thread(), if
 * the flavour asks for that. Nodes and entries that a write removes go to call_rcu(), up to 31 with
 * one rcu_head, so release callbacks run in the thread of call_rcu. samara_tree_barrier() and
 * samara_tree_destroy() call synchronize_rcu() and rcu_barrier().
 */

#include "samara_range.h"

#ifdef __cplusplus
static_assert(sizeof(struct rcu_head) <= 16, "an rcu_head of this flavour is too large");
#else
_Static_assert(sizeof(struct rcu_head) <= 16, "an rcu_head of this flavour is too large");
#endif

static void samara_urcu_done(struct rcu_head *head)
{
    samara_rcu_done(head);
}

static void samara_urcu_call(void *head)
{
    call_rcu((struct rcu_head *)head, samara_urcu_done);
}

static void samara_urcu_synchronize(void)
{
    synchronize_rcu();
}

static void samara_urcu_barrier(void)
{
    rcu_barrier();
}

#ifndef _URCU_QSBR_H
static int samara_urcu_ongoing(void)
{
    return rcu_read_ongoing() != 0;
}
#endif

/* For the member rcu of struct samara_options. */
static const struct samara_rcu samara_urcu = {
    samara_urcu_call,
    samara_urcu_synchronize,
    samara_urcu_barrier,
#ifndef _URCU_QSBR_H
    samara_urcu_ongoing,
#else
    /* With this flavour, a thread that is online counts as reading all the time. */
    NULL,
#endif
};

#endif
