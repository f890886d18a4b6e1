/* Checks the state of a thread, not of its process: its name, its times, its number when it
 * replaces the program, and the wait of CLONE_VFORK, of siblings and of threads too. A call that
 * takes long leaves the CPU to others, and so does a thread that computes. `tasks PERCENT`. */
#include "test.h"
#include <pthread.h>
#include <stdatomic.h>
#include <sys/prctl.h>
#include <sys/uio.h>

enum {
	VM = 0x100,
	FS = 0x200,
	FILES = 0x400,
	SIGHAND = 0x800,
	VFORK = 0x4000,
	PARENT = 0x8000,
	THREAD = 0x10000,
	NAME = 16
};

static char stack[64 << 10] __attribute__((aligned(16)));
static volatile int shared;
static pthread_barrier_t barrier;

static pid_t own_number(void) { return syscall(SYS_gettid); }

/* The bytes of a file, with a zero behind them. */
static const char *contents(const char *path)
{
	static char text[4096];
	int fd = OK(open(path, O_RDONLY));
	text[OK(read(fd, text, sizeof text - 1))] = 0;
	OK(close(fd));
	return text;
}

/* This thread has this name, by all ways to ask. */
static void named(const char *expected)
{
	char name[NAME], path[80], line[NAME + 1];
	memset(name, 'x', sizeof name);
	OK(prctl(PR_GET_NAME, name));
	if (strcmp(name, expected))
		differs(__FILE__, __LINE__, "name is %s, not %s", name, expected);
	snprintf(line, sizeof line, "%s\n", expected);
	snprintf(path, sizeof path, "/proc/self/task/%d/comm", own_number());
	if (strcmp(contents(path), line))
		differs(__FILE__, __LINE__, "%s is %s", path, contents(path));
	snprintf(path, sizeof path, "/proc/self/task/%d/status", own_number());
	char status[2 * NAME];
	snprintf(status, sizeof status, "Name:\t%s\n", expected);
	CHECK(strncmp(contents(path), status, strlen(status)) == 0);
	snprintf(path, sizeof path, "/proc/self/task/%d/stat", own_number());
	snprintf(status, sizeof status, "%d (%s) ", own_number(), expected);
	CHECK(strncmp(contents(path), status, strlen(status)) == 0);
}

static void *second(void *first)
{
	named(first);
	OK(prctl(PR_SET_NAME, "second"));
	named("second");
	CHECK(strcmp(contents("/proc/self/comm"), "first\n") == 0);
	/* A child has the name of the thread that makes it. */
	pid_t pid = OK(fork());
	if (pid == 0) {
		named("second");
		_exit(0);
	}
	exits_with(pid, 0);
	return NULL;
}

static void names(void)
{
	char *page = map(2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE);
	OK(munmap(page + PAGE, PAGE));
	/* The text may end with the last page that is mapped. */
	strcpy(page + PAGE - 6, "first");
	OK(prctl(PR_SET_NAME, page + PAGE - 6));
	named("first");
	pthread_t thread;
	EQ(pthread_create(&thread, NULL, second, "first"), 0);
	EQ(pthread_join(thread, NULL), 0);
	named("first");
	memset(page, 'n', 100);
	OK(prctl(PR_SET_NAME, page));
	named("nnnnnnnnnnnnnnn");
	memset(page + PAGE - 5, 'n', 5);
	ERR(prctl(PR_SET_NAME, page + PAGE - 5), EFAULT);
	ERR(prctl(PR_SET_NAME, NULL), EFAULT);
	ERR(prctl(PR_GET_NAME, NULL), EFAULT);
	named("nnnnnnnnnnnnnnn");
	int fd = OK(open("/proc/self/comm", O_RDWR));
	EQ(write(fd, "written", 7), 7);
	named("written");
	EQ(lseek(fd, 0, SEEK_SET), 0);
	EQ(write(fd, page, 100), 100);
	named("nnnnnnnnnnnnnnn");
	OK(close(fd));
	OK(munmap(page, PAGE));
}

/* The ticks that `/proc` shows for a process or one of its threads. */
static long ticks_of(const char *format, int number)
{
	char path[80];
	long user, system;
	snprintf(path, sizeof path, format, number);
	const char *fields = strrchr(contents(path), ')');
	EQ(sscanf(fields, ") %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %ld %ld", &user, &system), 2);
	return user + system;
}

static void *use_time(void *number)
{
	struct timespec used;
	do
		OK(clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used));
	while (used.tv_sec == 0 && used.tv_nsec < 300000000);
	*(int *)number = own_number();
	pthread_barrier_wait(&barrier);
	pthread_barrier_wait(&barrier);
	return NULL;
}

/* A thread's times are its own, and its process's are those of all. */
static void times_of_threads(void)
{
	int number;
	pthread_t thread;
	long before = ticks_of("/proc/self/task/%d/stat", own_number());
	pthread_barrier_init(&barrier, NULL, 2);
	EQ(pthread_create(&thread, NULL, use_time, &number), 0);
	pthread_barrier_wait(&barrier);
	long used = ticks_of("/proc/self/task/%d/stat", number);
	CHECK(used >= 25);
	CHECK(ticks_of("/proc/self/task/%d/stat", own_number()) - before < used);
	CHECK(ticks_of("/proc/%d/stat", getpid()) >= used);
	pthread_barrier_wait(&barrier);
	EQ(pthread_join(thread, NULL), 0);
}

static volatile int calling; /* the descriptor, -1 afterwards */

/* Reads 512 MiB into the same mebibyte by one call. */
static void *call_for_long(void *unused)
{
	enum { PIECES = 512, PIECE = 1 << 20 };
	static char into[PIECE];
	static struct iovec pieces[PIECES];
	for (int i = 0; i < PIECES; i++)
		pieces[i] = (struct iovec){into, PIECE};
	int fd = OK(open("/dev/zero", O_RDONLY));
	calling = fd;
	EQ(readv(fd, pieces, PIECES), (long)PIECES * PIECE);
	calling = -1;
	return unused;
}

/* Another thread of the same CPU runs during the call, and closes its file. */
static cpu_set_t on_one_cpu(void)
{
	cpu_set_t all, one;
	OK(sched_getaffinity(0, sizeof all, &all));
	CPU_ZERO(&one);
	for (int cpu = 0; CPU_COUNT(&one) == 0; cpu++)
		if (CPU_ISSET(cpu, &all))
			CPU_SET(cpu, &one);
	OK(sched_setaffinity(0, sizeof one, &one));
	return all;
}

static atomic_long turns;
static atomic_int is_over;

static void *take_turns(void *unused)
{
	while (!is_over) {
		turns++;
		sched_yield();
	}
	return unused;
}

/* Calls that bring in many pages let the other thread of the CPU run meanwhile, and not only at the
 * end: there it has one or two turns. */
static void long_memory(void)
{
	enum { SIZE = 128 << 20, LEAST = 4, POPULATE_WRITE = 23 };
	cpu_set_t all = on_one_cpu();
	pthread_t thread;
	is_over = 0;
	EQ(pthread_create(&thread, NULL, take_turns, NULL), 0);
	while (turns == 0)
		sched_yield();
	for (int which = 0; which < 4; which++) {
		int populate = which == 0 ? MAP_POPULATE : 0;
		int fd = which == 3 ? OK(syscall(SYS_memfd_create, "long", 0)) : -1;
		long before = turns;
		char *at = mmap(NULL, SIZE, PROT_READ | PROT_WRITE,
				MAP_PRIVATE | MAP_ANONYMOUS | populate, -1, 0);
		CHECK(at != MAP_FAILED);
		before = populate ? before : (long)turns;
		if (which == 1)
			OK(madvise(at, SIZE, POPULATE_WRITE));
		/* The limit of locked memory may be low. */
		if (which == 2 && mlock(at, SIZE) != 0)
			before = -LEAST;
		if (which == 3)
			OK(syscall(SYS_fallocate, fd, 0, 0L, (long)SIZE));
		CHECK(turns > before + LEAST);
		unsigned char there[SIZE / PAGE];
		OK(mincore(at, SIZE, (void *)there));
		if (which < 2)
			for (unsigned page = 0; page < SIZE / PAGE; page++)
				EQ(there[page] & 1, 1);
		OK(munmap(at, SIZE));
		if (fd >= 0)
			OK(close(fd));
	}
	is_over = 1;
	EQ(pthread_join(thread, NULL), 0);
	OK(sched_setaffinity(0, sizeof all, &all));
}

static void long_calls(void)
{
	cpu_set_t all = on_one_cpu();
	pthread_t thread;
	calling = 0;
	EQ(pthread_create(&thread, NULL, call_for_long, NULL), 0);
	while (calling == 0)
		sched_yield();
	for (int i = 0; i < 2; i++) {
		struct timespec little = {0, 1000000};
		OK(nanosleep(&little, NULL));
		CHECK(calling > 0);
	}
	OK(close(calling));
	EQ(pthread_join(thread, NULL), 0);
	EQ(calling, -1);
	OK(sched_setaffinity(0, sizeof all, &all));
}

static int there[2], back[2]; /* pipes */

static void *send_back(void *unused)
{
	char byte;
	while (OK(read(there[0], &byte, 1)) == 1)
		EQ(write(back[1], &byte, 1), 1);
	return unused;
}

static void *compute(void *unused)
{
	while (!is_over)
		turns++;
	return unused;
}

/* Two threads that wait for each other hardly wait for a third one of their CPU, which computes;
 * and that one has turns, too. */
static void short_turns(void)
{
	enum { ROUNDS = 400, TURNS = 3 };
	cpu_set_t all = on_one_cpu();
	pthread_t partner, third;
	OK(pipe(there));
	OK(pipe(back));
	is_over = 0;
	EQ(pthread_create(&partner, NULL, send_back, NULL), 0);
	EQ(pthread_create(&third, NULL, compute, NULL), 0);
	long rounds = 0, waited = 0;
	while (rounds < ROUNDS || waited < TURNS) {
		long before = turns;
		char byte = 1;
		EQ(write(there[1], &byte, 1), 1);
		EQ(read(back[0], &byte, 1), 1);
		waited += turns != before;
		rounds++;
	}
	CHECK(waited < rounds / 2);
	is_over = 1;
	OK(close(there[1]));
	EQ(pthread_join(partner, NULL), 0);
	EQ(pthread_join(third, NULL), 0);
	OK(close(there[0]));
	OK(close(back[0]));
	OK(close(back[1]));
	OK(sched_setaffinity(0, sizeof all, &all));
}

static void *wait_for_ever(void *unused)
{
	pthread_barrier_wait(&barrier);
	for (;;)
		pause();
	return unused;
}

static void *replace(void *program)
{
	char number[12];
	snprintf(number, sizeof number, "%d", getpid());
	CHECK(own_number() != getpid());
	OK(prctl(PR_SET_NAME, "replaces"));
	pthread_barrier_wait(&barrier);
	execv(program, (char *[]){"tasks", ":", number, NULL});
	_exit(98);
}

/* A thread that is not the first replaces the program, and becomes the first. The first one waits,
 * or has ended. */
static void replacing(char *program, int first_ends)
{
	pid_t pid = OK(fork());
	if (pid == 0) {
		pthread_t thread;
		pthread_barrier_init(&barrier, NULL, 3);
		EQ(pthread_create(&thread, NULL, wait_for_ever, NULL), 0);
		EQ(pthread_create(&thread, NULL, replace, program), 0);
		if (first_ends) {
			pthread_barrier_wait(&barrier);
			syscall(SYS_exit, 97);
		}
		wait_for_ever(NULL);
	}
	exits_with(pid, 41);
}

static int role(int pid, const char *program)
{
	EQ(getpid(), pid);
	EQ(own_number(), pid);
	named(program);
	OK(kill(pid, 0));
	OK(syscall(SYS_tgkill, pid, pid, 0));
	/* Its number is in use once. */
	pthread_t thread;
	pthread_barrier_init(&barrier, NULL, 2);
	EQ(pthread_create(&thread, NULL, wait_for_ever, NULL), 0);
	pthread_barrier_wait(&barrier);
	return 41;
}

static int work(void *how)
{
	for (int i = 0; i < 50; i++)
		sched_yield();
	shared = 1;
	if (*(char *)how == 'k')
		kill(getpid(), SIGKILL);
	return 7;
}

/* As clone, which musl does not let make threads, from 1.2.5 on. */
static long thread(int (*run)(void *), void *end, long flags, void *argument)
{
	void **top = end;
	*--top = (void *)run;
	*--top = argument;
	long made = SYS_clone;
	__asm__ volatile("syscall; test %%rax, %%rax; jnz 1f\n"
			 "pop %%rdi; pop %%rax; call *%%rax\n"
			 "mov %%eax, %%edi; mov %1, %%eax; syscall\n"
			 "1:"
			 : "+a"(made)
			 : "i"(SYS_exit), "D"(flags), "S"(top), "d"(0)
			 : "rcx", "r8", "r9", "r10", "r11", "memory");
	if (made < 0) {
		errno = -made;
		return -1;
	}
	return made;
}

/* Each returns when its child has ended. */
static void vforks(void)
{
	shared = 0;
	pid_t pid = OK(clone(work, stack + sizeof stack, VM | VFORK | SIGCHLD, "exit"));
	EQ(shared, 1);
	exits_with(pid, 7);
	shared = 0;
	pid = OK(clone(work, stack + sizeof stack, VM | VFORK | SIGCHLD, "kill"));
	EQ(shared, 1);
	killed_by(pid, SIGKILL);
	/* It waits also if the memory is not shared. */
	pid = OK(clone(work, stack + sizeof stack, VFORK | SIGCHLD, "exit"));
	exits_with(pid, 7);
	/* A sibling: its end wakes its maker, which is not its parent. */
	pid_t maker = OK(fork());
	if (maker == 0) {
		shared = 0;
		pid = OK(clone(work, stack + sizeof stack, VM | VFORK | PARENT | SIGCHLD, "exit"));
		EQ(shared, 1);
		ERR(waitpid(pid, NULL, 0), ECHILD);
		_exit(3);
	}
	exits_with(maker, 3);
	int status;
	OK(waitpid(-1, &status, 0));
	EQ(WEXITSTATUS(status), 7);
	/* A thread. */
	for (int i = 0; i < 3; i++) {
		shared = 0;
		OK(thread(work, stack + sizeof stack, VM | FS | FILES | SIGHAND | THREAD | VFORK,
			  "exit"));
		EQ(shared, 1);
	}
}

static void handle(int number) { shared = number; }
static void handle_too(int number) { shared = -number; }

/* Changes an action, runs its handler, and replaces the program. */
static int sharer(void *program)
{
	signal(SIGUSR1, handle_too);
	kill(getpid(), SIGUSR2);
	if (shared != SIGUSR2)
		return 1;
	signal(SIGTERM, SIG_IGN);
	char *const arguments[] = {program, ":", NULL};
	return program ? execv(program, arguments) : 7;
}

static void acts(int number, void (*expected)(int))
{
	struct sigaction action;
	OK(sigaction(number, NULL, &action));
	CHECK(action.sa_handler == expected);
}

/* Processes may share their actions at signals, until one replaces its program. */
static void actions(char *program)
{
	for (int round = 0; round < 4; round++) {
		int shares = round < 3;
		long flags = (shares ? VM | SIGHAND : VM) | VFORK | SIGCHLD;
		signal(SIGUSR1, handle);
		signal(SIGUSR2, handle);
		signal(SIGTERM, handle);
		shared = 0;
		char *replaces = round < 2 ? program : NULL;
		pid_t pid = OK(thread(sharer, stack + sizeof stack, flags, replaces));
		exits_with(pid, replaces ? 0 : 7);
		acts(SIGUSR1, shares ? handle_too : handle);
		acts(SIGUSR2, handle);
		acts(SIGTERM, shares ? SIG_IGN : handle);
		/* They are the process's own again, for a child by fork. */
		pid = OK(fork());
		if (pid == 0) {
			signal(SIGUSR2, SIG_IGN);
			_exit(3);
		}
		exits_with(pid, 3);
		acts(SIGUSR2, handle);
	}
	OK(kill(getpid(), SIGUSR1));
	EQ(shared, SIGUSR1);
	signal(SIGTERM, SIG_DFL);
}

/* A thread that wakes has its turn, although the turns of those that compute take longer than a
 * round may. */
static void crowd(void)
{
	enum { MANY = 40 };
	pthread_t threads[MANY];
	is_over = 0;
	for (int i = 0; i < MANY; i++)
		EQ(pthread_create(&threads[i], NULL, compute, NULL), 0);
	for (int i = 0; i < 5; i++)
		OK(usleep(1000));
	is_over = 1;
	for (int i = 0; i < MANY; i++)
		EQ(pthread_join(threads[i], NULL), 0);
}

/* Threads and siblings have no exit signal of their own. */
static void refusals(void)
{
	uint64_t arguments[8] = {THREAD | SIGHAND | VM, 0, 0, 0, SIGCHLD, (uintptr_t)stack,
				 sizeof stack};
	ERR(syscall(SYS_clone3, arguments, sizeof arguments), EINVAL);
	arguments[0] = PARENT;
	arguments[5] = arguments[6] = 0;
	ERR(syscall(SYS_clone3, arguments, sizeof arguments), EINVAL);
}

int main(int argc, char **argv)
{
	char program[256];
	long length = OK(readlink("/proc/self/exe", program, sizeof program - 1));
	program[length] = 0;
	char name[NAME];
	snprintf(name, sizeof name, "%s", strrchr(program, '/') + 1);
	if (argc > 2 && strcmp(argv[1], ":") == 0)
		return role(atoi(argv[2]), name);
	if (argc > 1 && strcmp(argv[1], ":") == 0) {
		/* Handlers are gone, and ignored signals stay so. */
		acts(SIGUSR1, SIG_DFL);
		acts(SIGTERM, SIG_IGN);
		signal(SIGTERM, SIG_DFL);
		return 0;
	}
	long rounds = sized(argc, argv, 50);
	actions(program);
	crowd();
	named(name);
	names();
	times_of_threads();
	long_calls();
	long_memory();
	short_turns();
	for (long i = 0; i < rounds; i++) {
		replacing(program, 0);
		replacing(program, 1);
		vforks();
	}
	refusals();
	printf("tasks: %ld rounds\n", rounds);
	return 0;
}
