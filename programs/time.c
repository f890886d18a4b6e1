/* Checks clocks, sleeps and the scheduler's calls: clocks do not go back, a sleep lasts at least as
 * long as asked, a signal ends it early, a thread runs where its affinity says. */
#include "test.h"
#include <pthread.h>
#include <sys/time.h>

static int64_t now(clockid_t clock)
{
	struct timespec t;
	OK(clock_gettime(clock, &t));
	CHECK(t.tv_sec >= 0 && t.tv_nsec >= 0 && t.tv_nsec < 1000000000);
	return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static void *watch(void *argument)
{
	long reads = (long)argument;
	int64_t last = now(CLOCK_MONOTONIC);
	for (long i = 0; i < reads; i++) {
		int64_t next = now(CLOCK_MONOTONIC);
		CHECK(next >= last);
		last = next;
	}
	return NULL;
}

/* The largest time that a thread has seen, which the next one must not be before. */
static int64_t seen;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

static void *compare(void *argument)
{
	for (long i = 0; i < (long)argument; i++) {
		pthread_mutex_lock(&mutex);
		int64_t next = now(CLOCK_MONOTONIC);
		CHECK(next >= seen);
		seen = next;
		pthread_mutex_unlock(&mutex);
	}
	return NULL;
}

static void on_alarm(int signal)
{
	(void)signal;
}

static void sleeps(void)
{
	struct timespec ask = {0, 3000000}, left;
	int64_t start = now(CLOCK_MONOTONIC);
	OK(nanosleep(&ask, NULL));
	CHECK(now(CLOCK_MONOTONIC) - start >= 3000000);
	start = now(CLOCK_MONOTONIC) + 3000000;
	struct timespec until = {start / 1000000000, start % 1000000000};
	EQ(clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL), 0);
	CHECK(now(CLOCK_MONOTONIC) >= start);
	EQ(clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL), 0);
	ask.tv_nsec = 0;
	OK(nanosleep(&ask, NULL));
	ask.tv_nsec = 1000000000;
	ERR(nanosleep(&ask, NULL), EINVAL);
	/* A signal ends a long sleep; the time left is less than asked. */
	signal(SIGALRM, on_alarm);
	struct itimerval timer = {{0, 2000}, {0, 2000}};
	OK(setitimer(ITIMER_REAL, &timer, NULL));
	ask = (struct timespec){1000, 0};
	ERR(nanosleep(&ask, &left), EINTR);
	CHECK(left.tv_sec < 1000);
	memset(&timer, 0, sizeof timer);
	OK(setitimer(ITIMER_REAL, &timer, NULL));
}

static void affinity(void)
{
	cpu_set_t all, one, found;
	OK(sched_getaffinity(0, sizeof all, &all));
	int count = CPU_COUNT(&all);
	CHECK(count >= 1);
	EQ(sysconf(_SC_NPROCESSORS_ONLN) >= 1, 1);
	for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
		if (!CPU_ISSET(cpu, &all))
			continue;
		CPU_ZERO(&one);
		CPU_SET(cpu, &one);
		OK(sched_setaffinity(0, sizeof one, &one));
		OK(sched_getaffinity(0, sizeof found, &found));
		CHECK(CPU_EQUAL(&one, &found));
		unsigned at, node;
		OK(syscall(SYS_getcpu, &at, &node, NULL));
		EQ(at, cpu);
		EQ(sched_getcpu(), cpu);
		for (int i = 0; i < 10; i++) {
			EQ(sched_yield(), 0);
			EQ(sched_getcpu(), cpu);
		}
		/* A child inherits it. */
		pid_t pid = OK(fork());
		if (pid == 0)
			_exit(sched_getcpu() == cpu ? 0 : 1);
		exits_with(pid, 0);
	}
	CPU_ZERO(&one);
	ERR(sched_setaffinity(0, sizeof one, &one), EINVAL);
	OK(sched_setaffinity(0, sizeof all, &all));
	OK(sched_getaffinity(0, sizeof found, &found));
	CHECK(CPU_EQUAL(&all, &found));
}

static volatile int awake;

static void *sleeper(void *argument)
{
	struct timespec ask = {0, 5000000};
	(void)argument;
	OK(nanosleep(&ask, NULL));
	awake = 1;
	return NULL;
}

/* A thread that spends nearly all its time in calls does not keep another from its turn. A call
 * changes many entries, so nearly each tick comes during one, and it gives way to no thread itself.
 * There are few calls, so that a tick between two is rare. */
static void turns(void)
{
	enum { CALLS = 40, SIZE = 128 << 20 };
	char *pages = map(SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE);
	cpu_set_t all, one;
	pthread_t thread;
	OK(madvise(pages, SIZE, MADV_NOHUGEPAGE));
	for (size_t i = 0; i < SIZE; i += 4096)
		pages[i] = 1;
	OK(sched_getaffinity(0, sizeof all, &all));
	CPU_ZERO(&one);
	CPU_SET(sched_getcpu(), &one);
	OK(sched_setaffinity(0, sizeof one, &one));
	EQ(pthread_create(&thread, NULL, sleeper, NULL), 0);
	int calls = 0;
	for (; calls < CALLS && !awake; calls++)
		OK(mprotect(pages, SIZE, calls % 2 ? PROT_READ | PROT_WRITE : PROT_READ));
	CHECK(calls < CALLS);
	EQ(pthread_join(thread, NULL), 0);
	OK(sched_setaffinity(0, sizeof all, &all));
	OK(munmap(pages, SIZE));
}

int main(int argc, char **argv)
{
	long reads = sized(argc, argv, 20000);
	pthread_t threads[4];
	watch((void *)reads);
	for (int i = 0; i < 4; i++)
		EQ(pthread_create(&threads[i], NULL, compare, (void *)reads), 0);
	for (int i = 0; i < 4; i++)
		EQ(pthread_join(threads[i], NULL), 0);
	CHECK(now(CLOCK_REALTIME) > 0);
	CHECK(now(CLOCK_PROCESS_CPUTIME_ID) > 0);
	struct timeval day;
	OK(gettimeofday(&day, NULL));
	CHECK(day.tv_usec >= 0 && day.tv_usec < 1000000);
	struct timespec resolution;
	OK(clock_getres(CLOCK_MONOTONIC, &resolution));
	EQ(resolution.tv_sec, 0);
	sleeps();
	affinity();
	turns();
	printf("time: %ld reads of the clock\n", reads);
	return 0;
}
