/* Checks descriptors of processes: pidfd_open, signals through them, poll, waitid, and their state
 * when the process has ended; process_madvise. */
#include "test.h"
#include <poll.h>
#include <sys/uio.h>

#ifndef SYS_pidfd_send_signal
#define SYS_pidfd_send_signal 424
#endif
#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif
#ifndef SYS_pidfd_getfd
#define SYS_pidfd_getfd 438
#endif
#ifndef SYS_process_madvise
#define SYS_process_madvise 440
#endif
enum { PIDFD = 3 };

static int ready(int fd)
{
	struct pollfd poll_of = {fd, POLLIN, 0};
	return OK(poll(&poll_of, 1, 0)) == 1 && poll_of.revents == POLLIN;
}

static int sleeping_child(void)
{
	pid_t pid = OK(fork());
	if (pid == 0)
		for (;;)
			pause();
	return pid;
}

static void basics(void)
{
	siginfo_t info = {0};
	pid_t pid = sleeping_child();
	int fd = OK(syscall(SYS_pidfd_open, pid, 0));
	EQ(OK(fcntl(fd, F_GETFD)), FD_CLOEXEC);
	CHECK(!ready(fd));
	OK(syscall(SYS_pidfd_send_signal, fd, 0, NULL, 0));
	EQ(syscall(SYS_waitid, PIDFD, fd, &info, WEXITED | WNOHANG, NULL), 0);
	EQ(info.si_pid, 0);
	OK(syscall(SYS_pidfd_send_signal, fd, SIGTERM, NULL, 0));
	struct pollfd poll_of = {fd, POLLIN, 0};
	EQ(poll(&poll_of, 1, 10000), 1);
	CHECK(ready(fd));
	/* It has ended, and its parent has not waited. */
	OK(syscall(SYS_pidfd_send_signal, fd, SIGTERM, NULL, 0));
	EQ(syscall(SYS_waitid, PIDFD, fd, &info, WEXITED | WNOWAIT, NULL), 0);
	EQ(info.si_pid, pid);
	int second = OK(syscall(SYS_pidfd_open, pid, 0));
	EQ(syscall(SYS_waitid, PIDFD, fd, &info, WEXITED, NULL), 0);
	EQ(info.si_code, CLD_KILLED);
	EQ(info.si_status, SIGTERM);
	ERR(syscall(SYS_pidfd_send_signal, fd, SIGTERM, NULL, 0), ESRCH);
	ERR(syscall(SYS_pidfd_open, pid, 0), ESRCH);
	ERR(syscall(SYS_waitid, PIDFD, second, &info, WEXITED, NULL), ECHILD);
	poll_of = (struct pollfd){second, POLLIN, 0};
	EQ(poll(&poll_of, 1, 0), 1);
	EQ(poll_of.revents, POLLIN | POLLHUP);
	close(fd);
	close(second);
	ERR(syscall(SYS_pidfd_send_signal, fd, SIGTERM, NULL, 0), EBADF);
	ERR(syscall(SYS_pidfd_send_signal, 0, SIGTERM, NULL, 0), EBADF);
	ERR(syscall(SYS_waitid, PIDFD, fd, &info, WEXITED, NULL), EBADF);
}

static void more(void)
{
	char byte;
	siginfo_t info = {0};
	int ends[2];
	OK(pipe(ends));
	/* One that does not block. */
	pid_t pid = sleeping_child();
	int fd = OK(syscall(SYS_pidfd_open, pid, O_NONBLOCK));
	ERR(syscall(SYS_waitid, PIDFD, fd, &info, WEXITED, NULL), EAGAIN);
	EQ(syscall(SYS_waitid, PIDFD, fd, &info, WEXITED | WNOHANG, NULL), 0);
	ERR(read(fd, &byte, 1), EINVAL);
	ERR(write(fd, &byte, 1), EINVAL);
	ERR(lseek(fd, 0, SEEK_SET), ESPIPE);
	OK(kill(pid, SIGKILL));
	killed_by(pid, SIGKILL);
	close(fd);
	/* A waitid that waits, and descriptors that cross processes. */
	pid = OK(fork());
	if (pid == 0) {
		usleep(50000);
		_exit(7);
	}
	fd = OK(syscall(SYS_pidfd_open, pid, 0));
	EQ(syscall(SYS_waitid, PIDFD, fd, &info, WEXITED, NULL), 0);
	EQ(info.si_status, 7);
	close(fd);
	pid = OK(fork());
	if (pid == 0) {
		fd = OK(syscall(SYS_pidfd_open, getppid(), 0));
		close(ends[1]);
		int taken = OK(syscall(SYS_pidfd_getfd, fd, ends[1], 0));
		EQ(OK(fcntl(taken, F_GETFD)), FD_CLOEXEC);
		ERR(syscall(SYS_pidfd_getfd, fd, 900, 0), EBADF);
		ERR(syscall(SYS_pidfd_getfd, fd, ends[1], 1), EINVAL);
		EQ(write(taken, "x", 1), 1);
		_exit(0);
	}
	exits_with(pid, 0);
	EQ(read(ends[0], &byte, 1), 1);
	/* Not a child: it can be watched, and not waited for. */
	fd = OK(syscall(SYS_pidfd_open, getpid(), 0));
	ERR(syscall(SYS_waitid, PIDFD, fd, &info, WEXITED, NULL), ECHILD);
	CHECK(!ready(fd));
	char *area = map(4 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE);
	struct iovec ranges[2] = {{area, PAGE}, {area + 2 * PAGE, PAGE}};
	memset(area, 1, 4 * PAGE);
	EQ(syscall(SYS_process_madvise, fd, ranges, 2, 20 /* COLD */, 0), 2 * PAGE);
	EQ(area[0] + area[2 * PAGE], 2);
	munmap(area + 2 * PAGE, PAGE);
	EQ(syscall(SYS_process_madvise, fd, ranges, 2, 20, 0), PAGE);
	ERR(syscall(SYS_process_madvise, fd, ranges + 1, 1, 20, 0), ENOMEM);
	ERR(syscall(SYS_process_madvise, fd, ranges, 2, 20, 1), EINVAL);
	ERR(syscall(SYS_process_madvise, fd, ranges, 1025, 20, 0), EINVAL);
	ERR(syscall(SYS_process_madvise, ends[0], ranges, 1, 20, 0), EBADF);
	close(fd);
	ERR(syscall(SYS_pidfd_open, 0, 0), EINVAL);
	ERR(syscall(SYS_pidfd_open, -1, 0), EINVAL);
	ERR(syscall(SYS_pidfd_open, getpid(), 1), EINVAL);
}

/* Children end while they are opened, watched and waited for. */
static void races(long rounds)
{
	for (long i = 0; i < rounds; i++) {
		siginfo_t info;
		pid_t pid = OK(fork());
		if (pid == 0)
			_exit(i & 1);
		int fd = OK(syscall(SYS_pidfd_open, pid, 0));
		if (i & 2) {
			struct pollfd poll_of = {fd, POLLIN, 0};
			EQ(poll(&poll_of, 1, 10000), 1);
		}
		EQ(syscall(SYS_waitid, PIDFD, fd, &info, WEXITED, NULL), 0);
		EQ(info.si_status, i & 1);
		close(fd);
	}
}

int main(int argc, char **argv)
{
	basics();
	more();
	races(sized(argc, argv, 1000));
	printf("pidfds: signals, polls and waits as they should be\n");
	return 0;
}
