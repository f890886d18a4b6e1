/* Checks the timers of a process: timer_create with signals to the process, to a thread and to
 * none, overruns, settings that replace one another, and timers after fork and execve. */
#include "test.h"
#include <pthread.h>
#include <sys/time.h>

#define SECOND 1000000000L

static int create(clockid_t clock, int kind, int number, long value, int tid)
{
	int id = -1;
	struct {
		long value;
		int number, kind, tid, rest[11];
	} event = {value, number, kind, tid, {0}};
	OK(syscall(SYS_timer_create, clock, &event, &id));
	return id;
}

static long nanos(struct timespec time) { return time.tv_sec * SECOND + time.tv_nsec; }

static void set(int id, int flags, long first, long interval)
{
	struct itimerspec new = {{interval / SECOND, interval % SECOND},
				 {first / SECOND, first % SECOND}};
	OK(syscall(SYS_timer_settime, id, flags, &new, NULL));
}

static long now(clockid_t clock)
{
	struct timespec time;
	OK(clock_gettime(clock, &time));
	return nanos(time);
}

/* Waits for a signal, for at most the time. 0: none came. */
static int await(int number, siginfo_t *info, long most)
{
	sigset_t set;
	struct timespec time = {most / SECOND, most % SECOND};
	sigemptyset(&set);
	sigaddset(&set, number);
	int found;
	do /* Linux may wake it for a signal that is gone. */
		found = syscall(SYS_rt_sigtimedwait, &set, info, &time, 8);
	while (found < 0 && errno == EINTR);
	CHECK(found == number || errno == EAGAIN);
	return found == number;
}

static void block(int number)
{
	sigset_t set;
	sigemptyset(&set);
	sigaddset(&set, number);
	OK(sigprocmask(SIG_BLOCK, &set, NULL));
}

static void once(clockid_t clock)
{
	siginfo_t info;
	struct itimerspec left;
	int id = create(clock, SIGEV_SIGNAL, SIGRTMIN, 4711, 0);
	OK(syscall(SYS_timer_gettime, id, &left));
	EQ(nanos(left.it_value), 0);
	/* To a time, and for a time. */
	long start = now(clock);
	set(id, 0, 20000000, 0);
	OK(syscall(SYS_timer_gettime, id, &left));
	CHECK(nanos(left.it_value) > 0 && nanos(left.it_value) <= 20000000);
	CHECK(await(SIGRTMIN, &info, 10 * SECOND));
	CHECK(now(clock) - start >= 20000000);
	EQ(info.si_code, SI_TIMER);
	EQ(info.si_value.sival_int, 4711);
	EQ(info.si_timerid, id);
	EQ(info.si_overrun, 0);
	OK(syscall(SYS_timer_gettime, id, &left));
	EQ(nanos(left.it_value), 0);
	start = now(clock);
	set(id, TIMER_ABSTIME, start + 20000000, 0);
	CHECK(await(SIGRTMIN, &info, 10 * SECOND));
	CHECK(now(clock) - start >= 20000000);
	set(id, TIMER_ABSTIME, 1, 0);
	CHECK(await(SIGRTMIN, &info, 10 * SECOND));
	/* One that is stopped sends nothing, nor does one that is deleted. */
	set(id, 0, 10000000, 0);
	set(id, 0, 0, 0);
	CHECK(!await(SIGRTMIN, &info, 30000000));
	set(id, 0, 1, 0);
	usleep(30000);
	set(id, 0, 0, 0);
	CHECK(!await(SIGRTMIN, &info, 1));
	set(id, 0, 1, 0);
	usleep(30000);
	OK(syscall(SYS_timer_delete, id));
	CHECK(!await(SIGRTMIN, &info, 1));
	ERR(syscall(SYS_timer_delete, id), EINVAL);
	ERR(syscall(SYS_timer_gettime, id, &left), EINVAL);
	ERR(syscall(SYS_timer_getoverrun, id), EINVAL);
}

static void periodic(void)
{
	siginfo_t info;
	struct itimerspec left;
	int id = create(CLOCK_MONOTONIC, SIGEV_SIGNAL, SIGRTMIN + 1, 1, 0);
	set(id, 0, 1000000, 1000000);
	for (int i = 0; i < 5; i++)
		CHECK(await(SIGRTMIN + 1, &info, 10 * SECOND));
	/* Periods that pass while the signal is pending are counted, and it is pending once. */
	usleep(100000);
	OK(syscall(SYS_timer_gettime, id, &left));
	EQ(nanos(left.it_interval), 1000000);
	CHECK(nanos(left.it_value) > 0 && nanos(left.it_value) <= 1000000);
	CHECK(await(SIGRTMIN + 1, &info, 10 * SECOND));
	CHECK(info.si_overrun >= 50);
	EQ(syscall(SYS_timer_getoverrun, id), info.si_overrun);
	/* A period of a nanosecond. */
	set(id, 0, 1, 1);
	usleep(20000);
	for (int i = 0; i < 3; i++)
		CHECK(await(SIGRTMIN + 1, &info, 10 * SECOND));
	CHECK(info.si_overrun > 0);
	/* A signal that is ignored, and then not any more. */
	signal(SIGRTMIN + 1, SIG_IGN);
	sigset_t all;
	sigemptyset(&all);
	OK(sigprocmask(SIG_SETMASK, &all, NULL));
	usleep(30000);
	block(SIGRTMIN + 1);
	signal(SIGRTMIN + 1, SIG_DFL);
	CHECK(await(SIGRTMIN + 1, &info, 10 * SECOND));
	OK(syscall(SYS_timer_delete, id));
	block(SIGRTMIN);
	/* Two timers with a standard signal. */
	block(SIGUSR1);
	int one = create(CLOCK_MONOTONIC, SIGEV_SIGNAL, SIGUSR1, 1, 0);
	int other = create(CLOCK_REALTIME, SIGEV_THREAD, SIGUSR1, 2, 0);
	set(one, 0, 1, 0);
	set(other, 0, 1, 0);
	usleep(30000);
	CHECK(await(SIGUSR1, &info, 1));
	int first = info.si_value.sival_int;
	CHECK(await(SIGUSR1, &info, 1));
	EQ(first + info.si_value.sival_int, 3);
	CHECK(!await(SIGUSR1, &info, 1));
	OK(syscall(SYS_timer_delete, one));
	OK(syscall(SYS_timer_delete, other));
	/* Setitimer with a short period leaves the program its time. */
	block(SIGALRM);
	struct itimerval timer = {{0, 1}, {0, 1}};
	OK(setitimer(ITIMER_REAL, &timer, NULL));
	for (int i = 0; i < 3; i++)
		CHECK(await(SIGALRM, &info, 10 * SECOND));
	timer = (struct itimerval){{0, 0}, {0, 0}};
	OK(setitimer(ITIMER_REAL, &timer, NULL));
	await(SIGALRM, &info, 1);
}

static volatile int thread_id, handled_by, go;
static void handle(int number) { (void)number, handled_by = syscall(SYS_gettid); }

static void *thread(void *unused)
{
	thread_id = syscall(SYS_gettid);
	while (!handled_by)
		usleep(1000);
	return unused;
}

static void to_a_thread(void)
{
	pthread_t made;
	struct sigaction action = {.sa_handler = handle};
	sigaction(SIGUSR2, &action, NULL);
	pthread_create(&made, NULL, thread, NULL);
	while (!thread_id)
		usleep(1000);
	int id = create(CLOCK_MONOTONIC, 4, SIGUSR2, 0, thread_id);
	set(id, 0, 1000000, 0);
	pthread_join(made, NULL);
	EQ(handled_by, thread_id);
	/* It has ended. */
	set(id, 0, 1, 1);
	usleep(10000);
	OK(syscall(SYS_timer_delete, id));
}

static void others(void)
{
	struct itimerspec left, bad = {{0, 0}, {0, SECOND}};
	int id = create(CLOCK_MONOTONIC, SIGEV_NONE, 0, 0, 0), second;
	set(id, 0, 5000000, 0);
	OK(syscall(SYS_timer_gettime, id, &left));
	CHECK(nanos(left.it_value) > 0);
	usleep(10000);
	OK(syscall(SYS_timer_gettime, id, &left));
	EQ(nanos(left.it_value), 0);
	set(id, 0, 5000000, 10 * SECOND);
	usleep(10000);
	OK(syscall(SYS_timer_gettime, id, &left));
	CHECK(nanos(left.it_value) > 9 * SECOND);
	EQ(syscall(SYS_timer_getoverrun, id), 0);
	ERR(syscall(SYS_timer_settime, id, 0, &bad, NULL), EINVAL);
	bad.it_value.tv_nsec = -1;
	ERR(syscall(SYS_timer_settime, id, 0, &bad, NULL), EINVAL);
	/* Without an event it is SIGALRM, with the timer's number. */
	OK(syscall(SYS_timer_create, CLOCK_REALTIME, NULL, &second));
	CHECK(second != id);
	set(second, 0, 1, 0);
	siginfo_t info;
	CHECK(await(SIGALRM, &info, 10 * SECOND));
	EQ(info.si_value.sival_int, second);
	/* A child has no timers, nor has a new program. */
	pid_t pid = OK(fork());
	if (pid == 0) {
		ERR(syscall(SYS_timer_gettime, id, &left), EINVAL);
		_exit(0);
	}
	exits_with(pid, 0);
	pid = OK(fork());
	if (pid == 0) {
		char text[20];
		int made = create(CLOCK_MONOTONIC, SIGEV_SIGNAL, SIGKILL, 0, 0);
		set(made, 0, 300000000, 1);
		snprintf(text, sizeof text, ":%d", made);
		execl("/proc/self/exe", "timers", text, NULL);
		_exit(1);
	}
	exits_with(pid, 0);
	pid = OK(fork());
	if (pid == 0) {
		set(create(CLOCK_MONOTONIC, SIGEV_SIGNAL, SIGKILL, 0, 0), 0, 1000000, 0);
		pause();
	}
	killed_by(pid, SIGKILL);
}

/* Threads set, delete and await timers concurrently. */
static volatile int shared[4];
static void *racer(void *seed)
{
	uint64_t state = (uint64_t)seed;
	siginfo_t info;
	for (int i = 0; i < 300; i++) {
		struct itimerspec new = {{0, next_random(&state) % 3}, {0, next_random(&state) % 3}};
		int id = shared[next_random(&state) % 4], place = next_random(&state) % 4;
		switch (next_random(&state) % 4) {
		case 0: syscall(SYS_timer_settime, id, 0, &new, NULL); break;
		case 1: await(SIGRTMIN, &info, 1); break;
		case 2: syscall(SYS_timer_gettime, id, &new); break;
		case 3:
			syscall(SYS_timer_delete, shared[place]);
			shared[place] = create(CLOCK_MONOTONIC, SIGEV_SIGNAL, SIGRTMIN, 0, 0);
		}
	}
	return NULL;
}

static void races(void)
{
	pthread_t threads[4];
	siginfo_t info;
	for (long i = 0; i < 4; i++)
		pthread_create(&threads[i], NULL, racer, (void *)(i + 1));
	for (int i = 0; i < 4; i++)
		pthread_join(threads[i], NULL);
	for (int id = 0; id < 2000; id++)
		syscall(SYS_timer_delete, id);
	CHECK(!await(SIGRTMIN, &info, 1));
}

int main(int argc, char **argv)
{
	if (argc > 1 && argv[1][0] == ':') {
		struct itimerspec left;
		ERR(syscall(SYS_timer_gettime, atoi(argv[1] + 1), &left), EINVAL);
		usleep(400000);
		return 0;
	}
	block(SIGRTMIN);
	block(SIGRTMIN + 1);
	block(SIGALRM);
	once(CLOCK_MONOTONIC);
	once(CLOCK_REALTIME);
	periodic();
	to_a_thread();
	others();
	races();
	printf("timers: signals and overruns as they should be\n");
	return 0;
}
