/*
 * An allocator of I/O virtual addresses, as a userspace driver has one: it maps buffers of the
 * program for a device, at addresses of its own choice.
 *
 * - Small devices reach only the low 4 GiB, so the driver asks for an address below a limit.
 * - An address must not be used again before the device has dropped its translation. The cyclic
 *   allocation goes on behind the last address, so that this takes as long as possible.
 * - Completions arrive on other threads and look addresses up without a lock.
 */
#include <errno.h>
#include <samara_range.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define PAGE UINT64_C(4096)

/* A buffer that the device may access. */
struct mapping {
    uint64_t iova;
    void *memory;
    uint64_t size;
};

struct iova_space {
    struct samara_tree *tree;
    uint64_t next; /* under the lock of the tree */
};

static void free_mapping(void *ctx, void *mapping)
{
    (void)ctx;
    free(mapping);
}

static int iova_init(struct iova_space *space)
{
    struct samara_options options = {0};
    options.size = sizeof(options);
    options.release = free_mapping; /* no retain: mappings are never split */
    space->next = PAGE;
    return samara_tree_new(&options, &space->tree);
}

/* Maps a buffer below the limit. Address 0 stays free: devices take it for "none". */
static int iova_map(struct iova_space *space, void *memory, uint64_t size, uint64_t limit,
                    uint64_t *iova)
{
    struct mapping *mapping;
    int result;
    if (size == 0 || size > limit - PAGE) {
        return -EINVAL;
    }
    mapping = malloc(sizeof(*mapping));
    if (!mapping) {
        return -ENOMEM;
    }
    size = (size + PAGE - 1) & ~(PAGE - 1);
    mapping->memory = memory;
    mapping->size = size;
    /* Readers see what is stored at once, so the mapping is complete before. */
    result = samara_tree_lock(space->tree);
    if (result == 0) {
        result = samara_tree_find_free_cyclic(space->tree, PAGE, limit - 1, size, PAGE,
                                              &space->next, iova);
        if (result == 0) {
            mapping->iova = *iova;
            result = samara_tree_store(space->tree, *iova, *iova + size - 1, mapping);
        }
        samara_tree_unlock(space->tree);
    }
    if (result != 0) {
        free(mapping);
    }
    return result;
}

/* Unmaps the buffer at this address. Readers may still see the mapping, so the tree frees it. */
static int iova_unmap(struct iova_space *space, uint64_t iova)
{
    return samara_tree_erase(space->tree, iova, NULL);
}

/* The memory behind an address that the device has reported. */
static void *iova_to_memory(struct iova_space *space, uint64_t iova)
{
    struct samara_range range;
    void *memory = NULL;
    if (samara_read_lock() == 0) {
        if (samara_tree_lookup(space->tree, iova, &range) == 0) {
            const struct mapping *mapping = range.entry;
            memory = (char *)mapping->memory + (iova - range.first);
        }
        samara_read_unlock();
    }
    return memory;
}

int main(void)
{
    static char ring[3 * 4096], packet[100];
    struct iova_space space;
    uint64_t ring_iova, packet_iova, again;
    if (iova_init(&space) != 0 ||
        iova_map(&space, ring, sizeof(ring), UINT64_C(1) << 32, &ring_iova) != 0 ||
        iova_map(&space, packet, sizeof(packet), UINT64_C(1) << 32, &packet_iova) != 0) {
        return 1;
    }
    printf("ring at %#llx, packet at %#llx\n", (unsigned long long)ring_iova,
           (unsigned long long)packet_iova);
    if (iova_to_memory(&space, ring_iova + 5000) != ring + 5000 ||
        iova_to_memory(&space, packet_iova + 7) != packet + 7 || iova_to_memory(&space, 0)) {
        return 1;
    }
    /* The address of the packet is not used again at once. */
    if (iova_unmap(&space, packet_iova) != 0 || iova_to_memory(&space, packet_iova) ||
        iova_map(&space, packet, sizeof(packet), UINT64_C(1) << 32, &again) != 0 ||
        again == packet_iova || iova_unmap(&space, packet_iova) != -ENOENT) {
        return 1;
    }
    /* A space of eight pages is soon full, and says so. */
    if (iova_map(&space, ring, 8 * PAGE, 9 * PAGE, &again) != -ENOSPC) {
        return 1;
    }
    return samara_tree_destroy(space.tree) != 0;
}
