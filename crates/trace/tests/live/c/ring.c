/* Advises a part of a map through an io_uring, which splits it. No system call shows that. Ends
 * with 77 if there is no io_uring. */
#define _GNU_SOURCE
#include <linux/io_uring.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { PAGE = 4096 };

int main(void)
{
    struct io_uring_params how = { 0 };
    char *map = mmap(0, 16 * PAGE, 3, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    int ring = syscall(SYS_io_uring_setup, 4, &how);
    if (ring < 0)
        return 77;
    char *queue = mmap(0, how.sq_off.array + how.sq_entries * 4, 3, MAP_SHARED, ring,
                       IORING_OFF_SQ_RING);
    struct io_uring_sqe *entries = mmap(0, how.sq_entries * sizeof *entries, 3, MAP_SHARED, ring,
                                        IORING_OFF_SQES);
    if (map == MAP_FAILED || queue == MAP_FAILED || entries == MAP_FAILED)
        return 1;
    entries[0] = (struct io_uring_sqe){
        .opcode = IORING_OP_MADVISE,
        .addr = (unsigned long)(map + 4 * PAGE),
        .len = 4 * PAGE,
        .fadvise_advice = MADV_DONTFORK,
    };
    unsigned *tail = (unsigned *)(queue + how.sq_off.tail);
    unsigned *mask = (unsigned *)(queue + how.sq_off.ring_mask);
    ((unsigned *)(queue + how.sq_off.array))[*tail & *mask] = 0;
    __atomic_store_n(tail, *tail + 1, __ATOMIC_RELEASE);
    if (syscall(SYS_io_uring_enter, ring, 1, 1, IORING_ENTER_GETEVENTS, NULL, 0) != 1)
        return 2;
    return munmap(map, PAGE) ? 3 : 0;
}
