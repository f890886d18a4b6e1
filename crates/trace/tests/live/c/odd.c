/* `odd SEED CALLS` makes random memory calls with lengths and addresses that are seldom multiples
 * of a page. Many must fail; the tracer compares what each leaves.
 *
 * Memory is written by read(2), which fails where a program would be killed. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/mempolicy.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/shm.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#ifndef PR_SET_VMA
#define PR_SET_VMA 0x53564d41
#endif

enum { PAGE = 4096, PAGES = 48, SELF = -10000 };
static uint64_t state;
static volatile long ignored;
static int zero;
/* One area at a fixed place, and one among the maps whose address the kernel chooses. */
static char *areas[2];

static uint64_t pick(uint64_t below)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (state >> 33) % below;
}

/* At the start of a page, or rarely not. The longest range from there ends in the same area. */
static char *address(void)
{
    char *page = areas[pick(2)] + pick(PAGES - 8) * PAGE;
    return pick(6) ? page : page + pick(PAGE);
}

/* Mostly no multiple of a page; rarely one that wraps. */
static size_t length(void)
{
    switch (pick(40)) {
    case 0: return 0;
    case 1: return -(size_t)1 - pick(2 * PAGE);
    default: return pick(2) ? pick(3 * PAGE) : (1 + pick(4)) * PAGE + pick(3) - 1;
    }
}

/* It fails, but the tracer looks for all first writes before it. So it knows the order of the
 * writes: at most one comes between two looks. */
static void look(void) { ignored = prctl(PR_SET_MM, -1, 0, 0, 0); }

static int rights(void) { return pick(5) ? PROT_READ | PROT_WRITE : (int)pick(4); }

static void map(void)
{
    static const int at[] = { 0, 0, 0, MAP_FIXED, MAP_FIXED_NOREPLACE };
    int kind = pick(8) ? MAP_PRIVATE : MAP_SHARED, fixed = at[pick(5)];
    char *hint = fixed || !pick(3) ? address() : NULL;
    ignored = (long)mmap(hint, length(), rights(), kind | MAP_ANONYMOUS | fixed, -1, 0);
}

/* A call of odd length between memory that was written before and memory that is written right
 * before the call: a map into a hole, or one that makes three maps alike again. */
static void join(void)
{
    char *low = areas[1] + pick(PAGES - 8) * PAGE, *middle = low + PAGE;
    size_t odd = 1 + pick(3 * PAGE);
    char *high = middle + (odd + PAGE - 1) / PAGE * PAGE;
    int way = pick(4), kind = MAP_PRIVATE | MAP_ANONYMOUS;
    ignored = (long)mmap(low, 5 * PAGE, 3, kind | MAP_FIXED, -1, 0);
    switch (way) {
    case 0: mprotect(middle, odd, PROT_NONE); break;
    case 1: madvise(middle, odd, MADV_DONTFORK); break;
    default: munmap(middle, odd);
    }
    ignored = read(zero, low, 1);
    look();
    /* Guard pages are a first write, too, even if the call then fails at the hole. */
    struct iovec guards[2] = { { low, PAGE }, { high - PAGE, 2 * PAGE } };
    if (way == 3)
        ignored = syscall(SYS_process_madvise, SELF, guards, 2, 102, 0);
    else
        ignored = read(zero, high, 1);
    switch (way) {
    case 0: mprotect(middle, odd, 3); break;
    case 1: madvise(middle, odd, MADV_DOFORK); break;
    default: middle = mmap(NULL, odd, 3, kind, -1, 0);
    }
    if (pick(2))
        ignored = syscall(SYS_mremap, middle, odd, odd + pick(2 * PAGE), MREMAP_MAYMOVE);
}

static void move(void)
{
    static const int how[] = { 0, MREMAP_MAYMOVE, MREMAP_MAYMOVE, MREMAP_MAYMOVE | MREMAP_FIXED,
                               MREMAP_MAYMOVE | MREMAP_DONTUNMAP };
    size_t had = length(), wanted = pick(3) ? length() : had;
    ignored = syscall(SYS_mremap, address(), had, wanted, how[pick(5)], address());
}

static void advise(void)
{
    static const int advice[] = { MADV_DONTNEED, MADV_DONTFORK, MADV_DOFORK, MADV_DONTDUMP,
                                  MADV_DODUMP, MADV_SEQUENTIAL, MADV_NORMAL, 102 };
    int chosen = advice[pick(8)];
    if (pick(3)) {
        ignored = madvise(address(), length(), chosen);
        return;
    }
    struct iovec ranges[2] = { { address(), pick(3 * PAGE) }, { address(), pick(3 * PAGE) } };
    ignored = syscall(SYS_process_madvise, SELF, ranges, 2, chosen, 0);
}

static void lock(void)
{
    switch (pick(4)) {
    case 0: ignored = mlock(address(), pick(3 * PAGE)); break;
    case 1: ignored = syscall(SYS_mlock2, address(), pick(3 * PAGE), 1); break;
    default: ignored = munlock(address(), pick(8 * PAGE)); break;
    }
}

static void heap(void)
{
    static char *start;
    if (!start)
        start = (char *)syscall(SYS_brk, 0);
    ignored = syscall(SYS_brk, start + pick(9 * PAGE));
}

static void attach(void)
{
    int segment = shmget(IPC_PRIVATE, 1 + pick(3 * PAGE), IPC_CREAT | 0600);
    if (segment < 0)
        return;
    char *place = pick(2) ? address() : NULL;
    char *got = shmat(segment, place, (pick(3) ? SHM_RND : 0) | (pick(4) ? 0 : SHM_REMAP));
    shmctl(segment, IPC_RMID, NULL);
    if (got != (char *)-1 && pick(2))
        ignored = shmdt(got + (pick(4) ? 0 : 1));
}

static void policy(void)
{
    unsigned long node = 1;
    if (pick(2))
        ignored = syscall(SYS_mbind, address(), length(), MPOL_PREFERRED, &node, 8, 0);
    else
        ignored = syscall(SYS_mbind, address(), length(), MPOL_DEFAULT, NULL, 0, 0);
}

int main(int argc, char **argv)
{
    if (argc < 3)
        return 2;
    state = strtoul(argv[1], NULL, 10);
    zero = open("/dev/zero", O_RDONLY);
    int kind = MAP_PRIVATE | MAP_ANONYMOUS;
    areas[0] = mmap((char *)0x100000000000, PAGES * PAGE, 3, kind | MAP_FIXED, -1, 0);
    areas[1] = mmap(NULL, PAGES * PAGE, 3, kind, -1, 0);
    if (zero < 0 || areas[0] == MAP_FAILED || areas[1] == MAP_FAILED)
        return 1;
    for (int left = atoi(argv[2]); left > 0; left--) {
        if (pick(3))
            ignored = read(zero, address(), 1);
        switch (pick(17)) {
        case 0: case 1: case 2: case 3: map(); break;
        case 4: case 5: case 6: ignored = munmap(address(), length()); break;
        case 7: case 8: move(); break;
        case 9: ignored = mprotect(address(), length(), rights()); break;
        case 10: advise(); break;
        case 11: lock(); break;
        case 12: heap(); break;
        case 13: attach(); break;
        case 14: policy(); break;
        case 15: join(); break;
        case 16:
            if (pick(2))
                ignored = syscall(SYS_remap_file_pages, address(), length(), 0, pick(3), 0);
            else
                ignored = prctl(PR_SET_VMA, 0, address(), length(), pick(2) ? "odd" : NULL);
            break;
        }
        look();
    }
    return 0;
}
