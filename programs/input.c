/* Checks standard input that is a pipe with words of 8 bytes that count from 0, which come late: by
 * poll and reads that do not wait, by select, by reads that wait, in pieces that cut words. At the
 * end there is the end, for poll, too. `programs/check` makes the words. */
#include "test.h"
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/select.h>
#include <sys/stat.h>

static uint64_t bytes;

/* Reads a piece, and checks its bytes. Returns the result of read. */
static ssize_t piece(size_t most)
{
	static uint8_t buffer[70001];
	ssize_t count = read(0, buffer, most < sizeof buffer ? most : sizeof buffer);
	for (ssize_t i = 0; i < count; i++, bytes++)
		EQ(buffer[i], (bytes / 8) >> (8 * (bytes % 8)) & 0xff);
	return count;
}

int main(int argc, char **argv)
{
	uint64_t words = argc > 1 ? strtoull(argv[1], NULL, 10) : 100;
	struct stat stat;
	OK(fstat(0, &stat));
	CHECK(S_ISFIFO(stat.st_mode));
	EQ(isatty(0), 0);
	EQ(lseek(0, 0, SEEK_CUR), -1);
	EQ(errno, ESPIPE);

	/* Nothing may be there yet. */
	int flags = OK(fcntl(0, F_GETFL));
	OK(fcntl(0, F_SETFL, flags | O_NONBLOCK));
	if (piece(8) < 0)
		EQ(errno, EAGAIN);
	struct pollfd in = {.fd = 0, .events = POLLIN | POLLOUT};
	while (bytes < words * 8 / 3) {
		EQ(poll(&in, 1, 20000), 1);
		CHECK(in.revents & POLLIN && !(in.revents & (POLLOUT | POLLERR)));
		int there;
		OK(ioctl(0, FIONREAD, &there));
		CHECK(there > 0);
		CHECK(piece(1001) > 0);
	}
	OK(fcntl(0, F_SETFL, flags));
	while (bytes < words * 8 / 3 * 2) {
		fd_set set;
		FD_ZERO(&set);
		FD_SET(0, &set);
		struct timeval time = {.tv_sec = 20};
		EQ(select(1, &set, NULL, NULL, &time), 1);
		CHECK(FD_ISSET(0, &set));
		CHECK(piece(4097) > 0);
	}
	/* A child reads on where its parent was. */
	pid_t child = OK(fork());
	if (child == 0) {
		while (piece(-1) > 0)
			;
		EQ(bytes, words * 8);
		_exit(0);
	}
	int status;
	EQ(OK(waitpid(child, &status, 0)), child);
	EQ(status, 0);
	EQ(piece(1), 0);
	EQ(poll(&in, 1, 0), 1);
	EQ(in.revents, POLLHUP);
	EQ(piece(1), 0);
	printf("input: %llu words\n", (unsigned long long)words);
	return 0;
}
