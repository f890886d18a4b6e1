/* Stress: threads map, touch, protect, move, discard and unmap memory at random, and check the
 * contents of each page against what they wrote: `random PERCENT SEED`. The seed decides the calls
 * of each thread. Threads also read pages that others publish, and fork while others go on. */
#include "test.h"
#include <pthread.h>

enum { THREADS = 8, AREAS = 12, MOST_PAGES = 40 };

struct area {
	char *at;
	int pages, protection, shared;
	uint32_t written[MOST_PAGES]; /* the number in each page, 0 for an untouched one */
};

static long steps;
static uint64_t first_seed;
/* A page a thread, mapped all the time, where it counts its steps for the others. */
static volatile uint32_t *published;

static void check(uint64_t seed, const struct area *area, int page)
{
	const uint32_t *words = (const uint32_t *)(area->at + page * PAGE);
	for (unsigned i = 0; i < PAGE / 4; i += 127)
		if (words[i] != area->written[page])
			differs(__FILE__, __LINE__, "seed %lu: word %u at %p is %u, not %u", seed, i,
				(void *)&words[i], words[i], area->written[page]);
}

static void touch(struct area *area, int page, uint32_t value)
{
	uint32_t *words = (uint32_t *)(area->at + page * PAGE);
	for (unsigned i = 0; i < PAGE / 4; i += 127)
		words[i] = value;
	area->written[page] = value;
}

static void check_all(uint64_t seed, const struct area *area)
{
	if (area->at && area->protection & PROT_READ)
		for (int page = 0; page < area->pages; page++)
			check(seed, area, page);
}

static void step(uint64_t name, uint64_t *seed, struct area *areas, uint32_t number)
{
	uint64_t r = next_random(seed);
	struct area *area = &areas[r % AREAS];
	int action = r >> 8 & 15, page, count;
	if (!area->at) {
		area->pages = (r >> 16) % MOST_PAGES + 1;
		area->protection = PROT_READ | PROT_WRITE;
		area->shared = r >> 40 & 1;
		area->at = map(area->pages * PAGE, area->protection,
			       (area->shared ? MAP_SHARED : MAP_PRIVATE) |
				       (r >> 41 & 7 ? 0 : MAP_POPULATE));
		memset(area->written, 0, sizeof area->written);
		return;
	}
	page = (r >> 16) % area->pages;
	count = (r >> 32) % (area->pages - page) + 1;
	if (action < 6) {
		if (area->protection == (PROT_READ | PROT_WRITE))
			for (int i = page; i < page + count; i++)
				touch(area, i, number);
	} else if (action < 9) {
		check_all(name, area);
	} else if (action < 11) {
		static const int protections[] = {PROT_NONE, PROT_READ, PROT_READ | PROT_WRITE};
		area->protection = protections[(r >> 48) % 3];
		OK(mprotect(area->at, area->pages * PAGE, area->protection));
	} else if (action == 11) {
		/* Private memory also grows. Shared memory ends where it ended at first. */
		int old = area->pages, now = count;
		if (!area->shared)
			now = (r >> 48) % MOST_PAGES + 1;
		if (now > old)
			memset(area->written + old, 0, (now - old) * sizeof *area->written);
		area->at = (char *)OK(mremap(area->at, old * PAGE, now * PAGE, MREMAP_MAYMOVE));
		area->pages = now;
	} else if (action == 12) {
		/* To a new place, over a map of its own. */
		char *to = map(area->pages * PAGE, PROT_NONE, MAP_PRIVATE);
		EQ(mremap(area->at, area->pages * PAGE, area->pages * PAGE,
			  MREMAP_MAYMOVE | MREMAP_FIXED, to),
		   to);
		area->at = to;
	} else if (action == 13) {
		/* Replaced in the middle: those pages are zero again. */
		EQ(mmap(area->at + page * PAGE, count * PAGE, area->protection,
			MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0),
		   area->at + page * PAGE);
		memset(area->written + page, 0, count * sizeof *area->written);
		/* The parts may differ in kind now, so it must not move as one. */
		check_all(name, area);
		OK(munmap(area->at, area->pages * PAGE));
		area->at = NULL;
	} else if (action == 14) {
		check_all(name, area);
		OK(munmap(area->at, area->pages * PAGE));
		area->at = NULL;
	} else if (!area->shared) {
		OK(madvise(area->at + page * PAGE, count * PAGE, MADV_DONTNEED));
		memset(area->written + page, 0, count * sizeof *area->written);
	}
}

static void *run(void *argument)
{
	long me = (long)argument;
	uint64_t name = first_seed + me, seed = name;
	struct area areas[AREAS] = {0};
	for (long i = 1; i <= steps; i++) {
		step(name, &seed, areas, (uint32_t)i << 3 | me);
		published[me * PAGE / 4] = i;
		CHECK(published[(me + 1) % THREADS * PAGE / 4] <= (uint32_t)steps);
		if (i % 500 == 250) {
			/* The child has the contents of this moment, whatever the others do. */
			pid_t pid = OK(fork());
			if (pid == 0) {
				for (int a = 0; a < AREAS; a++)
					check_all(name, &areas[a]);
				/* Shared memory is the parent's, too. */
				for (int a = 0; a < AREAS; a++)
					if (areas[a].shared)
						areas[a].at = NULL;
				for (int s = 0; s < 20; s++)
					step(name, &seed, areas, 7);
				_exit(0);
			}
			int status;
			EQ(waitpid(pid, &status, 0), pid);
			EQ(status, 0);
		}
	}
	for (int a = 0; a < AREAS; a++) {
		check_all(name, &areas[a]);
		if (areas[a].at)
			OK(munmap(areas[a].at, areas[a].pages * PAGE));
	}
	return NULL;
}

int main(int argc, char **argv)
{
	pthread_t threads[THREADS];
	steps = sized(argc, argv, 5000);
	first_seed = argc > 2 ? strtoull(argv[2], NULL, 0) : 1;
	published = map(THREADS * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED);
	for (long i = 0; i < THREADS; i++)
		EQ(pthread_create(&threads[i], NULL, run, (void *)i), 0);
	for (int i = 0; i < THREADS; i++)
		EQ(pthread_join(threads[i], NULL), 0);
	for (int i = 0; i < THREADS; i++)
		EQ(published[i * PAGE / 4], steps);
	printf("random: %d threads of %ld steps, seed %lu\n", THREADS, steps, first_seed);
	return 0;
}
