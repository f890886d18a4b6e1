/*
 * A red-black tree of ranges with the length of the largest hole below each node: what C programs
 * write by hand for this job. Intrusive: a node is part of the program's structure, and nothing is
 * allocated here. Sentinel-free, with parent pointers.
 *
 * The hole of a node is the one before it: from behind the previous range to its first index.
 */
#ifndef RB_H
#define RB_H

#include <stddef.h>
#include <stdint.h>

struct rb_node {
    struct rb_node *parent, *child[2];
    uint64_t first, last;
    uint64_t hole;    /* the free indices directly before this range */
    uint64_t largest; /* the largest hole in this subtree */
    int red;
};

struct rb_tree {
    struct rb_node *root;
};

static inline struct rb_node *rb_find(const struct rb_tree *tree, uint64_t index)
{
    struct rb_node *node = tree->root;
    while (node) {
        if (index < node->first) {
            node = node->child[0];
        } else if (index > node->last) {
            node = node->child[1];
        } else {
            break;
        }
    }
    return node;
}

/* The neighbour in order: 0 the previous one, 1 the next one. */
static inline struct rb_node *rb_step(const struct rb_node *node, int way)
{
    struct rb_node *up;
    if (node->child[way]) {
        struct rb_node *at = node->child[way];
        while (at->child[!way]) {
            at = at->child[!way];
        }
        return at;
    }
    while ((up = node->parent) && up->child[way] == node) {
        node = up;
    }
    return up;
}

static inline struct rb_node *rb_first(const struct rb_tree *tree)
{
    struct rb_node *node = tree->root;
    while (node && node->child[0]) {
        node = node->child[0];
    }
    return node;
}

/* Recomputes the largest hole of a node; returns whether it has changed. */
static inline int rb_update(struct rb_node *node)
{
    uint64_t largest = node->hole;
    int i;
    for (i = 0; i < 2; i++) {
        if (node->child[i] && node->child[i]->largest > largest) {
            largest = node->child[i]->largest;
        }
    }
    if (largest == node->largest) {
        return 0;
    }
    node->largest = largest;
    return 1;
}

static inline void rb_propagate(struct rb_node *node)
{
    while (node && rb_update(node)) {
        node = node->parent;
    }
}

static inline void rb_set_hole(struct rb_node *node, uint64_t hole)
{
    node->hole = hole;
    rb_propagate(node);
}

static inline void rb_replace_child(struct rb_tree *tree, struct rb_node *parent,
                                    struct rb_node *old, struct rb_node *with)
{
    if (!parent) {
        tree->root = with;
    } else {
        parent->child[parent->child[1] == old] = with;
    }
    if (with) {
        with->parent = parent;
    }
}

/* Moves a node down in the given direction; its child on the other side takes its place. */
static inline void rb_rotate(struct rb_tree *tree, struct rb_node *node, int way)
{
    struct rb_node *up = node->child[!way], *inner = up->child[way];
    rb_replace_child(tree, node->parent, node, up);
    node->child[!way] = inner;
    if (inner) {
        inner->parent = node;
    }
    up->child[way] = node;
    node->parent = up;
    up->largest = node->largest; /* the same nodes are below it */
    rb_update(node);
}

/* Inserts a node whose range is free; returns -1 if it is not. */
static inline int rb_insert(struct rb_tree *tree, struct rb_node *node)
{
    struct rb_node *parent = NULL, *at = tree->root, *previous, *next;
    int way = 0;
    while (at) {
        parent = at;
        if (node->last < at->first) {
            way = 0;
        } else if (node->first > at->last) {
            way = 1;
        } else {
            return -1;
        }
        at = at->child[way];
    }
    node->parent = parent;
    node->child[0] = node->child[1] = NULL;
    node->red = 1;
    if (parent) {
        parent->child[way] = node;
    } else {
        tree->root = node;
    }
    previous = rb_step(node, 0);
    next = rb_step(node, 1);
    node->hole = node->first - (previous ? previous->last + 1 : 0);
    node->largest = node->hole;
    rb_propagate(parent);
    if (next) {
        rb_set_hole(next, next->first - node->last - 1);
    }

    /* No red node has a red parent. */
    while ((parent = node->parent) && parent->red) {
        struct rb_node *grand = parent->parent, *uncle;
        way = grand->child[1] == parent;
        uncle = grand->child[!way];
        if (uncle && uncle->red) {
            parent->red = uncle->red = 0;
            grand->red = 1;
            node = grand;
            continue;
        }
        if (parent->child[!way] == node) {
            rb_rotate(tree, parent, way);
            node = parent;
            parent = node->parent;
        }
        parent->red = 0;
        grand->red = 1;
        rb_rotate(tree, grand, !way);
    }
    tree->root->red = 0;
    return 0;
}

/* One black node is missing below `parent` on the side `way`. */
static inline void rb_fix_erase(struct rb_tree *tree, struct rb_node *parent, int way)
{
    while (parent) {
        struct rb_node *sibling = parent->child[!way], *near, *far;
        if (sibling->red) {
            sibling->red = 0;
            parent->red = 1;
            rb_rotate(tree, parent, way);
            sibling = parent->child[!way];
        }
        near = sibling->child[way];
        far = sibling->child[!way];
        if (!(near && near->red) && !(far && far->red)) {
            sibling->red = 1;
            if (parent->red) {
                parent->red = 0;
                return;
            }
            way = parent->parent && parent->parent->child[1] == parent;
            parent = parent->parent;
            continue;
        }
        if (!(far && far->red)) {
            near->red = 0;
            sibling->red = 1;
            rb_rotate(tree, sibling, !way);
            far = sibling;
            sibling = near;
        }
        sibling->red = parent->red;
        parent->red = 0;
        far->red = 0;
        rb_rotate(tree, parent, way);
        return;
    }
}

static inline void rb_erase(struct rb_tree *tree, struct rb_node *node)
{
    struct rb_node *next = rb_step(node, 1), *previous = rb_step(node, 0), *parent, *child;
    int way, was_red;
    if (node->child[0] && node->child[1]) {
        /* The next one, which has no left child, takes its place. */
        struct rb_node *from = next->parent;
        was_red = next->red;
        child = next->child[1];
        way = from->child[1] == next;
        if (from == node) {
            parent = next;
        } else {
            parent = from;
            from->child[0] = child;
            if (child) {
                child->parent = from;
            }
            next->child[1] = node->child[1];
            next->child[1]->parent = next;
        }
        next->child[0] = node->child[0];
        next->child[0]->parent = next;
        next->red = node->red;
        rb_replace_child(tree, node->parent, node, next);
    } else {
        was_red = node->red;
        child = node->child[node->child[0] == NULL];
        parent = node->parent;
        way = parent && parent->child[1] == node;
        rb_replace_child(tree, parent, node, child);
    }
    /* The holes first: all nodes are in place. */
    if (next) {
        next->hole = next->first - (previous ? previous->last + 1 : 0);
        next->largest = 0;
    }
    {
        struct rb_node *at;
        for (at = parent; at; at = at->parent) {
            rb_update(at);
        }
        for (at = next; at; at = at->parent) {
            rb_update(at);
        }
    }
    if (!was_red) {
        if (child && child->red) {
            child->red = 0;
        } else {
            rb_fix_erase(tree, parent, way);
        }
    }
}

/* The lowest hole of this length before some range; UINT64_MAX if there is none. */
static inline uint64_t rb_lowest_hole(const struct rb_tree *tree, uint64_t length)
{
    struct rb_node *node = tree->root;
    if (!node || node->largest < length) {
        return UINT64_MAX;
    }
    for (;;) {
        if (node->child[0] && node->child[0]->largest >= length) {
            node = node->child[0];
        } else if (node->hole >= length) {
            return node->first - node->hole;
        } else {
            node = node->child[1];
        }
    }
}

/* Checks colours, order and holes; returns the number of black nodes on each path, or -1. */
static inline int rb_check(const struct rb_node *node)
{
    int left, right;
    uint64_t largest;
    if (!node) {
        return 0;
    }
    left = rb_check(node->child[0]);
    right = rb_check(node->child[1]);
    largest = node->hole;
    if (node->child[0] && node->child[0]->largest > largest) {
        largest = node->child[0]->largest;
    }
    if (node->child[1] && node->child[1]->largest > largest) {
        largest = node->child[1]->largest;
    }
    if (left < 0 || left != right || largest != node->largest ||
        (node->red && node->parent && node->parent->red)) {
        return -1;
    }
    return left + !node->red;
}

#endif
