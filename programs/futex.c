/* Checks futexes by the raw call: wait, wake, requeue, cmp_requeue, wake_op, bitsets, private and
 * shared (also by fork and by another address), timeouts relative and absolute, errors, and robust
 * lists after a thread or a process dies. It waits for events, never for a length of time. */
#include "test.h"
#include <pthread.h>

enum { WAIT = 0, WAKE = 1, REQUEUE = 3, CMP_REQUEUE = 4, WAKE_OP = 5, WAIT_BITSET = 9,
       WAKE_BITSET = 10, PRIVATE = 128, REALTIME = 256, THREADS = 6 };
#define OWNER_DIED 0x40000000
#define WAITERS 0x80000000u

static long futex(uint32_t *word, int operation, uint32_t value, const void *timeout_or_value2,
		  uint32_t *word2, uint32_t value3)
{
	return syscall(SYS_futex, word, operation, value, timeout_or_value2, word2, value3);
}

struct waiter {
	uint32_t *word;
	int operation;
	uint32_t bits;
	int woken;
};

static void *wait_once(void *argument)
{
	struct waiter *w = argument;
	EQ(futex(w->word, w->operation, 0, NULL, NULL, w->bits), 0);
	__atomic_store_n(&w->woken, 1, __ATOMIC_RELEASE);
	return NULL;
}

/* Wakes until as many have been woken. */
static void wake(uint32_t *word, int operation, uint32_t bits, int wanted)
{
	for (int woken = 0; woken < wanted; sched_yield())
		woken += OK(futex(word, operation, wanted - woken, NULL, NULL, bits));
}

static void waking(int flag)
{
	uint32_t words[2] __attribute__((aligned(8))) = {0};
	struct waiter waiters[THREADS];
	pthread_t threads[THREADS];
	ERR(futex(words, WAIT | flag, 1, NULL, NULL, 0), EAGAIN);
	EQ(futex(words, WAKE | flag, 1, NULL, NULL, 0), 0);
	for (int i = 0; i < THREADS; i++) {
		waiters[i] = (struct waiter){words, WAIT | flag, 0, 0};
		EQ(pthread_create(&threads[i], NULL, wait_once, &waiters[i]), 0);
	}
	for (int i = 0; i < THREADS; i++)
		wake(words, WAKE | flag, 0, 1);
	for (int i = 0; i < THREADS; i++)
		EQ(pthread_join(threads[i], NULL), 0);
	EQ(futex(words, WAKE | flag, 100, NULL, NULL, 0), 0);

	/* Requeue: all move to the second word, then wake there. */
	for (int compare = 0; compare < 2; compare++) {
		int operation = (compare ? CMP_REQUEUE : REQUEUE) | flag, moved = 0;
		for (int i = 0; i < THREADS; i++) {
			waiters[i].woken = 0;
			EQ(pthread_create(&threads[i], NULL, wait_once, &waiters[i]), 0);
		}
		if (compare)
			ERR(futex(words, operation, 0, (void *)100, words + 1, 7), EAGAIN);
		for (; moved < THREADS; sched_yield())
			moved += OK(futex(words, operation, 0, (void *)100, words + 1, 0));
		EQ(futex(words, WAKE | flag, 100, NULL, NULL, 0), 0);
		for (int i = 0; i < THREADS; i++)
			EQ(waiters[i].woken, 0);
		EQ(futex(words + 1, WAKE | flag, 2, NULL, NULL, 0), 2);
		EQ(futex(words + 1, WAKE | flag, 100, NULL, NULL, 0), THREADS - 2);
		for (int i = 0; i < THREADS; i++)
			EQ(pthread_join(threads[i], NULL), 0);
	}

	/* Bitsets: a wake reaches only those whose bits meet its own. */
	for (int i = 0; i < THREADS; i++) {
		waiters[i] = (struct waiter){words, WAIT_BITSET | flag, i % 2 ? 2 : 1, 0};
		EQ(pthread_create(&threads[i], NULL, wait_once, &waiters[i]), 0);
	}
	wake(words, WAKE_BITSET | flag, 1, THREADS / 2);
	EQ(futex(words, WAKE_BITSET | flag, 100, NULL, NULL, 1), 0);
	EQ(futex(words, WAKE_BITSET | flag, 100, NULL, NULL, 4), 0);
	for (int i = 1; i < THREADS; i += 2)
		EQ(waiters[i].woken, 0);
	wake(words, WAKE_BITSET | flag, 6, THREADS / 2);
	for (int i = 0; i < THREADS; i++)
		EQ(pthread_join(threads[i], NULL), 0);
	ERR(futex(words, WAIT_BITSET | flag, 0, NULL, NULL, 0), EINVAL);
	ERR(futex(words, WAKE_BITSET | flag, 1, NULL, NULL, 0), EINVAL);

	/* WAKE_OP: adds 5 to the second word; wakes there, too, if it was 0. */
	waiters[0] = (struct waiter){words, WAIT | flag, 0, 0};
	EQ(pthread_create(&threads[0], NULL, wait_once, &waiters[0]), 0);
	uint32_t operation = 1u << 28 | 0u << 24 | 5 << 12 | 0;
	int woken = 0, calls = 0;
	for (; woken == 0; sched_yield(), calls++)
		woken = OK(futex(words, WAKE_OP | flag, 1, (void *)1, words + 1, operation));
	EQ(woken, 1);
	EQ(words[1], 5 * calls);
	EQ(pthread_join(threads[0], NULL), 0);
}

static void timeouts(int flag)
{
	uint32_t word = 0;
	struct timespec soon = {0, 2000000}, past = {0, 0}, wrong = {0, 1000000000}, start, end;
	OK(clock_gettime(CLOCK_MONOTONIC, &start));
	ERR(futex(&word, WAIT | flag, 0, &soon, NULL, 0), ETIMEDOUT);
	OK(clock_gettime(CLOCK_MONOTONIC, &end));
	CHECK((end.tv_sec - start.tv_sec) * 1000000000 + end.tv_nsec - start.tv_nsec >= 2000000);
	ERR(futex(&word, WAIT | flag, 0, &past, NULL, 0), ETIMEDOUT);
	ERR(futex(&word, WAIT | flag, 0, &wrong, NULL, 0), EINVAL);
	/* Absolute: a time of the past, and one that comes, on both clocks. */
	ERR(futex(&word, WAIT_BITSET | flag, 0, &start, NULL, 1), ETIMEDOUT);
	for (int real = 0; real < 2; real++) {
		clockid_t clock = real ? CLOCK_REALTIME : CLOCK_MONOTONIC;
		OK(clock_gettime(clock, &end));
		end.tv_nsec += 2000000;
		if (end.tv_nsec >= 1000000000) {
			end.tv_sec++;
			end.tv_nsec -= 1000000000;
		}
		int operation = WAIT_BITSET | flag | (real ? REALTIME : 0);
		ERR(futex(&word, operation, 0, &end, NULL, 1), ETIMEDOUT);
		OK(clock_gettime(clock, &start));
		CHECK(start.tv_sec > end.tv_sec ||
		      (start.tv_sec == end.tv_sec && start.tv_nsec >= end.tv_nsec));
	}
	ERR(futex(&word, WAIT | flag, 1, &soon, NULL, 0), EAGAIN);
	ERR(futex((uint32_t *)((char *)&word + 1), WAIT | flag, 0, &soon, NULL, 0), EINVAL);
	ERR(futex((uint32_t *)16, WAIT | flag, 0, &soon, NULL, 0), EFAULT);
	ERR(futex(&word, 77 | flag, 0, &soon, NULL, 0), ENOSYS);
}

/* Two processes take turns; the child sees the memory at another address, too. */
static void shared(long turns)
{
	int fd = OK(syscall(SYS_memfd_create, "futex", 0));
	OK(ftruncate(fd, PAGE));
	uint32_t *word = (uint32_t *)OK(mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0));
	pid_t pid = OK(fork());
	if (pid == 0)
		word = (uint32_t *)OK(mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0));
	uint32_t mine = pid == 0;
	for (long i = 0; i < turns; i++) {
		uint32_t value;
		while ((value = __atomic_load_n(word, __ATOMIC_SEQ_CST)) % 2 != mine)
			if (futex(word, WAIT, value, NULL, NULL, 0) == -1)
				CHECK(errno == EAGAIN || errno == EINTR);
		__atomic_store_n(word, value + 1, __ATOMIC_SEQ_CST);
		OK(futex(word, WAKE, 1, NULL, NULL, 0));
	}
	if (pid == 0)
		_exit(0);
	exits_with(pid, 0);
	EQ(*word, 2 * turns);
	OK(munmap(word, PAGE));
	OK(close(fd));
}

/* The layout that the kernel reads: a list head, then nodes; the words are at an offset. */
struct robust {
	struct robust *next;
	uint32_t word;
};
static struct {
	void *list;
	long offset;
	void *pending;
} robust_head;

static void robust_process(void)
{
	struct robust *nodes = map(PAGE, PROT_READ | PROT_WRITE, MAP_SHARED);
	pid_t pid = OK(fork());
	if (pid == 0) {
		uint32_t tid = syscall(SYS_gettid);
		nodes[0].word = tid;
		nodes[1].word = tid | WAITERS;
		nodes[2].word = tid;       /* pending */
		nodes[3].word = tid + 100; /* of another thread: stays */
		nodes[0].next = &nodes[1];
		nodes[1].next = &nodes[3];
		nodes[3].next = (void *)&robust_head;
		robust_head.list = &nodes[0];
		robust_head.offset = offsetof(struct robust, word);
		robust_head.pending = &nodes[2];
		OK(syscall(SYS_set_robust_list, &robust_head, sizeof robust_head));
		void *head;
		size_t length;
		OK(syscall(SYS_get_robust_list, 0, &head, &length));
		EQ(head, &robust_head);
		EQ(length, sizeof robust_head);
		ERR(syscall(SYS_set_robust_list, &robust_head, 8), EINVAL);
		nodes[4].word = 1;
		_exit(0);
	}
	/* Waits on a word that the death of the process wakes. */
	uint32_t value;
	while (((value = __atomic_load_n(&nodes[1].word, __ATOMIC_SEQ_CST)) & OWNER_DIED) == 0)
		if (value & WAITERS)
			futex(&nodes[1].word, WAIT, value, NULL, NULL, 0);
		else
			sched_yield();
	exits_with(pid, 0);
	EQ(nodes[0].word, OWNER_DIED);
	EQ(nodes[1].word, OWNER_DIED | WAITERS);
	EQ(nodes[2].word, OWNER_DIED);
	EQ(nodes[3].word, pid + 100);
	OK(munmap(nodes, PAGE));
}

static pthread_mutex_t mutex;

static void *die_with_mutex(void *argument)
{
	EQ(pthread_mutex_lock(&mutex), 0);
	return argument;
}

static void robust_thread(void)
{
	pthread_mutexattr_t attributes;
	pthread_t thread;
	EQ(pthread_mutexattr_init(&attributes), 0);
	EQ(pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST), 0);
	EQ(pthread_mutex_init(&mutex, &attributes), 0);
	EQ(pthread_create(&thread, NULL, die_with_mutex, NULL), 0);
	EQ(pthread_join(thread, NULL), 0);
	EQ(pthread_mutex_lock(&mutex), EOWNERDEAD);
	EQ(pthread_mutex_consistent(&mutex), 0);
	EQ(pthread_mutex_unlock(&mutex), 0);
	EQ(pthread_mutex_lock(&mutex), 0);
	EQ(pthread_mutex_unlock(&mutex), 0);
}

int main(int argc, char **argv)
{
	long rounds = sized(argc, argv, 20);
	for (long i = 0; i < rounds; i++) {
		waking(PRIVATE);
		waking(0);
		timeouts(i % 2 ? PRIVATE : 0);
		robust_process();
		robust_thread();
	}
	shared(sized(argc, argv, 2000));
	printf("futex: %ld rounds\n", rounds);
	return 0;
}
