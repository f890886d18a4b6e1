/* Checks pipes that have a name: openings that wait, transfers, and ends. */
#include "test.h"
#include <poll.h>
#include <pthread.h>
#include <sys/stat.h>

static char path[] = "/tmp/fifoXXXXXX";
static volatile int opened;

static void *opener(void *flags)
{
	int fd = open(path, (long)flags);
	opened = 1;
	return (void *)(long)fd;
}

/* Opens in a thread, and looks whether that waits. */
static pthread_t begin(int flags, int waits)
{
	pthread_t thread;
	opened = 0;
	pthread_create(&thread, NULL, opener, (void *)(long)flags);
	usleep(30000);
	if (waits)
		EQ(opened, 0);
	return thread;
}

static int end(pthread_t thread)
{
	void *fd;
	pthread_join(thread, &fd);
	CHECK((long)fd >= 0);
	return (long)fd;
}

static void ready(int fd, int events)
{
	struct pollfd poll_of = {fd, POLLIN | POLLOUT, 0};
	poll(&poll_of, 1, 0);
	EQ(poll_of.revents, events);
}

static void on_signal(int number) { (void)number; }

static void openings(void)
{
	char bytes[8];
	/* Each end waits for the other. */
	pthread_t thread = begin(O_RDONLY, 1);
	int writer = OK(open(path, O_WRONLY)), reader = end(thread);
	EQ(write(writer, "abc", 3), 3);
	EQ(read(reader, bytes, 8), 3);
	close(writer);
	EQ(read(reader, bytes, 8), 0);
	ready(reader, POLLHUP);
	close(reader);
	thread = begin(O_WRONLY, 1);
	reader = OK(open(path, O_RDONLY));
	writer = end(thread);
	EQ(write(writer, "left", 4), 4);
	close(reader);
	signal(SIGPIPE, SIG_IGN);
	ERR(write(writer, "x", 1), EPIPE);
	close(writer);
	/* Bytes that were left are gone with the last end. */
	reader = OK(open(path, O_RDONLY | O_NONBLOCK));
	EQ(read(reader, bytes, 8), 0);
	writer = OK(open(path, O_WRONLY));
	ERR(read(reader, bytes, 8), EAGAIN);
	ready(writer, POLLOUT);
	close(writer);
	close(reader);
	/* Without waiting. */
	ERR(open(path, O_WRONLY | O_NONBLOCK), ENXIO);
	int both = OK(open(path, O_RDWR));
	writer = OK(open(path, O_WRONLY | O_NONBLOCK));
	EQ(write(writer, "xyz", 3), 3);
	ready(both, POLLIN | POLLOUT);
	EQ(read(both, bytes, 8), 3);
	close(both);
	close(writer);
	/* An end that comes and goes at once is enough. */
	thread = begin(O_RDONLY, 1);
	close(OK(open(path, O_WRONLY | O_NONBLOCK)));
	reader = end(thread);
	EQ(read(reader, bytes, 8), 0);
	close(reader);
	ERR(lseek(OK(open(path, O_RDWR)), 0, SEEK_SET), ESPIPE);
}

static void signals(void)
{
	struct sigaction action = {.sa_handler = on_signal};
	sigaction(SIGALRM, &action, NULL);
	/* Again and again: on a busy machine the first may come before the open waits. */
	ualarm(20000, 20000);
	ERR(open(path, O_RDONLY), EINTR);
	ualarm(0, 0);
	/* The end that was given up is gone. */
	ERR(open(path, O_WRONLY | O_NONBLOCK), ENXIO);
	action.sa_flags = SA_RESTART;
	sigaction(SIGALRM, &action, NULL);
	pid_t pid = OK(fork());
	if (pid == 0) {
		usleep(60000);
		close(OK(open(path, O_WRONLY)));
		_exit(0);
	}
	ualarm(20000, 0);
	close(OK(open(path, O_RDONLY)));
	exits_with(pid, 0);
	pid = OK(fork());
	if (pid == 0) {
		open(path, O_WRONLY);
		_exit(0);
	}
	usleep(20000);
	OK(kill(pid, SIGKILL));
	killed_by(pid, SIGKILL);
	int reader = OK(open(path, O_RDONLY | O_NONBLOCK));
	ready(reader, 0);
	close(reader);
}

int main(int argc, char **argv)
{
	struct stat status;
	char byte;
	long rounds = sized(argc, argv, 1000), sum = 0;
	close(OK(mkstemp(path)));
	OK(unlink(path));
	OK(mkfifo(path, 0640));
	ERR(mkfifo(path, 0640), EEXIST);
	OK(stat(path, &status));
	EQ(status.st_mode, S_IFIFO | 0640);
	openings();
	/* The descriptor that lseek has left open. */
	for (int fd = 3; fd < 20; fd++)
		close(fd);
	signals();
	/* Many writers, one after the other, and one reader. */
	pid_t pid = OK(fork());
	if (pid == 0) {
		for (long i = 0; i < rounds; i++) {
			int fd = OK(open(path, O_WRONLY));
			EQ(write(fd, "1", 1), 1);
			close(fd);
		}
		_exit(0);
	}
	int fd = OK(open(path, O_RDONLY));
	while (sum < rounds)
		if (OK(read(fd, &byte, 1)) == 1)
			sum++;
		else
			usleep(100);
	close(fd);
	exits_with(pid, 0);
	OK(unlink(path));
	ERR(open(path, O_RDONLY | O_NONBLOCK), ENOENT);
	printf("fifos: openings, ends and signals as they should be\n");
	return 0;
}
