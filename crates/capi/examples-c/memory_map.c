/*
 * The physical address space of an emulated machine: RAM, ROM and devices, some of them above
 * others. The CPUs of the machine are threads that look an address up at each access that misses
 * their cache; a device model maps and unmaps regions meanwhile.
 *
 * A region that is partly covered by another stays visible next to it, so entries are counted: one
 * reference for each visible part.
 */
#include <pthread.h>
#include <samara_range.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct region {
    const char *name;
    uint64_t base;
    uint64_t (*read)(struct region *region, uint64_t offset);
    unsigned char *ram;
    atomic_int references; /* writers of several threads may change it at once */
};

static struct samara_tree *map;
static atomic_int alive; /* regions */
static atomic_int powered = 1;

static void region_get(void *ctx, void *entry)
{
    struct region *region = entry;
    (void)ctx;
    atomic_fetch_add(&region->references, 1);
}

static void region_put(void *ctx, void *entry)
{
    struct region *region = entry;
    (void)ctx;
    if (atomic_fetch_sub(&region->references, 1) == 1) {
        free(region->ram);
        free(region);
        atomic_fetch_sub(&alive, 1);
    }
}

static uint64_t read_ram(struct region *region, uint64_t offset)
{
    return region->ram[offset];
}

static uint64_t read_device(struct region *region, uint64_t offset)
{
    return region->base ^ offset;
}

/* Maps a region above whatever is there. */
static int map_region(const char *name, uint64_t base, uint64_t size, int is_ram)
{
    struct region *region = calloc(1, sizeof(*region));
    if (!region || (is_ram && !(region->ram = malloc(size)))) {
        free(region);
        return -1;
    }
    region->name = name;
    region->base = base;
    region->read = is_ram ? read_ram : read_device;
    atomic_init(&region->references, 1);
    if (is_ram) {
        memset(region->ram, 0x42, size);
    }
    atomic_fetch_add(&alive, 1);
    if (samara_tree_store(map, base, base + size - 1, region) != 0) {
        region_put(NULL, region);
        return -1;
    }
    return 0;
}

/* One access of an emulated CPU; all bits set where nothing answers. */
static uint64_t bus_read(uint64_t address)
{
    uint64_t value = UINT64_MAX;
    struct region *region;
    samara_read_lock();
    region = samara_tree_load(map, address);
    if (region) {
        value = region->read(region, address - region->base);
    }
    samara_read_unlock();
    return value;
}

static void *cpu(void *arg)
{
    unsigned long accesses = 0, answered = 0;
    (void)arg;
    if (samara_thread_register() != 0) {
        return NULL;
    }
    do {
        uint64_t address = (accesses * 0x1357) & 0xfffff;
        answered += bus_read(address) != UINT64_MAX;
        accesses++;
    } while (atomic_load(&powered));
    return answered > 0 ? map : NULL;
}

static int print(void *ctx, const struct samara_range *range)
{
    const struct region *region = range->entry;
    (void)ctx;
    printf("%08llx-%08llx %s\n", (unsigned long long)range->first,
           (unsigned long long)range->last, region->name);
    return 0;
}

int main(void)
{
    struct samara_options options = {0};
    pthread_t cpus[2];
    void *worked;
    int i, failed = 0;
    options.size = sizeof(options);
    options.retain = region_get;
    options.release = region_put;
    if (samara_tree_new(&options, &map) != 0 || map_region("ram", 0, 0x100000, 1) != 0 ||
        map_region("vga", 0xa0000, 0x20000, 0) != 0 ||
        map_region("rom", 0xf0000, 0x10000, 1) != 0) {
        return 1;
    }
    for (i = 0; i < 2; i++) {
        failed |= pthread_create(&cpus[i], NULL, cpu, NULL);
    }
    if (failed) {
        return 1;
    }
    /* A bridge moves a device's window about, while the CPUs run. */
    for (i = 0; i < 2000; i++) {
        uint64_t base = 0x10000 + (uint64_t)(i % 64) * 0x1000;
        failed |= map_region("window", base, 0x800, 0) != 0;
        failed |= samara_tree_erase(map, base + 0x100, NULL) != 0;
        failed |= map_region("ram again", base, 0x800, 1) != 0;
    }
    atomic_store(&powered, 0);
    for (i = 0; i < 2; i++) {
        pthread_join(cpus[i], &worked);
        failed |= worked == NULL;
    }
    samara_read_lock();
    failed |= samara_tree_for_each(map, 0xa0000, UINT64_MAX, print, NULL) != 0;
    samara_read_unlock();
    failed |= bus_read(0xa0010) != (0xa0000 ^ 0x10) || bus_read(0x42) != 0x42;
    failed |= samara_tree_destroy(map) != 0;
    printf("%d regions left\n", atomic_load(&alive));
    return failed || atomic_load(&alive) != 0;
}
