/* Checks calls that need a few lines each: nice values and scheduling policies, extended
 * attributes, and what /proc and getrusage tell of the states and the time of threads. */
#include "test.h"
#include <pthread.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/times.h>
#include <sys/xattr.h>

struct attributes {
	uint32_t size, policy;
	uint64_t flags;
	int32_t nice;
	uint32_t priority;
	uint64_t runtime, deadline, period;
	uint32_t least, most;
};
enum { RESET = 0x40000000, BATCH = 3, IDLE = 5 };

/* A field of /proc/PID/stat, counted from 1; those from the third on. */
static long field(pid_t pid, int tid, int number)
{
	char path[64], text[1000];
	if (tid)
		snprintf(path, sizeof path, "/proc/%d/task/%d/stat", pid, tid);
	else
		snprintf(path, sizeof path, "/proc/%d/stat", pid);
	int fd = open(path, O_RDONLY);
	if (fd < 0)
		return -1;
	text[OK(read(fd, text, sizeof text - 1))] = 0;
	close(fd);
	char *at = strrchr(text, ')') + 2;
	if (number == 3)
		return *at;
	for (int i = 3; i < number; i++)
		at = strchr(at, ' ') + 1;
	return atol(at);
}

static void priorities(void)
{
	EQ(syscall(SYS_getpriority, PRIO_PROCESS, 0), 20);
	OK(setpriority(PRIO_PROCESS, 0, 5));
	EQ(syscall(SYS_getpriority, PRIO_PROCESS, getpid()), 15);
	EQ(field(getpid(), 0, 18), 25);
	EQ(field(getpid(), 0, 19), 5);
	OK(setpriority(PRIO_PROCESS, 0, 100));
	EQ(syscall(SYS_getpriority, PRIO_PROCESS, 0), 1);
	OK(setpriority(PRIO_PROCESS, 0, -100));
	EQ(syscall(SYS_getpriority, PRIO_PROCESS, 0), 40);
	OK(setpriority(PRIO_PROCESS, 0, 3));
	/* A child has its parent's; the least of a group counts. */
	OK(setpgid(0, 0));
	pid_t pid = OK(fork());
	if (pid == 0) {
		EQ(getpriority(PRIO_PROCESS, 0), 3);
		OK(setpriority(PRIO_PROCESS, 0, 1));
		EQ(syscall(SYS_getpriority, PRIO_PGRP, 0), 19);
		OK(setpriority(PRIO_PGRP, 0, 7));
		EQ(getpriority(PRIO_PROCESS, 0), 7);
		_exit(0);
	}
	exits_with(pid, 0);
	EQ(getpriority(PRIO_PROCESS, 0), 7);
	ERR(syscall(SYS_getpriority, 3, 0), EINVAL);
	ERR(syscall(SYS_getpriority, -1, 0), EINVAL);
	ERR(syscall(SYS_getpriority, PRIO_PROCESS, 0x3fffffff), ESRCH);
	ERR(syscall(SYS_getpriority, PRIO_PGRP, 0x3fffffff), ESRCH);
	ERR(setpriority(PRIO_USER, 0x3fffffff, 0), ESRCH);
}

static void policies(void)
{
	struct sched_param parameter = {0};
	struct attributes all = {0};
	EQ(syscall(SYS_sched_getscheduler, 0), SCHED_OTHER);
	OK(syscall(SYS_sched_getparam, 0, &parameter));
	EQ(parameter.sched_priority, 0);
	OK(syscall(SYS_sched_setscheduler, 0, BATCH | RESET, &parameter));
	EQ(syscall(SYS_sched_getscheduler, 0), BATCH | RESET);
	OK(syscall(SYS_sched_getattr, 0, &all, sizeof all, 0));
	EQ(all.size, sizeof all);
	EQ(all.policy, BATCH);
	EQ(all.flags, 1);
	EQ(all.nice, 7);
	OK(setpriority(PRIO_PROCESS, 0, -5));
	pid_t pid = OK(fork());
	if (pid == 0) {
		/* Only real-time policies, and nice values below 0, are not inherited. */
		EQ(syscall(SYS_sched_getscheduler, 0), BATCH);
		EQ(getpriority(PRIO_PROCESS, 0), 0);
		_exit(0);
	}
	exits_with(pid, 0);
	OK(syscall(SYS_sched_setscheduler, 0, IDLE, &parameter));
	pid = OK(fork());
	if (pid == 0)
		_exit(syscall(SYS_sched_getscheduler, 0));
	exits_with(pid, IDLE);
	OK(syscall(SYS_sched_setscheduler, 0, SCHED_OTHER, &parameter));
	all = (struct attributes){.size = sizeof all, .policy = BATCH, .nice = 9};
	OK(syscall(SYS_sched_setattr, 0, &all, 0));
	EQ(syscall(SYS_sched_getscheduler, 0), BATCH);
	EQ(getpriority(PRIO_PROCESS, 0), 9);
	all = (struct attributes){.size = 48, .flags = 8, .nice = 4};
	OK(syscall(SYS_sched_setattr, 0, &all, 0));
	EQ(syscall(SYS_sched_getscheduler, 0), BATCH);
	EQ(getpriority(PRIO_PROCESS, 0), 4);
	all = (struct attributes){.size = 40};
	ERR(syscall(SYS_sched_setattr, 0, &all, 0), E2BIG);
	EQ(all.size, sizeof all);
	parameter.sched_priority = 1;
	ERR(syscall(SYS_sched_setparam, 0, &parameter), EINVAL);
	ERR(syscall(SYS_sched_setscheduler, 0, SCHED_OTHER, &parameter), EINVAL);
	ERR(syscall(SYS_sched_setscheduler, 0, 4, &parameter), EINVAL);
	parameter.sched_priority = 100;
	ERR(syscall(SYS_sched_setscheduler, 0, SCHED_FIFO, &parameter), EINVAL);
	EQ(syscall(SYS_sched_get_priority_max, SCHED_RR), 99);
	EQ(syscall(SYS_sched_get_priority_min, SCHED_FIFO), 1);
	EQ(syscall(SYS_sched_get_priority_max, SCHED_OTHER), 0);
	EQ(syscall(SYS_sched_get_priority_min, IDLE), 0);
	ERR(syscall(SYS_sched_get_priority_max, 4), EINVAL);
	struct timespec turn = {0};
	OK(syscall(SYS_sched_rr_get_interval, 0, &turn));
	EQ(turn.tv_sec, 0);
	parameter.sched_priority = 0;
	OK(syscall(SYS_sched_setscheduler, 0, SCHED_OTHER, &parameter));
	OK(setpriority(PRIO_PROCESS, 0, 0));
}

static void attributes(void)
{
	char path[] = "/tmp/smallXXXXXX", buffer[64];
	int fd = OK(mkstemp(path));
	ERR(getxattr(path, "user.none", buffer, 64), ENODATA);
	ERR(lgetxattr(path, "security.none", NULL, 0), ENODATA);
	ERR(fgetxattr(fd, "trusted.none", buffer, 64), ENODATA);
	ERR(getxattr(path, "none", buffer, 64), EOPNOTSUPP);
	ERR(getxattr("/nowhere", "user.none", buffer, 64), ENOENT);
	ERR(getxattr(path, "", buffer, 64), ERANGE);
	ERR(removexattr(path, "user.none"), ENODATA);
	EQ(listxattr(path, buffer, 64), 0);
	EQ(llistxattr(path, NULL, 0), 0);
	EQ(flistxattr(fd, buffer, 64), 0);
	ERR(listxattr("/nowhere", buffer, 64), ENOENT);
	ERR(setxattr(path, "user.x", "1", 1, 4), EINVAL);
	ERR(setxattr(path, "none", "1", 1, 0), EOPNOTSUPP);
	ERR(syscall(SYS_setxattr, path, "user.x", (void *)1, 1, 0), EFAULT);
	ERR(syscall(SYS_setxattr, path, "user.x", buffer, 65537, 0), E2BIG);
	close(fd);
	ERR(fgetxattr(fd, "user.none", buffer, 64), EBADF);
	OK(unlink(path));
}

static int pipe_ends[2];
static volatile int tids[2], stop;

static void *sleeper(void *unused)
{
	char byte;
	tids[0] = syscall(SYS_gettid);
	EQ(read(pipe_ends[0], &byte, 1), 1);
	return unused;
}

static void *runner(void *unused)
{
	tids[1] = syscall(SYS_gettid);
	while (!stop)
		;
	return unused;
}

static void becomes(pid_t pid, int tid, int state)
{
	for (int i = 0; i < 5000; i++) {
		if (field(pid, tid, 3) == state)
			return;
		usleep(1000);
	}
	differs(__FILE__, __LINE__, "thread %d of %d is %c, not %c", tid, pid,
		(int)field(pid, tid, 3), state);
}

static void states(void)
{
	pthread_t threads[2];
	OK(pipe(pipe_ends));
	pthread_create(&threads[0], NULL, sleeper, NULL);
	pthread_create(&threads[1], NULL, runner, NULL);
	while (!tids[0] || !tids[1])
		usleep(1000);
	becomes(getpid(), tids[0], 'S');
	becomes(getpid(), tids[1], 'R');
	EQ(field(getpid(), 0, 3), 'R');
	stop = 1;
	EQ(write(pipe_ends[1], "x", 1), 1);
	pthread_join(threads[0], NULL);
	pthread_join(threads[1], NULL);
	/* A parent waits for the child of its vfork, and the child ends. */
	pid_t pid = OK(fork());
	if (pid == 0) {
		char byte;
		pid_t child = vfork();
		if (child == 0) {
			(void)!read(pipe_ends[0], &byte, 1);
			_exit(0);
		}
		pause();
	}
	becomes(pid, 0, 'D');
	EQ(write(pipe_ends[1], "x", 1), 1);
	becomes(pid, 0, 'S');
	OK(kill(pid, SIGKILL));
	becomes(pid, 0, 'Z');
	killed_by(pid, SIGKILL);
}

static long micros(struct timeval time) { return time.tv_sec * 1000000 + time.tv_usec; }

/* Time in the program and in the kernel. A machine that shares its CPUs takes longer. */
static void times_of(void)
{
	struct rusage usage, before;
	struct tms clocks;
	static char bytes[1 << 20];
	int zero = OK(open("/dev/zero", O_RDONLY));
	OK(getrusage(RUSAGE_SELF, &before));
	do {
		for (volatile int i = 0; i < 1000000; i++)
			;
		OK(getrusage(RUSAGE_SELF, &usage));
	} while (micros(usage.ru_utime) - micros(before.ru_utime) < 100000);
	before = usage;
	do {
		EQ(read(zero, bytes, sizeof bytes), sizeof bytes);
		OK(getrusage(RUSAGE_SELF, &usage));
	} while (micros(usage.ru_stime) - micros(before.ru_stime) < 100000);
	CHECK(micros(usage.ru_utime) >= micros(before.ru_utime));
	times(&clocks);
	CHECK(clocks.tms_utime >= 5 && clocks.tms_stime >= 5);
	CHECK(field(getpid(), 0, 14) >= 5 && field(getpid(), 0, 15) >= 5);
	close(zero);
}

int main(void)
{
	priorities();
	policies();
	attributes();
	states();
	times_of();
	printf("small: priorities, attributes, states and times as they should be\n");
	return 0;
}
