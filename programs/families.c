/* Checks events at the same moment in a family of processes: a group is killed while its
 * members fork, a parent ends while its children make siblings, and signals that tell of an end
 * reach a parent that did not ask for them. `families PERCENT`. */
#include "test.h"
#include <sys/prctl.h>

enum { MEMBERS = 3, MOST_CHILDREN = 200, CLONE_PARENT_ = 0x8000 };

static uint64_t state = 1;
static volatile sig_atomic_t told;

static void on_signal(int number)
{
	(void)number;
	told++;
}

/* fork with these flags and this exit signal. */
static pid_t clone_with(long flags) { return syscall(SYS_clone, flags, 0, 0, 0, 0); }

static void sleep_for(long micros)
{
	struct timespec time = {0, micros * 1000};
	nanosleep(&time, NULL);
}

/* Waits for all children, whatever their signal. None may be left in the group. */
static void all_end(pid_t group)
{
	alarm(60);
	while (waitpid(-1, NULL, __WALL) > 0 || errno == EINTR)
		;
	EQ(errno, ECHILD);
	ERR(kill(-group, 0), ESRCH);
	alarm(0);
}

/* Each member forks children that do not end. The kill ends all of them. */
static void killed_groups(long rounds)
{
	for (long i = 0; i < rounds; i++) {
		pid_t group = OK(fork());
		if (group == 0) {
			setpgid(0, 0);
			for (int member = 1; member < MEMBERS; member++)
				if (fork() == 0)
					break;
			for (int child = 0; child < MOST_CHILDREN; child++)
				if (fork() == 0)
					for (;;)
						pause();
			for (;;)
				pause();
		}
		setpgid(group, group);
		sleep_for(1 + next_random(&state) % 4000);
		OK(kill(-group, SIGKILL));
		all_end(group);
	}
}

/* A child makes siblings while its parent ends. They come to this process, as it does. */
static void siblings_of_orphans(long rounds)
{
	for (long i = 0; i < rounds; i++) {
		pid_t group = OK(fork());
		if (group == 0) {
			setpgid(0, 0);
			for (int member = 0; member < MEMBERS; member++)
				if (fork() == 0) {
					for (int child = 0; child < 10; child++)
						if (clone_with(CLONE_PARENT_ | SIGCHLD) == 0)
							_exit(0);
					_exit(0);
				}
			sleep_for(next_random(&state) % 2000);
			_exit(0);
		}
		setpgid(group, group);
		all_end(group);
	}
}

/* The signal of a child's end goes only to the program that asked for it. */
static void exit_signals(void)
{
	signal(SIGUSR1, on_signal);
	pid_t pid = OK(clone_with(SIGUSR1));
	if (pid == 0)
		_exit(0);
	alarm(60);
	while (!told)
		sleep_for(1000);
	/* Without a flag, waits pass over such a child. */
	ERR(waitpid(pid, NULL, 0), ECHILD);
	EQ(waitpid(pid, NULL, __WCLONE), pid);
	told = 0;
	/* An orphan's new parent. */
	pid = OK(fork());
	if (pid == 0) {
		if (clone_with(SIGUSR1) == 0) {
			while (getppid() == pid)
				sleep_for(100);
			sleep_for(2000);
			_exit(0);
		}
		_exit(0);
	}
	all_end(pid);
	EQ(told, 0);
	/* A child that is a new program. */
	pid = OK(clone_with(SIGUSR1));
	if (pid == 0) {
		execl("/proc/self/exe", "families", ":", NULL);
		_exit(99);
	}
	int status;
	EQ(waitpid(pid, &status, __WALL), pid);
	EQ(status, 0);
	EQ(told, 0);
	/* A parent that is a new program, and would be ended. Its end of the pipe closes then. */
	int ends[2];
	char byte;
	pid = OK(fork());
	if (pid == 0) {
		OK(pipe2(ends, O_CLOEXEC));
		if (clone_with(SIGUSR1) == 0) {
			close(ends[1]);
			EQ(read(ends[0], &byte, 1), 0);
			sleep_for(5000);
			_exit(0);
		}
		execl("/proc/self/exe", "families", ":", NULL);
		_exit(99);
	}
	exits_with(pid, 0);
	all_end(pid);
}

int main(int argc, char **argv)
{
	if (argc == 2 && !strcmp(argv[1], ":")) {
		sleep_for(50000);
		return 0;
	}
	long rounds = sized(argc, argv, 400);
	/* Orphans become ours: by this, or because we are the first. */
	if (getpid() != 1)
		OK(prctl(PR_SET_CHILD_SUBREAPER, 1));
	exit_signals();
	killed_groups(rounds);
	siblings_of_orphans(rounds);
	printf("families: %ld rounds\n", rounds);
	return 0;
}
