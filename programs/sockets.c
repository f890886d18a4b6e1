/* Sockets of the family AF_UNIX: streams, datagrams and packets, in pairs and by names; files and
 * credentials that go with messages; closes, signals and polls meanwhile. */
#include "test.h"
#include <poll.h>
#include <pthread.h>
#include <stddef.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/un.h>

static const int types[] = {SOCK_STREAM, SOCK_DGRAM, SOCK_SEQPACKET};
enum { ADDRESS = sizeof(struct sockaddr_un), PATH = offsetof(struct sockaddr_un, sun_path) };
static char bytes[300000];

static socklen_t named(struct sockaddr_un *address, const char *name)
{
	memset(address, 0, sizeof *address);
	address->sun_family = AF_UNIX;
	/* A name that begins with @ is abstract. */
	strcpy(address->sun_path, name);
	if (*name != '@')
		return PATH + strlen(name) + 1;
	address->sun_path[0] = 0;
	return PATH + strlen(name);
}

static int bound(int type, const char *name)
{
	struct sockaddr_un address;
	int fd = OK(socket(AF_UNIX, type, 0));
	socklen_t length = named(&address, name);
	OK(bind(fd, (void *)&address, length));
	return fd;
}

static int connects(int fd, const char *name)
{
	struct sockaddr_un address;
	socklen_t length = named(&address, name);
	return connect(fd, (void *)&address, length);
}

static int option(int fd, int which)
{
	int value = -1;
	socklen_t length = sizeof value;
	OK(getsockopt(fd, SOL_SOCKET, which, &value, &length));
	EQ(length, 4);
	return value;
}

static int events(int fd)
{
	struct pollfd asked = {fd, POLLIN | POLLOUT | POLLRDHUP, 0};
	OK(poll(&asked, 1, 0));
	return asked.revents;
}

static void nap(long micros)
{
	struct timespec time = {micros / 1000000, micros % 1000000 * 1000};
	nanosleep(&time, NULL);
}

static void pairs(void)
{
	for (int i = 0; i < 3; i++) {
		int ends[2], type = types[i], count;
		struct stat status;
		struct ucred peer;
		socklen_t length = sizeof peer;
		OK(socketpair(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends));
		EQ(fcntl(ends[0], F_GETFD), FD_CLOEXEC);
		EQ(fcntl(ends[1], F_GETFL), O_RDWR | O_NONBLOCK);
		OK(fstat(ends[0], &status));
		EQ(status.st_mode, S_IFSOCK | 0777);
		EQ(option(ends[0], SO_TYPE), type);
		EQ(option(ends[0], SO_DOMAIN), AF_UNIX);
		EQ(option(ends[0], SO_ERROR), 0);
		EQ(option(ends[0], SO_ACCEPTCONN), 0);
		OK(getsockopt(ends[0], SOL_SOCKET, SO_PEERCRED, &peer, &length));
		EQ(peer.pid, getpid());
		ERR(lseek(ends[0], 0, SEEK_SET), ESPIPE);
		ERR(pread(ends[0], bytes, 1, 0), ESPIPE);
		ERR(read(ends[0], bytes, 1), EAGAIN);
		EQ(events(ends[0]), POLLOUT);
		EQ(write(ends[0], "hello", 5), 5);
		EQ(send(ends[0], " you", 4, 0), 4);
		OK(ioctl(ends[1], FIONREAD, &count));
		EQ(count, type == SOCK_DGRAM ? 5 : 9);
		EQ(events(ends[1]), POLLIN | POLLOUT);
		/* Parts of messages. */
		EQ(recv(ends[1], bytes, 3, MSG_PEEK), 3);
		EQ(recv(ends[1], bytes, 3, MSG_PEEK | MSG_TRUNC), type == SOCK_STREAM ? 3 : 5);
		EQ(read(ends[1], bytes, 3), 3);
		CHECK(!memcmp(bytes, "hel", 3));
		struct iovec vector[2] = {{bytes, 2}, {bytes + 10, 50}};
		EQ(readv(ends[1], vector, 2), type == SOCK_STREAM ? 6 : 4);
		CHECK(!memcmp(bytes, type == SOCK_STREAM ? "lo" : " y", 2));
		CHECK(!memcmp(bytes + 10, type == SOCK_STREAM ? " you" : "ou", 2));
		/* An empty message. */
		EQ(send(ends[1], "", 0, 0), 0);
		if (type != SOCK_STREAM) {
			EQ(events(ends[0]), POLLIN | POLLOUT);
			EQ(recv(ends[0], bytes, 10, 0), 0);
		}
		ERR(recv(ends[0], bytes, 10, 0), EAGAIN);
		/* Room, and no room. */
		long sent = 0;
		memset(bytes, 'x', sizeof bytes);
		for (long result; (result = send(ends[0], bytes, 4000, 0)) > 0; sent += result)
			;
		EQ(errno, EAGAIN);
		CHECK(sent >= 10000);
		EQ(events(ends[0]) & POLLOUT, 0);
		while (recv(ends[1], bytes, 4000, 0) > 0)
			;
		EQ(events(ends[0]) & POLLOUT, POLLOUT);
		if (type != SOCK_STREAM)
			ERR(send(ends[0], bytes, sizeof bytes, 0), EMSGSIZE);
		/* Ends of one direction, and of a socket. */
		EQ(write(ends[0], "z", 1), 1);
		OK(shutdown(ends[0], SHUT_WR));
		if (type == SOCK_DGRAM) {
			ERR(send(ends[0], "a", 1, MSG_NOSIGNAL), EPIPE);
			EQ(events(ends[1]), POLLIN | POLLOUT);
		} else {
			ERR(send(ends[0], "a", 1, MSG_NOSIGNAL), EPIPE);
			EQ(events(ends[1]), POLLIN | POLLOUT | POLLRDHUP);
			EQ(recv(ends[1], bytes, 10, 0), 1);
			EQ(recv(ends[1], bytes, 10, 0), 0);
			EQ(send(ends[1], "back", 4, 0), 4);
			EQ(recv(ends[0], bytes, 10, 0), 4);
		}
		ERR(shutdown(ends[0], 3), EINVAL);
		close(ends[0]);
		if (type == SOCK_DGRAM) {
			ERR(send(ends[1], "a", 1, 0), ECONNREFUSED);
			ERR(send(ends[1], "a", 1, 0), ENOTCONN);
		} else {
			EQ(events(ends[1]), POLLIN | POLLOUT | POLLRDHUP | POLLHUP);
			ERR(send(ends[1], "a", 1, MSG_NOSIGNAL), EPIPE);
			EQ(recv(ends[1], bytes, 10, 0), 0);
		}
		close(ends[1]);
	}
	/* An end that goes with bytes that it has not read. */
	int ends[2];
	OK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends));
	EQ(write(ends[0], "abc", 3), 3);
	EQ(write(ends[1], "de", 2), 2);
	close(ends[1]);
	CHECK(events(ends[0]) & POLLERR);
	EQ(read(ends[0], bytes, 10), 2);
	ERR(read(ends[0], bytes, 10), ECONNRESET);
	EQ(read(ends[0], bytes, 10), 0);
	signal(SIGPIPE, SIG_IGN);
	ERR(write(ends[0], "a", 1), EPIPE);
	signal(SIGPIPE, SIG_DFL);
	pid_t pid = OK(fork());
	if (pid == 0) {
		(void)!write(ends[0], "a", 1);
		_exit(0);
	}
	killed_by(pid, SIGPIPE);
	close(ends[0]);
}

static void names(const char *name)
{
	struct sockaddr_un address;
	socklen_t length = ADDRESS;
	struct ucred peer;
	int listener = bound(SOCK_STREAM, name), other, client, server;
	ERR(connects(OK(socket(AF_UNIX, SOCK_STREAM, 0)), name), ECONNREFUSED);
	ERR(accept(listener, NULL, NULL), EINVAL);
	OK(listen(listener, 1));
	EQ(option(listener, SO_ACCEPTCONN), 1);
	EQ(events(listener), 0);
	/* The name is taken. */
	other = OK(socket(AF_UNIX, SOCK_STREAM, 0));
	socklen_t own = named(&address, name);
	ERR(bind(other, (void *)&address, own), EADDRINUSE);
	ERR(bind(listener, (void *)&address, own), *name == '@' ? EINVAL : EADDRINUSE);
	ERR(listen(other, 1), EINVAL);
	client = OK(socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0));
	ERR(connects(OK(socket(AF_UNIX, SOCK_DGRAM, 0)), name),
	    *name == '@' ? ECONNREFUSED : EPROTOTYPE);
	EQ(events(client), POLLOUT | POLLHUP);
	ERR(getpeername(client, (void *)&address, &length), ENOTCONN);
	ERR(read(client, bytes, 1), EINVAL);
	ERR(send(client, bytes, 1, 0), ENOTCONN);
	OK(connects(client, name));
	ERR(connects(client, name), EISCONN);
	EQ(events(client), POLLOUT);
	EQ(events(listener), POLLIN);
	ERR(listen(client, 1), EINVAL);
	/* The queue has room for one more, and a client that does not wait is told so. */
	OK(connects(other, name));
	int third = OK(socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0));
	ERR(connects(third, name), EAGAIN);
	/* Bytes before the connection is accepted. */
	EQ(write(client, "early", 5), 5);
	length = ADDRESS;
	server = OK(accept4(listener, (void *)&address, &length, SOCK_NONBLOCK | SOCK_CLOEXEC));
	EQ(length, 2);
	EQ(fcntl(server, F_GETFL), O_RDWR | O_NONBLOCK);
	EQ(fcntl(server, F_GETFD), FD_CLOEXEC);
	EQ(read(server, bytes, 10), 5);
	length = ADDRESS;
	OK(getpeername(client, (void *)&address, &length));
	EQ(length, own);
	EQ(address.sun_path[1], name[1]);
	length = ADDRESS;
	OK(getsockname(server, (void *)&address, &length));
	EQ(length, own);
	length = ADDRESS;
	OK(getsockname(client, (void *)&address, &length));
	EQ(length, 2);
	length = 1;
	OK(getsockname(server, (void *)&address, &length));
	EQ(length, own);
	length = sizeof peer;
	OK(getsockopt(server, SOL_SOCKET, SO_PEERCRED, &peer, &length));
	EQ(peer.pid, getpid());
	OK(connects(third, name));
	/* A listener that goes takes along the connections that were not accepted. */
	EQ(write(other, "lost", 4), 4);
	close(listener);
	ERR(recv(other, bytes, 1, MSG_DONTWAIT), ECONNRESET);
	EQ(write(server, "stays", 5), 5);
	EQ(read(client, bytes, 10), 5);
	ERR(connects(OK(socket(AF_UNIX, SOCK_STREAM, 0)), name), ECONNREFUSED);
	close(client), close(server), close(other), close(third);
}

static void paths(void)
{
	struct sockaddr_un address;
	struct stat status;
	socklen_t length = named(&address, "sockets.d/name");
	OK(mkdir("sockets.d", 0700));
	names("sockets.d/name");
	OK(lstat("sockets.d/name", &status));
	EQ(status.st_mode & S_IFMT, S_IFSOCK);
	ERR(open("sockets.d/name", O_RDWR), ENXIO);
	int fd = OK(socket(AF_UNIX, SOCK_STREAM, 0));
	ERR(bind(fd, (void *)&address, length), EADDRINUSE);
	OK(unlink("sockets.d/name"));
	ERR(connects(fd, "sockets.d/name"), ENOENT);
	ERR(connects(fd, "sockets.d"), ECONNREFUSED);
	ERR(connects(fd, "sockets.d/none/x"), ENOENT);
	ERR(bind(fd, (void *)&address, 1), EINVAL);
	ERR(bind(fd, (void *)&address, 111), EINVAL);
	/* A name that is moved leads to the same socket, one of 108 bytes has no zero. */
	OK(bind(fd, (void *)&address, length));
	OK(listen(fd, 0));
	OK(rename("sockets.d/name", "sockets.d/other"));
	int client = OK(socket(AF_UNIX, SOCK_STREAM, 0));
	OK(connects(client, "sockets.d/other"));
	OK(unlink("sockets.d/other"));
	close(client), close(fd);
	memset(address.sun_path, '/', sizeof address.sun_path);
	memcpy(address.sun_path, "sockets.d", 9);
	address.sun_path[107] = 'n';
	fd = OK(socket(AF_UNIX, SOCK_DGRAM, 0));
	OK(bind(fd, (void *)&address, ADDRESS));
	length = ADDRESS;
	OK(getsockname(fd, (void *)&address, &length));
	EQ(length, ADDRESS + 1);
	close(fd);
	OK(unlink("sockets.d/n"));
	OK(rmdir("sockets.d"));
	/* A name of the system's choice. */
	fd = OK(socket(AF_UNIX, SOCK_DGRAM, 0));
	OK(bind(fd, (void *)&address, 2));
	length = ADDRESS;
	OK(getsockname(fd, (void *)&address, &length));
	EQ(length, 8);
	EQ(address.sun_path[0], 0);
	close(fd);
	ERR(socket(AF_UNIX, SOCK_STREAM, 9), EPROTONOSUPPORT);
	ERR(socket(AF_UNIX, SOCK_RDM, 0), ESOCKTNOSUPPORT);
	ERR(socket(99, SOCK_STREAM, 0), EAFNOSUPPORT);
	ERR(getsockname(0, (void *)&address, &length), ENOTSOCK);
}

static void datagrams(void)
{
	struct sockaddr_un from, to;
	socklen_t length = sizeof from, to_length = named(&to, "@sockets-a");
	int a = bound(SOCK_DGRAM, "@sockets-a"), b = bound(SOCK_DGRAM, "@sockets-b");
	int c = OK(socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK, 0));
	ERR(listen(a, 1), EOPNOTSUPP);
	ERR(send(b, "x", 1, 0), ENOTCONN);
	EQ(sendto(b, "from b", 6, 0, (void *)&to, to_length), 6);
	EQ(sendto(c, "from c", 6, 0, (void *)&to, to_length), 6);
	EQ(recvfrom(a, bytes, 100, 0, (void *)&from, &length), 6);
	EQ(length, PATH + 10);
	CHECK(!memcmp(from.sun_path, "\0sockets-b", 10));
	length = sizeof from;
	EQ(recvfrom(a, bytes, 3, MSG_TRUNC, (void *)&from, &length), 6);
	EQ(length, 0);
	/* Connected, to another one, and to none. */
	OK(connects(c, "@sockets-a"));
	OK(connects(c, "@sockets-b"));
	EQ(send(c, "1", 1, 0), 1);
	EQ(recv(b, bytes, 10, 0), 1);
	OK(connects(a, "@sockets-b"));
	ERR(sendto(c, "2", 1, 0, (void *)&to, to_length), EPERM);
	ERR(connects(c, "@sockets-a"), EPERM);
	from.sun_family = AF_UNSPEC;
	OK(connect(a, (void *)&from, 2));
	ERR(send(a, "x", 1, 0), ENOTCONN);
	/* A queue that is full, and an epoll that waits for room. */
	struct epoll_event event = {.events = EPOLLOUT | EPOLLET};
	int epoll = OK(epoll_create1(0)), sent = 0;
	OK(connects(c, "@sockets-a"));
	while (send(c, "x", 1, 0) == 1)
		sent++;
	EQ(errno, EAGAIN);
	CHECK(sent >= 10);
	OK(epoll_ctl(epoll, EPOLL_CTL_ADD, c, &event));
	EQ(epoll_wait(epoll, &event, 1, 0), 0);
	for (int i = 0; i < sent; i++)
		EQ(recv(a, bytes, 10, 0), 1);
	EQ(epoll_wait(epoll, &event, 1, 1000), 1);
	close(a);
	ERR(send(c, "x", 1, 0), ECONNREFUSED);
	close(b), close(c), close(epoll);
}

/* Sends some bytes with files. */
static long pass(int fd, int count, const int *files)
{
	char control[CMSG_SPACE(4 * 300)] __attribute__((aligned(8))) = {0};
	struct iovec vector = {"F", 1};
	struct msghdr message = {.msg_iov = &vector, .msg_iovlen = 1, .msg_control = control,
				 .msg_controllen = CMSG_SPACE(4 * count)};
	struct cmsghdr *first = (void *)control;
	first->cmsg_level = SOL_SOCKET;
	first->cmsg_type = SCM_RIGHTS;
	first->cmsg_len = CMSG_LEN(4 * count);
	memcpy(CMSG_DATA(first), files, 4 * count);
	/* The library's call has less room for files. */
	return syscall(SYS_sendmsg, fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
}

/* Receives bytes with up to `room` files, and returns how many came. */
static int take(int fd, int room, int *files, int flags, long expected, int found)
{
	char control[CMSG_SPACE(4 * 300)] __attribute__((aligned(8))) = {0};
	struct iovec vector = {bytes, 100};
	struct msghdr message = {.msg_iov = &vector, .msg_iovlen = 1, .msg_control = control,
				 .msg_controllen = room ? CMSG_SPACE(4 * room) : 0};
	EQ(recvmsg(fd, &message, flags), expected);
	EQ(message.msg_flags & MSG_CTRUNC, found);
	struct cmsghdr *first = CMSG_FIRSTHDR(&message);
	if (!first)
		return 0;
	EQ(first->cmsg_type, SCM_RIGHTS);
	int count = (first->cmsg_len - CMSG_LEN(0)) / 4;
	memcpy(files, CMSG_DATA(first), 4 * count);
	return count;
}

static int open_files(void)
{
	int count = 0;
	for (int fd = 0; fd < 1024; fd++)
		count += fcntl(fd, F_GETFD) >= 0;
	return count;
}

static void files(void)
{
	int before = open_files();
	for (int i = 0; i < 3; i++) {
		int ends[2], pipes[2], got[4], type = types[i];
		OK(socketpair(AF_UNIX, type, 0, ends));
		OK(pipe(pipes));
		/* The sender's descriptors may go. */
		EQ(pass(ends[0], 2, pipes), 1);
		close(pipes[1]);
		EQ(take(ends[1], 2, got, MSG_CMSG_CLOEXEC, 1, 0), 2);
		EQ(fcntl(got[0], F_GETFD), FD_CLOEXEC);
		EQ(write(got[1], "through", 7), 7);
		EQ(read(pipes[0], bytes, 10), 7);
		close(got[0]), close(got[1]), close(pipes[0]);
		/* Without room they are closed. */
		OK(pipe(pipes));
		EQ(pass(ends[0], 1, pipes + 1), 1);
		close(pipes[1]);
		EQ(take(ends[1], 0, got, 0, 1, MSG_CTRUNC), 0);
		EQ(read(pipes[0], bytes, 10), 0);
		close(pipes[0]);
		OK(pipe(pipes));
		EQ(pass(ends[0], 2, pipes), 1);
		EQ(take(ends[1], 2, got, MSG_PEEK, 1, 0), 2);
		close(got[0]), close(got[1]);
		EQ(read(ends[1], bytes, 1), 1);
		/* Bytes before and after files: none of the files is lost or early. */
		if (type == SOCK_STREAM) {
			EQ(write(ends[0], "ab", 2), 2);
			EQ(pass(ends[0], 1, pipes), 1);
			EQ(write(ends[0], "cd", 2), 2);
			EQ(pass(ends[0], 1, pipes + 1), 1);
			EQ(take(ends[1], 2, got, 0, 3, 0), 1);
			close(got[0]);
			EQ(take(ends[1], 2, got, 0, 3, 0), 1);
			EQ(write(got[0], "x", 1), 1);
			EQ(read(pipes[0], bytes, 10), 1);
			close(got[0]);
		}
		/* A bad descriptor, and too many. */
		int many[300];
		for (int j = 0; j < 300; j++)
			many[j] = pipes[0];
		ERR(pass(ends[0], 254, many), EINVAL);
		many[1] = -1;
		ERR(pass(ends[0], 2, many), EBADF);
		ERR(recv(ends[1], bytes, 1, MSG_DONTWAIT), EAGAIN);
		/* Files in flight go with the socket. */
		EQ(pass(ends[0], 1, pipes + 1), 1);
		close(pipes[1]);
		close(ends[0]), close(ends[1]);
		EQ(read(pipes[0], bytes, 10), 0);
		close(pipes[0]);
	}
	/* A socket through a socket. */
	int ends[2], passed[2], got[2];
	OK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends));
	OK(socketpair(AF_UNIX, SOCK_STREAM, 0, passed));
	EQ(pass(ends[0], 1, passed), 1);
	close(passed[0]);
	EQ(write(passed[1], "waits", 5), 5);
	EQ(take(ends[1], 2, got, 0, 1, 0), 1);
	EQ(read(got[0], bytes, 10), 5);
	close(got[0]);
	EQ(read(passed[1], bytes, 10), 0);
	close(passed[1]);
	/* Cycles of sockets that only their messages hold: Samara refuses them. */
	OK(socketpair(AF_UNIX, SOCK_STREAM, 0, passed));
	int listener = bound(SOCK_STREAM, "@sockets-cycle");
	OK(listen(listener, 5));
	int client = OK(socket(AF_UNIX, SOCK_STREAM, 0));
	OK(connects(client, "@sockets-cycle"));
	const int cycles[][2] = {{ends[0], ends[1]}, {ends[0], passed[1]}, {passed[0], ends[1]},
				 {passed[0], passed[1]}, {client, listener}, {client, client}};
	for (unsigned i = 0; i < sizeof cycles / sizeof *cycles; i++)
		CHECK(pass(cycles[i][0], 1, &cycles[i][1]) == 1 || errno == ETOOMANYREFS);
	EQ(take(ends[1], 2, got, 0, 1, 0), 1);
	close(got[0]), close(client), close(listener), close(passed[0]), close(passed[1]);
	close(ends[0]), close(ends[1]);
	EQ(open_files(), before);
}

static void credentials(void)
{
	int ends[2], on = 1;
	char control[CMSG_SPACE(12) + 64] __attribute__((aligned(8))) = {0};
	struct iovec vector = {bytes, 100};
	struct msghdr message = {.msg_iov = &vector, .msg_iovlen = 1, .msg_control = control,
				 .msg_controllen = sizeof control};
	OK(socketpair(AF_UNIX, SOCK_DGRAM, 0, ends));
	OK(setsockopt(ends[1], SOL_SOCKET, SO_PASSCRED, &on, sizeof on));
	EQ(option(ends[1], SO_PASSCRED), 1);
	pid_t pid = OK(fork());
	if (pid == 0) {
		EQ(write(ends[0], "child", 5), 5);
		_exit(0);
	}
	EQ(recvmsg(ends[1], &message, 0), 5);
	struct cmsghdr *first = CMSG_FIRSTHDR(&message);
	CHECK(first && first->cmsg_level == SOL_SOCKET && first->cmsg_type == SCM_CREDENTIALS);
	EQ(first->cmsg_len, CMSG_LEN(12));
	EQ(*(int *)CMSG_DATA(first), pid);
	exits_with(pid, 0);
	close(ends[0]), close(ends[1]);
}

static int shared[2];
static volatile int hits;
static void on_signal(int number) { (void)number, hits++; }

static void *echo(void *unused)
{
	char part[5000];
	ssize_t count;
	(void)unused;
	while ((count = read(shared[1], part, sizeof part)) > 0)
		for (ssize_t done = 0; done < count; )
			done += OK(write(shared[1], part + done, count - done));
	return NULL;
}

static void *send_all(void *unused)
{
	(void)unused;
	for (int part = 0; part < 10; part++)
		EQ(write(shared[0], bytes, sizeof bytes), sizeof bytes);
	return NULL;
}

static void *accepts(void *listener)
{
	return (void *)(long)accept((int)(long)listener, NULL, NULL);
}

static void waits(void)
{
	pthread_t threads[2];
	char part[7000];
	void *result;
	/* Long writes that wait for room, echoed. */
	OK(socketpair(AF_UNIX, SOCK_STREAM, 0, shared));
	for (size_t i = 0; i < sizeof bytes; i++)
		bytes[i] = i * 7 + i / 251;
	EQ(pthread_create(&threads[0], NULL, echo, NULL), 0);
	EQ(pthread_create(&threads[1], NULL, send_all, NULL), 0);
	for (size_t done = 0; done < 10 * sizeof bytes; ) {
		size_t left = 10 * sizeof bytes - done;
		size_t room = left < sizeof part ? left : sizeof part;
		ssize_t count = OK(recv(shared[0], part, room, done % 2 ? MSG_WAITALL : 0));
		if (done % 2)
			EQ(count, room);
		for (ssize_t i = 0; i < count; i++)
			if (part[i] != bytes[(done + i) % sizeof bytes])
				differs(__FILE__, __LINE__, "byte %ld is wrong", done + i);
		done += count;
		if (count % 2 == 0 && done < 10 * sizeof bytes)
			done += OK(recv(shared[0], part, 1, MSG_WAITALL));
	}
	EQ(pthread_join(threads[1], NULL), 0);
	OK(shutdown(shared[0], SHUT_WR));
	EQ(pthread_join(threads[0], NULL), 0);
	close(shared[0]), close(shared[1]);
	/* Threads wait for connections; clients for room. */
	int listener = bound(SOCK_STREAM, "@sockets-wait"), clients[6];
	OK(listen(listener, 0));
	EQ(pthread_create(&threads[0], NULL, accepts, (void *)(long)listener), 0);
	nap(10000);
	clients[0] = OK(socket(AF_UNIX, SOCK_STREAM, 0));
	OK(connects(clients[0], "@sockets-wait"));
	EQ(pthread_join(threads[0], &result), 0);
	CHECK((long)result > 0);
	close((long)result), close(clients[0]);
	pid_t pid = OK(fork());
	if (pid == 0) {
		for (int i = 0; i < 6; i++) {
			clients[i] = OK(socket(AF_UNIX, SOCK_STREAM, 0));
			OK(connects(clients[i], "@sockets-wait"));
			EQ(write(clients[i], "c", 1), 1);
		}
		_exit(0);
	}
	nap(10000);
	for (int i = 0; i < 6; i++) {
		int server = OK(accept(listener, NULL, NULL));
		EQ(recv(server, part, 1, 0), 1);
		close(server);
	}
	exits_with(pid, 0);
	/* Times after which calls give up, and signals. */
	struct timeval time = {0, 20000}, told;
	socklen_t length = sizeof told;
	OK(setsockopt(listener, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time));
	OK(getsockopt(listener, SOL_SOCKET, SO_RCVTIMEO, &told, &length));
	EQ(told.tv_usec, 20000);
	ERR(accept(listener, NULL, NULL), EAGAIN);
	close(listener);
	OK(socketpair(AF_UNIX, SOCK_STREAM, 0, shared));
	struct sigaction action = {.sa_handler = on_signal};
	OK(sigaction(SIGALRM, &action, NULL));
	struct itimerval alarm = {{0, 0}, {0, 20000}};
	OK(setitimer(ITIMER_REAL, &alarm, NULL));
	ERR(read(shared[0], part, 1), EINTR);
	EQ(hits, 1);
	hits = 0;
	close(shared[0]), close(shared[1]);
}

int main(int argc, char **argv)
{
	long rounds = sized(argc, argv, 20);
	for (long i = 0; i < rounds; i++) {
		pairs();
		names("@sockets-name");
		paths();
		datagrams();
		files();
		credentials();
		waits();
		/* Descriptors that the checks of errors have left. */
		for (int fd = 3; fd < 64; fd++)
			close(fd);
	}
	printf("sockets: %ld rounds\n", rounds);
	return 0;
}
