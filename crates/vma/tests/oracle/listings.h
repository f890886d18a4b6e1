/* Steps that tell what is mapped and what is present. pages.c includes this. */

static void in_core(uintptr_t at, size_t len)
{
    unsigned char bits[PAGES + 2];
    if (me) {
        puts("of the first process only");
        return;
    }
    if (mincore((void *)(window + at), len, bits)) {
        puts(errno_name());
        return;
    }
    for (size_t page = 0; page < (len + PAGE - 1) / PAGE; page++)
        putchar('0' + (bits[page] & 1));
    putchar('\n');
}

static void page_map(uintptr_t at, size_t len)
{
    uint64_t entries[PAGES + 1];
    if (me) {
        puts("of the first process only");
        return;
    }
    size_t pages = (len + PAGE - 1) / PAGE;
    if (pread(pagemap, entries, pages * 8, (window + at) / PAGE * 8) != (ssize_t)(pages * 8))
        fail("pagemap");
    for (size_t page = 0; page < pages; page++)
        putchar('0' + (int)(entries[page] >> 63));
    putchar('\n');
}

/* The VMAs of the window, with their rights: "0-3000 rw-p; 5000-6000 r--p". */
static void maps(void)
{
    list("/proc/self/maps");
    const char *between = "";
    for (char *at = listing; *at; at = strchr(at, '\n') + 1) {
        unsigned long start, end;
        char rights[8];
        if (sscanf(at, "%lx-%lx %7s", &start, &end, rights) != 3)
            fail("a line of /proc/self/maps");
        if (end <= window || start >= window + SPAN)
            continue;
        printf("%s%lx-%lx %s", between, start - window, end - window, rights);
        between = "; ";
    }
    putchar('\n');
}

/* Rss, Anonymous and AnonHugePages of the VMAs of the window, in kB: "0-3000 8 4 0; 5000-6000 0 0
 * 0". */
static void smaps(void)
{
    unsigned long start = 0, end = 0, from, to, resident = 0, anonymous = 0, huge;
    const char *between = "";
    if (me) {
        puts("of the first process only");
        return;
    }
    list("/proc/self/smaps");
    for (char *at = listing; *at; at = strchr(at, '\n') + 1) {
        if (sscanf(at, "%lx-%lx ", &from, &to) == 2) {
            start = from, end = to;
        } else if (end <= window || start >= window + SPAN) {
            continue;
        } else if (sscanf(at, "Rss: %lu", &resident) != 1 &&
                   sscanf(at, "Anonymous: %lu", &anonymous) != 1 &&
                   sscanf(at, "AnonHugePages: %lu", &huge) == 1) {
            printf("%s%lx-%lx %lu %lu %lu", between, start - window, end - window, resident,
                   anonymous, huge);
            between = "; ";
        }
    }
    putchar('\n');
}

/* The sizes of what is in the window. */
static void say_sizes(void)
{
    unsigned long now[3];
    status(now);
    for (int number = 0; number < 3; number++)
        printf("%s%lu", number ? " " : "", now[number] - outside[number]);
    putchar('\n');
}
