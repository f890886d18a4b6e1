/* `rules NAME` exercises one rule of Linux for the tracer.
 *
 * The results of the calls do not matter: many calls must fail. Memory is at fixed addresses, so
 * that VMAs are neighbours. looking_for() makes hidden state visible in a listing. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <linux/perf_event.h>
#include <linux/prctl.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/personality.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

/* Missing in the headers of older systems. */
struct poison { struct uffdio_range range; __u64 mode; __s64 updated; };
struct moving { __u64 dst, src, len, mode; __s64 move; };
#define POISON _IOWR(0xAA, 8, struct poison)
#define MOVE _IOWR(0xAA, 5, struct moving)
#ifndef UFFD_USER_MODE_ONLY
#define UFFD_USER_MODE_ONLY 1
#endif
#define OWN_PIDFD -10000

enum { PAGE = 4096, HUGE = 2 << 20, RW = PROT_READ | PROT_WRITE };
static char *const base = (char *)0x100000000000;
static char scratch[200];
static volatile char sink;
static volatile long ignored;

static char *at(long page) { return base + page * PAGE; }

static char *map(long page, long pages, int prot)
{
    return mmap(at(page), pages * PAGE, prot, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
}

static void place(long page, long pages, int prot, int flags, int file)
{
    ignored = (long)mmap(at(page), pages * PAGE, prot, flags | MAP_FIXED, file, 0);
}

/* A call that changes nothing. */
static void tick(void) { mprotect(at(1 << 24), PAGE, PROT_READ); }

/* Private pages decide whether memory stays accounted, and so whether it merges. */
static void looking_for(long page, long pages)
{
    mprotect(at(page), pages * PAGE, PROT_READ);
    map(page + pages, 1, PROT_READ);
    tick();
}

static int file_of(const char *name, int flags, long pages)
{
    char path[300];
    snprintf(path, sizeof path, "%s/%s", scratch, name);
    int file = open(path, flags, 0600);
    if (pages && ftruncate(file, pages * PAGE))
        exit(9);
    return file;
}

/* Reading the huge zero page makes an anon_vma; reading the small one does not. */
static void hugezero(void)
{
    map(0, 1024, RW);
    madvise(at(0), 2 * HUGE, MADV_HUGEPAGE);
    sink = *at(0);
    looking_for(0, 1024);
    map(2048, 512, RW);
    sink = *at(2048);
    looking_for(2048, 512);
}

/* READ_IMPLIES_EXEC belongs to a thread and is inherited by its children. execve clears it. */
static void implies(void)
{
    map(0, 4, RW);
    personality(READ_IMPLIES_EXEC);
    mmap(0, 4 * PAGE, RW, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    map(8, 1, PROT_READ);
    map(10, 1, PROT_WRITE);
    mprotect(at(0), PAGE, PROT_READ);
    mprotect(at(1), PAGE, PROT_WRITE);
    int there[] = { open("/etc/passwd", O_RDONLY), open("/proc/self/maps", O_RDONLY) };
    for (int i = 0; i < 2; i++)
        mmap(0, PAGE, PROT_READ, MAP_PRIVATE, there[i], 0);
    sbrk(20 * PAGE);
    if (fork() == 0) {
        map(12, 1, PROT_READ);
        mprotect(at(0), PAGE, PROT_READ);
        execl("/proc/self/exe", "rules", "none", NULL);
    }
    wait(NULL);
    personality(0);
    map(16, 1, PROT_READ);
    mprotect(at(2), PAGE, PROT_READ);
}

static int watcher(long features)
{
    int mode = features ? 0 : UFFD_USER_MODE_ONLY;
    int file = syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | mode);
    struct uffdio_api api = { UFFD_API, features, 0 };
    if (file < 0 || ioctl(file, UFFDIO_API, &api))
        exit(0); /* not allowed here */
    return file;
}

static void watch(int file, long page, long pages)
{
    struct uffdio_register wanted = { { (long)at(page), pages * PAGE }, 1, 0 };
    ioctl(file, UFFDIO_REGISTER, &wanted);
}

static void unwatch(int file, long page, long pages)
{
    struct uffdio_range range = { (long)at(page), pages * PAGE };
    ioctl(file, UFFDIO_UNREGISTER, &range);
}

static void copy(int file, long page, const void *from, long bytes)
{
    struct uffdio_copy wanted = { (long)at(page), (long)from, bytes, 0, 0 };
    ioctl(file, UFFDIO_COPY, &wanted);
}

static void zeros(int file, long page, long pages)
{
    struct uffdio_zeropage wanted = { { (long)at(page), pages * PAGE }, 0, 0 };
    ioctl(file, UFFDIO_ZEROPAGE, &wanted);
}

/* A request to fill pages makes an anon_vma even if it then fails. */
static void fills(void)
{
    static char from[PAGE] __attribute__((aligned(4096)));
    int file = watcher(0);
    for (int i = 0; i < 12; i++)
        map(16 * i, 4, RW);
    watch(file, 0, 4), copy(file, 0, (void *)16, PAGE), unwatch(file, 0, 4); /* no source */
    watch(file, 16, 4), zeros(file, 16, 5), unwatch(file, 16, 4);            /* too long */
    copy(file, 32, from, PAGE);                                              /* unregistered */
    copy(file, 48, from, PAGE + 1);                                          /* bad length */
    watch(file, 64, 4), zeros(file, 64, 1), zeros(file, 64, 1), unwatch(file, 64, 4);
    struct uffdio_continue on = { { (long)at(80), PAGE }, 0, 0 };
    ioctl(file, UFFDIO_CONTINUE, &on);
    struct poison poison = { { (long)at(96), PAGE }, 0, 0 };
    ioctl(file, POISON, &poison);
    struct uffdio_writeprotect protect = { { (long)at(112), PAGE }, 0 };
    ioctl(file, UFFDIO_WRITEPROTECT, &protect);
    struct moving move = { (long)at(128), (long)at(144), PAGE, 0, 0 };
    ioctl(file, MOVE, &move);
    *at(176) = 1;
    watch(file, 160, 4);
    move.dst = (long)at(160), move.src = (long)at(176);
    ioctl(file, MOVE, &move);
    unwatch(file, 160, 4);
    for (int i = 0; i < 12; i++)
        looking_for(16 * i, 4);
}

/* A userfaultfd differs from its descriptor: dup shares it, and a number can be reused. */
static void duplicates(void)
{
    int first = watcher(0), second = dup(first);
    map(0, 8, RW);
    watch(first, 0, 2);
    watch(second, 2, 2);
    close(first);
    tick();
    unwatch(second, 0, 1);
    watch(second, 0, 1);
    int other = watcher(0);
    watch(other, 4, 2);
    close(other);
    tick();
    close(second);
    tick();
}

static int listened = -1, child_file = -1;
static volatile int enough;

static void *listen_for_events(void *nothing)
{
    struct uffd_msg message;
    struct pollfd ready = { listened, POLLIN, 0 };
    while (!enough)
        if (poll(&ready, 1, 20) > 0 && read(listened, &message, sizeof message) == sizeof message)
            if (message.event == UFFD_EVENT_FORK)
                child_file = message.arg.fork.ufd;
    return nothing;
}

static pthread_t listener(long features)
{
    pthread_t thread;
    listened = watcher(features);
    map(0, 8, RW);
    pthread_create(&thread, NULL, listen_for_events, NULL);
    watch(listened, 0, 8);
    return thread;
}

/* With EVENT_REMAP, a moved VMA stays registered. */
static void moves(void)
{
    pthread_t thread = listener(UFFD_FEATURE_EVENT_REMAP);
    mremap(at(0), 4 * PAGE, 4 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, at(32));
    mprotect(at(33), PAGE, PROT_READ);
    mremap(at(32), PAGE, 2 * PAGE, MREMAP_MAYMOVE);
    unwatch(listened, 32, 4);
    enough = 1;
    pthread_join(thread, NULL);
    close(listened);
    tick();
    int plain = watcher(0);
    map(64, 8, RW);
    watch(plain, 64, 8);
    mremap(at(64), 4 * PAGE, 4 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, at(96));
    tick();
}

/* With EVENT_FORK the child's VMAs are registered, too, with a userfaultfd that the parent gets. */
static void forks(void)
{
    pthread_t thread = listener(UFFD_FEATURE_EVENT_FORK);
    for (int round = 0; round < 2; round++) {
        int line[2];
        char byte = 0;
        if (pipe(line))
            exit(9);
        child_file = -1;
        if (fork() == 0) {
            ignored = read(line[0], &byte, 1);
            mprotect(at(1), PAGE, PROT_READ);
            mprotect(at(1), PAGE, RW);
            _exit(0);
        }
        while (child_file < 0)
            usleep(1000);
        if (round == 0) {
            unwatch(child_file, 4, 2);
            watch(child_file, 4, 1);
        } else {
            close(child_file);
        }
        ignored = write(line[1], &byte, 1);
        wait(NULL);
    }
    enough = 1;
    pthread_join(thread, NULL);
}

static void limit(int resource, long bytes)
{
    struct rlimit wanted = { bytes < 0 ? RLIM_INFINITY : bytes, RLIM_INFINITY };
    setrlimit(resource, &wanted);
}

/* RLIMIT_DATA stops mprotect half-way; RLIMIT_AS stops a growing mremap and a fixed mmap. */
static void limits(void)
{
    map(0, 4, PROT_READ);
    map(4, 4000, PROT_READ | PROT_EXEC);
    map(4004, 4, PROT_READ);
    limit(RLIMIT_DATA, 8 << 20);
    mprotect(at(0), 4008 * PAGE, RW);
    mprotect(at(0), 6000 * PAGE, RW);
    limit(RLIMIT_DATA, -1);
    map(8192, 64, RW);
    map(16384, 8, RW);
    limit(RLIMIT_AS, 64 << 20);
    mremap(at(0), 4 * PAGE, 30000 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, at(8192));
    mmap(at(16384), 30000 * PAGE, RW, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    limit(RLIMIT_AS, -1);
}

/* process_madvise returns the bytes advised, but not the reason why it stopped. */
static void advises(void)
{
    map(0, 8, RW), map(16, 4, RW), map(24, 4, RW);
    struct { struct iovec ranges[3]; int count, advice; } calls[] = {
        { { { at(0), 2 * PAGE }, { at(16), 12 * PAGE }, { at(4), 2 * PAGE } }, 3, MADV_DONTFORK },
        { { { at(16), 12 * PAGE }, { at(0), 2 * PAGE } }, 2, MADV_DONTDUMP },
        { { { at(0), 2 * PAGE }, { at(0) + 1, 12 * PAGE }, { at(4), 2 * PAGE } }, 3, MADV_RANDOM },
        { { { at(4), 2 * PAGE }, { at(16), 2 * PAGE }, { at(18), 7 * PAGE } }, 3, MADV_SEQUENTIAL },
        { { { at(4), 2 * PAGE }, { at(16), 0 } }, 2, MADV_WIPEONFORK },
    };
    for (unsigned i = 0; i < sizeof calls / sizeof *calls; i++)
        syscall(SYS_process_madvise, OWN_PIDFD, calls[i].ranges, calls[i].count,
                calls[i].advice, 0);
}

/* A fixed map that fails in a driver has already unmapped its target. */
static void refused(void)
{
    struct perf_event_attr clock = { .type = PERF_TYPE_SOFTWARE, .size = sizeof clock,
                                     .config = PERF_COUNT_SW_CPU_CLOCK, .exclude_kernel = 1 };
    int perf = syscall(SYS_perf_event_open, &clock, 0, -1, -1, 0);
    int disk = file_of("disk", O_RDWR | O_CREAT, 64), memory = memfd_create("memory", 0);
    for (int i = 0; i < 8; i++)
        map(32 * i, 16, RW);
    place(2, 6, RW, MAP_SHARED, perf);
    place(10, 3, RW, MAP_SHARED, perf);
    place(14, 2, RW, MAP_PRIVATE, perf);
    place(34, 6, RW, MAP_SHARED_VALIDATE | MAP_SYNC, disk);
    place(66, 6, RW, MAP_SHARED_VALIDATE | MAP_SYNC, memory);
    /* perf's ring cannot be split, but the VMAs below it change. */
    mprotect(at(8), 3 * PAGE, PROT_READ);
    munmap(at(9), 2 * PAGE);
    mremap(at(8), PAGE, PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, at(11));
    mprotect(at(0), PAGE, PROT_READ);
    mremap(at(0), 2 * PAGE, 2 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, at(11));
    place(98, 2, PROT_READ, MAP_PRIVATE, open("/tmp", O_RDONLY));
    place(130, 2, RW, MAP_SHARED, file_of("disk", O_RDONLY, 0));
    place(162, 2, RW, MAP_SHARED, open("/dev/null", O_RDWR));
    place(194, 2, RW, MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1);
}

/* The executable is renamed and unlinked between two calls. */
static void names(void)
{
    char copy[300], moved[300], command[700];
    snprintf(copy, sizeof copy, "%s/copy", scratch);
    snprintf(moved, sizeof moved, "%s/moved", scratch);
    if (!getenv("COPIED")) {
        snprintf(command, sizeof command, "cp /proc/%d/exe '%s'", getpid(), copy);
        setenv("COPIED", "1", 1);
        if (system(command) == 0)
            execl(copy, "rules", "names", scratch, NULL);
        exit(9);
    }
    tick();
    rename(copy, moved);
    unlink(moved);
    tick();
    file_of("moved", O_RDWR | O_CREAT, 1);
    tick();
}

/* Paths that are longer than any call accepts. */
static void long_paths(void)
{
    char name[201];
    memset(name, 'd', 200), name[200] = 0;
    if (chdir(scratch))
        exit(9);
    for (int i = 0; i < 24; i++) {
        if (mkdir(name, 0700) || chdir(name))
            exit(9);
        if (i < 18)
            continue;
        int file = open("file", O_RDWR | O_CREAT, 0600);
        ignored = ftruncate(file, 16 * PAGE);
        place(64 * i, 4, RW, MAP_SHARED, file);
        mmap(at(64 * i + 4), 4 * PAGE, RW, MAP_SHARED | MAP_FIXED, file, 4 * PAGE);
        unlink("file");
        mprotect(at(64 * i), PAGE, PROT_READ);
    }
}

/* Sealing a memfd against writes removes the right of its maps to become writable. */
static void seals(void)
{
    int sealed = memfd_create("sealed", MFD_ALLOW_SEALING);
    int future = memfd_create("future", MFD_ALLOW_SEALING);
    ignored = ftruncate(sealed, 64 * PAGE) + ftruncate(future, 64 * PAGE);
    fcntl(sealed, F_ADD_SEALS, F_SEAL_WRITE);
    place(0, 4, PROT_READ, MAP_SHARED, sealed);
    mprotect(at(0), PAGE, RW);
    mprotect(at(0), PAGE, PROT_NONE);
    place(8, 4, RW, MAP_PRIVATE, sealed);
    place(16, 4, RW, MAP_SHARED, future);
    fcntl(future, F_ADD_SEALS, F_SEAL_FUTURE_WRITE);
    mprotect(at(16), PAGE, PROT_READ);
    mprotect(at(16), PAGE, RW);
    place(24, 4, PROT_READ, MAP_SHARED, future);
    mprotect(at(24), PAGE, RW);
    place(16, 2, RW, MAP_SHARED, future);
}

/* io_destroy unmaps the whole original range of the ring. */
static void rings(void)
{
    for (int kind = 0; kind < 6; kind++) {
        aio_context_t context = 0;
        syscall(SYS_io_setup, 600, &context);
        char *ring = (char *)context;
        if (kind == 0)
            mprotect(ring + PAGE, PAGE, PROT_READ);
        if (kind == 1)
            munmap(ring + PAGE, PAGE);
        if (kind == 2)
            mmap(ring + PAGE, PAGE, RW, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
        int how = MREMAP_MAYMOVE | MREMAP_FIXED;
        if (kind >= 3 && kind < 5 && mremap(ring, 8 * PAGE, 8 * PAGE, how, base) == base)
            context = (aio_context_t)base;
        /* Zeros in its place name the first context: this one. */
        if (kind >= 4)
            mmap((char *)context, PAGE, RW, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
        syscall(SYS_io_destroy, context);
        tick();
    }
}

/* PR_SET_MM_MAP changes the marks of heap and stack in one call. */
static void marks(void)
{
    char text[2000] = "", *rest;
    int file = open("/proc/self/stat", O_RDONLY);
    ignored = read(file, text, sizeof text - 1);
    unsigned long fields[60] = { 0 };
    int count = 3;
    char *word = strtok_r(strrchr(text, ')') + 2, " ", &rest);
    for (; word && count < 60; word = strtok_r(NULL, " ", &rest))
        fields[count++] = strtoul(word, NULL, 10);
    map(0, 16, RW), map(64, 8, RW);
    struct prctl_mm_map marks = {
        .start_code = fields[26], .end_code = fields[27],
        .start_data = fields[45], .end_data = fields[46],
        .arg_start = fields[48], .arg_end = fields[49],
        .env_start = fields[50], .env_end = fields[51],
        .start_brk = (long)at(0), .brk = (long)at(4) + 10,
        .start_stack = (long)at(64), .exe_fd = -1,
    };
    prctl(PR_SET_MM, PR_SET_MM_MAP, &marks, sizeof marks, 0);
    tick();
    syscall(SYS_brk, at(6));
    syscall(SYS_brk, at(3));
    marks.brk = 1;
    prctl(PR_SET_MM, PR_SET_MM_MAP, &marks, sizeof marks, 0);
    prctl(PR_SET_MM, PR_SET_MM_BRK, at(9), 0, 0);
    tick();
}

/* PROT_GROWSUP over a hole. */
static void grows_up(void)
{
    map(0, 4, RW), map(8, 4, RW);
    for (int page = 0; page < 8; page += 2)
        mprotect(at(page), 6 * PAGE, PROT_READ | PROT_GROWSUP);
    mprotect(at(0), 0, PROT_GROWSUP);
}

/* A stack that cannot grow has an anon_vma, but no page. So its memory stays accounted. */
static void grows_in_vain(void)
{
    int zero = open("/dev/zero", O_RDONLY);
    limit(RLIMIT_STACK, 4 * PAGE);
    for (int page = 1024; page < 4096; page += 1024) {
        place(page, 4, RW, MAP_PRIVATE | MAP_ANONYMOUS | MAP_GROWSDOWN, -1);
        if (page > 1024)
            ignored = read(zero, at(page - 1), 1);
        mprotect(at(page), 4 * PAGE, PROT_READ);
        mprotect(at(page), 2 * PAGE, PROT_NONE);
        map(page + 4, 4, PROT_READ);
    }
    limit(RLIMIT_STACK, -1);
}

/* Execute-only memory has a key of its own, if the processor has keys. */
static void keys(void)
{
    enum { FREED = 3 };
    long key = syscall(SYS_pkey_alloc, 0, 0), other = syscall(SYS_pkey_alloc, 0, 0);
    syscall(SYS_pkey_free, key);
    map(0, 8, PROT_EXEC), map(8, 8, PROT_EXEC), map(16, 8, RW);
    key = syscall(SYS_pkey_alloc, 0, 0);
    mprotect(at(2), 12 * PAGE, PROT_EXEC | PROT_READ);
    mprotect(at(4), 16 * PAGE, PROT_EXEC);
    mprotect(at(20), 2 * PAGE, PROT_READ);
    for (int use = 0; use < 4; use++) {
        long chosen = (long[]){ key, other, FREED + 3, -1 }[use];
        syscall(SYS_pkey_mprotect, at(5 * use), 3 * PAGE, PROT_EXEC, chosen);
        syscall(SYS_pkey_mprotect, at(5 * use), 2 * PAGE, PROT_READ, chosen);
        mprotect(at(5 * use), PAGE, PROT_EXEC);
    }
    mprotect(at(0), 24 * PAGE, PROT_EXEC | 8 /* PROT_SEM */);
    mremap(at(1), 2 * PAGE, 5 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, at(100));
    syscall(SYS_pkey_free, 1), syscall(SYS_pkey_free, other);
    if (fork() == 0) {
        other = syscall(SYS_pkey_alloc, 0, 0);
        syscall(SYS_pkey_mprotect, at(16), 4 * PAGE, PROT_EXEC, other);
        map(200, 2, PROT_EXEC), map(202, 2, PROT_EXEC);
        tick();
        _exit(0);
    }
    wait(0);
    while (syscall(SYS_pkey_alloc, 0, 0) > 0)
        ;
    map(30, 2, PROT_EXEC);
    mprotect(at(16), 8 * PAGE, PROT_EXEC);
}

static void none(void) { map(0, 1, PROT_READ); }

int main(int count, char **arguments)
{
    static const struct { const char *name; void (*show)(void); } rules[] = {
        { "hugezero", hugezero }, { "implies", implies },
        { "fills", fills }, { "duplicates", duplicates },
        { "moves", moves }, { "forks", forks }, { "limits", limits }, { "advises", advises },
        { "refused", refused }, { "names", names },
        { "long_paths", long_paths }, { "seals", seals },
        { "rings", rings }, { "marks", marks }, { "grows_up", grows_up },
        { "grows_in_vain", grows_in_vain }, { "keys", keys }, { "none", none },
    };
    if (count > 2)
        strncpy(scratch, arguments[2], sizeof scratch - 1);
    map(1 << 24, 1, PROT_READ);
    for (unsigned i = 0; i < sizeof rules / sizeof *rules; i++)
        if (count > 1 && strcmp(arguments[1], rules[i].name) == 0) {
            rules[i].show();
            tick();
            return 0;
        }
    return 9;
}
