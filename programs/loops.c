/* Loops in the manner of will-it-scale and of CortenMM's micro-benchmarks, written from their
 * definitions: N workers repeat a short loop of calls and touches, as processes or as threads.
 *
 *   loops [--seconds S | --iterations N] LOOP|all WORKERS[,WORKERS...] processes|threads|both
 *   loops forkexit MIB [TIMES]    a process of MIB resident MiB forks, and the child exits
 *   loops --list
 *
 * --settle S sleeps before the first loop, so that a kernel ends the work that follows its boot.
 * --init is for the first program of a Linux: it restarts the machine at the end instead of leaving
 * that to a panic.
 *
 * An iteration is a pass of the loop: of many pages or of one call. Each worker counts operations.
 * The rate is that of all workers together, from their start until the last one has ended its loop:
 * the ends of processes are not part of it. Two lines of JSON for each run, before it and after it;
 * then a table. The last line of JSON says that all runs are done. A line has left the terminal
 * before the next run begins. */
#include "test.h"
#include <pthread.h>
#include <sys/reboot.h>
#include <sys/stat.h>
#include <termios.h>

enum { MOST_WORKERS = 256, MOST_RUNS = 1024 };
#define FAULT_SIZE (128UL << 20)
#define MALLOC_SIZE (128UL << 20)
/* As CortenMM has them: four pages for a map, or for a fault. */
#define SMALL (4 * PAGE)

struct worker {
	volatile uint64_t operations;
	uint64_t passes, limit;
	double ended;
	int index;
	char padding[100];
} __attribute__((aligned(128)));

static struct shared {
	volatile int stop;
	int ready, go;
	struct worker workers[MOST_WORKERS];
} *shared;

/* Begins a pass, or ends the loop. */
static int more(struct worker *w)
{
	if (w->limit)
		return w->passes++ < w->limit;
	return !shared->stop;
}

/* Within a pass of many pages: with a time limit it may end early. */
static int enough(struct worker *w)
{
	return !w->limit && shared->stop;
}

static int temporary(size_t size)
{
	char name[] = "/tmp/loops.XXXXXX";
	int fd = OK(mkstemp(name));
	OK(unlink(name));
	OK(ftruncate(fd, size));
	return fd;
}

/* The loops that follow in the same process need the memory of the file. */
static void end_of(int fd)
{
	if (fd >= 0)
		OK(close(fd));
}

static char *map_at(size_t size, int flags, int fd)
{
	return (char *)OK(mmap(NULL, size, PROT_READ | PROT_WRITE, flags, fd, 0));
}

/* With a limit of passes, a pass touches 1 MiB, so that a count is comparable and short. */
static size_t pass_size(struct worker *w)
{
	return w->limit ? 1UL << 20 : FAULT_SIZE;
}

static void fault(struct worker *w, int flags, int fd)
{
	size_t size = pass_size(w);
	while (more(w)) {
		char *p = map_at(size, flags, fd);
		for (size_t at = 0; at < size && !enough(w); at += PAGE) {
			p[at] = 0;
			w->operations++;
		}
		OK(munmap(p, size));
	}
	end_of(fd);
}

static void page_fault1(struct worker *w)
{
	fault(w, MAP_PRIVATE | MAP_ANONYMOUS, -1);
}

static void page_fault2(struct worker *w)
{
	fault(w, MAP_PRIVATE, temporary(FAULT_SIZE));
}

static void page_fault3(struct worker *w)
{
	fault(w, MAP_SHARED, temporary(FAULT_SIZE));
}

static void set_break(char *to)
{
	EQ(syscall(SYS_brk, to), (long)to);
}

/* The break belongs to a process: as threads, these loops have one worker. */
static void breaks(struct worker *w, size_t before)
{
	char *base = (char *)((syscall(SYS_brk, 0) + before + PAGE - 1) & -PAGE);
	set_break(base);
	while (more(w)) {
		set_break(base + PAGE);
		set_break(base);
		w->operations += 2;
	}
}

/* From the start of a page of its own, and next to a page that stays. */
static void brk1(struct worker *w)
{
	breaks(w, 0);
}

static void brk2(struct worker *w)
{
	breaks(w, PAGE);
}

static void mmap1(struct worker *w)
{
	while (more(w)) {
		OK(munmap(map_at(FAULT_SIZE, MAP_PRIVATE | MAP_ANONYMOUS, -1), FAULT_SIZE));
		w->operations++;
	}
}

static void mmap2(struct worker *w)
{
	int fd = temporary(FAULT_SIZE);
	while (more(w)) {
		OK(munmap(map_at(FAULT_SIZE, MAP_PRIVATE, fd), FAULT_SIZE));
		w->operations++;
	}
	end_of(fd);
}

static void allocate(struct worker *w, size_t size)
{
	while (more(w)) {
		char *volatile block = malloc(size);
		CHECK(block != NULL);
		free(block);
		w->operations++;
	}
}

static void malloc1(struct worker *w)
{
	allocate(w, MALLOC_SIZE);
}

/* One page: mapped, touched, unmapped. */
static void map_touch_unmap(struct worker *w)
{
	while (more(w)) {
		char *p = map_at(PAGE, MAP_PRIVATE | MAP_ANONYMOUS, -1);
		*(volatile char *)p = 1;
		OK(munmap(p, PAGE));
		w->operations++;
	}
}

static void malloc2(struct worker *w)
{
	allocate(w, 1024);
}

static void fork1(struct worker *w)
{
	while (more(w)) {
		pid_t pid = OK(fork());
		if (pid == 0)
			_exit(0);
		exits_with(pid, 0);
		w->operations++;
	}
}

/* Writes, discards and reads page by page. */
static void discard(struct worker *w, size_t size, int flags, int fd)
{
	while (more(w)) {
		char *p = map_at(size, flags, fd);
		for (size_t at = 0; at < size && !enough(w); at += PAGE) {
			p[at] = 1;
			OK(madvise(p + at, PAGE, MADV_DONTNEED));
			EQ(*(volatile char *)(p + at), 0);
			w->operations++;
		}
		OK(munmap(p, size));
	}
	end_of(fd);
}

static void tlb_flush1(struct worker *w)
{
	discard(w, pass_size(w), MAP_PRIVATE, temporary(FAULT_SIZE));
}

static void tlb_flush2(struct worker *w)
{
	discard(w, 1UL << 20, MAP_PRIVATE | MAP_ANONYMOUS, -1);
}

static void pthread_mutex1(struct worker *w)
{
	static pthread_mutex_t mutexes[MOST_WORKERS][4];
	pthread_mutex_t *mutex = mutexes[w->index];
	pthread_mutex_init(mutex, NULL);
	while (more(w)) {
		pthread_mutex_lock(mutex);
		pthread_mutex_unlock(mutex);
		w->operations++;
	}
}

static void nothing(int signal)
{
	(void)signal;
}

static void signal1(struct worker *w)
{
	signal(SIGUSR1, nothing);
	while (more(w)) {
		raise(SIGUSR1);
		w->operations++;
	}
}

/* A byte to another thread and back, through two pipes. */
static void *echo(void *argument)
{
	int *ends = argument;
	char byte;
	while (read(ends[0], &byte, 1) == 1)
		EQ(write(ends[3], &byte, 1), 1);
	return NULL;
}

static void context_switch1(struct worker *w)
{
	int ends[4];
	char byte = 0;
	pthread_t other;
	OK(pipe(ends));
	OK(pipe(ends + 2));
	EQ(pthread_create(&other, NULL, echo, ends), 0);
	while (more(w)) {
		EQ(write(ends[1], &byte, 1), 1);
		EQ(read(ends[2], &byte, 1), 1);
		w->operations += 2;
	}
	OK(close(ends[1]));
	EQ(pthread_join(other, NULL), 0);
	OK(close(ends[0]));
	OK(close(ends[2]));
	OK(close(ends[3]));
}

/* CortenMM's five. All of a pass takes time, but only one kind of call counts as an operation; so
 * compare systems and not loops. */
static void touch(char *p)
{
	for (size_t at = 0; at < SMALL; at += PAGE)
		*(volatile char *)(p + at) = 1;
}

enum { BATCH = 64 };

static void corten(struct worker *w, int touched, int unmapped)
{
	char *areas[BATCH];
	while (more(w)) {
		for (int i = 0; i < BATCH; i++) {
			areas[i] = map_at(SMALL, MAP_PRIVATE | MAP_ANONYMOUS, -1);
			if (touched)
				touch(areas[i]);
			if (!unmapped)
				w->operations++;
		}
		for (int i = 0; i < BATCH; i++) {
			OK(munmap(areas[i], SMALL));
			if (unmapped)
				w->operations++;
		}
	}
}

static void corten_mmap(struct worker *w)
{
	corten(w, 0, 0);
}

static void corten_mmap_fault(struct worker *w)
{
	corten(w, 1, 0);
}

static void corten_munmap_untouched(struct worker *w)
{
	corten(w, 0, 1);
}

static void corten_munmap_touched(struct worker *w)
{
	corten(w, 1, 1);
}

/* One map, whose pages are touched once and discarded all at once. */
static void corten_fault(struct worker *w)
{
	char *p = map_at(BATCH * SMALL, MAP_PRIVATE | MAP_ANONYMOUS, -1);
	while (more(w)) {
		for (int i = 0; i < BATCH; i++) {
			touch(p + i * SMALL);
			w->operations++;
		}
		OK(madvise(p, BATCH * SMALL, MADV_DONTNEED));
	}
	OK(munmap(p, BATCH * SMALL));
}

static const struct loop {
	const char *name;
	void (*run)(struct worker *);
	int processes_only, factor; /* passes of one --iterations */
} loops[] = {
	{"page_fault1", page_fault1, 0, 1},
	{"page_fault2", page_fault2, 0, 1},
	{"page_fault3", page_fault3, 0, 1},
	{"brk1", brk1, 1, 100},
	{"brk2", brk2, 1, 100},
	{"mmap1", mmap1, 0, 100},
	{"mmap2", mmap2, 0, 100},
	{"map_touch_unmap", map_touch_unmap, 0, 100},
	{"malloc1", malloc1, 0, 100},
	{"malloc2", malloc2, 0, 10000},
	{"fork1", fork1, 0, 5},
	{"tlb_flush1", tlb_flush1, 0, 1},
	{"tlb_flush2", tlb_flush2, 0, 1},
	{"pthread_mutex1", pthread_mutex1, 0, 10000},
	{"signal1", signal1, 0, 100},
	{"context_switch1", context_switch1, 0, 100},
	{"corten_mmap", corten_mmap, 0, 2},
	{"corten_mmap_fault", corten_mmap_fault, 0, 2},
	{"corten_fault", corten_fault, 0, 2},
	{"corten_munmap_touched", corten_munmap_touched, 0, 2},
	{"corten_munmap_untouched", corten_munmap_untouched, 0, 2},
};
enum { LOOPS = sizeof loops / sizeof *loops };

static const struct loop *current;

static double now(void)
{
	struct timespec t;
	OK(clock_gettime(CLOCK_MONOTONIC, &t));
	return t.tv_sec + t.tv_nsec / 1e9;
}

static void *work(void *argument)
{
	struct worker *w = argument;
	__atomic_fetch_add(&shared->ready, 1, __ATOMIC_SEQ_CST);
	while (!__atomic_load_n(&shared->go, __ATOMIC_SEQ_CST))
		sched_yield();
	current->run(w);
	w->ended = now();
	return NULL;
}

/* Waits until all that was printed has left the terminal, if there is one. */
static void flushed(void)
{
	fflush(stdout);
	tcdrain(1);
}

static void pause_for(double seconds)
{
	struct timespec time = {seconds, (seconds - (long)seconds) * 1e9};
	while (nanosleep(&time, &time) == -1)
		EQ(errno, EINTR);
}

static struct row {
	const char *loop, *kind;
	int workers;
	double rate;
} rows[MOST_RUNS];
static int row_count;

static void measure(const struct loop *loop, int count, int threads, double seconds, long passes)
{
	pthread_t ids[MOST_WORKERS];
	pid_t pids[MOST_WORKERS];
	const char *kind = threads ? "threads" : "processes";
	memset(shared, 0, sizeof *shared);
	current = loop;
	printf("{\"begins\": \"%s\", \"kind\": \"%s\"}\n", loop->name, kind);
	flushed();
	for (int i = 0; i < count; i++) {
		struct worker *w = &shared->workers[i];
		w->index = i;
		w->limit = passes * loop->factor;
		if (threads)
			EQ(pthread_create(&ids[i], NULL, work, w), 0);
		else if ((pids[i] = OK(fork())) == 0)
			_exit(work(w) != NULL);
	}
	while (__atomic_load_n(&shared->ready, __ATOMIC_SEQ_CST) != count)
		sched_yield();
	double start = now();
	__atomic_store_n(&shared->go, 1, __ATOMIC_SEQ_CST);
	if (!passes) {
		pause_for(seconds);
		shared->stop = 1;
	}
	for (int i = 0; i < count; i++)
		if (threads)
			EQ(pthread_join(ids[i], NULL), 0);
		else
			exits_with(pids[i], 0);
	uint64_t operations = 0;
	double ended = start;
	for (int i = 0; i < count; i++) {
		operations += shared->workers[i].operations;
		if (shared->workers[i].ended > ended)
			ended = shared->workers[i].ended;
	}
	double took = ended - start;
	CHECK(operations > 0);
	printf("{\"loop\": \"%s\", \"kind\": \"%s\", \"workers\": %d, \"operations\": %lu, "
	       "\"seconds\": %.9f, \"per_second\": %.0f}\n",
	       loop->name, kind, count, operations, took, operations / took);
	flushed();
	CHECK(row_count < MOST_RUNS);
	rows[row_count++] = (struct row){loop->name, kind, count, operations / took};
}

static int forkexit(long mib, long times)
{
	size_t size = mib << 20;
	printf("{\"begins\": \"forkexit\", \"mib\": %ld}\n", mib);
	flushed();
	char *p = map(size, PROT_READ | PROT_WRITE, MAP_PRIVATE);
	for (size_t at = 0; at < size; at += PAGE)
		p[at] = at >> 12;
	double start = now();
	for (long i = 0; i < times; i++) {
		pid_t pid = OK(fork());
		if (pid == 0)
			_exit(0);
		exits_with(pid, 0);
	}
	double took = now() - start;
	for (size_t at = 0; at < size; at += PAGE)
		EQ(p[at], (char)(at >> 12));
	printf("{\"loop\": \"forkexit\", \"mib\": %ld, \"operations\": %ld, \"seconds\": %.9f, "
	       "\"per_second\": %.1f}\n",
	       mib, times, took, times / took);
	return 1;
}

/* Says that all runs are done, and ends. */
static int done(int runs, int init)
{
	printf("{\"done\": %d}\n", runs);
	flushed();
	if (init)
		OK(reboot(RB_AUTOBOOT));
	return 0;
}

static int usage(void)
{
	puts("loops [--settle S] [--init] [--seconds S | --iterations N] LOOP|all "
	     "WORKERS[,WORKERS...] processes|threads|both\nloops [--settle S] [--init] forkexit "
	     "MIB [TIMES]\nloops --list");
	return 2;
}

int main(int argc, char **argv)
{
	double seconds = 1;
	double settle = 0;
	long passes = 0;
	int init = 0;
	if (argc < 2)
		return usage();
	argv++;
	for (; *argv && strncmp(*argv, "--", 2) == 0; argv++) {
		if (strcmp(*argv, "--list") == 0) {
			for (int i = 0; i < LOOPS; i++)
				puts(loops[i].name);
			return 0;
		} else if (strcmp(*argv, "--seconds") == 0 && argv[1]) {
			seconds = atof(*++argv);
		} else if (strcmp(*argv, "--iterations") == 0 && argv[1]) {
			passes = atol(*++argv);
		} else if (strcmp(*argv, "--settle") == 0 && argv[1]) {
			settle = atof(*++argv);
		} else if (strcmp(*argv, "--init") == 0) {
			init = 1;
		} else {
			return usage();
		}
	}
	pause_for(settle);
	if (argv[0] && argv[1] && strcmp(argv[0], "forkexit") == 0)
		return done(forkexit(atol(argv[1]), argv[2] ? atol(argv[2]) : 20), init);
	if (!argv[0] || !argv[1] || !argv[2] || seconds <= 0 || settle < 0 || passes < 0)
		return usage();
	shared = map(sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED);
	int processes = strcmp(argv[2], "threads") != 0, threads = strcmp(argv[2], "processes") != 0;
	for (int i = 0; i < LOOPS; i++) {
		if (strcmp(argv[0], "all") && strcmp(argv[0], loops[i].name))
			continue;
		for (char *at = argv[1]; *at; at += strcspn(at, ","), at += *at == ',') {
			int count = atoi(at);
			if (count < 1 || count > MOST_WORKERS)
				return usage();
			if (processes)
				measure(&loops[i], count, 0, seconds, passes);
			if (threads && !loops[i].processes_only)
				measure(&loops[i], count, 1, seconds, passes);
		}
	}
	if (row_count == 0)
		return usage();
	for (int i = 0; i < row_count; i++)
		printf("%-24s %-10s %3d %14.0f /s\n", rows[i].loop, rows[i].kind, rows[i].workers,
		       rows[i].rate);
	printf("loops: %d runs\n", row_count);
	return done(row_count, init);
}
