/* Carries out programs of memory calls and touches in this process, and answers each step with a
 * line. program.rs has the format. "end" ends a program, and the window is empty for the next.
 *
 * The window is 64 pages around a 2 MiB boundary above the heap: two page tables. The heap's end
 * is moved to its middle and everything below is unmapped, so that brk works in the window. Nothing
 * here may use the heap otherwise, so all buffers are static. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef MADV_DONTNEED_LOCKED
#define MADV_DONTNEED_LOCKED 24
#endif
#ifndef MREMAP_DONTUNMAP
#define MREMAP_DONTUNMAP 4
#endif
#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#define MADV_POPULATE_WRITE 23
#endif

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif
#ifndef MADV_GUARD_INSTALL
#define MADV_GUARD_INSTALL 102
#define MADV_GUARD_REMOVE 103
#endif

#ifndef PAGES
#define PAGES 64
#endif

enum { PAGE = 4096, SPAN = PAGES * PAGE, TABLE = 2 << 20, FILE_PAGES = 6,
       PROCESSES = 4, THREADS = 3 };

static uintptr_t window, middle;
/* The sizes of all that is not in the window. */
static unsigned long outside[3];
/* The file is open twice. */
static int pagemap, file, read_only;
static sigjmp_buf after_fault;
static volatile uintptr_t fault_at;
static volatile int fault_code, fault_signal;
static char line[256], out[1 << 16], in[1 << 16], listing[1 << 18];

static void fail(const char *what)
{
    fprintf(stderr, "pages: %s: %s\n", what, strerror(errno));
    exit(1);
}

static uintptr_t brk_to(uintptr_t end) { return syscall(SYS_brk, end); }

static void on_fault(int number, siginfo_t *info, void *context)
{
    (void)context;
    fault_signal = number;
    fault_at = (uintptr_t)info->si_addr;
    fault_code = info->si_code;
    siglongjmp(after_fault, 1);
}

static void open_pagemap(void)
{
    pagemap = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
    if (pagemap < 0)
        fail("/proc/self/pagemap");
}

/* Reads a file of /proc into `listing`. */
static void list(const char *name)
{
    size_t len = 0;
    ssize_t some;
    int file = open(name, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        fail(name);
    while ((some = read(file, listing + len, sizeof listing - 1 - len)) > 0)
        len += some;
    if (some < 0 || len == sizeof listing - 1)
        fail(name);
    close(file);
    listing[len] = 0;
}

/* VmSize, VmData and VmStk in kB. Not VmLck: a locked VMA that MREMAP_DONTUNMAP leaves behind is
 * unlocked, but Linux counts it on. */
static void status(unsigned long sizes[3])
{
    static const char *names[] = { "VmSize:", "VmData:", "VmStk:" };
    list("/proc/self/status");
    for (int number = 0; number < 3; number++) {
        char *at = strstr(listing, names[number]);
        if (!at || sscanf(at + strlen(names[number]), "%lu", &sizes[number]) != 1)
            fail("a line of /proc/self/status");
    }
}

static void close_monitor(void);

/* The window as it is before each program: empty, and the heap's end in its middle. */
static void clear(void)
{
    close_monitor();
    if (munlockall())
        fail("munlockall");
    struct rlimit none = { RLIM_INFINITY, RLIM_INFINITY };
    if (setrlimit(RLIMIT_AS, &none))
        fail("setrlimit");
    if (ftruncate(file, 0) || ftruncate(file, FILE_PAGES * PAGE))
        fail("ftruncate");
    uintptr_t end = (brk_to(0) + PAGE - 1) & -PAGE;
    if (munmap((void *)window, SPAN))
        fail("munmap");
    /* The heap shrinks only where something is mapped. */
    if (end > middle && mmap((void *)middle, end - middle, PROT_READ,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED)
        fail("mmap");
    if (brk_to(middle) != middle)
        fail("brk");
    if (munmap((void *)window, SPAN))
        fail("munmap");
    status(outside);
}

#include "turns.h"

static void begin(void)
{
    struct sigaction action = { .sa_sigaction = on_fault,
                                .sa_flags = SA_SIGINFO | SA_ONSTACK };
    uintptr_t heap = brk_to(0);
    setvbuf(stdin, in, _IOFBF, sizeof in);
    setvbuf(stdout, out, _IOFBF, sizeof out);
    set_other_stack(0);
    if (sigaction(SIGSEGV, &action, NULL) || sigaction(SIGBUS, &action, NULL))
        fail("sigaction");
#ifndef HUGE
    if (prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0))
        fail("PR_SET_THP_DISABLE");
#endif
    struct rlimit lockable;
    if (getrlimit(RLIMIT_MEMLOCK, &lockable))
        fail("getrlimit");
    /* mlockall locks the program, too. Programs with huge pages do not call it: their window is all
       that Linux lets an ordinary user lock. */
#ifdef HUGE
    const rlim_t needed = SPAN;
#else
    const rlim_t needed = 2 * SPAN;
#endif
    if (geteuid() && lockable.rlim_cur < needed) {
        errno = EPERM;
        snprintf(line, sizeof line, "RLIMIT_MEMLOCK is below %lu KiB: raise it by ulimit -l",
                 (unsigned long)needed / 1024);
        fail(line);
    }
    open_pagemap();
    file = memfd_create("pages", MFD_CLOEXEC);
    if (file < 0 || ftruncate(file, FILE_PAGES * PAGE))
        fail("memfd_create");
    snprintf(line, sizeof line, "/proc/self/fd/%d", file);
    read_only = open(line, O_RDONLY | O_CLOEXEC);
    if (read_only < 0)
        fail(line);
    for (int process = 0; process < PROCESSES; process++)
        if (pipe(turns[process]))
            fail("pipe");
    /* Further from the program than stacks keep from what is below them. */
    window = ((heap + SPAN + TABLE) & -TABLE) + TABLE - SPAN / 2;
    middle = window + SPAN / 2;
    if (brk_to(middle) != middle)
        fail("brk");
    heap = (heap + PAGE - 1) & -PAGE;
    if (munmap((void *)heap, middle - heap))
        fail("munmap");
    /* A page at the far end of either page table keeps it: PAGEMAP_SCAN tells an absent page with a
     * table from one without. */
    for (int side = -1; side <= 1; side += 2) {
        char *at = (char *)(side < 0 ? middle - TABLE : middle + TABLE - PAGE);
        if (PAGES * PAGE < TABLE &&
            (mmap(at, PAGE, PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != at ||
             (*at = 1, mprotect(at, PAGE, PROT_NONE))))
            fail("mmap");
    }
}

static const char *errno_name(void)
{
    const char *name = strerrorname_np(errno);
    return name ? name : "unknown errno";
}

static void say_done(int result) { puts(result ? errno_name() : "ok"); }

#include "monitor.h"
#include "calls.h"
#include "listings.h"

static int prot_of(const char *rights)
{
    return (rights[0] == 'r' ? PROT_READ : 0) | (rights[1] == 'w' ? PROT_WRITE : 0) |
           (rights[2] == 'x' ? PROT_EXEC : 0);
}

/* A map that the kernel placed outside of the window goes away again. */
static void say_place(char *got, size_t len)
{
    if (got == MAP_FAILED) {
        puts(errno_name());
    } else if ((uintptr_t)got - window < SPAN) {
        printf("at %lx\n", (uintptr_t)got - window);
    } else {
        if (munmap(got, len))
            fail("munmap");
        puts("elsewhere");
    }
}

static int flags_of(const char *place)
{
    return !strcmp(place, "fixed")     ? MAP_FIXED
         : !strcmp(place, "noreplace") ? MAP_FIXED_NOREPLACE
                                       : 0;
}

static void map(uintptr_t at, size_t len, const char *rights, const char *place,
                const char *kind)
{
    int flags = MAP_PRIVATE | MAP_ANONYMOUS;
    flags |= flags_of(place);
    flags |= flags_at_end(kind);
    say_place(mmap((void *)(window + at), len, prot_of(rights), flags, -1, 0), len);
}

static void share(uintptr_t at, size_t len, const char *rights, const char *place,
                  const char *of, size_t offset)
{
    int anonymous = !strcmp(of, "anonymous");
    int flags = strstr(of, "private") ? MAP_PRIVATE : MAP_SHARED;
    int object = anonymous ? -1 : !strncmp(of, "read_", 5) ? read_only : file;
    flags |= anonymous ? MAP_ANONYMOUS : 0;
    flags |= flags_of(place) | flags_at_end(of);
    say_place(mmap((void *)(window + at), len, prot_of(rights), flags, object,
                   anonymous ? 0 : offset),
              len);
}

static void get(size_t at)
{
    unsigned char byte;
    ssize_t got = pread(file, &byte, 1, at);
    if (got < 0)
        fail("pread");
    if (got)
        printf("= %x\n", byte);
    else
        puts("nothing");
}

static void put(size_t at, unsigned char byte)
{
    if (pwrite(file, &byte, 1, at) != 1)
        fail("pwrite");
    puts("ok");
}

static void remap(uintptr_t at, size_t old, size_t len, const char *way, uintptr_t to)
{
    int flags = !strcmp(way, "stay")        ? 0
                : !strcmp(way, "maymove")   ? MREMAP_MAYMOVE
                : !strcmp(way, "fixed")     ? MREMAP_MAYMOVE | MREMAP_FIXED
                : !strcmp(way, "dontunmap") ? MREMAP_MAYMOVE | MREMAP_DONTUNMAP
                                            : MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP;
    void *target = flags & MREMAP_FIXED ? (void *)(window + to) : NULL;
    say_place(mremap((void *)(window + at), old, len, flags, target), len);
}

static void advise(uintptr_t at, size_t len, const char *advice)
{
    int number = !strcmp(advice, "dontneed")          ? MADV_DONTNEED
                 : !strcmp(advice, "dontneed_locked") ? MADV_DONTNEED_LOCKED
                 : !strcmp(advice, "cold")            ? MADV_COLD
                 : !strcmp(advice, "remove")          ? MADV_REMOVE
                 : !strcmp(advice, "random")          ? MADV_RANDOM
                 : !strcmp(advice, "normal")          ? MADV_NORMAL
                 : !strcmp(advice, "guard_install")   ? MADV_GUARD_INSTALL
                 : !strcmp(advice, "guard_remove")    ? MADV_GUARD_REMOVE
                 : !strcmp(advice, "populate_read")   ? MADV_POPULATE_READ
                 : !strcmp(advice, "hugepage")        ? MADV_HUGEPAGE
                 : !strcmp(advice, "nohugepage")      ? MADV_NOHUGEPAGE
                 : !strcmp(advice, "collapse")        ? MADV_COLLAPSE
                 : !strcmp(advice, "free")            ? MADV_FREE
                 : !strcmp(advice, "sequential")      ? MADV_SEQUENTIAL
                 : !strcmp(advice, "willneed")        ? MADV_WILLNEED
                 : !strcmp(advice, "dontfork")        ? MADV_DONTFORK
                 : !strcmp(advice, "dofork")          ? MADV_DOFORK
                 : !strcmp(advice, "dontdump")        ? MADV_DONTDUMP
                 : !strcmp(advice, "dodump")          ? MADV_DODUMP
                 : !strcmp(advice, "wipeonfork")      ? MADV_WIPEONFORK
                 : !strcmp(advice, "keeponfork")      ? MADV_KEEPONFORK
                                                      : MADV_POPULATE_WRITE;
    /* Linux takes freed pages at any time. */
    if (number == MADV_FREE)
        madvise((void *)(window + at), len, MADV_DONTNEED);
    say_done(madvise((void *)(window + at), len, number));
}

/* Reads a byte, or writes one that is not negative. */
static void touch(uintptr_t at, int byte)
{
    volatile unsigned char *place = (volatile unsigned char *)(window + at);
    if (sigsetjmp(after_fault, 1)) {
        if (fault_at != window + at)
            printf("SEGV at %lx, ", fault_at - window);
        puts(fault_signal == SIGBUS      ? fault_code == BUS_ADRERR      ? "BUS adrerr"
                                           : fault_code == BUS_MCEERR_AR ? "BUS adrerr"
                                                                         : "BUS otherwise"
             : fault_code == SEGV_MAPERR ? "SEGV maperr"
             : fault_code == SEGV_ACCERR ? "SEGV accerr"
                                         : "SEGV otherwise");
    } else if (byte < 0) {
        printf("= %x\n", *place);
    } else {
        *place = byte;
        puts("ok");
    }
}

/* Limits the addresses of the window to so many bytes; 0: no limit. */
static void limit(size_t bytes)
{
    struct rlimit limit = { RLIM_INFINITY, RLIM_INFINITY };
    if (bytes)
        limit.rlim_cur = outside[0] * 1024 + bytes;
    if (setrlimit(RLIMIT_AS, &limit))
        fail("setrlimit");
    puts("ok");
}

/* The steps of one thread, as long as it has the turn. */
static void run(int self)
{
    while (fgets(line, sizeof line, stdin)) {
        char call[16], a[16], b[16], c[32];
        unsigned long at, len, new_len, to;
        if (sscanf(line, "map %lx %lx %15s %15s %15s", &at, &len, a, b, c) == 5) {
            map(at, len, a, b, c);
        } else if (sscanf(line, "unmap %lx %lx", &at, &len) == 2) {
            say_done(munmap((void *)(window + at), len));
        } else if (sscanf(line, "protect %lx %lx %15s", &at, &len, a) == 3) {
            say_done(mprotect((void *)(window + at), len, prot_of(a)));
        } else if (sscanf(line, "advise %lx %lx %15s", &at, &len, a) == 3) {
            advise(at, len, a);
        } else if (sscanf(line, "lock %lx %lx %lx", &at, &len, &to) == 3) {
            say_done(mlock2((void *)(window + at), len, to ? MLOCK_ONFAULT : 0));
        } else if (sscanf(line, "unlock %lx %lx", &at, &len) == 2) {
            say_done(munlock((void *)(window + at), len));
        } else if (sscanf(line, "remap %lx %lx %lx %15s %lx", &at, &len, &new_len, a, &to) == 5) {
            remap(at, len, new_len, a, to);
        } else if (sscanf(line, "share %lx %lx %15s %15s %31s %lx", &at, &len, a, b, c, &to) ==
                   6) {
            share(at, len, a, b, c, to);
        } else if (sscanf(line, "setsize %lx", &len) == 1) {
            say_done(ftruncate(file, len));
        } else if (sscanf(line, "punch %lx %lx", &at, &len) == 2) {
            say_done(fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, at, len));
        } else if (sscanf(line, "get %lx", &at) == 1) {
            get(at);
        } else if (sscanf(line, "put %lx %lx", &at, &len) == 2) {
            put(at, len);
        } else if (sscanf(line, "sync %lx %lx %lx", &at, &len, &to) == 3) {
            say_done(msync((void *)(window + at), len, to));
        } else if (!strncmp(line, "sizes", 5)) {
            say_sizes();
        } else if (sscanf(line, "limit %lx", &len) == 1) {
            limit(len);
        } else if (sscanf(line, "switch %lx", &to) == 1) {
            puts(is_alive(to) ? "ok" : "none");
            if (is_alive(to) && (int)to != me) {
                current = to;
                give_turn(to);
                skip();
            }
        } else if (sscanf(line, "exit %lx", &to) == 1) {
            int exits = me && (int)to != me && is_alive(to);
            puts(exits ? "ok" : "none");
            if (exits) {
                leaving = getpid();
                give_turn(to);
                _exit(0);
            }
        } else if (sscanf(line, "thread %lx", &to) == 1) {
            puts(to < THREADS ? "ok" : "none");
            if (to < THREADS)
                give_thread(self, to);
        } else if (sscanf(line, "brk %lx", &at) == 1) {
            printf("at %lx\n", brk_to(window + at) - window);
        } else if (sscanf(line, "read %lx", &at) == 1) {
            touch(at, -1);
        } else if (sscanf(line, "write %lx %lx", &at, &len) == 2) {
            touch(at, (int)len);
        } else if (sscanf(line, "incore %lx %lx", &at, &len) == 2) {
            in_core(at, len);
        } else if (sscanf(line, "pagemap %lx %lx", &at, &len) == 2) {
            page_map(at, len);
        } else if (monitor_step() || scan_step() || other_step()) {
            /* Answered. */
        } else if (sscanf(line, "%15s", call) == 1 && !strcmp(call, "maps")) {
            maps();
        } else if (sscanf(line, "%15s", call) == 1 && !strcmp(call, "smaps")) {
            smaps();
        } else if (sscanf(line, "%15s", call) == 1 && !strcmp(call, "chunks")) {
            chunks();
        } else if (sscanf(line, "%15s", call) == 1 && !strcmp(call, "fork")) {
            fork_one(self);
        } else if (sscanf(line, "%15s", call) == 1 && !strcmp(call, "end")) {
            ended = 1;
        } else {
            errno = EINVAL;
            fail(line);
        }
        if (ended) {
            end_all();
            clear();
            fflush(stdout);
            give_thread(self, 0);
        }
    }
}

int main(void)
{
    begin();
    status(outside);
    run(0);
    return 0;
}
