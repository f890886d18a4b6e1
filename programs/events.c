/* epoll, eventfd, timerfd: levels and edges, one-shot items, nesting, closes that remove items,
 * waits of threads with timeouts and masks, and descriptors that are closed while a call waits. */
#include "test.h"
#include <poll.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/select.h>
#include <sys/timerfd.h>
#include <sys/uio.h>

static int watch(int epoll, int operation, int fd, unsigned events, uint64_t data)
{
	struct epoll_event event = {.events = events, .data.u64 = data};
	return epoll_ctl(epoll, operation, fd, &event);
}

/* How many files are ready now. */
static int ready(int epoll)
{
	struct epoll_event events[8];
	return OK(epoll_wait(epoll, events, 8, 0));
}

static unsigned one(int epoll, uint64_t data)
{
	struct epoll_event events[8];
	EQ(epoll_wait(epoll, events, 8, 0), 1);
	EQ(events[0].data.u64, data);
	return events[0].events;
}

static long now(void)
{
	struct timespec time;
	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec * 1000000 + time.tv_nsec / 1000;
}

static void nap(long micros)
{
	struct timespec time = {micros / 1000000, micros % 1000000 * 1000};
	nanosleep(&time, NULL);
}

static void levels_and_edges(void)
{
	int epoll = OK(epoll_create1(EPOLL_CLOEXEC)), ends[2];
	char bytes[4096] = {0};
	EQ(fcntl(epoll, F_GETFD), FD_CLOEXEC);
	OK(pipe2(ends, O_NONBLOCK));
	OK(watch(epoll, EPOLL_CTL_ADD, ends[0], EPOLLIN, 1));
	ERR(watch(epoll, EPOLL_CTL_ADD, ends[0], EPOLLIN, 1), EEXIST);
	EQ(ready(epoll), 0);
	EQ(write(ends[1], bytes, 10), 10);
	EQ(one(epoll, 1), EPOLLIN);
	EQ(one(epoll, 1), EPOLLIN);
	/* An edge is reported once, and not again when a part was read. */
	OK(watch(epoll, EPOLL_CTL_MOD, ends[0], EPOLLIN | EPOLLET, 2));
	EQ(one(epoll, 2), EPOLLIN);
	EQ(ready(epoll), 0);
	EQ(read(ends[0], bytes, 5), 5);
	EQ(ready(epoll), 0);
	EQ(write(ends[1], bytes, 1), 1);
	EQ(one(epoll, 2), EPOLLIN);
	EQ(ready(epoll), 0);
	/* A new mask looks anew. */
	OK(watch(epoll, EPOLL_CTL_MOD, ends[0], EPOLLIN | EPOLLET, 3));
	EQ(one(epoll, 3), EPOLLIN);
	/* Once, until it is armed again. */
	OK(watch(epoll, EPOLL_CTL_MOD, ends[0], EPOLLIN | EPOLLONESHOT, 4));
	EQ(one(epoll, 4), EPOLLIN);
	EQ(write(ends[1], bytes, 1), 1);
	EQ(ready(epoll), 0);
	OK(watch(epoll, EPOLL_CTL_MOD, ends[0], EPOLLIN | EPOLLONESHOT, 5));
	EQ(one(epoll, 5), EPOLLIN);
	OK(epoll_ctl(epoll, EPOLL_CTL_DEL, ends[0], NULL));
	ERR(epoll_ctl(epoll, EPOLL_CTL_DEL, ends[0], NULL), ENOENT);
	ERR(watch(epoll, EPOLL_CTL_MOD, ends[0], EPOLLIN, 1), ENOENT);
	EQ(ready(epoll), 0);
	/* The other end: room, and no room. */
	OK(watch(epoll, EPOLL_CTL_ADD, ends[1], EPOLLOUT | EPOLLET, 6));
	EQ(one(epoll, 6), EPOLLOUT);
	while (write(ends[1], bytes, sizeof bytes) > 0)
		;
	EQ(ready(epoll), 0);
	while (read(ends[0], bytes, sizeof bytes) > 0)
		;
	EQ(one(epoll, 6), EPOLLOUT);
	EQ(ready(epoll), 0);
	/* Ends that go. */
	close(ends[0]);
	EQ(one(epoll, 6), EPOLLOUT | EPOLLERR);
	close(ends[1]);
	EQ(ready(epoll), 0);
	OK(pipe(ends));
	OK(watch(epoll, EPOLL_CTL_ADD, ends[0], 0, 7));
	close(ends[1]);
	EQ(one(epoll, 7), EPOLLHUP);
	close(ends[0]);
	EQ(ready(epoll), 0);
	close(epoll);
}

static void wrong(void)
{
	int epoll = OK(epoll_create(1)), event = OK(eventfd(0, 0));
	int file = OK(open("/proc/self/exe", O_RDONLY));
	char bytes[64] __attribute__((aligned(8))) = {0};
	struct epoll_event found;
	ERR(syscall(SYS_epoll_create, 0), EINVAL);
	ERR(epoll_create1(1), EINVAL);
	ERR(watch(epoll, EPOLL_CTL_ADD, file, EPOLLIN, 0), EPERM);
	ERR(watch(epoll, EPOLL_CTL_ADD, epoll, EPOLLIN, 0), EINVAL);
	ERR(watch(event, EPOLL_CTL_ADD, epoll, EPOLLIN, 0), EINVAL);
	ERR(watch(epoll, EPOLL_CTL_ADD, 999, EPOLLIN, 0), EBADF);
	ERR(watch(epoll, 9, event, EPOLLIN, 0), EINVAL);
	ERR(epoll_wait(epoll, &found, 0, 0), EINVAL);
	ERR(epoll_wait(event, &found, 1, 0), EINVAL);
	ERR(read(epoll, bytes, 8), EINVAL);
	ERR(write(epoll, bytes, 8), EINVAL);
	OK(watch(epoll, EPOLL_CTL_ADD, event, EPOLLIN | EPOLLEXCLUSIVE, 0));
	ERR(watch(epoll, EPOLL_CTL_MOD, event, EPOLLIN, 0), EINVAL);
	OK(epoll_ctl(epoll, EPOLL_CTL_DEL, event, NULL));
	ERR(watch(epoll, EPOLL_CTL_ADD, event, EPOLLIN | EPOLLEXCLUSIVE | EPOLLONESHOT, 0), EINVAL);
	OK(watch(epoll, EPOLL_CTL_ADD, event, EPOLLIN, 0));
	/* A result that cannot be delivered is not lost. */
	uint64_t count = 1;
	EQ(write(event, &count, 8), 8);
	ERR(syscall(SYS_epoll_wait, epoll, NULL, 1, 0), EFAULT);
	EQ(one(epoll, 0), EPOLLIN);
	/* The names. */
	int timer = OK(timerfd_create(CLOCK_MONOTONIC, 0));
	static const char *names[] = {"eventpoll", "eventfd", "timerfd"};
	int fds[] = {epoll, event, timer};
	for (int i = 0; i < 3; i++) {
		char path[40], name[40];
		sprintf(path, "/proc/self/fd/%d", fds[i]);
		memset(bytes, 0, sizeof bytes);
		OK(readlink(path, bytes, sizeof bytes - 1));
		sprintf(name, "anon_inode:[%s]", names[i]);
		CHECK(!strcmp(bytes, name));
		ERR(open(path, O_RDWR), ENXIO);
		ERR(pread(fds[i], bytes, 8, 0), ESPIPE);
		EQ(lseek(fds[i], 5, SEEK_SET), 0);
		close(fds[i]);
	}
	close(file);
}

static void counts(void)
{
	uint64_t value = 5;
	int event = OK(eventfd(3, EFD_NONBLOCK | EFD_CLOEXEC));
	int single = OK(eventfd(2, EFD_NONBLOCK | EFD_SEMAPHORE));
	struct pollfd asked = {event, POLLIN | POLLOUT, 0};
	ERR(eventfd(0, 2), EINVAL);
	/* Counters have no kinds of bytes, and so no events of their own for the normal kind. */
	struct pollfd all = {event, POLLIN | POLLOUT | POLLRDNORM | POLLWRNORM, 0};
	EQ(poll(&all, 1, 0), 1);
	EQ(all.revents, POLLIN | POLLOUT);
	EQ(write(event, &value, 8), 8);
	EQ(poll(&asked, 1, 0), 1);
	EQ(asked.revents, POLLIN | POLLOUT);
	ERR(read(event, &value, 7), EINVAL);
	EQ(read(event, &value, 8), 8);
	EQ(value, 8);
	ERR(read(event, &value, 8), EAGAIN);
	EQ(poll(&asked, 1, 0), 1);
	EQ(asked.revents, POLLOUT);
	value = -1;
	ERR(write(event, &value, 8), EINVAL);
	value = -2;
	EQ(write(event, &value, 8), 8);
	value = 1;
	ERR(write(event, &value, 8), EAGAIN);
	EQ(poll(&asked, 1, 0), 1);
	EQ(asked.revents, POLLIN);
	for (int i = 0; i < 2; i++) {
		EQ(read(single, &value, 8), 8);
		EQ(value, 1);
	}
	ERR(read(single, &value, 8), EAGAIN);
	close(event), close(single);
}

static void timers(void)
{
	struct itimerspec time = {{0, 2000000}, {0, 3000000}}, left;
	uint64_t ticks;
	int timer = OK(timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK));
	int epoll = OK(epoll_create1(0));
	struct epoll_event event;
	ERR(timerfd_create(2, 0), EINVAL);
	ERR(timerfd_create(CLOCK_REALTIME, 1), EINVAL);
	ERR(timerfd_settime(timer, 4, &time, NULL), EINVAL);
	ERR(timerfd_settime(epoll, 0, &time, NULL), EINVAL);
	ERR(timerfd_gettime(epoll, &left), EINVAL);
	ERR(write(timer, &ticks, 8), EINVAL);
	ERR(read(timer, &ticks, 8), EAGAIN);
	OK(watch(epoll, EPOLL_CTL_ADD, timer, EPOLLIN | EPOLLET, 1));
	EQ(epoll_wait(epoll, &event, 1, 10), 0);
	long start = now();
	OK(timerfd_settime(timer, 0, &time, &left));
	EQ(left.it_value.tv_nsec, 0);
	OK(timerfd_gettime(timer, &left));
	CHECK(left.it_value.tv_nsec > 0 && left.it_value.tv_nsec <= 3000000);
	EQ(left.it_interval.tv_nsec, 2000000);
	EQ(epoll_wait(epoll, &event, 1, 10000), 1);
	CHECK(now() - start >= 3000);
	/* Without a read there is no other edge. */
	EQ(epoll_wait(epoll, &event, 1, 10), 0);
	EQ(read(timer, &ticks, 8), 8);
	long passed = (now() - start - 3000) / 2000 + 1;
	CHECK(ticks >= 4 && (long)ticks <= passed);
	EQ(epoll_wait(epoll, &event, 1, 10000), 1);
	memset(&time, 0, sizeof time);
	OK(timerfd_settime(timer, 0, &time, &left));
	EQ(left.it_interval.tv_nsec, 2000000);
	ERR(read(timer, &ticks, 8), EAGAIN);
	close(timer);
	/* Absolute times of both clocks; a time that has passed. A read waits. */
	for (int i = 0; i < 2; i++) {
		timer = OK(timerfd_create(i ? CLOCK_REALTIME : CLOCK_MONOTONIC, 0));
		clock_gettime(i ? CLOCK_REALTIME : CLOCK_MONOTONIC, &time.it_value);
		time.it_value.tv_nsec += 5000000;
		if (time.it_value.tv_nsec >= 1000000000)
			time.it_value.tv_nsec -= 1000000000, time.it_value.tv_sec++;
		start = now();
		OK(timerfd_settime(timer, TFD_TIMER_ABSTIME, &time, NULL));
		EQ(read(timer, &ticks, 8), 8);
		EQ(ticks, 1);
		CHECK(now() - start >= 4500);
		time.it_value = (struct timespec){0, 1};
		OK(timerfd_settime(timer, TFD_TIMER_ABSTIME, &time, NULL));
		EQ(read(timer, &ticks, 8), 8);
		OK(timerfd_gettime(timer, &left));
		EQ(left.it_value.tv_sec + left.it_value.tv_nsec, 0);
		close(timer);
	}
	close(epoll);
}

static void nested(void)
{
	int chain[7], ends[2];
	char byte = 0;
	for (int i = 0; i < 7; i++)
		chain[i] = OK(epoll_create1(0));
	OK(pipe(ends));
	OK(watch(chain[0], EPOLL_CTL_ADD, ends[0], EPOLLIN, 10));
	for (int i = 0; i < 4; i++) {
		OK(watch(chain[i + 1], EPOLL_CTL_ADD, chain[i], EPOLLIN, i));
		/* A circle of each length. */
		ERR(watch(chain[0], EPOLL_CTL_ADD, chain[i + 1], EPOLLIN, 0), ELOOP);
	}
	ERR(watch(chain[5], EPOLL_CTL_ADD, chain[4], EPOLLIN, 0), ELOOP);
	ERR(watch(chain[0], EPOLL_CTL_ADD, chain[4], EPOLLIN, 0), ELOOP);
	ERR(watch(chain[0], EPOLL_CTL_ADD, chain[5], EPOLLIN, 0), ELOOP);
	EQ(ready(chain[4]), 0);
	EQ(write(ends[1], &byte, 1), 1);
	for (int i = 0; i < 4; i++)
		EQ(one(chain[i + 1], i), EPOLLIN);
	EQ(one(chain[0], 10), EPOLLIN);
	EQ(one(chain[4], 3), EPOLLIN);
	struct pollfd asked = {chain[4], POLLIN, 0};
	EQ(poll(&asked, 1, 0), 1);
	EQ(read(ends[0], &byte, 1), 1);
	EQ(poll(&asked, 1, 0), 0);
	EQ(ready(chain[4]), 0);
	/* Edges of an epoll. */
	OK(watch(chain[6], EPOLL_CTL_ADD, chain[0], EPOLLIN | EPOLLET, 20));
	EQ(ready(chain[6]), 0);
	EQ(write(ends[1], &byte, 1), 1);
	EQ(one(chain[6], 20), EPOLLIN);
	EQ(ready(chain[6]), 0);
	EQ(one(chain[0], 10), EPOLLIN);
	EQ(ready(chain[6]), 0);
	/* An epoll in the middle goes. */
	close(chain[2]);
	EQ(ready(chain[4]), 0);
	OK(watch(chain[0], EPOLL_CTL_ADD, chain[4], EPOLLIN, 30));
	for (int i = 0; i < 7; i++)
		if (i != 2)
			close(chain[i]);
	close(ends[0]), close(ends[1]);
}

/* One change comes to an epoll in many ways; each epoll above tells of each change. */
static void many_ways(void)
{
	enum { NUMBERS = 5, INNER = 3 };
	int event = OK(eventfd(0, EFD_NONBLOCK)), fds[NUMBERS], inner[INNER];
	int outer = OK(epoll_create1(0)), edges = OK(epoll_create1(0)), top = OK(epoll_create1(0));
	uint64_t count = 1;
	for (int i = 0; i < NUMBERS; i++)
		fds[i] = OK(dup(event));
	for (int i = 0; i < INNER; i++) {
		inner[i] = OK(epoll_create1(0));
		OK(watch(outer, EPOLL_CTL_ADD, inner[i], EPOLLIN, i));
		OK(watch(edges, EPOLL_CTL_ADD, inner[i], EPOLLIN | EPOLLET, i));
		for (int j = 0; j < NUMBERS; j++)
			OK(watch(inner[i], EPOLL_CTL_ADD, fds[j], EPOLLIN, j));
	}
	OK(watch(top, EPOLL_CTL_ADD, outer, EPOLLIN | EPOLLET, 1));
	OK(watch(top, EPOLL_CTL_ADD, edges, EPOLLIN | EPOLLET, 2));
	EQ(ready(top), 0);
	for (int round = 0; round < 3; round++) {
		EQ(write(event, &count, 8), 8);
		/* The second round finds all lists as the first one has left them. */
		EQ(ready(top), 2);
		EQ(ready(top), 0);
		EQ(ready(edges), INNER);
		EQ(ready(edges), 0);
		EQ(ready(outer), INNER);
		if (round == 1) {
			EQ(read(event, &count, 8), 8);
			EQ(count, 2);
			EQ(ready(outer), 0);
			EQ(ready(inner[0]), 0);
			count = 1;
		}
	}
	for (int i = 0; i < NUMBERS; i++)
		close(fds[i]);
	for (int i = 0; i < INNER; i++)
		close(inner[i]);
	EQ(ready(outer), 0);
	close(event), close(outer), close(edges), close(top);
}

static void closes(void)
{
	int epoll = OK(epoll_create1(0)), ends[2];
	char byte = 0;
	OK(pipe(ends));
	/* The item stays while there is a descriptor of the description. */
	int copy = OK(dup(ends[0]));
	OK(watch(epoll, EPOLL_CTL_ADD, ends[0], EPOLLIN, 1));
	OK(watch(epoll, EPOLL_CTL_ADD, copy, EPOLLIN, 2));
	EQ(write(ends[1], &byte, 1), 1);
	EQ(ready(epoll), 2);
	OK(epoll_ctl(epoll, EPOLL_CTL_DEL, copy, NULL));
	close(ends[0]);
	EQ(one(epoll, 1), EPOLLIN);
	/* A child shares the epoll, and the description. */
	pid_t pid = OK(fork());
	if (pid == 0) {
		EQ(one(epoll, 1), EPOLLIN);
		OK(watch(epoll, EPOLL_CTL_ADD, ends[1], EPOLLOUT, 3));
		_exit(0);
	}
	exits_with(pid, 0);
	EQ(ready(epoll), 2);
	OK(epoll_ctl(epoll, EPOLL_CTL_DEL, ends[1], NULL));
	close(copy);
	EQ(ready(epoll), 0);
	/* The number is another file now. */
	int event = OK(eventfd(1, 0));
	EQ(event, ends[0]);
	EQ(ready(epoll), 0);
	OK(watch(epoll, EPOLL_CTL_ADD, event, EPOLLIN, 4));
	EQ(one(epoll, 4), EPOLLIN);
	close(event), close(ends[1]), close(epoll);
}

static void order(void)
{
	/* More files than room: each is reported in its turn. */
	enum { FILES = 20 };
	int epoll = OK(epoll_create1(0)), files[FILES], seen[FILES] = {0};
	for (int i = 0; i < FILES; i++) {
		files[i] = OK(eventfd(1, 0));
		OK(watch(epoll, EPOLL_CTL_ADD, files[i], EPOLLIN, i));
	}
	for (int i = 0; i < FILES / 4; i++) {
		struct epoll_event events[4];
		EQ(epoll_wait(epoll, events, 4, 0), 4);
		for (int j = 0; j < 4; j++)
			seen[events[j].data.u64]++;
	}
	for (int i = 0; i < FILES; i++) {
		EQ(seen[i], 1);
		close(files[i]);
	}
	EQ(ready(epoll), 0);
	close(epoll);
}

static int shared_epoll, shared_fd;
static volatile int hits;
static void on_signal(int number) { (void)number, hits++; }

static void *wait_one(void *timeout)
{
	struct epoll_event event;
	return (void *)(long)epoll_wait(shared_epoll, &event, 1, (int)(long)timeout);
}

static void *read_byte(void *unused)
{
	char byte;
	(void)unused;
	return (void *)(long)read(shared_fd, &byte, 1);
}

/* A close of the descriptor while a thread waits: the thread waits on for the same file. (Linux's
 * poll looks the number up again, which ours does not.) */
static void close_beside(void)
{
	pthread_t thread;
	void *result;
	int ends[2], others[2];
	char byte = 7;
	for (int which = 0; which < 2; which++) {
		OK(pipe(ends)), OK(pipe(others));
		int copy = OK(dup(ends[0]));
		shared_fd = ends[0];
		if (which) {
			shared_epoll = OK(epoll_create1(0));
			OK(watch(shared_epoll, EPOLL_CTL_ADD, copy, EPOLLIN, 0));
			EQ(pthread_create(&thread, NULL, wait_one, (void *)10000), 0);
		} else {
			EQ(pthread_create(&thread, NULL, read_byte, NULL), 0);
		}
		nap(20000);
		int fd = which ? shared_epoll : ends[0];
		EQ(dup2(others[0], fd), fd);
		EQ(write(ends[1], &byte, 1), 1);
		EQ(pthread_join(thread, &result), 0);
		EQ((long)result, 1);
		close(fd), close(copy), close(ends[1]), close(others[0]), close(others[1]);
		if (which)
			close(ends[0]);
	}
}

static void waits(void)
{
	struct epoll_event event;
	struct timespec time = {0, 20000000};
	pthread_t threads[4];
	void *result;
	uint64_t count = 1;
	int file = OK(eventfd(0, EFD_NONBLOCK));
	shared_epoll = OK(epoll_create1(0));
	OK(watch(shared_epoll, EPOLL_CTL_ADD, file, EPOLLIN | EPOLLET, 0));
	long start = now();
	EQ(epoll_wait(shared_epoll, &event, 1, 20), 0);
	CHECK(now() - start >= 20000);
	start = now();
	long result2 = syscall(SYS_epoll_pwait2, shared_epoll, &event, 1, &time, NULL, 8);
	if (result2 != -1 || errno != ENOSYS) {
		EQ(result2, 0);
		CHECK(now() - start >= 20000);
		time.tv_nsec = -1;
		ERR(syscall(SYS_epoll_pwait2, shared_epoll, &event, 1, &time, NULL, 8), EINVAL);
	}
	/* One edge, one thread. */
	for (int i = 0; i < 4; i++)
		EQ(pthread_create(&threads[i], NULL, wait_one, (void *)300), 0);
	nap(20000);
	EQ(write(file, &count, 8), 8);
	int woken = 0;
	for (int i = 0; i < 4; i++) {
		EQ(pthread_join(threads[i], &result), 0);
		woken += (long)result;
	}
	EQ(woken, 1);
	/* A file that is added while a thread waits, and one that becomes ready. */
	EQ(pthread_create(threads, NULL, wait_one, (void *)10000), 0);
	nap(20000);
	int other = OK(eventfd(1, 0));
	OK(watch(shared_epoll, EPOLL_CTL_ADD, other, EPOLLIN, 1));
	EQ(pthread_join(threads[0], &result), 0);
	EQ((long)result, 1);
	close(other);
	/* A signal that only the mask of the wait lets through. */
	sigset_t mask, empty;
	struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
	sigemptyset(&empty);
	sigemptyset(&mask);
	sigaddset(&mask, SIGUSR1);
	OK(sigaction(SIGUSR1, &action, NULL));
	OK(sigprocmask(SIG_BLOCK, &mask, NULL));
	raise(SIGUSR1);
	EQ(epoll_wait(shared_epoll, &event, 1, 10), 0);
	EQ(hits, 0);
	ERR(epoll_pwait(shared_epoll, &event, 1, 10000, &empty), EINTR);
	EQ(hits, 1);
	raise(SIGUSR1);
	EQ(epoll_pwait(shared_epoll, &event, 1, 10, &mask), 0);
	EQ(hits, 1);
	OK(sigprocmask(SIG_UNBLOCK, &mask, NULL));
	EQ(hits, 2);
	/* Blocked reads and writes of a count. */
	int blocking = OK(eventfd(0, 0));
	pid_t pid = OK(fork());
	if (pid == 0) {
		nap(20000);
		count = -2;
		EQ(write(blocking, &count, 8), 8);
		count = 1;
		EQ(write(blocking, &count, 8), 8);
		_exit(0);
	}
	EQ(read(blocking, &count, 8), 8);
	EQ(count, -2);
	EQ(read(blocking, &count, 8), 8);
	EQ(count, 1);
	exits_with(pid, 0);
	close(blocking), close(file), close(shared_epoll);
}

/* Threads pass tokens through pipes; each waits at one epoll for all. No token is lost. */
enum { PIPES = 8, THREADS = 3 };
static int reads[PIPES], writes[PIPES], rounds;
static int passed;
static unsigned kind;

static void *pass(void *unused)
{
	struct epoll_event events[3];
	(void)unused;
	for (;;) {
		int count = OK(epoll_wait(shared_epoll, events, 3, 20000));
		if (count == 0)
			differs(__FILE__, __LINE__, "no event comes after %d of %d", passed, rounds);
		for (int i = 0; i < count; i++) {
			unsigned from = events[i].data.u64;
			char token;
			if (from == PIPES)
				return NULL;
			while (read(reads[from], &token, 1) == 1) {
				int done = __atomic_add_fetch(&passed, 1, __ATOMIC_RELAXED);
				uint64_t end = 1;
				if (done >= rounds)
					OK(write(shared_fd, &end, 8));
				else
					EQ(write(writes[(from + done) % PIPES], &token, 1), 1);
			}
			if (kind == EPOLLONESHOT)
				OK(watch(shared_epoll, EPOLL_CTL_MOD, reads[from],
					 EPOLLIN | EPOLLONESHOT, from));
		}
	}
}

static void stress(int size)
{
	static const unsigned kinds[] = {0, EPOLLET, EPOLLONESHOT};
	for (int k = 0; k < 3; k++) {
		pthread_t threads[THREADS];
		kind = kinds[k];
		rounds = size;
		passed = 0;
		shared_epoll = OK(epoll_create1(0));
		shared_fd = OK(eventfd(0, 0));
		OK(watch(shared_epoll, EPOLL_CTL_ADD, shared_fd, EPOLLIN, PIPES));
		for (int i = 0; i < PIPES; i++) {
			int ends[2];
			OK(pipe2(ends, O_NONBLOCK));
			reads[i] = ends[0], writes[i] = ends[1];
			OK(watch(shared_epoll, EPOLL_CTL_ADD, ends[0], EPOLLIN | kind, i));
		}
		for (int i = 0; i < THREADS; i++)
			EQ(pthread_create(&threads[i], NULL, pass, NULL), 0);
		for (int i = 0; i < PIPES / 2; i++)
			EQ(write(writes[i], "t", 1), 1);
		/* Items come and go meanwhile. */
		for (int i = 0; i < 200; i++) {
			int event = OK(eventfd(0, 0)), epoll = OK(epoll_create1(0));
			OK(watch(shared_epoll, EPOLL_CTL_ADD, event, EPOLLIN, 0));
			OK(watch(epoll, EPOLL_CTL_ADD, shared_epoll, EPOLLIN, 0));
			OK(watch(epoll, EPOLL_CTL_ADD, reads[i % PIPES], EPOLLIN, 0));
			ready(epoll);
			close(event), close(epoll);
		}
		for (int i = 0; i < THREADS; i++)
			EQ(pthread_join(threads[i], NULL), 0);
		CHECK(passed >= rounds);
		close(shared_epoll), close(shared_fd);
		for (int i = 0; i < PIPES; i++)
			close(reads[i]), close(writes[i]);
	}
}

int main(int argc, char **argv)
{
	int size = sized(argc, argv, 100000);
	levels_and_edges();
	wrong();
	counts();
	timers();
	nested();
	many_ways();
	closes();
	order();
	close_beside();
	waits();
	stress(size);
	printf("events: %d tokens passed in three ways\n", size);
	return 0;
}
