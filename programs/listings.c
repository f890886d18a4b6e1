/* Checks the listings of memory: those of /proc that are read anew, and PAGEMAP_SCAN of pages that
 * userfaultfd write-protects without a monitor. */
#include "test.h"

/* PAGEMAP_SCAN of pages: returns the number of regions, or -1. */
static long scan(int fd, char *from, unsigned long pages, int flags, unsigned long regions[][3],
		 unsigned long most, unsigned long most_pages, unsigned long *end)
{
	enum { WRITTEN = 2, SCAN = 0xc0606610 };
	unsigned long start = (unsigned long)from;
	unsigned long arguments[12] = {sizeof arguments, flags, start, start + pages * PAGE, 0,
				       (unsigned long)regions, most, most_pages, 0, 0, WRITTEN,
				       WRITTEN};
	long found = syscall(SYS_ioctl, fd, SCAN, arguments);
	*end = (arguments[4] - start) / PAGE;
	return found;
}

/* Which pages were written: userfaultfd without a monitor, and PAGEMAP_SCAN. */
static void written(void)
{
	enum { USER_MODE = 1, API = 0xc018aa3f, REGISTER = 0xc020aa00, UNREGISTER = 0x8010aa01,
	       PROTECT = 0xc018aa06, MISSING = 1, WP = 2, ASYNC = 1 << 15, MATCHING = 1,
	       CHECKS = 2 };
	unsigned long regions[4][3], end;
	char *p = map(16 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE);
	int pagemap = OK(open("/proc/self/pagemap", O_RDONLY));
	int fd = OK(syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | USER_MODE));
	ERR(syscall(SYS_userfaultfd, 2), EINVAL);
	unsigned long range[4] = {(unsigned long)p, 16 * PAGE, WP, 0};
	ERR(syscall(SYS_ioctl, fd, REGISTER, range), EINVAL);
	unsigned long api[3] = {0xaa, ASYNC, 0};
	OK(syscall(SYS_ioctl, fd, API, api));
	CHECK(api[1] & ASYNC);
	ERR(scan(pagemap, p, 16, MATCHING | CHECKS, regions, 4, 0, &end), EPERM);
	OK(syscall(SYS_ioctl, fd, REGISTER, range));
	memset(p, 15, 16 * PAGE);
	EQ(scan(pagemap, p, 16, MATCHING | CHECKS, regions, 4, 0, &end), 1);
	EQ(regions[0][1] - regions[0][0], 16 * PAGE);
	EQ(end, 16);
	EQ(scan(pagemap, p, 16, MATCHING | CHECKS, regions, 4, 0, &end), 0);
	/* Each region is told of once. Without room for more, the rest stays for the next scan. */
	for (int i = 0; i < 5; i++)
		p[i * 3 * PAGE] = 'w';
	p[PAGE] = 'w';
	EQ(scan(pagemap, p, 16, MATCHING | CHECKS, regions, 1, 0, &end), 1);
	EQ(regions[0][1] - regions[0][0], 2 * PAGE);
	EQ(end, 3);
	EQ(scan(pagemap, p, 16, MATCHING | CHECKS, regions, 4, 2, &end), 2);
	EQ(regions[1][0], (unsigned long)p + 6 * PAGE);
	EQ(end, 9);
	EQ(scan(pagemap, p, 16, MATCHING, regions, 4, 0, &end), 2);
	EQ(scan(pagemap, p, 16, MATCHING, regions, 4, 0, &end), 0);
	EQ(p[9 * PAGE], 'w');
	/* Protected by the other call, and in a child by none. */
	p[0] = 'x';
	range[2] = 1;
	OK(syscall(SYS_ioctl, fd, PROTECT, range));
	EQ(scan(pagemap, p, 16, 0, regions, 4, 0, &end), 0);
	ERR(scan(pagemap, p, 16, 4, regions, 4, 0, &end), EINVAL);
	ERR(scan(pagemap, p, 16, 0, NULL, 4, 0, &end), EINVAL);
	ERR(scan(pagemap, p + 1, 1, 0, regions, 4, 0, &end), EINVAL);
	pid_t child = OK(fork());
	if (child == 0) {
		p[0] = 'c';
		EQ(p[0], 'c');
		_exit(3);
	}
	exits_with(child, 3);
	EQ(p[0], 'x');
	OK(syscall(SYS_ioctl, fd, UNREGISTER, range));
	ERR(syscall(SYS_ioctl, fd, PROTECT, range), ENOENT);
	OK(close(fd));
	p[0] = 'y';
	OK(close(pagemap));
	OK(munmap(p, 16 * PAGE));
}

/* A listing that is read from the beginning once more is a new one. */
static void listings(void)
{
	char text[32];
	int fd = OK(open("/proc/self/statm", O_RDONLY));
	long before, after;
	char *q = map(32 * PAGE, PROT_READ, MAP_PRIVATE);
	EQ(pread(fd, text, sizeof text - 1, 0) > 0, 1);
	before = atol(text);
	OK(munmap(q, 32 * PAGE));
	char *p = map(64 * PAGE, PROT_READ, MAP_PRIVATE);
	EQ(pread(fd, text, sizeof text - 1, 0) > 0, 1);
	after = atol(text);
	EQ(after - before, 32);
	OK(munmap(p, 64 * PAGE));
	OK(close(fd));
}

/* A listing, with a zero behind it. */
static void whole(const char *path, char *text, size_t size)
{
	int fd = OK(open(path, O_RDONLY));
	size_t length = 0;
	for (ssize_t got; (got = OK(read(fd, text + length, size - 1 - length))) > 0;)
		length += got;
	text[length] = 0;
	OK(close(fd));
}

/* The sum of a line over all VMAs. */
static long sum(const char *text, const char *name)
{
	char line[40];
	long total = 0;
	snprintf(line, sizeof line, "\n%s:", name);
	for (const char *at = text; (at = strstr(at, line)) != NULL; at++)
		total += atol(at + strlen(line));
	return total;
}

/* smaps_rollup has the sums of smaps, from the first address to the last. */
static void sums(void)
{
	static char all[1 << 16], sums[1 << 12];
	static const char *names[] = {
		"Rss",		"Shared_Dirty", "Private_Clean", "Private_Dirty", "Referenced",
		"Anonymous",	"LazyFree",	"AnonHugePages", "Swap"};
	unsigned long start, end, first, last;
	char rights[5], name[16];
	char *p = map(8 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE);
	memset(p, 1, 5 * PAGE);
	OK(mlock(p, 2 * PAGE));
	for (int i = 0; i < 2; i++) {
		/* The buffers are resident after the first time. */
		whole("/proc/self/smaps", all, sizeof all);
		whole("/proc/self/smaps_rollup", sums, sizeof sums);
	}
	for (size_t i = 0; i < sizeof names / sizeof *names; i++)
		if (sum(all, names[i]) != sum(sums, names[i]))
			differs(__FILE__, __LINE__, "%s is %ld, not %ld", names[i],
				sum(sums, names[i]), sum(all, names[i]));
	EQ(sum(sums, "Locked"), 8);
	EQ(sum(sums, "Pss_Anon") + sum(sums, "Pss_File") + sum(sums, "Pss_Shmem") <=
		   sum(sums, "Pss") + 1,
	   1);
	EQ(sscanf(sums, "%lx-%lx %4s 00000000 00:00 0 %15s", &start, &end, rights, name), 4);
	CHECK(strcmp(rights, "---p") == 0 && strcmp(name, "[rollup]") == 0);
	EQ(sscanf(all, "%lx-", &first), 1);
	EQ(start, first);
	/* The last VMA; Linux lists the page of vsyscall, which is none, behind it. */
	whole("/proc/self/maps", all, sizeof all);
	for (char *line = all; line && *line; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL)
		if (sscanf(line, "%*x-%lx", &last) == 1 && last >> 63 == 0)
			first = last;
	EQ(end, first);
	OK(munmap(p, 8 * PAGE));
}

int main(int argc, char **argv)
{
	long rounds = sized(argc, argv, 5);
	for (long i = 0; i < rounds; i++) {
		listings();
		sums();
		written();
	}
	printf("listings: %ld rounds\n", rounds);
	return 0;
}
