/*
 * Random calls on a tree and on a model: an array with an entry for each index of a small space.
 * The space lies at the beginning, the middle and the end of the index range. Each part of the tree
 * is compared after each call, and references are counted. Usage: model [SEEDS] [FIRST_SEED]
 */
#include "check.h"

#define SPACE 512

struct model {
    uint64_t base;
    /* The entry of each index; ranges are told apart by their identity. */
    void *entries[SPACE];
    unsigned ids[SPACE]; /* 0: a hole */
    unsigned next_id;
};

static int counts[ENTRIES];
static uint64_t seed_now;

static void retain(void *ctx, void *what)
{
    (void)ctx;
    counts[(char *)what - entry_cells]++;
}

static void release(void *ctx, void *what)
{
    (void)ctx;
    CHECK(--counts[(char *)what - entry_cells] >= 0);
}

static void fill(struct model *model, unsigned first, unsigned last, void *what)
{
    unsigned i, split = 0;
    /* A range that lies on both sides is split: the part behind becomes a range of its own. */
    if (first > 0 && last + 1 < SPACE && model->ids[last + 1] &&
        model->ids[first - 1] == model->ids[last + 1]) {
        unsigned id = model->ids[last + 1];
        split = ++model->next_id;
        for (i = last + 1; i < SPACE && model->ids[i] == id; i++) {
            model->ids[i] = split;
        }
    }
    model->next_id++;
    for (i = first; i <= last; i++) {
        model->entries[i] = what;
        model->ids[i] = what ? model->next_id : 0;
    }
}

/* The range of an index, or the hole. */
static void bounds(const struct model *model, unsigned at, unsigned *first, unsigned *last)
{
    *first = *last = at;
    while (*first > 0 && model->ids[*first - 1] == model->ids[at]) {
        --*first;
    }
    while (*last + 1 < SPACE && model->ids[*last + 1] == model->ids[at]) {
        ++*last;
    }
}

/* The first free place, or SPACE. */
static unsigned free_place(const struct model *model, unsigned min, unsigned max, unsigned size,
                           unsigned align, int highest)
{
    unsigned found = SPACE, start, i;
    for (start = min; size <= max + 1 - min && start <= max + 1 - size; start++) {
        int good = (model->base + start) % align == 0;
        for (i = start; good && i < start + size; i++) {
            good = model->ids[i] == 0;
        }
        if (good) {
            found = start;
            if (!highest) {
                break;
            }
        }
    }
    return found;
}

static void compare(struct samara_tree *tree, const struct model *model)
{
    struct samara_cursor cursor;
    struct samara_range range;
    unsigned at, first, last, ranges = 0;
    uint64_t base = model->base, end = base + (SPACE - 1);
    OK(samara_tree_validate(tree));
    OK(samara_cursor_init(&cursor, tree, base));
    for (at = 0; at < SPACE; at = last + 1) {
        bounds(model, at, &first, &last);
        if (model->ids[at]) {
            OK(samara_cursor_next(&cursor, end, &range));
            CHECK(range.first == base + first && range.last == base + last);
            CHECK(range.entry == model->entries[at]);
            CHECK(samara_tree_load(tree, base + at) == range.entry);
            CHECK(samara_tree_load(tree, base + last) == range.entry);
            ranges++;
        } else {
            CHECK(samara_tree_load(tree, base + at) == NULL);
            CHECK(samara_tree_load(tree, base + last) == NULL);
        }
    }
    GIVES(-ENOENT, samara_cursor_next(&cursor, end, &range));
    for (at = SPACE; at-- > 0; at = first) {
        bounds(model, at, &first, &last);
        if (model->ids[at]) {
            OK(samara_cursor_prev(&cursor, base, &range));
            CHECK(range.first == base + first && range.entry == model->entries[at]);
        }
    }
    GIVES(-ENOENT, samara_cursor_prev(&cursor, base, &range));
    CHECK(count_entries(tree) == ranges);
}

/* One call with random arguments, on the tree and on the model. */
static void play(struct samara_tree *tree, struct model *model, uint64_t *random, int counted)
{
    unsigned a = random_next(random) % SPACE, b = random_next(random) % SPACE;
    unsigned short_range = random_next(random) % 8;
    unsigned n = 1 + random_next(random) % (ENTRIES - 1);
    unsigned first, last, place, align = 1u << random_next(random) % 6;
    unsigned min, max, size = 1 + random_next(random) % 24;
    uint64_t base = model->base, found = 0, next;
    struct samara_range range;
    int highest = random_next(random) % 2;
    if (short_range) { /* mostly short */
        b = a + b % 12;
    }
    min = a < b ? a : b;
    max = a < b ? b : a;
    if (max >= SPACE) {
        max = SPACE - 1;
    }
    switch (random_next(random) % 12) {
    case 0:
    case 1:
        counts[n]++;
        OK(samara_tree_store(tree, base + min, base + max, entry(n)));
        fill(model, min, max, entry(n));
        break;
    case 2:
    case 3:
        for (place = min; place <= max && !model->ids[place]; place++) {
        }
        if (place <= max) {
            bounds(model, place, &first, &last);
            GIVES(-EEXIST, samara_tree_insert(tree, base + min, base + max, entry(n), &range));
            CHECK(range.first == base + first && range.last == base + last);
            CHECK(range.entry == model->entries[place]);
        } else {
            counts[n]++;
            OK(samara_tree_insert(tree, base + min, base + max, entry(n), &range));
            fill(model, min, max, entry(n));
        }
        break;
    case 4:
    case 5:
        if (model->ids[a]) {
            bounds(model, a, &first, &last);
            OK(samara_tree_erase(tree, base + a, highest ? &range : NULL));
            if (highest) {
                CHECK(range.first == base + first && range.last == base + last);
                CHECK(range.entry == model->entries[a]);
                counts[(char *)range.entry - entry_cells] -= counted;
            }
            fill(model, first, last, NULL);
        } else {
            GIVES(-ENOENT, samara_tree_erase(tree, base + a, &range));
        }
        break;
    case 6:
        OK(samara_tree_erase_range(tree, base + min, base + max));
        fill(model, min, max, NULL);
        break;
    case 7:
        if (!model->ids[a]) {
            GIVES(-ENOENT, samara_tree_set_end(tree, base + a, base + b % SPACE, NULL));
            break;
        }
        bounds(model, a, &first, &last);
        b %= SPACE;
        if (b < first) {
            GIVES(-EINVAL, samara_tree_set_end(tree, base + a, base + b, NULL));
            break;
        }
        for (place = last + 1; place <= b && !model->ids[place]; place++) {
        }
        if (place <= b) {
            GIVES(-EEXIST, samara_tree_set_end(tree, base + a, base + b, &range));
            CHECK(range.first == base + place);
        } else {
            OK(samara_tree_set_end(tree, base + a, base + b, &range));
            CHECK(range.first == base + first && range.last == base + b);
            for (place = first; place <= last || place <= b; place++) {
                model->entries[place] = place <= b ? range.entry : NULL;
                model->ids[place] = place <= b ? model->ids[first] : 0;
            }
        }
        break;
    case 8:
    case 9:
        place = free_place(model, min, max, size, align, highest);
        if (place == SPACE) {
            GIVES(-ENOSPC, (highest ? samara_tree_alloc_rev : samara_tree_alloc)(
                               tree, base + min, base + max, size, align, entry(n), &found));
        } else {
            OK((highest ? samara_tree_find_free_rev : samara_tree_find_free)(
                tree, base + min, base + max, size, align, &found));
            counts[n]++;
            OK((highest ? samara_tree_alloc_rev : samara_tree_alloc)(
                tree, base + min, base + max, size, align, entry(n), &next));
            CHECK(found == next);
            /* The search may skip holes that fail by alignment alone. */
            CHECK(align > 1 || found == base + place);
            CHECK(found % align == 0 && found >= base + min && found + size - 1 <= base + max);
            place = (unsigned)(found - base);
            for (first = place; first < place + size; first++) {
                CHECK(model->ids[first] == 0);
            }
            fill(model, place, place + size - 1, entry(n));
        }
        break;
    case 10:
        next = base + a;
        place = a >= min && a <= max ? free_place(model, a, max, size, 1, 0) : SPACE;
        if (place == SPACE) {
            place = free_place(model, min, max, size, 1, 0);
        }
        if (place == SPACE) {
            GIVES(-ENOSPC, samara_tree_alloc_cyclic(tree, base + min, base + max, size, 1, entry(n),
                                                    &next, &found));
            CHECK(next == base + a);
        } else {
            counts[n]++;
            OK(samara_tree_alloc_cyclic(tree, base + min, base + max, size, 1, entry(n), &next,
                                        &found));
            CHECK(found == base + place);
            CHECK(next == base + (place + size - 1 < max ? place + size : min));
            fill(model, place, place + size - 1, entry(n));
        }
        break;
    default:
        if (random_next(random) % 16 == 0) {
            OK(samara_tree_clear(tree));
            fill(model, 0, SPACE - 1, NULL);
        }
        break;
    }
}

static void run(uint64_t seed, uint32_t flags, uint64_t base, int counted, int locked)
{
    static struct model model, other;
    struct samara_options options;
    struct samara_tree *tree, *copy = NULL;
    uint64_t random = seed * 2654435761u + 1;
    unsigned step;
    memset(&model, 0, sizeof(model));
    memset(counts, 0, sizeof(counts));
    memset(&options, 0, sizeof(options));
    model.base = base;
    options.size = sizeof(options);
    options.flags = flags;
    if (counted) {
        options.retain = retain;
        options.release = release;
    }
    OK(samara_tree_new(&options, &tree));
    if (locked) {
        OK(samara_tree_lock(tree));
    } else {
        OK(samara_read_lock());
    }
    for (step = 0; step < 400; step++) {
        play(tree, &model, &random, counted);
        if (step % 8 == 0) {
            compare(tree, &model);
        }
        if (step == 200) {
            OK(samara_tree_duplicate(tree, &copy));
            other = model;
        }
    }
    compare(tree, &model);
    if (locked) {
        OK(samara_tree_unlock(tree));
        OK(samara_read_lock());
    }
    compare(copy, &other);
    for (step = 0; step < 50; step++) {
        play(copy, &other, &random, counted);
    }
    compare(copy, &other);
    OK(samara_read_unlock());
    OK(samara_tree_destroy(tree));
    OK(samara_tree_destroy(copy));
    for (step = 0; counted && step < ENTRIES; step++) {
        CHECK(counts[step] == 0);
    }
}

static void say_seed(void)
{
    if (seed_now) {
        fprintf(stderr, "seed %llu\n", (unsigned long long)seed_now);
    }
}

int main(int argc, char **argv)
{
    uint64_t seeds = argc > 1 ? strtoull(argv[1], NULL, 10) : 30;
    uint64_t first = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    choose_memory();
    atexit(say_seed);
    for (seed_now = first; seed_now < first + seeds; seed_now++) {
        uint64_t bases[4] = {0, UINT64_C(0x7ffffffff000), UINT64_MAX - (SPACE - 1), 12345};
        uint64_t base = bases[seed_now % 4];
        run(seed_now, 0, base, 1, 0);
        run(seed_now, 0, base, 0, 1);
        run(seed_now, SAMARA_TREE_CALLER_LOCK, base, seed_now % 2, 1);
        run(seed_now, SAMARA_TREE_EXCLUSIVE, base, 1, 0);
    }
    seed_now = 0;
    puts("model: ok");
    return 0;
}
