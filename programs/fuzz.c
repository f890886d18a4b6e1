/* Random system calls with bad arguments: `fuzz PERCENT SEED [ROUNDS]`. In each round several
 * processes with threads make calls for some milliseconds, while others send them signals. Then all
 * of them are killed. No call may stop the machine, every process must end, and the frames must
 * come back, which programs/check looks at. Before that, calls that write memory of a known size
 * write no more than that, and no address of the kernel.
 *
 * The calls could harm another system, so elsewhere than on Samara there are only the latter ones.
 * A round prints its seed first if ROUNDS is given. A process that does not end prints the seed and
 * the last calls of all threads. */
#include "test.h"
#include <dirent.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/utsname.h>

enum { AREA = 24, VICTIMS = 3, THREADS = 3, SLOTS = 64, KEPT = 4, MOST_FORKS = 10 };

/* What an argument is: pointer, length, number, bits, path, address of a page, timeout, process or
 * thread, signal, offset. */
enum { END, P, L, FD, N, B, S, A, T, I, G, O, CLONE, SET };
struct call {
	short number;
	unsigned char kinds[6];
};
#define C(name, ...) {SYS_##name, {__VA_ARGS__}}
static const struct call calls[] = {
	C(mmap, A, L, B, B, FD, O), C(mmap, A, L, B, B, FD, O), C(mmap, A, L, B, B, FD, O),
	C(munmap, A, L), C(mprotect, A, L, B), C(mprotect, A, L, B), C(mremap, A, L, L, B, A),
	C(mremap, A, L, L, B, A), C(brk, A), C(madvise, A, L, N), C(madvise, A, L, N),
	C(mincore, A, L, P), C(mlock, A, L), C(mlock2, A, L, B), C(munlock, A, L), C(mlockall, B),
	C(munlockall), C(msync, A, L, B), C(process_vm_readv, I, P, N, P, N, B),
	C(process_vm_writev, I, P, N, P, N, B), C(open, S, B, B), C(openat, FD, S, B, B),
	C(open, S, B, B), C(creat, S, B), C(close, FD), C(close_range, N, N, B), C(dup, FD),
	C(dup2, FD, FD), C(dup3, FD, FD, B), C(pipe, P), C(pipe2, P, B), C(pipe, P),
	C(memfd_create, S, B), C(memfd_create, S, B), C(umask, N), C(fcntl, FD, N, N),
	C(fcntl, FD, N, P), C(flock, FD, N), C(ioctl, FD, N, P), C(read, FD, P, L),
	C(write, FD, P, L), C(read, FD, P, L), C(write, FD, P, L), C(pread64, FD, P, L, O),
	C(pwrite64, FD, P, L, O), C(readv, FD, P, N), C(writev, FD, P, N), C(preadv, FD, P, N, O),
	C(pwritev, FD, P, N, O), C(sendfile, FD, FD, P, L), C(copy_file_range, FD, P, FD, P, L, B),
	C(lseek, FD, O, N), C(truncate, S, O), C(ftruncate, FD, O), C(fallocate, FD, B, O, O),
	C(fsync, FD), C(fdatasync, FD), C(sync), C(syncfs, FD), C(fadvise64, FD, O, O, N),
	C(mkdir, S, B), C(mkdirat, FD, S, B), C(mknod, S, B, N), C(unlink, S),
	C(unlinkat, FD, S, B), C(rmdir, S), C(rename, S, S), C(renameat2, FD, S, FD, S, B),
	C(link, S, S), C(linkat, FD, S, FD, S, B), C(symlink, S, S), C(symlinkat, S, FD, S),
	C(readlink, S, P, L), C(readlinkat, FD, S, P, L), C(chdir, S), C(fchdir, FD),
	C(getcwd, P, L), C(getdents64, FD, P, L), C(stat, S, P), C(lstat, S, P), C(fstat, FD, P),
	C(newfstatat, FD, S, P, B), C(statx, FD, S, B, B, P), C(statfs, S, P), C(fstatfs, FD, P),
	C(access, S, N), C(faccessat2, FD, S, N, B), C(chmod, S, B), C(fchmod, FD, B),
	C(utimensat, FD, S, P, B), C(poll, P, N, N), C(ppoll, P, N, T, P, N),
	C(select, N, P, P, P, T), C(pselect6, N, P, P, P, T, P), C(clone, CLONE, P, P, P, P),
	C(clone, CLONE, P, P, P, P), C(clone3, P, L), C(fork), C(fork), C(vfork), C(execve, S, P, P),
	C(execve, S, N, N), C(wait4, I, P, B, P), C(waitid, N, I, P, B, P), C(getpgid, I),
	C(setpgid, I, I), C(getsid, I), C(setsid), C(set_tid_address, P), C(arch_prctl, N, P),
	C(uname, P), C(getrandom, P, L, B), C(getcpu, P, P), C(sched_yield),
	C(sched_getaffinity, I, L, P), C(sched_setaffinity, I, L, P), C(prlimit64, I, N, P, P),
	C(getrlimit, N, P), C(setrlimit, N, P), C(prctl, N, P), C(futex, P, B, N, T, P, N),
	C(futex, P, B, N, T, P, N), C(futex, P, B, N, N, P, N), C(membarrier, B, N),
	C(set_robust_list, P, N), C(set_robust_list, P, 0), C(get_robust_list, I, P, P),
	C(rt_sigaction, G, P, P, SET), C(rt_sigaction, G, P, P, SET), C(rt_sigprocmask, N, P, P, SET),
	C(rt_sigprocmask, N, P, P, SET), C(rt_sigpending, P, L), C(rt_sigtimedwait, P, P, T, SET),
	C(rt_sigqueueinfo, I, G, P), C(rt_tgsigqueueinfo, I, I, G, P), C(rt_sigsuspend, P, SET),
	C(rt_sigreturn), C(sigaltstack, P, P), C(kill, I, G), C(tkill, I, G), C(tgkill, I, I, G),
	C(pause), C(alarm, N), C(setitimer, N, P, P), C(getitimer, N, P), C(clock_gettime, N, P),
	C(clock_getres, N, P), C(clock_nanosleep, N, B, T, P), C(nanosleep, T, P),
	C(gettimeofday, P, P), C(time, P), C(times, P), C(getrusage, N, P), C(sysinfo, P),
	C(exit, N), C(exit_group, N),
};
enum { CALLS = sizeof calls / sizeof *calls };

static const unsigned long edges[] = {
	0, 1, 2, 3, 4, 7, 8, 9, 16, 24, 63, 64, 65, 88, 100, 255, 256, 1023, 1024, 2048, 4095, 4096,
	4097, 8192, 0x10000, 0x1fffff, 0x200000, 0x200001, 0x7ffff000, 0x7fffffff, 0x80000000,
	0xffffffff, 0x100000000, 0x100000001, 1UL << 40, 1UL << 46, 1UL << 47, 1UL << 52, 1UL << 62,
	0x7ffffffffffff000, 0x7fffffffffffffff, 0x8000000000000000, -4096, -4095, -100, -9, -8, -2,
	-1,
};
static const unsigned long bad[] = {
	0, 1, 0xfff, 0x1000, 0x7ffffffeffff, 0x7fffffffe000, 0x7fffffffefff, 0x7ffffffff000,
	0x7fffffffffff, 0x800000000000, 0x8000000000000000, 0xffff7fffffffffff, 0xffff800000000000,
	0xffff888001000000, 0xffffc90000000000, 0xffffffff80000000, 0xffffffff80200000,
	0xfffffffffffff000, -8, -1,
};
#define OF(table) table[pick(state, sizeof table / sizeof *table)]
static char long_name[5000];
static const char *paths[] = {
	"f0", "f1", "f2", "d0", "d0/f0", "d0/d1", "d0/d1/f1", "d1", "l0", "", "f0/f1", ".", long_name,
	"none/f0", "/dev/null", "/dev/zero", "/proc/self/maps", "/proc/self/smaps",
	"/proc/self/status", "/proc/self/stat", "/proc/self/pagemap", "/proc/self/fd/0",
	"/proc/self/fd", "/proc/self/task", "/proc/meminfo", "/proc/stat", "/proc",
	"e0", "e0", "/proc/self/cmdline", "/proc/self/mem",
	"/proc/sys/vm/overcommit_memory", "/sys/kernel/mm/transparent_hugepage/enabled",
};
/* Shared by all: what each thread has called last, and how many processes were forked. */
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
static char *area;
static __thread sigjmp_buf again;
static __thread int can_jump;
static int others[4], null;

static unsigned long pick(uint64_t *state, unsigned long below)
{
	return (next_random(state) >> 7) % below;
}

static unsigned long number(uint64_t *state)
{
	switch (pick(state, 4)) {
	case 0: return pick(state, 16);
	case 1: return 1UL << pick(state, 64);
	case 2: return OF(edges);
	default: return pick(state, 70);
	}
}

/* Most numbers between a MiB and a TiB become smaller: calls that use up all memory take long. */
static unsigned long bounded(uint64_t *state, unsigned long number)
{
	return number >> 20 && !(number >> 40) && pick(state, 50) ? number & 0xfffff : number;
}

/* Pages of the area: most can be written, 20 only read, 21 not at all, and 22 ends at a hole. */
static unsigned long pointer(uint64_t *state)
{
	unsigned long at = (unsigned long)area;
	switch (pick(state, 12)) {
	case 0: return OF(bad);
	case 1: return at + 23 * PAGE - pick(state, 200);
	case 2: return at + 20 * PAGE - pick(state, 200);
	case 3: return at + 20 * PAGE + pick(state, 2 * PAGE);
	case 4: return (unsigned long)pointer + pick(state, 4096);
	case 5: return 0;
	default: return at + pick(state, 20 * PAGE) / 8 * 8;
	}
}

static void on_signal(int number)
{
	if ((number == SIGSEGV || number == SIGBUS || number == SIGILL || number == SIGFPE) &&
	    can_jump)
		siglongjmp(again, 1);
}

/* Something for a call to find at its pointers. */
static void fill(uint64_t *state, unsigned long at)
{
	unsigned long words[8];
	if (at < (unsigned long)area || at > (unsigned long)area + 19 * PAGE)
		return;
	unsigned kind = pick(state, 6);
	for (int i = 0; i < 8; i++)
		words[i] = kind == 0 ? next_random(state) : pick(state, 2) ? number(state)
								       : pointer(state);
	if (kind == 1) { /* a short time */
		words[0] = 0;
		words[1] = pick(state, 2000000);
		words[2] = 0;
		words[3] = pick(state, 2000);
	} else if (kind == 2) { /* an action */
		static const unsigned long flags[] = {0, 4, 0x8000000, 0x10000000, 0x40000000,
						      0x80000000, 0x18000004};
		words[0] = pick(state, 3) ? (unsigned long)on_signal : pick(state, 3);
		words[1] = OF(flags) | (pick(state, 8) ? 0x4000000 : 0);
		words[2] = pick(state, 8) ? others[0] ? pointer(state) : 0 : number(state);
		words[3] = number(state);
	} else if (kind == 3) { /* vectors */
		for (int i = 0; i < 8; i += 2) {
			words[i] = pointer(state);
			words[i + 1] = pick(state, 3) ? pick(state, 9000) : number(state);
		}
	} else if (kind == 4) { /* clone3, or a stack */
		words[0] = pick(state, 2) ? (unsigned long)area : 1UL << pick(state, 34);
		words[1] = words[2] = words[3] = 0;
		words[4] = pick(state, 65);
	}
	memcpy((void *)at, words, sizeof words);
}

static unsigned long argument(uint64_t *state, int kind)
{
	unsigned long at;
	switch (kind) {
	case P:
		at = pointer(state);
		fill(state, at);
		return at;
	case L:
		if (pick(state, 3))
			return pick(state, 3 * PAGE);
		return bounded(state, number(state) * (pick(state, 2) ? PAGE : 1));
	case FD:
		return pick(state, 10) ? pick(state, 14) : pick(state, 2) ? -100UL : number(state);
	case B:
		at = number(state);
		for (int i = pick(state, 4); i > 0; i--)
			at |= 1UL << pick(state, pick(state, 4) ? 8 : 32);
		return at;
	case S:
		if (!pick(state, 12))
			return pointer(state);
		return (unsigned long)paths[pick(state, 3) ? pick(state, 9)
							   : pick(state, sizeof paths / sizeof *paths)];
	case A:
		if (pick(state, 8))
			return (unsigned long)area + pick(state, 40) * PAGE;
		return pointer(state) & (pick(state, 2) ? -PAGE : -1UL);
	case T:
		at = (unsigned long)area + pick(state, 16) * PAGE;
		((long *)at)[0] = 0;
		((long *)at)[1] = pick(state, 3000000);
		return pick(state, 20) ? at : pointer(state);
	case I:
		switch (pick(state, 8)) {
		case 0: return pick(state, 2) - 1;
		case 1: return number(state) | 2;
		case 3: return 2 + pick(state, 30);
		default: return syscall(pick(state, 2) ? SYS_getpid : SYS_gettid);
		}
	case G:
		/* The signals that kill at once are the parent's. */
		at = pick(state, 12) ? pick(state, 66) : number(state);
		return (unsigned)at == SIGKILL ? SIGUSR1 : at;
	case O:
		return pick(state, 3) ? pick(state, 20 * PAGE) : bounded(state, number(state));
	case CLONE:
		at = SIGCHLD;
		if (pick(state, 2))
			at = 0x10f00 | (pick(state, 2) ? 0 : pick(state, 1 << 26) & 0x1f90000);
		for (int i = pick(state, 4); i > 0; i--)
			at ^= 1UL << (8 + pick(state, 25));
		return at;
	case SET:
		return pick(state, 30) ? 8 : number(state);
	default:
		return number(state);
	}
}

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
		/* Touches, also of what is not there. */
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
	sigaltstack(&stack, NULL);
	for (int number = 1; number < 65; number++)
		sigaction(number, &action, NULL);
	for (int i = 1; i < THREADS; i++)
		pthread_create(&threads[i], NULL, thread, (void *)(seed * 31 + i));
	run(seed);
}

/* Removes what the processes have left in a folder. */
static void empty(const char *name)
{
	struct dirent *entry;
	DIR *folder = opendir(name);
	if (!folder)
		return;
	while ((entry = readdir(folder))) {
		char path[9000];
		if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, ".."))
			continue;
		snprintf(path, sizeof path, "%s/%s", name, entry->d_name);
		if (entry->d_type == DT_DIR) {
			empty(path);
			rmdir(path);
		} else {
			unlink(path);
		}
	}
	closedir(folder);
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
	{C(times, P), 0, 32}, {C(getrusage, N, P), 1, 144}, {C(sysinfo, P), 0, 112},
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
	struct utsname names;
	all = mmap(NULL, sizeof *all, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	area = map(40 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE);
	OK(munmap(area + 23 * PAGE, 17 * PAGE));
	OK(mprotect(area + 20 * PAGE, PAGE, PROT_READ));
	OK(mprotect(area + 21 * PAGE, PAGE, PROT_NONE));
	memset(long_name, 'a', sizeof long_name - 1);
	canaries(seed, steps);
	OK(uname(&names));
	if (strcmp(names.nodename, "samara") || getpid() != 1) {
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
	for (long i = 0; i < rounds; i++) {
		if (argc > 3) {
			printf("fuzz: round %ld, seed %lu\n", i, seed + i);
			fflush(stdout);
		}
		copy_program();
		one_round(seed + i);
		empty(".");
	}
	OK(chdir("/"));
	OK(rmdir("fuzz.d"));
	printf("fuzz: %ld rounds, seed %lu\n", rounds, seed);
	return 0;
}
