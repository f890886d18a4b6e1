/* Steps of few programs: mlockall, and copies of the program's memory by the kernel. pages.c
 * includes this. */
#include <sys/uio.h>

/* MAP_* that a kind or an object of a map adds, by the end of its name. */
static int flags_at_end(const char *word)
{
    static const struct { const char *end; int flags; } all[] = {
        { "populate", MAP_POPULATE }, { "locked", MAP_LOCKED },       { "growsdown", MAP_GROWSDOWN },
        { "stack", MAP_STACK },       { "noreserve", MAP_NORESERVE },
    };
    size_t len = strlen(word);
    for (size_t number = 0; number < sizeof all / sizeof *all; number++) {
        size_t end = strlen(all[number].end);
        if (len >= end && !strcmp(word + len - end, all[number].end))
            return all[number].flags;
    }
    return 0;
}

/* Copies bytes of this process: by process_vm_readv and process_vm_writev, or by /proc/self/mem. */
static void copy(const char *way, uintptr_t at, size_t len, int byte)
{
    static unsigned char bytes[8 * PAGE];
    struct iovec here = { bytes, len }, there = { (void *)(window + at), len };
    int writes = !strcmp(way, "write") || !strcmp(way, "poke");
    ssize_t done;
    if (len > sizeof bytes)
        fail("a copy that is too long");
    memset(bytes, writes ? byte : 0, len);
    if (!strcmp(way, "read")) {
        done = process_vm_readv(getpid(), &here, 1, &there, 1, 0);
    } else if (!strcmp(way, "write")) {
        done = process_vm_writev(getpid(), &here, 1, &there, 1, 0);
    } else {
        int memory = open("/proc/self/mem", O_RDWR | O_CLOEXEC);
        if (memory < 0)
            fail("/proc/self/mem");
        done = writes ? pwrite(memory, bytes, len, window + at)
                      : pread(memory, bytes, len, window + at);
        close(memory);
    }
    if (done < 0)
        puts("nothing");
    else
        printf("%zx bytes = %x %x\n", (size_t)done, done ? bytes[0] : 0,
               done ? bytes[done - 1] : 0);
}

static int other_step(void)
{
    char way[16];
    unsigned long at, len, byte;
    if (sscanf(line, "lockall %lx", &at) == 1) {
        say_done(mlockall(at));
    } else if (!strncmp(line, "unlockall", 9)) {
        say_done(munlockall());
    } else if (sscanf(line, "copy %15s %lx %lx %lx", way, &at, &len, &byte) == 4) {
        copy(way, at, len, byte);
    } else {
        return 0;
    }
    return 1;
}
