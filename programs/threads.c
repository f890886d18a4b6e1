/* Checks threads: 8 of them malloc, fill, check and free, also blocks of each other. Checks
 * mutexes, condition variables with and without timeouts, barriers, read-write locks, semaphores,
 * thread-local storage, keys with destructors, and threads that start and end all the time. */
#include "test.h"
#include <pthread.h>
#include <semaphore.h>

enum { THREADS = 8, SLOTS = 64, QUEUE = 16 };

static long rounds;
static pthread_barrier_t barrier;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t not_empty = PTHREAD_COND_INITIALIZER, not_full = PTHREAD_COND_INITIALIZER;
static pthread_rwlock_t rwlock = PTHREAD_RWLOCK_INITIALIZER;
static pthread_key_t key;
static sem_t semaphore;
static long counter, read_write[2], destroyed, published[THREADS];
static __thread long local = 11;
static __thread char local_zeroes[300] __attribute__((aligned(64)));

struct block {
	size_t size;
	unsigned char pattern, data[];
};
static struct block *queue[QUEUE];
static int head, count;

static struct block *make(uint64_t *seed)
{
	uint64_t r = next_random(seed);
	/* Most blocks are small; one of 32 is large enough for a mapping of its own. */
	size_t size = r % 32 == 0 ? 150000 + r / 32 % 200000 : r / 32 % 3000;
	struct block *block = malloc(sizeof *block + size);
	CHECK(block != NULL);
	block->size = size;
	block->pattern = r >> 56;
	memset(block->data, block->pattern, size);
	return block;
}

static void check_and_free(struct block *block)
{
	for (size_t i = 0; i < block->size; i++)
		if (block->data[i] != block->pattern)
			differs(__FILE__, __LINE__, "byte %zu of a block of %zu is %d, not %d", i,
				block->size, block->data[i], block->pattern);
	free(block);
}

/* Gives a block to some thread, takes one of some thread. */
static void exchange(uint64_t *seed)
{
	struct block *block = make(seed);
	pthread_mutex_lock(&mutex);
	while (count == QUEUE)
		pthread_cond_wait(&not_full, &mutex);
	queue[(head + count++) % QUEUE] = block;
	pthread_cond_signal(&not_empty);
	pthread_mutex_unlock(&mutex);
	pthread_mutex_lock(&mutex);
	while (count == 0)
		pthread_cond_wait(&not_empty, &mutex);
	block = queue[head];
	head = (head + 1) % QUEUE;
	count--;
	pthread_cond_signal(&not_full);
	pthread_mutex_unlock(&mutex);
	check_and_free(block);
}

static void *worker(void *argument)
{
	long me = (long)argument;
	uint64_t seed = me;
	struct block *slots[SLOTS] = {0};
	EQ(local, 11);
	EQ((uintptr_t)local_zeroes % 64, 0);
	for (size_t i = 0; i < sizeof local_zeroes; i++)
		EQ(local_zeroes[i], 0);
	memset(local_zeroes, me + 1, sizeof local_zeroes);
	local = me;
	pthread_setspecific(key, (void *)(me + 1));
	for (long round = 0; round < rounds; round++) {
		for (int i = 0; i < 100; i++) {
			int slot = next_random(&seed) % SLOTS;
			if (slots[slot])
				check_and_free(slots[slot]);
			slots[slot] = make(&seed);
		}
		exchange(&seed);
		pthread_mutex_lock(&mutex);
		counter++;
		pthread_mutex_unlock(&mutex);
		pthread_rwlock_wrlock(&rwlock);
		read_write[0]++;
		read_write[1]++;
		pthread_rwlock_unlock(&rwlock);
		pthread_rwlock_rdlock(&rwlock);
		EQ(read_write[0] - read_write[1], 0);
		pthread_rwlock_unlock(&rwlock);
		published[me] = round + 1;
		pthread_barrier_wait(&barrier);
		EQ(published[(me + 1) % THREADS], round + 1);
		pthread_barrier_wait(&barrier);
	}
	for (int i = 0; i < SLOTS; i++)
		if (slots[i])
			check_and_free(slots[i]);
	EQ(local, me);
	for (size_t i = 0; i < sizeof local_zeroes; i++)
		EQ(local_zeroes[i], me + 1);
	sem_post(&semaphore);
	return (void *)(me * 3);
}

static void destructor(void *value)
{
	__atomic_fetch_add(&destroyed, (long)value, __ATOMIC_RELAXED);
}

static void *short_lived(void *argument)
{
	EQ(local, 11);
	EQ(local_zeroes[299], 0);
	local_zeroes[299] = 1;
	return argument;
}

int main(int argc, char **argv)
{
	pthread_t threads[THREADS];
	rounds = sized(argc, argv, 100);
	EQ(pthread_barrier_init(&barrier, NULL, THREADS), 0);
	EQ(pthread_key_create(&key, destructor), 0);
	EQ(sem_init(&semaphore, 0, 0), 0);
	for (long i = 0; i < THREADS; i++)
		EQ(pthread_create(&threads[i], NULL, worker, (void *)i), 0);
	for (int i = 0; i < THREADS; i++)
		EQ(sem_wait(&semaphore), 0);
	for (long i = 0; i < THREADS; i++) {
		void *result;
		EQ(pthread_join(threads[i], &result), 0);
		EQ((long)result, i * 3);
	}
	EQ(counter, THREADS * rounds);
	EQ(read_write[0], THREADS * rounds);
	EQ(count, 0);
	EQ(destroyed, THREADS * (THREADS + 1) / 2);

	for (long round = 0; round < rounds; round++) {
		for (long i = 0; i < THREADS; i++)
			EQ(pthread_create(&threads[i], NULL, short_lived, (void *)(round + i)), 0);
		for (long i = 0; i < THREADS; i++) {
			void *result;
			EQ(pthread_join(threads[i], &result), 0);
			EQ((long)result, round + i);
		}
	}

	struct timespec end;
	clock_gettime(CLOCK_REALTIME, &end);
	end.tv_nsec += 1000000;
	if (end.tv_nsec >= 1000000000) {
		end.tv_sec++;
		end.tv_nsec -= 1000000000;
	}
	pthread_mutex_lock(&mutex);
	EQ(pthread_cond_timedwait(&not_empty, &mutex, &end), ETIMEDOUT);
	EQ(pthread_mutex_trylock(&mutex), EBUSY);
	pthread_mutex_unlock(&mutex);
	EQ(sem_timedwait(&semaphore, &end), -1);
	EQ(errno, ETIMEDOUT);
	printf("threads: %d threads, %ld rounds, %ld threads in all\n", THREADS, rounds,
	       THREADS * (rounds + 1));
	return 0;
}
