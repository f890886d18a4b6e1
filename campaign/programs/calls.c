/* Random memory calls of one process on itself, for a tracer to check each of them:
 * calls SEED STEPS.
 *
 * Most calls fall into a small arena, so that VMAs meet, merge and split often. The kernel places
 * the rest. The seed alone decides all calls. Every call may fail. Memory is touched, too, because
 * a first write decides merges. Children continue with calls of their own. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <linux/perf_event.h>
#include <linux/userfaultfd.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/personality.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/shm.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef MREMAP_DONTUNMAP
#define MREMAP_DONTUNMAP 4
#endif
#ifndef MAP_DROPPABLE
#define MAP_DROPPABLE 8
#endif
#ifndef PR_SET_MEMORY_MERGE
#define PR_SET_MEMORY_MERGE 67
#endif
#ifndef SYS_mseal
#define SYS_mseal 462
#endif
#ifndef UFFD_USER_MODE_ONLY
#define UFFD_USER_MODE_ONLY 1
#endif

enum { PAGE = 4096, ARENA = 40, STACKS = 4, PLACED = 64, FILES = 9, HUGE = 2 << 20 };
static const uintptr_t arena = 0x100000000000, stacks = 0x200000000000, stack_step = 64 << 20;

static uint64_t state;
static int files[FILES], userfault = -1, segment = -1;
/* Maps that the kernel has placed for us: we may do anything to them. */
static struct { uintptr_t at; size_t pages; } placed[PLACED];
static unsigned next_placed;
static uintptr_t heap_start, heap_end;
static int with_locks, with_seals, with_userfault, with_merge, with_limits, with_persona;
static aio_context_t ring;
static size_t ring_pages;
static sigjmp_buf after_fault;
static volatile int faults;

static uint64_t roll(uint64_t below)
{
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return (state >> 11) % below;
}

static int chance(int one_in) { return roll(one_in) == 0; }

static void on_fault(int number)
{
    (void)number;
    /* The C library's memory may be gone: then each way out of here faults again. */
    if (++faults > 16)
        __builtin_trap();
    siglongjmp(after_fault, 1);
}

/* Writes a byte, if that is possible. Not where nothing is mapped: the kernel then prepares the
 * next stack above for growth before it refuses, and no listing shows that. For the same reason our
 * files are longer than their maps. */
static void touch(uintptr_t at)
{
    unsigned char there;
    /* An unanswered userfault would wait forever. */
    if (with_userfault || mincore((void *)(at & -PAGE), PAGE, &there))
        return;
    if (sigsetjmp(after_fault, 1) == 0)
        *(volatile char *)at = 1;
}

static void remember(void *at, size_t pages)
{
    if (at == MAP_FAILED)
        return;
    placed[next_placed % PLACED].at = (uintptr_t)at;
    placed[next_placed++ % PLACED].pages = pages;
}

/* A few pages somewhere: mostly in the arena, else in something placed or in the heap. */
static uintptr_t somewhere(size_t *pages)
{
    unsigned slot = roll(PLACED);
    *pages = 1 + roll(chance(4) ? 16 : 4);
    if (chance(4) && placed[slot].pages) {
        size_t skip = roll(placed[slot].pages);
        if (*pages > placed[slot].pages - skip || chance(3))
            *pages = placed[slot].pages - skip;
        return placed[slot].at + skip * PAGE;
    }
    if (chance(16) && heap_end > heap_start + PAGE) {
        size_t whole = (heap_end - heap_start) / PAGE;
        size_t skip = roll(whole);
        if (*pages > whole - skip)
            *pages = whole - skip;
        return heap_start + skip * PAGE;
    }
    size_t skip = roll(ARENA);
    if (*pages > ARENA - skip)
        *pages = ARENA - skip;
    return arena + skip * PAGE;
}

static int some_prot(void)
{
    static const int common[] = { PROT_READ | PROT_WRITE, PROT_READ, PROT_NONE, PROT_READ | PROT_WRITE };
    return chance(8) ? (int)roll(8) : common[roll(4)];
}

static void do_mmap(void)
{
    static const int odd[] = { MAP_NORESERVE, MAP_STACK, MAP_POPULATE, MAP_POPULATE | MAP_NONBLOCK,
                               MAP_DENYWRITE, MAP_HUGETLB, MAP_LOCKED, MAP_SYNC, MAP_GROWSDOWN };
    size_t pages, offset = 0;
    uintptr_t at = somewhere(&pages);
    int prot = some_prot(), flags = MAP_PRIVATE | MAP_ANONYMOUS, file = -1;
    switch (roll(8)) {
    case 0:
        flags = MAP_SHARED | MAP_ANONYMOUS;
        break;
    case 1: case 2: case 3:
        file = files[roll(FILES)];
        flags = chance(3) ? (chance(4) ? MAP_SHARED_VALIDATE : MAP_SHARED) : MAP_PRIVATE;
        /* Often the offset that lets neighbours merge. */
        offset = chance(3) ? roll(8) * PAGE : at - arena < ARENA * PAGE ? at - arena : 0;
        break;
    case 4:
        if (chance(8))
            flags = MAP_DROPPABLE | MAP_ANONYMOUS;
        break;
    }
    if (chance(6)) {
        int more = odd[roll(sizeof odd / sizeof *odd)];
        /* A failed map of huge pages leaves a hole of that size: only the arena has room for it. */
        if (more == MAP_SYNC && flags & MAP_SHARED)
            more = MAP_STACK;
        if ((with_locks || more != MAP_LOCKED) && (more != MAP_HUGETLB || at - arena < ARENA * PAGE))
            flags |= more;
    }
    switch (roll(8)) {
    case 0: case 1:
        if (chance(6))
            pages = HUGE / PAGE * (1 + roll(2)) + (chance(3) ? roll(3) : 0);
        if (chance(12))
            flags |= MAP_32BIT;
        remember(mmap(NULL, pages * PAGE, prot, flags, file, offset), pages);
        break;
    case 2: {
        /* A hint, sometimes an odd one. */
        uintptr_t hint = at + (chance(4) ? roll(PAGE) : 0);
        if (chance(8))
            hint = roll(32) * PAGE;
        if (chance(16))
            hint = 0x7ffffffff000 - roll(8) * PAGE;
        remember(mmap((void *)hint, pages * PAGE - roll(PAGE), prot, flags, file, offset), pages);
        break;
    }
    case 3:
        mmap((void *)at, pages * PAGE, prot, flags | MAP_FIXED_NOREPLACE, file, offset);
        break;
    default:
        mmap((void *)at, pages * PAGE, prot, flags | MAP_FIXED, file, offset);
    }
}

static void do_mremap(void)
{
    size_t pages, target_pages, old, new;
    uintptr_t at = somewhere(&pages), to = somewhere(&target_pages);
    int flags = chance(4) ? 0 : MREMAP_MAYMOVE;
    old = pages, new = chance(2) ? pages : 1 + roll(12);
    if (chance(12))
        old = 0;
    if (chance(3))
        flags |= MREMAP_DONTUNMAP | (chance(2) ? MREMAP_FIXED : 0);
    else if (chance(2))
        flags |= MREMAP_FIXED;
    if (flags & MREMAP_DONTUNMAP && !chance(8))
        new = old;
    if (flags & MREMAP_FIXED) {
        /* The target must be ours. */
        if (to - arena < ARENA * PAGE && new > (arena + ARENA * PAGE - to) / PAGE)
            new = (arena + ARENA * PAGE - to) / PAGE;
        else if (to - arena >= ARENA * PAGE && new > target_pages)
            new = target_pages;
        if (flags & MREMAP_DONTUNMAP)
            old = new = new < pages ? new : pages;
    }
    if (chance(20))
        at += 1 + roll(PAGE - 1);
    void *got = (void *)syscall(SYS_mremap, at, old * PAGE, new * PAGE, flags, to);
    if (got != (void *)at && !(flags & MREMAP_FIXED))
        remember(got, new);
}

static void do_madvise(void)
{
    static const int advice[] = { 0, 1, 2, 3, 4, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21,
                                  22, 23, 24, 25, 102, 103, 5, 99 };
    size_t pages;
    uintptr_t at = somewhere(&pages);
    int which = advice[roll(sizeof advice / sizeof *advice)];
    /* No hardware poison and no KSM; and collapsing huge pages hides first writes. */
    if (which == 25 || (which == 14 && pages >= 512))
        return;
    /* Populating what is watched fails half-way, at a place that cannot be seen. */
    if (with_userfault && (which == 22 || which == 23))
        return;
    madvise((void *)at, pages * PAGE - (chance(8) ? roll(PAGE) : 0), which);
}

static void do_lock(void)
{
    size_t pages;
    uintptr_t at = somewhere(&pages);
    if (!with_locks)
        return;
    switch (roll(8)) {
    case 0:
        /* Rarely: it keeps everything locked from there on. */
        if (chance(10))
            mlockall(1 + roll(7));
        break;
    case 1:
        munlockall();
        break;
    case 2: case 3:
        munlock((void *)(at + roll(PAGE)), pages * PAGE - roll(PAGE));
        break;
    case 4:
        syscall(SYS_mlock2, at, pages * PAGE, roll(3));
        break;
    default:
        mlock((void *)(at + roll(PAGE)), (pages - 1) * PAGE + 1);
    }
}

static void do_policy(void)
{
    size_t pages;
    uintptr_t at = somewhere(&pages);
    unsigned long nodes = roll(2);
    /* MPOL_DEFAULT to MPOL_PREFERRED_MANY, on the only node. */
    if (chance(6))
        syscall(SYS_set_mempolicy_home_node, at, pages * PAGE, 0, 0);
    else
        syscall(SYS_mbind, at, pages * PAGE, roll(6), &nodes, 64, chance(4) ? 1 : 0);
}

static void do_userfault(void)
{
    size_t pages;
    uintptr_t at = somewhere(&pages);
    if (!with_userfault || userfault < 0)
        return;
    if (chance(3)) {
        struct uffdio_range range = { at, pages * PAGE };
        ioctl(userfault, UFFDIO_UNREGISTER, &range);
    } else {
        struct uffdio_register wanted = { { at, pages * PAGE }, chance(3) ? 1 + roll(7) : 1, 0 };
        ioctl(userfault, UFFDIO_REGISTER, &wanted);
    }
}

/* A request that fills pages. It fails most often. */
static void do_fill(void)
{
    static char from[PAGE];
    size_t pages;
    uintptr_t at = somewhere(&pages);
    int copy = chance(8) ? dup(userfault) : -1;
    int file = copy >= 0 ? copy : userfault;
    if (!with_userfault || userfault < 0)
        return;
    if (chance(2)) {
        struct uffdio_copy wanted = { at, chance(3) ? 16 : (uintptr_t)from, PAGE * (chance(4) + 1), 0, 0 };
        ioctl(file, UFFDIO_COPY, &wanted);
    } else {
        struct uffdio_zeropage wanted = { { at, pages * PAGE - chance(8) }, chance(8) ? 2 : 0, 0 };
        ioctl(file, UFFDIO_ZEROPAGE, &wanted);
    }
    if (copy >= 0)
        close(copy);
}

/* Limits that stop calls half-way. They are lifted again, so that most calls succeed. */
static void do_limit(void)
{
    static const int which[] = { RLIMIT_DATA, RLIMIT_AS, RLIMIT_MEMLOCK };
    int resource = which[roll(3)];
    struct rlimit limit = { RLIM_INFINITY, RLIM_INFINITY };
    if (!with_limits)
        return;
    if (chance(2))
        limit.rlim_cur = resource == RLIMIT_AS ? (4 << 20) + roll(600) * PAGE : roll(300) * PAGE;
    setrlimit(resource, &limit);
}

/* Advice for several ranges at once; some are not there. */
static void do_advise_many(void)
{
    static const int advice[] = { 0, 1, 2, 10, 11, 15, 16, 17, 18, 19 };
    struct iovec ranges[3];
    for (int i = 0; i < 3; i++) {
        size_t pages;
        uintptr_t at = somewhere(&pages);
        ranges[i] = (struct iovec){ (void *)(at + chance(16)), pages * PAGE - chance(16) };
    }
    syscall(SYS_process_madvise, -10000, ranges, 1 + roll(3), advice[roll(10)], 0);
}

/* Reads where a huge page fits: with the advice, that makes an anon_vma. */
static void do_huge(void)
{
    uintptr_t at = 0x300000000000;
    mmap((void *)(at + roll(3) * HUGE), HUGE, PROT_READ | (chance(2) ? PROT_WRITE : 0),
         MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    madvise((void *)at, 3 * HUGE, chance(3) ? MADV_NOHUGEPAGE : MADV_HUGEPAGE);
    at += roll(3) * HUGE + roll(512) * PAGE;
    unsigned char there;
    if (!with_userfault && mincore((void *)(at & -PAGE), PAGE, &there) == 0 && sigsetjmp(after_fault, 1) == 0)
        (void)*(volatile char *)at;
    mprotect((void *)(at & -HUGE), HUGE, PROT_READ | (chance(2) ? PROT_WRITE : 0));
}

static void do_ring(void)
{
    if (!ring) {
        /* The ring begins with its identifier and the number of its events, of 32 bytes each. */
        if (syscall(SYS_io_setup, 1 + roll(600), &ring) == 0)
            ring_pages = (32 + 32 * (size_t)((unsigned *)ring)[1] + PAGE - 1) / PAGE;
        return;
    }
    size_t page = 1 + roll(3);
    uintptr_t at = (uintptr_t)ring + page * PAGE;
    if (chance(3)) {
        syscall(SYS_io_destroy, ring);
        ring = 0;
    } else if (page >= ring_pages) {
        /* The memory behind the ring is the C library's. */
    } else if (chance(2)) {
        munmap((void *)at, PAGE);
    } else {
        mprotect((void *)at, PAGE, some_prot());
    }
}

static void do_persona(void)
{
    if (with_persona)
        personality(personality(0xffffffff) ^ READ_IMPLIES_EXEC);
}

static void do_brk(void)
{
    uintptr_t to = chance(2) ? heap_end + roll(6) * PAGE + roll(PAGE) : heap_end - roll(6) * PAGE - roll(PAGE);
    if (to < heap_start)
        to = heap_start;
    if (heap_start && to - heap_start < 64 * PAGE)
        heap_end = syscall(SYS_brk, to);
    if (chance(10))
        mmap((void *)((heap_end + 3 * PAGE) & -PAGE), PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    if (chance(10))
        munmap((void *)((heap_end + 3 * PAGE) & -PAGE), PAGE);
}

/* Stacks far apart, for they need room below. */
static void do_stack(void)
{
    uintptr_t top = stacks + (1 + roll(STACKS)) * stack_step;
    switch (roll(8)) {
    case 0:
        mmap((void *)(top - 4 * PAGE), 4 * PAGE, PROT_READ | PROT_WRITE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_GROWSDOWN | MAP_FIXED, -1, 0);
        break;
    case 1:
        munmap((void *)(top - roll(8) * PAGE), 2 * PAGE);
        break;
    case 2:
        mprotect((void *)(top - PAGE), PAGE, PROT_READ | (chance(2) ? PROT_WRITE : 0) | PROT_GROWSDOWN);
        break;
    case 3:
        mmap((void *)(top - (250 + roll(20)) * PAGE), PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        break;
    default: {
        unsigned char there;
        if (mincore((void *)(top - PAGE), PAGE, &there) == 0 && !with_userfault && sigsetjmp(after_fault, 1) == 0)
            *(volatile char *)(top - roll(12) * PAGE - 8) = 1;
    }
    }
}

static void do_shm(void)
{
    size_t pages;
    uintptr_t at = somewhere(&pages);
    if (segment < 0)
        return;
    if (chance(2)) {
        /* Five pages must fit. */
        if (at - arena < ARENA * PAGE && at > arena + (ARENA - 5) * PAGE)
            at = arena + (ARENA - 5) * PAGE;
        int fixed = at - arena < ARENA * PAGE && !chance(3);
        void *got = shmat(segment, fixed ? (void *)at : NULL, (fixed && chance(2) ? SHM_REMAP : 0) | (chance(3) ? SHM_RDONLY : 0));
        if (!fixed)
            remember(got, 5);
    } else {
        shmdt((void *)at);
    }
}

static void step(int depth);

static void do_fork(int depth, int steps)
{
    if (depth > 3)
        return;
    pid_t child = fork();
    if (child == 0) {
        /* It is the parent's memory that this one watches. */
        userfault = -1;
        alarm(60);
        for (int i = 0; i < steps; i++)
            step(depth + 1);
        _exit(0);
    }
    int last = roll(steps + 1);
    for (int i = 0; i < last; i++)
        step(depth + 1);
    if (child > 0)
        waitpid(child, NULL, 0);
}

static void step(int depth)
{
    size_t pages;
    uintptr_t at = somewhere(&pages);
    unsigned kind = roll(100);
    faults = 0;
    if (kind < 26)
        do_mmap();
    else if (kind < 34)
        munmap((void *)at, pages * PAGE);
    else if (kind < 46)
        mprotect((void *)at, pages * PAGE, some_prot() | (chance(40) ? PROT_GROWSUP : 0));
    else if (kind < 58)
        do_mremap();
    else if (kind < 66)
        do_madvise();
    else if (kind < 70)
        do_lock();
    else if (kind < 72)
        do_policy();
    else if (kind < 75)
        do_brk();
    else if (kind < 78)
        do_stack();
    else if (kind < 80)
        do_shm();
    else if (kind < 82)
        chance(3) ? do_fill() : do_userfault();
    else if (kind == 82)
        syscall(SYS_remap_file_pages, at, pages * PAGE, 0, roll(8), 0);
    else if (kind == 83 && with_seals && chance(10))
        syscall(SYS_mseal, at, pages * PAGE, 0);
    else if (kind == 84 && with_merge && chance(5))
        prctl(PR_SET_MEMORY_MERGE, roll(2), 0, 0, 0);
    else if (kind == 85 && chance(3))
        do_fork(depth, 20);
    else if (kind == 86)
        do_limit();
    else if (kind == 87)
        do_advise_many();
    else if (kind == 88 && chance(2))
        do_huge();
    else if (kind == 89 && chance(2) && !depth)
        do_ring();
    else if (kind == 90 && chance(3))
        do_persona();
    else
        touch(at + roll(pages) * PAGE);
}

int main(int count, char **arguments)
{
    char name[] = "/tmp/calls.XXXXXX";
    /* The same addresses every time. */
    int persona = personality(0xffffffff);
    if (!(persona & ADDR_NO_RANDOMIZE) && personality(persona | ADDR_NO_RANDOMIZE) >= 0)
        execv("/proc/self/exe", arguments);
    long steps = count > 2 ? atol(arguments[2]) : 1000;
    state = (count > 1 ? strtoull(arguments[1], NULL, 0) : 1) * 0x9e3779b97f4a7c15u | 1;
    for (int i = 0; i < 8; i++)
        roll(2);

    with_locks = chance(2), with_seals = chance(3), with_userfault = chance(4), with_merge = chance(6);
    with_limits = chance(4), with_persona = chance(4);
    with_locks &= !with_userfault;
    static char alternate[65536];
    stack_t on = { .ss_sp = alternate, .ss_size = sizeof alternate };
    struct sigaction action = { .sa_handler = on_fault, .sa_flags = SA_ONSTACK | SA_NODEFER };
    sigaltstack(&on, NULL);
    sigaction(SIGSEGV, &action, NULL);
    sigaction(SIGBUS, &action, NULL);

    /* A file opened twice, to write and only to read; shared memory; zeros. */
    files[0] = mkstemp(name);
    files[1] = open(name, O_RDONLY);
    unlink(name);
    files[2] = memfd_create("calls", 0);
    files[3] = open("/dev/zero", O_RDWR);
    files[4] = open("/dev/zero", O_RDONLY);
    files[5] = files[2];
    files[6] = memfd_create("sealed", MFD_ALLOW_SEALING);
    files[7] = open("/dev/null", O_RDWR);
    struct perf_event_attr clock = { .type = PERF_TYPE_SOFTWARE, .size = sizeof clock,
                                     .config = PERF_COUNT_SW_CPU_CLOCK, .exclude_kernel = 1 };
    files[8] = syscall(SYS_perf_event_open, &clock, 0, -1, -1, 0);
    if (files[8] < 0)
        files[8] = files[2];
    for (int i = 0; i < FILES; i++)
        if (files[i] < 0)
            return perror("a file to map"), 1;
    if (ftruncate(files[0], 16 * HUGE) || ftruncate(files[2], 16 * HUGE) || ftruncate(files[6], 16 * HUGE))
        return perror("ftruncate"), 1;
    fcntl(files[6], F_ADD_SEALS, chance(2) ? F_SEAL_WRITE : 0x10 /* F_SEAL_FUTURE_WRITE */);
    segment = shmget(IPC_PRIVATE, 5 * PAGE, IPC_CREAT | 0600);
    userfault = syscall(SYS_userfaultfd, O_CLOEXEC | UFFD_USER_MODE_ONLY);
    struct uffdio_api api = { UFFD_API, 0, 0 };
    if (userfault >= 0 && ioctl(userfault, UFFDIO_API, &api))
        userfault = -1;
    heap_start = (syscall(SYS_brk, 0) + PAGE - 1) & -PAGE;
    heap_end = heap_start;

    /* Some calls leave a process that faults forever, or waits for one that does. */
    alarm(300);
    for (long i = 0; i < steps; i++)
        step(0);
    while (wait(NULL) > 0)
        ;
    if (segment >= 0)
        shmctl(segment, IPC_RMID, NULL);
    _exit(0);
}
