/* Checks huge pages of programs: contents when a part of one is unmapped, protected, discarded,
 * moved, copied by a fork; the huge zero page; PR_SET_THP_DISABLE; page faults in getrusage; blocks
 * of several pages. Linux may give small pages instead at any time. On Samara each must be huge
 * where it is asked for. */
#include "test.h"
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/utsname.h>

enum { HUGE = 2 << 20, PAGES = HUGE / PAGE };

static int exact;

/* The kilobytes of a field of smaps for the map that begins at an address. */
static long smaps(void *at, const char *field)
{
	char line[512], start[32];
	long found = -1;
	int inside = 0;
	FILE *file = fopen("/proc/self/smaps", "r");
	CHECK(file != NULL);
	snprintf(start, sizeof start, "%lx-", (unsigned long)at);
	while (found < 0 && fgets(line, sizeof line, file)) {
		if (strchr(line, '-') && strchr(line, '-') < strchr(line, ' '))
			inside = strncmp(line, start, strlen(start)) == 0;
		else if (inside && strncmp(line, field, strlen(field)) == 0)
			found = atol(line + strlen(field) + 1);
	}
	OK(fclose(file));
	return found;
}

/* The map has so many huge pages; on Linux that is the most. */
static void is_huge(int line, void *at, long pages)
{
	long found = smaps(at, "AnonHugePages") * 1024 / HUGE;
	if (exact ? found != pages : found > pages)
		differs(__FILE__, line, "%ld huge pages, not %ld", found, pages);
}
#define IS_HUGE(at, pages) is_huge(__LINE__, at, pages)

/* A map of aligned huge pages, between two pages without access. */
static char *area(long pages)
{
	size_t length = pages * (size_t)HUGE;
	char *whole = map(length + 2 * HUGE, PROT_NONE, MAP_PRIVATE);
	char *at = (char *)(((uintptr_t)whole + HUGE) & ~(uintptr_t)(HUGE - 1));
	if (at == whole)
		at += HUGE;
	if (at - whole > (long)PAGE)
		OK(munmap(whole, at - whole - PAGE));
	OK(munmap(at + length + PAGE, whole + length + 2 * HUGE - (at + length + PAGE)));
	OK(mprotect(at, length, PROT_READ | PROT_WRITE));
	OK(madvise(at, length, MADV_HUGEPAGE));
	return at;
}

static void drop(char *at, long pages)
{
	OK(munmap(at - PAGE, pages * HUGE + 2 * PAGE));
}

static void fill(char *at, int seed)
{
	for (int i = 0; i < PAGES; i++)
		at[i * PAGE + i] = seed + i;
}

static void holds(int line, const char *at, int from, int to, int seed)
{
	for (int i = from; i < to; i++)
		if (at[i * PAGE + i] != (char)(seed + i))
			differs(__FILE__, line, "page %d is %d, not of %d", i, at[i * PAGE + i],
				seed);
}
#define HOLDS(at, from, to, seed) holds(__LINE__, at, from, to, seed)

static void parts(void)
{
	char *at = area(3);
	fill(at + HUGE, 1);
	IS_HUGE(at, 1);
	fill(at, 2);
	fill(at + 2 * HUGE, 3);
	IS_HUGE(at, 3);
	/* A part is discarded, protected, unmapped: the rest keeps its contents. */
	OK(madvise(at + 7 * PAGE, 2 * PAGE, MADV_DONTNEED));
	HOLDS(at, 0, 7, 2);
	EQ(at[7 * PAGE + 7], 0);
	HOLDS(at, 9, PAGES, 2);
	OK(mprotect(at + HUGE + 100 * PAGE, PAGE, PROT_READ));
	HOLDS(at + HUGE, 0, PAGES, 1);
	OK(mprotect(at + HUGE + 100 * PAGE, PAGE, PROT_READ | PROT_WRITE));
	OK(munmap(at + 2 * HUGE + 511 * PAGE, PAGE));
	HOLDS(at + 2 * HUGE, 0, 511, 3);
	IS_HUGE(at, 0);
	/* A whole one moves. */
	char *other = area(1);
	fill(other, 4);
	char *there = area(1);
	OK(mremap(other, HUGE, HUGE, MREMAP_MAYMOVE | MREMAP_FIXED, there));
	HOLDS(there, 0, PAGES, 4);
	IS_HUGE(there, 1);
	OK(munmap(other - PAGE, PAGE));
	OK(munmap(other + HUGE, PAGE));
	/* A part of one moves. */
	char *small = map(8 * PAGE, PROT_NONE, MAP_PRIVATE);
	OK(mremap(there + 8 * PAGE, 8 * PAGE, 8 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, small));
	EQ(small[PAGE + 9], (char)(4 + 9));
	HOLDS(there, 16, PAGES, 4);
	OK(munmap(small, 8 * PAGE));
	drop(there, 1);
	drop(at, 3);
}

static void forks(void)
{
	char *at = area(2);
	fill(at, 5);
	/* A read finds the huge zero page. */
	EQ(at[HUGE + 77 * PAGE], 0);
	IS_HUGE(at, 1);
	int down[2], up[2];
	char byte = 0;
	OK(pipe(down));
	OK(pipe(up));
	pid_t child = OK(fork());
	if (child == 0) {
		HOLDS(at, 0, PAGES, 5);
		at[200 * PAGE + 200] = 99;
		at[HUGE] = 9;
		EQ(write(up[1], &byte, 1), 1);
		EQ(read(down[0], &byte, 1), 1);
		HOLDS(at, 0, 200, 5);
		EQ(at[200 * PAGE + 200], 99);
		HOLDS(at, 201, PAGES, 5);
		EQ(at[HUGE + PAGE], 0);
		_exit(0);
	}
	EQ(read(up[0], &byte, 1), 1);
	HOLDS(at, 0, PAGES, 5);
	EQ(at[HUGE], 0);
	fill(at, 6);
	fill(at + HUGE, 7);
	EQ(write(down[1], &byte, 1), 1);
	exits_with(child, 0);
	HOLDS(at, 0, PAGES, 6);
	HOLDS(at + HUGE, 0, PAGES, 7);
	IS_HUGE(at, 1);
	for (int i = 0; i < 2; i++) {
		OK(close(down[i]));
		OK(close(up[i]));
	}
	drop(at, 2);
}

/* No huge pages, here, in a child, and in a new program. */
static void denied(char *name)
{
	pid_t child = OK(fork());
	if (child == 0) {
		char *at = area(2);
		fill(at, 1);
		EQ(prctl(PR_GET_THP_DISABLE, 0, 0, 0, 0), 0);
		ERR(prctl(PR_SET_THP_DISABLE, 1, 0, 1, 0), EINVAL);
		OK(prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0));
		EQ(prctl(PR_GET_THP_DISABLE, 0, 0, 0, 0), 1);
		fill(at + HUGE, 2);
		IS_HUGE(at, 1);
		HOLDS(at, 0, PAGES, 1);
		pid_t grandchild = OK(fork());
		if (grandchild == 0) {
			char *arguments[] = {name, "denied", NULL};
			OK(execv(name, arguments));
		}
		exits_with(grandchild, 7);
		_exit(0);
	}
	exits_with(child, 0);
	EQ(prctl(PR_GET_THP_DISABLE, 0, 0, 0, 0), 0);
}

static long faults(int of)
{
	struct rusage usage;
	OK(getrusage(of, &usage));
	return usage.ru_minflt;
}

/* The faults of small pages, of a huge page and of a child are counted. */
static void usage(void)
{
	char *small = area(1), *large = area(1);
	OK(madvise(small, HUGE, MADV_NOHUGEPAGE));
	long before = faults(RUSAGE_SELF), own = faults(RUSAGE_THREAD);
	fill(small, 1);
	CHECK(faults(RUSAGE_SELF) - before >= PAGES);
	CHECK(faults(RUSAGE_THREAD) - own >= PAGES);
	before = faults(RUSAGE_SELF);
	fill(large, 1);
	if (exact)
		CHECK(faults(RUSAGE_SELF) - before < 10);
	before = faults(RUSAGE_CHILDREN);
	struct rusage used;
	int status;
	pid_t child = OK(fork());
	if (child == 0) {
		fill(small, 2);
		_exit(0);
	}
	EQ(wait4(child, &status, 0, &used), child);
	EQ(status, 0);
	CHECK(used.ru_minflt >= PAGES / 8);
	CHECK(faults(RUSAGE_CHILDREN) - before >= used.ru_minflt);
	drop(small, 1);
	drop(large, 1);
}

/* Writes a setting. Returns the error. */
static int set(const char *name, const char *word)
{
	char path[128];
	snprintf(path, sizeof path, "/sys/kernel/mm/transparent_hugepage/%s", name);
	int fd = open(path, O_WRONLY | O_TRUNC);
	CHECK(fd >= 0);
	int error = write(fd, word, strlen(word)) < 0 ? errno : 0;
	OK(close(fd));
	return error;
}

/* Pages that a write to fresh memory brings in. */
static long brought_in(void)
{
	enum { LENGTH = 128 << 10 };
	unsigned char present[LENGTH / PAGE];
	char *whole = map(2 * LENGTH, PROT_READ | PROT_WRITE, MAP_PRIVATE);
	char *at = (char *)(((uintptr_t)whole + LENGTH) & ~(uintptr_t)(LENGTH - 1));
	long count = 0;
	at[5 * PAGE] = 1;
	OK(mincore(at, LENGTH, present));
	for (size_t page = 0; page < LENGTH / PAGE; page++) {
		count += present[page] & 1;
		CHECK(at[page * PAGE] == (page == 5));
	}
	OK(munmap(whole, 2 * LENGTH));
	return count;
}

/* Blocks of several pages, and the settings. They are those of the whole machine, so Linux keeps
 * its own. */
static void blocks(void)
{
	char text[64] = "";
	int ready[2], go[2], status;
	char byte = 0;
	if (!exact)
		return;
	CHECK(brought_in() == 1);
	OK(pipe(ready));
	OK(pipe(go));
	/* A program that runs already gets a setting, too. */
	pid_t child = fork();
	if (child == 0) {
		CHECK(write(ready[1], &byte, 1) == 1 && read(go[0], &byte, 1) == 1);
		_exit(brought_in() == 16 ? 0 : 1);
	}
	CHECK(child > 0 && read(ready[0], &byte, 1) == 1);
	CHECK(set("hugepages-64kB/enabled", "always\n") == 0);
	CHECK(write(go[1], &byte, 1) == 1);
	OK(waitpid(child, &status, 0));
	CHECK(status == 0);
	CHECK(brought_in() == 16);
	CHECK(set("hugepages-16kB/enabled", "always") == 0);
	CHECK(brought_in() == 16);
	CHECK(set("hugepages-64kB/enabled", "madvise") == 0);
	CHECK(brought_in() == 4);
	OK(prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0));
	CHECK(brought_in() == 1);
	CHECK(set("hugepages-16kB/enabled", "always") == 0);
	CHECK(brought_in() == 1);
	OK(prctl(PR_SET_THP_DISABLE, 0, 0, 0, 0));
	/* As `enabled` says, which is madvise. */
	CHECK(set("hugepages-16kB/enabled", "inherit") == 0);
	CHECK(brought_in() == 1);
	CHECK(set("enabled", "always") == 0);
	CHECK(brought_in() == 4);
	int fd = open("/sys/kernel/mm/transparent_hugepage/enabled", O_RDONLY);
	CHECK(fd >= 0 && read(fd, text, sizeof text - 1) > 0);
	OK(close(fd));
	CHECK(strcmp(text, "[always] madvise never\n") == 0);
	CHECK(set("enabled", "sometimes") == EINVAL);
	CHECK(set("enabled", "madvise") == 0);
	CHECK(set("hugepages-16kB/enabled", "never") == 0);
	CHECK(set("hugepages-64kB/enabled", "never") == 0);
	CHECK(set("defrag", "always") == EINVAL && set("defrag", "never") == 0);
	for (int end = 0; end < 2; end++) {
		OK(close(ready[end]));
		OK(close(go[end]));
	}
}

int main(int argc, char **argv)
{
	struct utsname name;
	OK(uname(&name));
	exact = strcmp(name.nodename, "samara") == 0;
	if (argc > 1 && strcmp(argv[1], "denied") == 0) {
		char *at = area(1);
		fill(at, 3);
		IS_HUGE(at, 0);
		return prctl(PR_GET_THP_DISABLE, 0, 0, 0, 0) == 1 ? 7 : 1;
	}
	blocks();
	long rounds = sized(argc, argv, 20);
	for (long i = 0; i < rounds; i++) {
		parts();
		forks();
		denied(argv[0]);
		usage();
	}
	printf("huge: %ld rounds\n", rounds);
	return 0;
}
