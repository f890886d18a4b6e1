/* Random system calls with bad arguments: `fuzz PERCENT SEED [ROUNDS]`. In each round several
 * processes with threads make calls for some milliseconds, while others send them signals. Then all
 * of them are killed. No call may stop the machine, every process must end, and the frames must
 * come back, which programs/check looks at. Before that, calls that write memory of a known size
 * write no more than that, and no address of the kernel.
 *
 * The calls could harm another system, so elsewhere than on Samara there are only the latter ones.
 * A round prints its seed first if ROUNDS is given. A process that does not end prints the seed and
 * the last calls of all threads. */
#include "arguments.h"
#include <dirent.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/utsname.h>

enum { VICTIMS = 3, THREADS = 3, SLOTS = 64, KEPT = 4, MOST_FORKS = 10 };

/* Shared by all: the last calls of each thread, and the number of forked processes. */
struct made {
	long number;
	unsigned long arguments[6];
};
static struct log {
	volatile int forks, next; /* so far */
	struct {
		volatile unsigned at;
		struct made made[KEPT];
	} slots[SLOTS];
} *all;
static int null;

static void run(uint64_t seed)
{
	uint64_t state = seed;
	volatile int slot = __atomic_fetch_add(&all->next, 1, __ATOMIC_RELAXED) % SLOTS;
	for (;;) {
		sigsetjmp(again, 1);
		can_jump = 1;
		const struct call *call = &calls[pick(&state, CALLS)];
		struct made made = {call->number, {0}};
		for (int i = 0; i < 6; i++)
			made.arguments[i] = call->kinds[i] ? argument(&state, call->kinds[i]) : 0;
		int forks = made.number == SYS_fork || made.number == SYS_vfork ||
			    made.number == SYS_clone || made.number == SYS_clone3;
		if (forks && __atomic_add_fetch(&all->forks, 1, __ATOMIC_RELAXED) > MOST_FORKS)
			continue;
		/* The ends of threads and processes are rare, so that others come to act. */
		if ((made.number == SYS_exit || made.number == SYS_exit_group ||
		     made.number == SYS_close_range) && pick(&state, 20))
			continue;
		all->slots[slot].made[all->slots[slot].at++ % KEPT] = made;
		long result = syscall(made.number, made.arguments[0], made.arguments[1],
				      made.arguments[2], made.arguments[3], made.arguments[4],
				      made.arguments[5]);
		if (forks && result == 0) {
			state ^= 0x5deece66d * syscall(SYS_gettid);
			slot = __atomic_fetch_add(&all->next, 1, __ATOMIC_RELAXED) % SLOTS;
		}
		/* Touches, also of memory that is not there. */
		if (!pick(&state, 4)) {
			volatile char *at = area + pick(&state, 40 * PAGE);
			if (pick(&state, 2))
				*at = 1;
			else
				(void)*at;
		}
	}
}

static void *thread(void *seed) { return run((uint64_t)seed), NULL; }

static void victim(uint64_t seed)
{
	pthread_t threads[THREADS];
	stack_t stack = {.ss_sp = area + 17 * PAGE, .ss_size = 2 * PAGE};
	struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_NODEFER | SA_ONSTACK};
	for (int fd = 0; fd < 3; fd++)
		dup2(null, fd);
	setpgid(0, 0);
	(void)!mkdir("d0", 0700);
	for (int i = 0; i < 4; i++)
		open(paths[i], O_RDWR | O_CREAT, 0600);
	(void)!pipe(others);
	/* Low numbers, which the calls name often. */
	syscall(SYS_epoll_create1, 0), syscall(SYS_epoll_create1, 0);
	syscall(SYS_eventfd2, 1, 04000), syscall(SYS_timerfd_create, 1, 04000);
	int ends[2];
	for (int type = 1; type < 3; type++)
		(void)!socketpair(AF_UNIX, type | SOCK_NONBLOCK, 0, ends);
	sigaltstack(&stack, NULL);
	for (int number = 1; number < 65; number++)
		sigaction(number, &action, NULL);
	for (int i = 1; i < THREADS; i++)
		pthread_create(&threads[i], NULL, thread, (void *)(seed * 31 + i));
	run(seed);
}

/* The names in memory before the first round, each with its type. */
static struct name {
	unsigned char type;
	char path[120];
} names[1000];
static int named;

static int is_known(const char *path, unsigned char type)
{
	for (int i = 0; i < named; i++)
		if (names[i].type == type && !strcmp(names[i].path, path))
			return 1;
	return 0;
}

/* Visits the names in a folder, given with a slash at its end. With `learn` they become known. Else
 * those that are not known are removed: processes may have replaced /dev/null by a file, too. */
static void visit(const char *folder, int learn)
{
	struct dirent *entry;
	DIR *opened = opendir(folder);
	if (!opened)
		return;
	while ((entry = readdir(opened))) {
		char path[9000];
		if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, ".."))
			continue;
		snprintf(path, sizeof path, "%s%s", folder, entry->d_name);
		if (!strcmp(path, "/proc"))
			continue;
		if (learn) {
			CHECK(named < 1000 && strlen(path) < sizeof names->path);
			names[named].type = entry->d_type;
			strcpy(names[named++].path, path);
		}
		int known = is_known(path, entry->d_type);
		if (entry->d_type == DT_DIR) {
			strcat(path, "/");
			visit(path, learn);
			path[strlen(path) - 1] = 0;
		}
		if (!known && (entry->d_type == DT_DIR ? rmdir(path) : unlink(path)))
			differs(__FILE__, __LINE__, "%s cannot be removed", path);
	}
	closedir(opened);
}

/* A program for execve. */
static void copy_program(void)
{
	static char bytes[1 << 20];
	int from = OK(open("/hello", O_RDONLY)), to = OK(open("e0", O_WRONLY | O_CREAT, 0700));
	ssize_t length = OK(read(from, bytes, sizeof bytes));
	EQ(write(to, bytes, length), length);
	close(from), close(to);
}

static void say_calls(void)
{
	for (int slot = 0; slot < SLOTS; slot++)
		for (unsigned i = all->slots[slot].at < KEPT ? 0 : all->slots[slot].at - KEPT;
		     i < all->slots[slot].at; i++) {
			struct made *made = &all->slots[slot].made[i % KEPT];
			printf("%d: call %ld(0x%lx, 0x%lx, 0x%lx, 0x%lx, 0x%lx, 0x%lx)\n", slot,
			       made->number, made->arguments[0], made->arguments[1],
			       made->arguments[2], made->arguments[3], made->arguments[4],
			       made->arguments[5]);
		}
}

static void sleep_for(long micros)
{
	struct timespec time = {0, micros * 1000};
	nanosleep(&time, NULL);
}

/* System V segments outlive processes. A new one has the highest number. */
static void remove_segments(void)
{
	static int next;
	int last = OK(syscall(SYS_shmget, 0, 1, 0600));
	while (next <= last)
		syscall(SYS_shmctl, next++, 0, NULL);
}

static void one_round(uint64_t seed)
{
	uint64_t state = seed;
	memset(all, 0, sizeof *all);
	for (int i = 0; i < VICTIMS; i++) {
		pid_t pid = fork();
		if (pid == 0) {
			victim(seed * 1000 + i);
			_exit(0);
		}
		CHECK(pid > 0);
	}
	for (int i = 0; i < 4; i++) {
		static const int signals[] = {SIGUSR1, SIGCHLD, SIGCONT, 35, 0};
		sleep_for(1 + pick(&state, 8000));
		kill(-1, signals[pick(&state, 5)]);
	}
	/* One kill ends all, also those that are being forked. */
	kill(-1, SIGKILL);
	for (int waits = 0; ; ) {
		pid_t pid = waitpid(-1, NULL, WNOHANG | __WALL);
		if (pid < 0 && errno == ECHILD)
			break;
		if (pid == 0) {
			if (++waits == 5000) {
				say_calls();
				differs(__FILE__, __LINE__, "seed %lu: a process does not end", seed);
			}
			sleep_for(1000);
		}
	}
	remove_segments();
	int found = kill(-1, 0);
	if (found != -1 || errno != ESRCH)
		differs(__FILE__, __LINE__, "seed %lu: a process is left after the kill", seed);
}

/* Calls that write: the argument with the address, and the most bytes there; 0: as many as they
 * return. */
static const struct {
	struct call call;
	int argument, bytes;
} writers[] = {
	{C(read, FD, P, L), 1, 0}, {C(pread64, FD, P, L, O), 1, 0}, {C(getcwd, P, L), 0, 0},
	{C(getdents64, FD, P, L), 1, 0}, {C(readlink, S, P, L), 1, 0}, {C(fstat, FD, P), 1, 144},
	{C(stat, S, P), 1, 144}, {C(newfstatat, FD, S, P, B), 2, 144},
	{C(statx, FD, S, B, B, P), 4, 256}, {C(statfs, S, P), 1, 120}, {C(uname, P), 0, 390},
	{C(getcpu, P), 0, 4}, {C(sched_getaffinity, END, L, P), 2, 0}, {C(getrlimit, N, P), 1, 16},
	{C(rt_sigpending, P, L), 0, 8}, {C(getitimer, N, P), 1, 32}, {C(clock_gettime, N, P), 1, 16},
	{C(clock_getres, N, P), 1, 16}, {C(gettimeofday, P), 0, 16}, {C(time, P), 0, 8},
	{C(timerfd_gettime, FD, P), 1, 32}, {C(times, P), 0, 32}, {C(getrusage, N, P), 1, 144},
	{C(sysinfo, P), 0, 112},
};

static void canaries(uint64_t seed, long steps)
{
	uint64_t state = seed;
	char *buffer = area + 2 * PAGE;
	const size_t room = 8 * PAGE;
	int zero = OK(open("/dev/zero", O_RDWR)), self = OK(open("/proc/self", O_RDONLY));
	int maps = OK(open("/proc/self/maps", O_RDONLY)), memory = OK(syscall(SYS_memfd_create, "f", 0));
	int fds[] = {zero, self, maps, memory, -1, 99};
	OK(ftruncate(memory, 3 * PAGE));
	for (long i = 0; i < steps; i++) {
		unsigned which = pick(&state, sizeof writers / sizeof *writers);
		unsigned long arguments[6] = {0};
		const struct call *call = &writers[which].call;
		for (int a = 0; a < 6; a++) {
			int kind = call->kinds[a];
			arguments[a] = kind == FD     ? (unsigned long)fds[pick(&state, 6)]
				       : kind == S ? (unsigned long)paths[9 + pick(&state, 20)]
				       : kind == L ? pick(&state, 2 * PAGE)
				       : kind == P || kind == END ? 0
						: argument(&state, kind);
		}
		size_t offset = 2 * PAGE + pick(&state, PAGE);
		arguments[writers[which].argument] = (unsigned long)buffer + offset;
		memset(buffer, 0xa5, room);
		long result = syscall(call->number, arguments[0], arguments[1], arguments[2],
				      arguments[3], arguments[4], arguments[5]);
		size_t end = offset + writers[which].bytes;
		if (writers[which].bytes == 0)
			end += result > 0 ? result : 0;
		for (size_t at = 0; at < room; at++)
			if ((at < offset || at >= end) && buffer[at] != (char)0xa5)
				differs(__FILE__, __LINE__, "seed %lu: call %d is %ld and writes byte %ld",
					seed, call->number, result, (long)(at - offset));
		for (size_t at = offset; at + 8 <= end; at += 8) {
			unsigned long word;
			memcpy(&word, buffer + at, 8);
			if (word >> 47 == 0x1ffff && word < -(1UL << 20))
				differs(__FILE__, __LINE__, "seed %lu: call %d tells the address 0x%lx",
					seed, call->number, word);
		}
	}
	close(zero), close(self), close(maps), close(memory);
}

int main(int argc, char **argv)
{
	long rounds = sized(argc, argv, 400), steps = sized(argc, argv, 100000);
	uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 0) : 1;
	struct utsname system;
	all = mmap(NULL, sizeof *all, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	area = map(40 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE);
	OK(munmap(area + 23 * PAGE, 17 * PAGE));
	OK(mprotect(area + 20 * PAGE, PAGE, PROT_READ));
	OK(mprotect(area + 21 * PAGE, PAGE, PROT_NONE));
	memset(long_name, 'a', sizeof long_name - 1);
	canaries(seed, steps);
	OK(uname(&system));
	if (strcmp(system.nodename, "samara") || getpid() != 1) {
		printf("fuzz: %ld calls write what they should; no others outside of Samara\n", steps);
		return 0;
	}
	if (argc > 3)
		rounds = atol(argv[3]);
	/* Whatever group the processes join, their signals do nothing here. */
	for (int number = 1; number < 65; number++)
		if (number != SIGCHLD)
			signal(number, SIG_IGN);
	null = OK(open("/dev/null", O_RDWR));
	OK(mkdir("fuzz.d", 0700));
	OK(chdir("fuzz.d"));
	visit("/", 1);
	for (long i = 0; i < rounds; i++) {
		if (argc > 3) {
			printf("fuzz: round %ld, seed %lu\n", i, seed + i);
			fflush(stdout);
		}
		copy_program();
		one_round(seed + i);
		visit("/", 0);
	}
	OK(chdir("/"));
	OK(rmdir("fuzz.d"));
	/* The only files from before that the calls can name: the same frames as at the start. A file
	 * may have replaced the setting. */
	unlink(SETTING);
	unlink(SYSTEM_FILE);
	int file = OK(open(SYSTEM_FILE, O_WRONLY | O_CREAT, 0444));
	EQ(write(file, "\n", 1), 1);
	close(file);
	printf("fuzz: %ld rounds, seed %lu\n", rounds, seed);
	return 0;
}
