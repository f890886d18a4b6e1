/*
 * The extents of a file: where each run of blocks of the file lies on the disk. One owner uses it,
 * under the lock of the inode, so the tree is exclusive: it takes no lock of its own, and changes
 * its nodes in place.
 *
 * An extent must know its place on the disk for any part of it, also after a write has split it. So
 * the entry is no pointer to a structure, but a number: the difference between disk and file. Two
 * parts of an extent have the same difference, and nothing is allocated for them.
 */
#include <errno.h>
#include <samara_range.h>
#include <stdint.h>
#include <stdio.h>

/* The difference as an entry: never NULL, because it is odd. */
static void *to_entry(uint64_t file, uint64_t disk)
{
    return (void *)(uintptr_t)((disk - file) << 1 | 1);
}

static uint64_t to_disk(uint64_t file, const void *entry)
{
    return file + ((uint64_t)((int64_t)(uintptr_t)entry >> 1));
}

/* Finds the disk block of a file block, and the blocks of its extent from it on. -ENOENT for a
 * hole. */
static int extent_lookup(struct samara_tree *file, uint64_t block, uint64_t *disk, uint64_t *run)
{
    struct samara_range range;
    int result = samara_tree_lookup(file, block, &range);
    if (result == 0) {
        *disk = to_disk(block, range.entry);
        *run = range.last - block + 1;
    }
    return result;
}

/* Records the place of file blocks instead of their old one. Joins the extent before them if the
 * disk blocks follow each other. */
static int extent_write(struct samara_tree *file, uint64_t block, uint64_t count, uint64_t disk)
{
    void *entry = to_entry(block, disk);
    struct samara_range before;
    uint64_t first = block;
    if (block > 0 && samara_tree_lookup(file, block - 1, &before) == 0 && before.entry == entry) {
        first = before.first;
    }
    return samara_tree_store(file, first, block + count - 1, entry);
}

/* Punches a hole. */
static int extent_punch(struct samara_tree *file, uint64_t block, uint64_t count)
{
    return samara_tree_erase_range(file, block, block + count - 1);
}

/* The next data at or after a block, as SEEK_DATA finds it. */
static int extent_seek_data(struct samara_tree *file, uint64_t block, uint64_t *found)
{
    struct samara_range range;
    int result = samara_tree_find(file, block, UINT64_MAX, &range);
    if (result == 0) {
        *found = range.first > block ? range.first : block;
    }
    return result;
}

static int print(void *ctx, const struct samara_range *range)
{
    (void)ctx;
    printf("file %llu-%llu: disk %llu\n", (unsigned long long)range->first,
           (unsigned long long)range->last,
           (unsigned long long)to_disk(range->first, range->entry));
    return 0;
}

int main(void)
{
    struct samara_options options = {0};
    struct samara_tree *file, *snapshot;
    uint64_t disk = 0, run = 0, found = 0;
    int bad = 0;
    options.size = sizeof(options);
    options.flags = SAMARA_TREE_EXCLUSIVE;
    if (samara_tree_new(&options, &file) != 0) {
        return 1;
    }
    bad |= extent_write(file, 0, 100, 5000) != 0;
    bad |= extent_write(file, 100, 50, 5100) != 0; /* goes on: one extent */
    bad |= extent_write(file, 40, 10, 900) != 0;   /* moved elsewhere */
    bad |= samara_tree_duplicate(file, &snapshot) != 0;
    bad |= extent_punch(file, 120, 1000) != 0;
    bad |= extent_lookup(file, 60, &disk, &run) != 0 || disk != 5060 || run != 60;
    bad |= extent_lookup(file, 45, &disk, &run) != 0 || disk != 905 || run != 5;
    bad |= extent_lookup(file, 130, &disk, &run) != -ENOENT;
    bad |= extent_write(file, 2000, 1, 7) != 0; /* the disk block is before the file block */
    bad |= extent_lookup(file, 2000, &disk, &run) != 0 || disk != 7 || run != 1;
    bad |= extent_seek_data(file, 130, &found) != 0 || found != 2000;
    bad |= extent_lookup(snapshot, 130, &disk, &run) != 0 || disk != 5130 || run != 20;
    bad |= samara_tree_for_each(file, 0, UINT64_MAX, print, NULL) != 0;
    bad |= samara_tree_destroy(file) != 0;
    bad |= samara_tree_destroy(snapshot) != 0;
    return bad;
}
