/* userfaultfd and PAGEMAP_SCAN: pages.c, continued. The headers of the system may be older than the
 * kernel, so the numbers of the newer calls are here. */
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>

#ifndef UFFD_USER_MODE_ONLY
#define UFFD_USER_MODE_ONLY 1
#endif

struct move { uint64_t to, from, len, mode; int64_t moved; };
struct poison { uint64_t start, len, mode; int64_t poisoned; };
struct region { uint64_t start, end, categories; };
struct scan {
    uint64_t size, flags, start, end, walk_end, vec, vec_len, max_pages;
    uint64_t inverted, mask, anyof, returned;
};
#define MOVE _IOWR(0xAA, 5, struct move)
#define POISON_PAGES _IOWR(0xAA, 8, struct poison)
#define SCAN _IOWR('f', 16, struct scan)

static int monitor = -1;
static char contents[8 * PAGE] __attribute__((aligned(PAGE)));

/* Opens the program's userfaultfd with these features. */
static void open_monitor(uint64_t features)
{
    struct uffdio_api api = { .api = UFFD_API, .features = features };
    int fd;
    if (monitor >= 0) {
        puts("none");
        return;
    }
    fd = syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | UFFD_USER_MODE_ONLY);
    if (fd < 0) {
        puts(errno_name());
        return;
    }
    if (ioctl(fd, UFFDIO_API, &api)) {
        puts(errno_name());
        close(fd);
        return;
    }
    monitor = fd;
    puts("ok");
}

static void close_monitor(void)
{
    if (monitor >= 0)
        close(monitor);
    monitor = -1;
}

/* What a call returned, and how many bytes it has resolved if it stopped early. */
static void say_resolved(int result, const int64_t *done)
{
    if (!result)
        puts("ok");
    else if (errno == EAGAIN)
        printf("EAGAIN after %lx\n", (unsigned long)*done);
    else
        puts(errno_name());
}

/* Carries out a call of the monitor, if the line is one. */
static int monitor_step(void)
{
    unsigned long at, len, mode, from;
    unsigned byte;
    static const char *const calls[] = { "uffd", "close", "register", "unregister", "wake", "fill",
                                         "zero", "continue", "poison", "wp", "move" };
    for (unsigned number = 0; me && number < sizeof calls / sizeof *calls; number++)
        if (!strncmp(line, calls[number], strlen(calls[number]))) {
            puts("none");
            return 1;
        }
    if (sscanf(line, "uffd %lx", &mode) == 1) {
        open_monitor(mode);
        return 1;
    }
    if (!strncmp(line, "close", 5)) {
        puts(monitor < 0 ? "none" : "ok");
        close_monitor();
        return 1;
    }
    if (sscanf(line, "register %lx %lx %lx", &at, &len, &mode) == 3) {
        struct uffdio_register call = { { window + at, len }, mode, 0 };
        if (monitor >= 0)
            say_done(ioctl(monitor, UFFDIO_REGISTER, &call));
    } else if (sscanf(line, "unregister %lx %lx", &at, &len) == 2) {
        struct uffdio_range call = { window + at, len };
        if (monitor >= 0)
            say_done(ioctl(monitor, UFFDIO_UNREGISTER, &call));
    } else if (sscanf(line, "wake %lx %lx", &at, &len) == 2) {
        struct uffdio_range call = { window + at, len };
        if (monitor >= 0)
            say_done(ioctl(monitor, UFFDIO_WAKE, &call));
    } else if (sscanf(line, "fill %lx %lx %lx %x", &at, &len, &mode, &byte) == 4) {
        struct uffdio_copy call = { window + at, (uintptr_t)contents, len, mode, 0 };
        memset(contents, byte, sizeof contents);
        if (monitor >= 0)
            say_resolved(ioctl(monitor, UFFDIO_COPY, &call), (int64_t *)&call.copy);
    } else if (sscanf(line, "zero %lx %lx %lx", &at, &len, &mode) == 3) {
        struct uffdio_zeropage call = { { window + at, len }, mode, 0 };
        if (monitor >= 0)
            say_resolved(ioctl(monitor, UFFDIO_ZEROPAGE, &call), (int64_t *)&call.zeropage);
    } else if (sscanf(line, "continue %lx %lx %lx", &at, &len, &mode) == 3) {
        struct uffdio_continue call = { { window + at, len }, mode, 0 };
        if (monitor >= 0)
            say_resolved(ioctl(monitor, UFFDIO_CONTINUE, &call), (int64_t *)&call.mapped);
    } else if (sscanf(line, "poison %lx %lx %lx", &at, &len, &mode) == 3) {
        struct poison call = { window + at, len, mode, 0 };
        if (monitor >= 0)
            say_resolved(ioctl(monitor, POISON_PAGES, &call), &call.poisoned);
    } else if (sscanf(line, "wp %lx %lx %lx", &at, &len, &mode) == 3) {
        struct uffdio_writeprotect call = { { window + at, len }, mode };
        if (monitor >= 0)
            say_done(ioctl(monitor, UFFDIO_WRITEPROTECT, &call));
    } else if (sscanf(line, "move %lx %lx %lx %lx", &at, &len, &from, &mode) == 4) {
        struct move call = { window + at, window + from, len, mode, 0 };
        if (monitor >= 0)
            say_resolved(ioctl(monitor, MOVE, &call), &call.moved);
    } else {
        return 0;
    }
    if (monitor < 0)
        puts("none");
    return 1;
}

/* The present pages and the guard pages of each 2 MiB of the window, with their categories: "0-3:8,
 * 5-6:8 200-400:48". */
static void chunks(void)
{
    enum { FILE_BACKED = 4, PRESENT = 8, ZERO = 0x20, HUGE_PAGE = 0x40, GUARD = 0x100 };
    static struct region regions[TABLE / PAGE];
    if (me) {
        puts("of the first process only");
        return;
    }
    for (uintptr_t at = 0; at < SPAN; at += TABLE) {
        struct scan call = { .size = sizeof call, .start = window + at,
                             .end = window + at + TABLE, .vec = (uintptr_t)regions,
                             .vec_len = TABLE / PAGE, .anyof = PRESENT | GUARD,
                             .returned = FILE_BACKED | PRESENT | ZERO | HUGE_PAGE | GUARD };
        int found = ioctl(pagemap, SCAN, &call);
        if (found < 0)
            fail("PAGEMAP_SCAN");
        printf(at ? " " : "");
        for (int number = 0; number < found; number++)
            printf("%s%lx-%lx:%lx", number ? "," : "",
                   ((unsigned long)regions[number].start - window) / PAGE,
                   ((unsigned long)regions[number].end - window) / PAGE,
                   (unsigned long)regions[number].categories);
        printf(found ? "" : "-");
    }
    putchar('\n');
}

/* PAGEMAP_SCAN: "end 5000: 0-3000 8a; 4000-5000 8". */
static int scan_step(void)
{
    unsigned long at, len, flags, vec_len, max_pages, mask, anyof, inverted, returned;
    static struct region regions[PAGES + 2];
    int found;
    if (sscanf(line, "scan %lx %lx %lx %lx %lx %lx %lx %lx %lx", &at, &len, &flags, &vec_len,
               &max_pages, &mask, &anyof, &inverted, &returned) != 9)
        return 0;
    struct scan call = { .size = sizeof call, .flags = flags, .start = window + at,
                         .end = window + at + len, .vec = vec_len ? (uintptr_t)regions : 0,
                         .vec_len = vec_len, .max_pages = max_pages, .inverted = inverted,
                         .mask = mask, .anyof = anyof, .returned = returned };
    if (me) {
        puts("of the first process only");
        return 1;
    }
    if (vec_len > PAGES + 2)
        fail("the length of a scan's vector");
    found = ioctl(pagemap, SCAN, &call);
    if (found < 0) {
        puts(errno_name());
        return 1;
    }
    printf("end %lx:", (unsigned long)call.walk_end - window);
    for (int number = 0; number < found; number++)
        printf("%s %lx-%lx %lx", number ? ";" : "", (unsigned long)regions[number].start - window,
               (unsigned long)regions[number].end - window,
               (unsigned long)regions[number].categories);
    putchar('\n');
    return 1;
}
