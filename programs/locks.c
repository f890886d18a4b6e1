/* Checks locks that pass on priorities (FUTEX_LOCK_PI): owners and waiters in the word, timeouts,
 * circles, signals, and the ends of owners; by raw calls and as mutexes of threads. */
#include "test.h"
#include <pthread.h>
#include <linux/futex.h>
#ifndef FUTEX_LOCK_PI2
#define FUTEX_LOCK_PI2 13
#endif

static unsigned *words; /* shared by forks */
static unsigned tid(void) { return syscall(SYS_gettid); }
static long futex(unsigned *at, int op, const struct timespec *time)
{
	return syscall(SYS_futex, at, op, 0, time, 0, 0);
}
static struct timespec in(clockid_t clock, long millis)
{
	struct timespec time;
	OK(clock_gettime(clock, &time));
	time.tv_nsec += millis * 1000000;
	time.tv_sec += time.tv_nsec / 1000000000;
	time.tv_nsec %= 1000000000;
	return time;
}

static volatile int step;
static void *holder(void *arg)
{
	unsigned *at = arg;
	OK(futex(at, FUTEX_LOCK_PI, NULL));
	step = 1;
	while (step < 2)
		usleep(1000);
	OK(futex(at, FUTEX_UNLOCK_PI, NULL));
	return NULL;
}
static void *ender(void *arg)
{
	OK(futex(arg, FUTEX_LOCK_PI, NULL));
	step = 1;
	while (step < 2)
		usleep(1000);
	usleep(50000);
	return NULL;
}

static pthread_t begin(void *(*run)(void *), unsigned *at)
{
	pthread_t thread;
	step = 0;
	pthread_create(&thread, NULL, run, at);
	while (!step)
		usleep(1000);
	return thread;
}

static volatile int handled;
static void handle(int number) { (void)number, handled++; }

static void words_of(void)
{
	unsigned *at = words;
	struct timespec time = in(CLOCK_REALTIME, 50), monotonic = in(CLOCK_MONOTONIC, 50);
	OK(futex(at, FUTEX_LOCK_PI, NULL));
	EQ(*at, tid());
	ERR(futex(at, FUTEX_LOCK_PI, NULL), EDEADLK);
	ERR(futex(at, FUTEX_TRYLOCK_PI, NULL), EDEADLK);
	OK(futex(at, FUTEX_UNLOCK_PI, NULL));
	EQ(*at, 0);
	ERR(futex(at, FUTEX_UNLOCK_PI, NULL), EPERM);
	OK(futex(at, FUTEX_TRYLOCK_PI, NULL));
	EQ(*at, tid());
	*at = 0;
	*at = 0x3ffffffe;
	ERR(futex(at, FUTEX_LOCK_PI, NULL), ESRCH);
	*at = 0;
	pthread_t thread = begin(holder, at);
	ERR(futex(at, FUTEX_TRYLOCK_PI, NULL), EAGAIN);
	ERR(futex(at, FUTEX_UNLOCK_PI, NULL), EPERM);
	ERR(futex(at, FUTEX_LOCK_PI, &time), ETIMEDOUT);
	ERR(futex(at, FUTEX_LOCK_PI2, &monotonic), ETIMEDOUT);
	CHECK(*at & FUTEX_WAITERS);
	/* A handler runs, and the wait goes on. */
	struct sigaction action = {.sa_handler = handle};
	sigaction(SIGALRM, &action, NULL);
	handled = 0;
	ualarm(20000, 0);
	time = in(CLOCK_REALTIME, 100);
	ERR(futex(at, FUTEX_LOCK_PI, &time), ETIMEDOUT);
	EQ(handled, 1);
	step = 2;
	OK(futex(at, FUTEX_LOCK_PI, NULL));
	EQ(*at & FUTEX_TID_MASK, tid());
	OK(futex(at, FUTEX_UNLOCK_PI, NULL));
	pthread_join(thread, NULL);
	EQ(*at & FUTEX_TID_MASK, 0);
	*at = 0;
	ERR(futex((void *)1, FUTEX_LOCK_PI, NULL), EINVAL);
	ERR(futex((void *)8, FUTEX_LOCK_PI, NULL), EFAULT);
	ERR(futex((void *)8, FUTEX_UNLOCK_PI, NULL), EFAULT);
	ERR(futex(at, FUTEX_LOCK_PI | FUTEX_CLOCK_REALTIME, NULL), ENOSYS);
}

/* Two threads, each with a lock that the other wants. */
static void *wants_both(void *arg)
{
	unsigned *at = arg;
	OK(futex(at + 1, FUTEX_LOCK_PI_PRIVATE, NULL));
	step = 1;
	OK(futex(at, FUTEX_LOCK_PI_PRIVATE, NULL));
	OK(futex(at, FUTEX_UNLOCK_PI_PRIVATE, NULL));
	OK(futex(at + 1, FUTEX_UNLOCK_PI_PRIVATE, NULL));
	return NULL;
}
static void circles(void)
{
	unsigned at[2] = {0, 0};
	OK(futex(at, FUTEX_LOCK_PI_PRIVATE, NULL));
	pthread_t thread = begin(wants_both, at);
	while (!(__atomic_load_n(at, __ATOMIC_SEQ_CST) & FUTEX_WAITERS))
		usleep(1000);
	usleep(20000);
	ERR(futex(at + 1, FUTEX_LOCK_PI_PRIVATE, NULL), EDEADLK);
	OK(futex(at, FUTEX_UNLOCK_PI_PRIVATE, NULL));
	pthread_join(thread, NULL);
}

/* Owners that end. */
static void ends(void)
{
	unsigned *at = words + 4;
	pthread_t thread = begin(ender, at);
	step = 2;
	OK(futex(at, FUTEX_LOCK_PI, NULL));
	EQ(*at & FUTEX_TID_MASK, tid());
	CHECK(*at & FUTEX_OWNER_DIED);
	OK(futex(at, FUTEX_UNLOCK_PI, NULL));
	EQ(*at, 0);
	pthread_join(thread, NULL);
	/* In another process, which is killed; and a waiter that is killed. */
	pid_t pid = OK(fork());
	if (pid == 0) {
		OK(futex(at, FUTEX_LOCK_PI, NULL));
		pause();
	}
	while (__atomic_load_n(at, __ATOMIC_SEQ_CST) != (unsigned)pid)
		usleep(1000);
	pid_t other = OK(fork());
	if (other == 0) {
		futex(at, FUTEX_LOCK_PI, NULL);
		_exit(9);
	}
	while (!(__atomic_load_n(at, __ATOMIC_SEQ_CST) & FUTEX_WAITERS))
		usleep(1000);
	usleep(20000);
	OK(kill(other, SIGKILL));
	killed_by(other, SIGKILL);
	pid_t third = OK(fork());
	if (third == 0) {
		OK(futex(at, FUTEX_LOCK_PI, NULL));
		CHECK(*at & FUTEX_OWNER_DIED);
		OK(futex(at, FUTEX_UNLOCK_PI, NULL));
		_exit(0);
	}
	usleep(50000);
	OK(kill(pid, SIGKILL));
	killed_by(pid, SIGKILL);
	exits_with(third, 0);
}

static pthread_mutex_t mutex;
static long counter, rounds;
static void *count(void *unused)
{
	for (long i = 0; i < rounds; i++) {
		EQ(pthread_mutex_lock(&mutex), 0);
		counter++;
		EQ(pthread_mutex_unlock(&mutex), 0);
	}
	return unused;
}
static void *dies(void *unused)
{
	EQ(pthread_mutex_lock(&mutex), 0);
	return unused;
}

static void mutexes(void)
{
	pthread_t threads[6];
	pthread_mutexattr_t kind;
	pthread_mutexattr_init(&kind);
	if (pthread_mutexattr_setprotocol(&kind, PTHREAD_PRIO_INHERIT)) {
		printf("locks: this library has no such mutexes\n");
		exit(0);
	}
	pthread_mutex_init(&mutex, &kind);
	for (int i = 0; i < 6; i++)
		pthread_create(&threads[i], NULL, count, NULL);
	for (int i = 0; i < 6; i++)
		pthread_join(threads[i], NULL);
	EQ(counter, 6 * rounds);
	struct timespec time = in(CLOCK_REALTIME, 30);
	EQ(pthread_mutex_lock(&mutex), 0);
	pthread_mutex_unlock(&mutex);
	pthread_mutexattr_setrobust(&kind, PTHREAD_MUTEX_ROBUST);
	pthread_mutex_init(&mutex, &kind);
	pthread_create(&threads[0], NULL, dies, NULL);
	pthread_join(threads[0], NULL);
	EQ(pthread_mutex_timedlock(&mutex, &time), EOWNERDEAD);
	EQ(pthread_mutex_consistent(&mutex), 0);
	EQ(pthread_mutex_unlock(&mutex), 0);
	EQ(pthread_mutex_lock(&mutex), 0);
	EQ(pthread_mutex_unlock(&mutex), 0);
}

int main(int argc, char **argv)
{
	rounds = sized(argc, argv, 20000);
	words = (unsigned *)mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	words_of();
	circles();
	ends();
	mutexes();
	printf("locks: owners, waiters and ends as they should be\n");
	return 0;
}
