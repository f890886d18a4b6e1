/* Checks processes: fork, vfork, execve of itself with arguments and environment, wait4, waitid,
 * exit codes, signals between processes, an orphan, posix_spawn, a pipeline, a thousand forks. */
#include "test.h"
#include <spawn.h>
#include <sys/resource.h>

static char *itself = "/proc/self/exe";
static volatile sig_atomic_t arrived, child_pid, child_status, child_code;

/* The role of the program when it was started by itself: `process : ROLE ...`. */
static int role(int argc, char **argv, char **environment)
{
	if (strcmp(argv[2], "exit") == 0)
		return atoi(argv[3]);
	if (strcmp(argv[2], "arguments") == 0) {
		EQ(argc, 6);
		EQ(strlen(argv[3]), 0);
		EQ(strlen(argv[4]), 30000);
		for (int i = 0; i < 30000; i++)
			EQ(argv[4][i], 'a' + i % 26);
		CHECK(strcmp(argv[5], "two words") == 0);
		CHECK(strcmp(environment[0], "FIRST=1") == 0);
		CHECK(strcmp(environment[1], "SECOND=") == 0);
		CHECK(environment[2] == NULL);
		return 21;
	}
	if (strcmp(argv[2], "descriptors") == 0) {
		/* One descriptor stays open, one closes; handlers are gone, ignored stays so. */
		CHECK(fcntl(atoi(argv[3]), F_GETFD) == 0);
		ERR(fcntl(atoi(argv[4]), F_GETFD), EBADF);
		struct sigaction action;
		OK(sigaction(SIGUSR1, NULL, &action));
		CHECK(action.sa_handler == SIG_DFL);
		OK(sigaction(SIGUSR2, NULL, &action));
		CHECK(action.sa_handler == SIG_IGN);
		sigset_t mask;
		OK(sigprocmask(SIG_SETMASK, NULL, &mask));
		EQ(sigismember(&mask, SIGHUP), 1);
		EQ(sigismember(&mask, SIGUSR1), 0);
		return 22;
	}
	if (strcmp(argv[2], "echo") == 0) {
		OK(write(1, argv[3], strlen(argv[3])));
		return 23;
	}
	return 99;
}

static void codes(void)
{
	for (int code = 0; code < 256; code += 51) {
		pid_t pid = OK(fork());
		if (pid == 0)
			_exit(code);
		exits_with(pid, code);
	}
	pid_t pid = OK(fork());
	if (pid == 0)
		_exit(0x1234);
	exits_with(pid, 0x34);

	int signals[] = {SIGKILL, SIGTERM, SIGABRT, SIGUSR1, SIGHUP};
	for (unsigned i = 0; i < sizeof signals / sizeof *signals; i++) {
		pid = OK(fork());
		if (pid == 0)
			for (;;)
				pause();
		OK(kill(pid, 0));
		OK(kill(pid, signals[i]));
		killed_by(pid, signals[i]);
		ERR(kill(pid, 0), ESRCH);
	}
	pid = OK(fork());
	if (pid == 0)
		__asm__ volatile("movl $1, 8");
	killed_by(pid, SIGSEGV);
	pid = OK(fork());
	if (pid == 0)
		__asm__ volatile("ud2");
	killed_by(pid, SIGILL);
}

static void waiting(void)
{
	int status;
	ERR(waitpid(-1, &status, 0), ECHILD);
	ERR(waitpid(getpid(), &status, 0), ECHILD);
	int hold[2];
	char byte;
	OK(pipe(hold));
	pid_t pid = OK(fork());
	if (pid == 0) {
		EQ(read(hold[0], &byte, 1), 1);
		_exit(5);
	}
	EQ(waitpid(pid, &status, WNOHANG), 0);
	siginfo_t info = {0};
	OK(waitid(P_PID, pid, &info, WEXITED | WNOHANG));
	EQ(info.si_pid, 0);
	EQ(write(hold[1], "", 1), 1);
	OK(waitid(P_PID, pid, &info, WEXITED | WNOWAIT));
	EQ(info.si_pid, pid);
	EQ(info.si_code, CLD_EXITED);
	EQ(info.si_status, 5);
	EQ(info.si_signo, SIGCHLD);
	struct rusage usage;
	memset(&usage, 0xff, sizeof usage);
	EQ(wait4(pid, &status, 0, &usage), pid);
	EQ(WEXITSTATUS(status), 5);
	CHECK(usage.ru_utime.tv_sec >= 0 && usage.ru_utime.tv_sec < 1000);
	OK(close(hold[0]));
	OK(close(hold[1]));
	/* Several children: waitpid(-1) finds each once. */
	pid_t pids[8];
	for (int i = 0; i < 8; i++) {
		pids[i] = OK(fork());
		if (pids[i] == 0)
			_exit(i);
	}
	int seen = 0;
	for (int i = 0; i < 8; i++) {
		pid = OK(waitpid(-1, &status, 0));
		int code = WEXITSTATUS(status);
		CHECK(code < 8);
		EQ(pids[code], pid);
		EQ(seen & 1 << code, 0);
		seen |= 1 << code;
	}
	ERR(waitpid(-1, &status, WNOHANG), ECHILD);
}

static void executing(void)
{
	char text[30001];
	for (int i = 0; i < 30000; i++)
		text[i] = 'a' + i % 26;
	text[30000] = 0;
	char *arguments[] = {"process", ":", "arguments", "", text, "two words", NULL};
	char *environment[] = {"FIRST=1", "SECOND=", NULL}, *none[] = {NULL};
	pid_t pid = OK(fork());
	if (pid == 0) {
		execve(itself, arguments, environment);
		_exit(98);
	}
	exits_with(pid, 21);

	char open_name[12], closed_name[12];
	int open_fd = OK(dup(1)), closed = OK(fcntl(1, F_DUPFD_CLOEXEC, 0));
	sprintf(open_name, "%d", open_fd);
	sprintf(closed_name, "%d", closed);
	pid = OK(fork());
	if (pid == 0) {
		sigset_t mask;
		sigemptyset(&mask);
		sigaddset(&mask, SIGHUP);
		OK(sigprocmask(SIG_BLOCK, &mask, NULL));
		signal(SIGUSR1, (void (*)(int))_exit);
		signal(SIGUSR2, SIG_IGN);
		execve(itself,
		       (char *[]){"process", ":", "descriptors", open_name, closed_name, NULL},
		       none);
		_exit(98);
	}
	exits_with(pid, 22);
	OK(close(open_fd));
	OK(close(closed));

	/* The parent waits until the child of vfork executes or exits; they share memory. */
	volatile int shared = 0;
	pid = OK(vfork());
	if (pid == 0) {
		shared = 1;
		execve(itself, (char *[]){"process", ":", "exit", "31", NULL}, none);
		_exit(98);
	}
	EQ(shared, 1);
	exits_with(pid, 31);
	pid = OK(vfork());
	if (pid == 0) {
		shared = 2;
		_exit(32);
	}
	EQ(shared, 2);
	exits_with(pid, 32);

	ERR(execve("/nowhere/at/all", (char *[]){"x", NULL}, none), ENOENT);
	ERR(execve("", (char *[]){"x", NULL}, none), ENOENT);
	ERR(execve("/proc/self/exe/x", (char *[]){"x", NULL}, none), ENOTDIR);
}

static void spawning(void)
{
	pid_t pid;
	char *none[] = {NULL};
	EQ(posix_spawn(&pid, itself, NULL, NULL, (char *[]){"process", ":", "exit", "41", NULL},
		       none),
	   0);
	exits_with(pid, 41);
	int ends[2];
	char text[32];
	OK(pipe(ends));
	posix_spawn_file_actions_t actions;
	EQ(posix_spawn_file_actions_init(&actions), 0);
	EQ(posix_spawn_file_actions_adddup2(&actions, ends[1], 1), 0);
	EQ(posix_spawn_file_actions_addclose(&actions, ends[0]), 0);
	EQ(posix_spawn(&pid, itself, &actions, NULL,
		       (char *[]){"process", ":", "echo", "through a pipe", NULL}, none),
	   0);
	OK(close(ends[1]));
	EQ(read(ends[0], text, sizeof text), 14);
	CHECK(memcmp(text, "through a pipe", 14) == 0);
	EQ(read(ends[0], text, sizeof text), 0);
	exits_with(pid, 23);
	OK(close(ends[0]));
	posix_spawn_file_actions_destroy(&actions);
	EQ(posix_spawn(&pid, "/nowhere", NULL, NULL, (char *[]){"x", NULL}, none), ENOENT);
}

static void count_signal(int signal)
{
	(void)signal;
	arrived++;
}

static void on_child(int signal, siginfo_t *info, void *context)
{
	(void)context;
	EQ(signal, SIGCHLD);
	child_pid = info->si_pid;
	child_status = info->si_status;
	child_code = info->si_code;
}

static void signalling(long rounds)
{
	/* Two processes send each other a signal in turns. */
	sigset_t block, old, turn;
	sigemptyset(&block);
	sigaddset(&block, SIGUSR1);
	sigaddset(&block, SIGCHLD);
	OK(sigprocmask(SIG_BLOCK, &block, &old));
	turn = old;
	sigaddset(&turn, SIGCHLD);
	signal(SIGUSR1, count_signal);
	arrived = 0;
	pid_t parent = getpid(), pid = OK(fork());
	for (int i = 0; i < rounds; i++) {
		if (pid)
			OK(kill(pid, SIGUSR1));
		while (arrived == i)
			ERR(sigsuspend(&turn), EINTR);
		EQ(arrived, i + 1);
		if (pid == 0)
			OK(kill(parent, SIGUSR1));
	}
	if (pid == 0)
		_exit(0);
	exits_with(pid, 0);
	struct timespec none = {0};
	siginfo_t info;
	EQ(sigtimedwait(&block, &info, &none), SIGCHLD);
	EQ(info.si_pid, pid);

	struct sigaction action = {.sa_sigaction = on_child, .sa_flags = SA_SIGINFO};
	OK(sigaction(SIGCHLD, &action, NULL));
	child_pid = 0;
	pid = OK(fork());
	if (pid == 0)
		_exit(17);
	while (child_pid == 0)
		sigsuspend(&old);
	EQ(child_pid, pid);
	EQ(child_code, CLD_EXITED);
	EQ(child_status, 17);
	exits_with(pid, 17);
	child_pid = 0;
	pid = OK(fork());
	if (pid == 0)
		for (;;)
			pause();
	OK(kill(pid, SIGKILL));
	while (child_pid == 0)
		sigsuspend(&old);
	EQ(child_code, CLD_KILLED);
	EQ(child_status, SIGKILL);
	killed_by(pid, SIGKILL);
	/* Children of a parent that ignores SIGCHLD leave nothing to wait for. */
	signal(SIGCHLD, SIG_IGN);
	pid = OK(fork());
	if (pid == 0)
		_exit(0);
	ERR(waitpid(pid, NULL, 0), ECHILD);
	signal(SIGCHLD, SIG_DFL);
	signal(SIGUSR1, SIG_DFL);
	OK(sigprocmask(SIG_SETMASK, &old, NULL));
}

/* A process whose parent has ended goes on, with another parent. */
static void orphan(void)
{
	int ends[2];
	pid_t found[2];
	OK(pipe(ends));
	pid_t pid = OK(fork());
	if (pid == 0) {
		pid_t middle = getpid();
		if (OK(fork()) == 0) {
			while (getppid() == middle)
				sched_yield();
			found[0] = middle;
			found[1] = getppid();
			EQ(write(ends[1], found, sizeof found), sizeof found);
			_exit(0);
		}
		_exit(1);
	}
	OK(close(ends[1]));
	exits_with(pid, 1);
	EQ(read(ends[0], found, sizeof found), sizeof found);
	EQ(found[0], pid);
	CHECK(found[1] != pid);
	/* Its end closes the last writer. */
	EQ(read(ends[0], found, sizeof found), 0);
	OK(close(ends[0]));
	/* If this is the first process, the orphan is a child of it now. */
	if (found[1] == getpid())
		OK(waitpid(-1, NULL, 0));
}

/* A writer, four that add one to each byte, and a reader: each a process. */
static void pipeline(long length)
{
	enum { STAGES = 4 };
	pid_t pids[STAGES + 1];
	int input, ends[2];
	unsigned char buffer[5000];
	OK(pipe(ends));
	pids[0] = OK(fork());
	if (pids[0] == 0) {
		OK(close(ends[0]));
		for (long at = 0; at < length;) {
			long part = at % 4999 + 1;
			if (part > length - at)
				part = length - at;
			for (long i = 0; i < part; i++)
				buffer[i] = (at + i) * 13;
			for (long done = 0; done < part;)
				done += OK(write(ends[1], buffer + done, part - done));
			at += part;
		}
		_exit(0);
	}
	OK(close(ends[1]));
	input = ends[0];
	for (int stage = 1; stage <= STAGES; stage++) {
		OK(pipe(ends));
		pids[stage] = OK(fork());
		if (pids[stage] == 0) {
			OK(close(ends[0]));
			long got;
			while ((got = OK(read(input, buffer, sizeof buffer))) > 0) {
				for (long i = 0; i < got; i++)
					buffer[i]++;
				for (long done = 0; done < got;)
					done += OK(write(ends[1], buffer + done, got - done));
			}
			_exit(stage);
		}
		OK(close(ends[1]));
		OK(close(input));
		input = ends[0];
	}
	long at = 0, got;
	while ((got = OK(read(input, buffer, sizeof buffer))) > 0) {
		for (long i = 0; i < got; i++)
			EQ(buffer[i], (unsigned char)((at + i) * 13 + STAGES));
		at += got;
	}
	EQ(at, length);
	OK(close(input));
	for (int stage = 0; stage <= STAGES; stage++)
		exits_with(pids[stage], stage);
	/* A pipe without readers. */
	OK(pipe(ends));
	OK(close(ends[0]));
	pid_t pid = OK(fork());
	if (pid == 0) {
		OK(write(ends[1], "", 1));
		_exit(0);
	}
	killed_by(pid, SIGPIPE);
	signal(SIGPIPE, SIG_IGN);
	ERR(write(ends[1], "", 1), EPIPE);
	signal(SIGPIPE, SIG_DFL);
	OK(close(ends[1]));
}

int main(int argc, char **argv, char **environment)
{
	if (argc > 2 && strcmp(argv[1], ":") == 0)
		return role(argc, argv, environment);
	long forks = sized(argc, argv, 1000);
	codes();
	waiting();
	executing();
	spawning();
	signalling(sized(argc, argv, 500));
	orphan();
	pipeline(sized(argc, argv, 1000000));
	char *memory = map(16 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE);
	for (long i = 0; i < forks; i++) {
		memory[i % 16 * PAGE] = i;
		pid_t pid = OK(fork());
		if (pid == 0) {
			EQ(memory[i % 16 * PAGE], (char)i);
			memory[i % 16 * PAGE]++;
			_exit(i & 0xff);
		}
		exits_with(pid, i & 0xff);
		EQ(memory[i % 16 * PAGE], (char)i);
	}
	printf("process: %ld forks\n", forks);
	return 0;
}
