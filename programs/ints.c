/* Checks that calls look at the lower half only of arguments that Linux declares as int: compilers
 * may leave anything in the upper half. Each call is made twice, without and with a full upper
 * half, and must return the same. */
#include "test.h"
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/xattr.h>
#include <time.h>
#include <linux/futex.h>

static char buffer[8192], page[PAGE] __attribute__((aligned(PAGE)));
static struct timespec zero;
static struct iovec vector = {buffer, 1};
static unsigned long set;
static int ends[2], pair[2];
static char zeros[128] __attribute__((aligned(8)));

#define BUFFER (long)buffer
#define PATH (long)"/dev/null"
#define HERE -100 /* AT_FDCWD */

int main(void)
{
	int fd = OK(open("/dev/zero", O_RDWR));
	int file = OK(syscall(SYS_memfd_create, "ints", 0));
	OK(ftruncate(file, PAGE));
	OK(pipe2(ends, O_NONBLOCK));
	OK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair));
	int self = getpid();
	int epoll = OK(syscall(SYS_epoll_create1, 0)), event = OK(syscall(SYS_eventfd2, 0, 0));
	int timer = OK(syscall(SYS_timerfd_create, CLOCK_MONOTONIC, 0));
	/* The arguments whose bit is set in `ints` are of 32 bits. A call may be made many times. */
	const struct {
		const char *name;
		long number;
		unsigned ints;
		long arguments[6];
	} calls[] = {
#define CALL(name, ints, ...) {#name, SYS_##name, ints, {__VA_ARGS__}}
		CALL(read, 1, fd, BUFFER, 1),
		CALL(write, 1, fd, BUFFER, 1),
		CALL(pread64, 1, file, BUFFER, 1, 0),
		CALL(pwrite64, 1, file, BUFFER, 1, 0),
		CALL(readv, 1, fd, (long)&vector, 1),
		CALL(writev, 1, fd, (long)&vector, 1),
		CALL(open, 6, PATH, O_RDONLY | O_PATH, 0),
		CALL(openat, 13, HERE, PATH, O_RDONLY | O_DIRECTORY, 0),
		CALL(lseek, 5, file, 0, SEEK_END),
		CALL(lseek, 5, file, 0, 77),
		CALL(fcntl, 3, fd, F_GETFD),
		CALL(fcntl, 3, fd, F_GETFL),
		CALL(ioctl, 3, fd, 0x5401, BUFFER),
		CALL(dup2, 3, fd, fd),
		CALL(dup3, 7, fd, fd, 0),
		CALL(flock, 3, file, 8),
		CALL(ftruncate, 1, file, PAGE),
		CALL(fallocate, 3, file, 1, 0, PAGE),
		CALL(fsync, 1, file),
		CALL(sync_file_range, 9, file, 0, PAGE, 2),
		CALL(fstat, 1, fd, BUFFER),
		CALL(newfstatat, 9, HERE, PATH, BUFFER, 0),
		CALL(statx, 13, HERE, PATH, 0, 0x7ff, BUFFER),
		CALL(access, 2, PATH, R_OK),
		CALL(faccessat2, 13, HERE, PATH, W_OK, 0),
		CALL(getdents64, 3, fd, BUFFER, 100),
		CALL(close_range, 7, 1000, 1001, 0),
		CALL(fadvise64, 9, file, 0, PAGE, 4),
		CALL(poll, 6, BUFFER, 0, 0),
		CALL(ppoll, 2, BUFFER, 0, (long)&zero, 0, 8),
		CALL(select, 1, 0, 0, 0, 0, (long)&zero),
		CALL(epoll_ctl, 7, epoll, 3, event, BUFFER),
		CALL(epoll_wait, 13, epoll, BUFFER, 1, 0),
		CALL(epoll_pwait, 13, epoll, BUFFER, 1, 0, 0, 8),
		CALL(epoll_pwait2, 5, epoll, BUFFER, 1, (long)&zero, 0, 8),
		CALL(epoll_create, 1, 0),
		CALL(epoll_create1, 1, 1),
		CALL(eventfd2, 3, 0, 2),
		CALL(timerfd_create, 3, 1, 1),
		CALL(timerfd_create, 3, 77, 0),
		CALL(timerfd_settime, 3, timer, 4, BUFFER, 0),
		CALL(timerfd_gettime, 1, timer, BUFFER),
		CALL(socket, 7, 1, 77, 0),
		CALL(socket, 7, 1, 1, 9),
		CALL(socketpair, 7, 1, 1, 9, BUFFER),
		CALL(bind, 5, pair[0], (long)zeros, 2),
		CALL(connect, 5, pair[0], (long)zeros, 2),
		CALL(listen, 3, pair[0], 1),
		CALL(accept, 1, pair[0], 0, 0),
		CALL(accept4, 9, pair[0], 0, 0, 0),
		CALL(getsockname, 1, pair[0], BUFFER, (long)zeros),
		CALL(getpeername, 1, pair[0], BUFFER, (long)zeros),
		CALL(shutdown, 3, pair[0], 9),
		CALL(getsockopt, 7, pair[0], 1, 3, BUFFER, (long)zeros),
		CALL(setsockopt, 23, pair[0], 1, 16, (long)zeros, 4),
		CALL(sendto, 41, pair[0], BUFFER, 1, MSG_DONTWAIT, 0, 0),
		CALL(recvfrom, 9, pair[1], BUFFER, 1, MSG_DONTWAIT, 0, 0),
		CALL(sendmsg, 5, pair[0], (long)zeros, MSG_DONTWAIT),
		CALL(recvmsg, 5, pair[1], (long)zeros, MSG_DONTWAIT),
		CALL(sendmmsg, 13, pair[0], (long)zeros, 0, MSG_DONTWAIT),
		CALL(recvmmsg, 13, pair[1], (long)zeros, 0, MSG_DONTWAIT, 0),
		CALL(mlock2, 4, (long)page, PAGE, 1),
		CALL(mlock2, 4, (long)page, PAGE, 2),
		CALL(munlock, 0, (long)page, PAGE),
		CALL(mlockall, 1, 0),
		CALL(mlockall, 1, 4),
		CALL(msync, 4, (long)page, PAGE, MS_ASYNC),
		CALL(msync, 4, (long)page, PAGE, 8),
		CALL(madvise, 4, (long)page, PAGE, MADV_NORMAL),
		CALL(madvise, 4, (long)page, PAGE, 1000),
		CALL(memfd_create, 2, BUFFER, 0x8000),
		CALL(wait4, 5, -1, 0, WNOHANG, 0),
		CALL(wait4, 5, -1, 0, __WCLONE, 0),
		CALL(waitid, 11, P_ALL, 0, BUFFER, WEXITED | WNOHANG, 0),
		CALL(waitid, 11, P_PID, self, BUFFER, WEXITED | WNOHANG | __WALL, 0),
		CALL(kill, 3, self, 0),
		CALL(tkill, 3, self, 0),
		CALL(tgkill, 7, self, self, 0),
		CALL(rt_sigaction, 1, SIGUSR1, 0, BUFFER, 8),
		CALL(rt_sigprocmask, 1, SIG_BLOCK, (long)&set, 0, 8),
		CALL(getpgid, 1, self),
		CALL(getsid, 1, self),
		CALL(setpgid, 3, self, self),
		CALL(prlimit64, 3, self, RLIMIT_NOFILE, 0, BUFFER),
		CALL(getrlimit, 1, RLIMIT_STACK, BUFFER),
		CALL(prctl, 1, 16 /* PR_GET_NAME */, BUFFER),
		CALL(arch_prctl, 1, 0x1003 /* ARCH_GET_FS */, BUFFER),
		CALL(getrusage, 1, RUSAGE_CHILDREN, BUFFER),
		CALL(getitimer, 1, 0, BUFFER),
		CALL(clock_gettime, 1, CLOCK_MONOTONIC_COARSE, BUFFER),
		CALL(clock_getres, 1, CLOCK_REALTIME, BUFFER),
		CALL(clock_nanosleep, 3, CLOCK_MONOTONIC, 0, (long)&zero, 0),
		CALL(futex, 38, BUFFER, FUTEX_WAKE, 1, 0, 0, 0),
		CALL(futex, 38, BUFFER, FUTEX_WAIT, 1, (long)&zero, 0, 0),
		CALL(membarrier, 7, 0, 0, 0),
		CALL(getrandom, 4, BUFFER, 1, 1),
		CALL(getrandom, 4, BUFFER, 1, 8),
		CALL(sched_getaffinity, 3, 0, 128, BUFFER),
		CALL(umask, 1, 022),
		CALL(pipe2, 2, BUFFER, 1),
		CALL(mkdirat, 5, HERE, PATH, 0700),
		CALL(unlinkat, 5, HERE, (long)"/none", 0),
		CALL(linkat, 21, HERE, (long)"/none", HERE, (long)"/none2", 0),
		CALL(renameat2, 21, HERE, (long)"/none", HERE, (long)"/none2", 1),
		CALL(readlinkat, 9, HERE, (long)"/none", BUFFER, 10),
		CALL(utimensat, 9, HERE, (long)"/none", 0, 0),
		CALL(sendfile, 3, fd, file, 0, 0),
		CALL(copy_file_range, 37, file, 0, file, 0, 0, 0),
		CALL(get_robust_list, 1, 0, BUFFER, BUFFER + 8),
		CALL(timer_gettime, 1, 99, BUFFER),
		CALL(futex, 38, BUFFER + 4096, FUTEX_UNLOCK_PI, 0, 0, 0, 0),
		CALL(pidfd_send_signal, 11, fd, 0, 0, 0),
		CALL(shmctl, 3, 1000000, 2, BUFFER),
		CALL(shmget, 4, 0x7a7a7a7a, 1, 0),
		CALL(timer_settime, 3, 99, 0, BUFFER + 4096, 0),
		CALL(setresuid, 7, -1, 0, -1),
		CALL(setregid, 3, -1, 0),
		CALL(getgroups, 1, -1, BUFFER),
		CALL(setfsuid, 1, -1),
		CALL(getpriority, 3, 0, self),
		CALL(setpriority, 7, 0, self, 0),
		CALL(sched_getparam, 1, self, BUFFER),
		CALL(sched_getscheduler, 1, self),
		CALL(sched_get_priority_max, 1, 1),
		CALL(sched_getattr, 13, self, BUFFER, 56, 0),
		CALL(fgetxattr, 1, fd, PATH, BUFFER, 1),
		CALL(setxattr, 16, PATH, PATH, BUFFER, 1, 0),
	};
	int failed = 0, count = sizeof calls / sizeof *calls;
	for (int i = 0; i < count; i++) {
		long results[3];
		for (int pass = 0; pass < 3; pass++) {
			long a[6];
			/* Twice first: a first call may change what the second finds. */
			for (int j = 0; j < 6; j++) {
				a[j] = calls[i].arguments[j];
				if (calls[i].ints & 1 << j)
					a[j] = (unsigned)a[j] | (pass == 2 ? 0xdeadbeefUL << 32 : 0);
			}
			results[pass] = syscall(calls[i].number, a[0], a[1], a[2], a[3], a[4], a[5]);
			if (results[pass] == -1)
				results[pass] = -errno;
			else if (calls[i].number == SYS_open || calls[i].number == SYS_openat ||
				 calls[i].number == SYS_memfd_create)
				close(results[pass]), results[pass] = 0;
			else if (calls[i].number == SYS_pipe2)
				close(((int *)buffer)[0]), close(((int *)buffer)[1]);
		}
		if (results[1] != results[2])
			failed = printf("ints.c: %s (case %d): %ld, and %ld with full upper halves\n",
					calls[i].name, i, results[1], results[2]);
	}
	/* The number of the call, too. */
	long number = SYS_getpid | 0x12345678UL << 32, result;
	asm volatile("syscall" : "=a"(result) : "a"(number) : "rcx", "r11", "memory");
	EQ(result, self);
	if (failed)
		return 1;
	printf("ints: %d calls\n", count);
	return 0;
}
