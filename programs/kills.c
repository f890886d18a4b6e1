/* Kills at random moments: `kills PERCENT SEED [KILLS]`. A child works with threads and children of
 * its own: faults, forks, futexes, pipes, signals, storms of mmap, execve. It is killed after a
 * random time. It must end, its status must say SIGKILL, its children must not be left, and the
 * frames must come back, which programs/check looks at. The child may not end by itself.
 *
 * Before that: kills within calls that take long, and an execve that fails concurrently with other
 * threads. */
#include "test.h"
#include <pthread.h>
#include <sys/prctl.h>
#include <sys/uio.h>

enum { THREADS = 3, PAGES = 32 };
static int word, ends[2];
static volatile sig_atomic_t signals;

static void on_signal(int number)
{
	(void)number;
	signals++;
}

static void memory(uint64_t *state)
{
	int pages = 1 + next_random(state) % PAGES;
	int shared = next_random(state) % 4 == 0;
	char *at = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE,
			(shared ? MAP_SHARED : MAP_PRIVATE) | MAP_ANONYMOUS, -1, 0);
	if (at == MAP_FAILED)
		return;
	for (int page = 0; page < pages; page += 1 + next_random(state) % 3)
		at[page * PAGE] = 1;
	mprotect(at, PAGE, PROT_READ);
	madvise(at, pages * PAGE, MADV_DONTNEED);
	char *moved = mremap(at, pages * PAGE, (pages + 1) * PAGE, MREMAP_MAYMOVE);
	if (moved != MAP_FAILED)
		munmap(moved, (pages + 1) * PAGE);
	else
		munmap(at, pages * PAGE);
}

static void child(uint64_t *state, char *self)
{
	static char *no_environment[] = {NULL};
	char *arguments[] = {self, "--sleep", NULL};
	int kind = next_random(state) % 4;
	pid_t pid = kind == 0 ? vfork() : fork();
	if (pid == 0) {
		if (kind < 2)
			execve("/proc/self/exe", arguments, no_environment);
		if (kind == 2)
			memory(state);
		_exit(3);
	}
	if (pid > 0 && next_random(state) % 2)
		kill(pid, next_random(state) % 2 ? SIGKILL : SIGTERM);
	if (pid > 0 && next_random(state) % 4)
		waitpid(pid, NULL, 0);
}

static void work(uint64_t seed, char *self)
{
	uint64_t state = seed;
	for (;;) {
		struct timespec time = {0, next_random(&state) % 200000};
		char byte = 0;
		switch (next_random(&state) % 8) {
		case 0: case 1: case 2: memory(&state); break;
		case 3: child(&state, self); break;
		case 4: syscall(SYS_futex, &word, 0, word, &time, NULL, 0); break;
		case 5:
			__atomic_add_fetch(&word, 1, __ATOMIC_RELAXED);
			syscall(SYS_futex, &word, 1, 2, NULL, NULL, 0);
			break;
		case 6:
			if (write(ends[1], &byte, 1) == 1)
				(void)!read(ends[0], &byte, 1);
			break;
		case 7: kill(getpid(), SIGUSR1); break;
		}
	}
}

static char *own_name;

static void *thread(void *seed)
{
	work((uint64_t)seed, own_name);
	return NULL;
}

/* The child that is killed. At some seeds the process replaces itself over and over. */
static void victim(uint64_t seed)
{
	pthread_t threads[THREADS];
	signal(SIGUSR1, on_signal);
	if (pipe(ends))
		_exit(4);
	for (long i = 1; i < THREADS; i++)
		if (pthread_create(&threads[i], NULL, thread, (void *)(seed * 97 + i)))
			_exit(5);
	if (seed % 8 == 0) {
		char number[32];
		char *arguments[] = {own_name, "--again", number, NULL};
		snprintf(number, sizeof number, "%lu", seed);
		memory(&seed);
		/* A signal may be pending across execve, and a handler ends there. */
		signal(SIGUSR1, SIG_IGN);
		execv("/proc/self/exe", arguments);
		_exit(6);
	}
	work(seed, own_name);
}

/* A process is killed within a call on 2 GiB, which one file gives, mapped many times. Without a
 * bound, process_vm_readv would copy 2 TiB. */
static void long_calls(void)
{
	enum { MAPS = 32, PIECES = 1024 };
	const size_t part = 64UL << 20;
	for (int which = 0; which < 3; which++) {
		pid_t pid = OK(fork());
		if (pid == 0) {
			static struct iovec pieces[PIECES];
			int file = OK(syscall(SYS_memfd_create, "long", 0));
			OK(ftruncate(file, part));
			char *at = mmap(NULL, MAPS * part, PROT_NONE,
					MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
			CHECK(at != MAP_FAILED);
			for (int i = 0; i < MAPS; i++)
				CHECK(mmap(at + i * part, part, PROT_READ | PROT_WRITE,
					   MAP_SHARED | MAP_FIXED, file, 0) != MAP_FAILED);
			for (int i = 0; i < PIECES; i++)
				pieces[i] = (struct iovec){at, MAPS * part};
			int zeros = OK(open("/dev/zero", O_RDONLY));
			for (;;)
				if (which == 0)
					process_vm_readv(getpid(), pieces, PIECES, pieces, PIECES, 0);
				else if (which == 1)
					syscall(SYS_getrandom, at, MAPS * part, 0);
				else
					readv(zeros, pieces, PIECES);
		}
		struct timespec time = {0, 300000000};
		nanosleep(&time, NULL);
		OK(kill(pid, SIGKILL));
		/* A call that goes on to its end would take hours. */
		alarm(200);
		killed_by(pid, SIGKILL);
		alarm(0);
	}
	struct iovec long_one = {&word, 1UL << 63}, short_one = {&word, 4};
	ERR(process_vm_readv(getpid(), &long_one, 1, &short_one, 1, 0), EINVAL);
	ERR(process_vm_readv(getpid(), &short_one, 1, &long_one, 1, 0), EINVAL);
}

static volatile char flipped[] = "/proc/self/exe";
static volatile int beats[THREADS];

/* The path is wrong most of the time: so an execve that reads it twice fails at the second time. */
static void *flip(void *own)
{
	for (;;) {
		flipped[0] = '/';
		for (int i = 0; i < 1000; i++)
			if (i == 100)
				flipped[0] = 'x';
		++*(volatile int *)own;
	}
	return NULL;
}

static int all_beat(void)
{
	int before[THREADS], beating = 0;
	for (int i = 0; i < THREADS; i++)
		before[i] = beats[i];
	for (int tries = 0; tries < 500 && beating < THREADS; tries++) {
		usleep(1000);
		beating = 0;
		for (int i = 0; i < THREADS; i++)
			beating += beats[i] != before[i];
	}
	return beating == THREADS;
}

/* Threads change the path of an execve: it succeeds, or it fails and they are there. */
static void execs(char *self, long rounds)
{
	static char *no_environment[] = {NULL};
	char *arguments[] = {self, "--sleep", NULL};
	for (long i = 0; i < rounds; i++) {
		pid_t pid = OK(fork());
		if (pid == 0) {
			pthread_t thread;
			for (int j = 0; j < THREADS; j++)
				EQ(pthread_create(&thread, NULL, flip, (void *)&beats[j]), 0);
			CHECK(all_beat());
			for (;;) {
				execve((char *)flipped, arguments, no_environment);
				EQ(errno, ENOENT);
				CHECK(all_beat());
			}
		}
		exits_with(pid, 0);
	}
}

int main(int argc, char **argv)
{
	own_name = argv[0];
	if (argc == 2 && !strcmp(argv[1], "--sleep"))
		return 0;
	if (argc == 3 && !strcmp(argv[1], "--again"))
		victim(strtoull(argv[2], NULL, 0));
	long kills = argc > 3 ? atol(argv[3]) : sized(argc, argv, 2000);
	uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 0) : 1, state = seed;
	/* The children of a killed process become ours: by this, or because we are the first. */
	if (getpid() != 1)
		OK(prctl(PR_SET_CHILD_SUBREAPER, 1));
	long_calls();
	execs(argv[0], 10);
	for (long i = 0; i < kills; i++) {
		/* Mostly soon, while it starts or forks. */
		uint64_t least = 1UL << (next_random(&state) % 12);
		struct timespec time = {0, (least + next_random(&state) % least) * 1000};
		uint64_t name = seed + i;
		pid_t group = OK(fork());
		if (group == 0) {
			setpgid(0, 0);
			victim(name);
		}
		setpgid(group, group);
		nanosleep(&time, NULL);
		/* The process alone, or all that it has started. */
		int all = next_random(&state) % 2;
		OK(kill(all ? -group : group, SIGKILL));
		int status;
		EQ(waitpid(group, &status, 0), group);
		if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL)
			differs(__FILE__, __LINE__, "seed %lu: the status is 0x%x", name, status);
		if (!all)
			kill(-group, SIGKILL);
		pid_t pid;
		while ((pid = waitpid(-1, &status, 0)) > 0)
			if (!(WIFSIGNALED(status) &&
			      (WTERMSIG(status) == SIGKILL || WTERMSIG(status) == SIGTERM)) &&
			    !(WIFEXITED(status) &&
			      (WEXITSTATUS(status) == 3 || WEXITSTATUS(status) == 0)))
				differs(__FILE__, __LINE__, "seed %lu: a child's status is 0x%x",
					name, status);
		EQ(errno, ECHILD);
		ERR(kill(-group, 0), ESRCH);
	}
	printf("kills: %ld, seed %lu\n", kills, seed);
	return 0;
}
