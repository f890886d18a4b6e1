/* A client of redis that records how long each request takes while redis writes a snapshot.
 *
 *   latency MIB [REQUESTS]
 *
 * It starts /redis-server, fills it with MIB MiB of values of 1 KiB, and replaces values at random,
 * one request after the other, through a Unix socket: first REQUESTS times (20000) with nothing
 * else, then until the snapshot, which another connection asks for, is complete. A line of JSON has
 * the figures, in nanoseconds of the clock. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define VALUE 1024
#define SOCKET "/tmp/redis.sock"
#define SNAPSHOT "/tmp/dump.rdb"
enum { MOST = 4 << 20 };

static uint64_t now(void)
{
	struct timespec time;
	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec * 1000000000ULL + time.tv_nsec;
}

static void fail(const char *what)
{
	perror(what);
	exit(1);
}

static int connected(void)
{
	struct sockaddr_un name = {.sun_family = AF_UNIX, .sun_path = SOCKET};
	int file = socket(AF_UNIX, SOCK_STREAM, 0);
	if (file < 0)
		fail("socket");
	for (int i = 0; i < 1000; i++, usleep(10000))
		if (connect(file, (struct sockaddr *)&name, sizeof name) == 0)
			return file;
	fail(SOCKET);
	return -1;
}

static void sent(int file, const char *text, size_t length)
{
	while (length > 0) {
		ssize_t count = write(file, text, length);
		if (count <= 0)
			fail("write to redis");
		text += count;
		length -= count;
	}
}

/* The answer of redis: its first part, which is the whole of a short one. */
static const char *answer(int file)
{
	static char text[1 << 16];
	ssize_t count = read(file, text, sizeof text - 1);
	if (count <= 0 || *text == '-') {
		text[count > 0 ? count : 0] = 0;
		fprintf(stderr, "redis answers %s\n", text);
		exit(1);
	}
	text[count] = 0;
	return text;
}

static const char *asked(int file, const char *line)
{
	sent(file, line, strlen(line));
	sent(file, "\r\n", 2);
	return answer(file);
}

/* Replaces the value of a key at random. Returns the time that it took. */
static uint64_t replaced(int file, long keys)
{
	static uint64_t state = 88172645463325252ULL;
	static char text[VALUE + 128];
	char key[32];
	state ^= state << 13, state ^= state >> 7, state ^= state << 17;
	int name = snprintf(key, sizeof key, "key:%ld", (long)(state % keys));
	int head = snprintf(text, sizeof text, "*3\r\n$3\r\nSET\r\n$%d\r\n%s\r\n$%d\r\n", name, key,
	                    VALUE);
	memset(text + head, 'a' + state % 26, VALUE);
	memcpy(text + head + VALUE, "\r\n", 2);
	uint64_t start = now();
	sent(file, text, head + VALUE + 2);
	if (strcmp(answer(file), "+OK\r\n"))
		fail("SET");
	return now() - start;
}

static double number(const char *text, const char *name)
{
	const char *at = strstr(text, name);
	return at ? atof(at + strlen(name)) : -1;
}

static int later(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
	return x < y ? -1 : x > y;
}

static uint64_t times[MOST];

/* The figures of so many requests. */
static void show(const char *name, long count, uint64_t took)
{
	uint64_t first = times[0];
	qsort(times, count, sizeof *times, later);
	printf("{\"when\": \"%s\", \"requests\": %ld, \"ns\": %llu, \"first\": %llu, \"median\": %llu, "
	       "\"p99\": %llu, \"p999\": %llu, \"longest\": %llu}\n",
	       name, count, (unsigned long long)took, (unsigned long long)first,
	       (unsigned long long)times[count / 2], (unsigned long long)times[count * 99 / 100],
	       (unsigned long long)times[count * 999 / 1000], (unsigned long long)times[count - 1]);
}

int main(int argc, char **argv)
{
	long mib = argc > 1 ? atol(argv[1]) : 0, alone = argc > 2 ? atol(argv[2]) : 20000, count = 0;
	long keys = mib << 10;
	char line[64];
	struct stat status;
	if (mib < 1 || alone < 1 || alone > MOST) {
		fputs("latency MIB [REQUESTS]\n", stderr);
		return 2;
	}
	pid_t server = fork();
	if (server == 0) {
		execl("/redis-server", "redis-server", "--port", "0", "--unixsocket", SOCKET, "--save",
		      "", "--dir", "/tmp", "--enable-debug-command", "yes", "--rdbcompression", "no",
		      "--logfile", "/tmp/redis.log", NULL);
		fail("/redis-server");
	}
	int file = connected(), other = connected();
	snprintf(line, sizeof line, "DEBUG POPULATE %ld key %d", keys, VALUE);
	asked(file, line);
	uint64_t start = now();
	for (long i = 0; i < alone; i++)
		times[i] = replaced(file, keys);
	show("alone", alone, now() - start);
	unlink(SNAPSHOT);
	/* The request behind BGSAVE waits for the fork, as that of any client would. */
	sent(other, "BGSAVE\r\n", 8);
	start = now();
	do
		times[count++] = replaced(file, keys);
	while (count < MOST && (count % 16 || stat(SNAPSHOT, &status)));
	uint64_t took = now() - start;
	answer(other);
	show("snapshot", count, took);
	for (int i = 0; i < 1000 && number(asked(file, "INFO persistence"), "in_progress:") > 0; i++)
		usleep(10000);
	int is_saved = strstr(asked(file, "INFO persistence"), "bgsave_status:ok") != NULL;
	const char *info = asked(file, "INFO");
	printf("{\"fork_us\": %.0f, \"saved\": %d, \"bytes\": %lld, \"memory\": %.0f}\n",
	       number(info, "latest_fork_usec:"), is_saved,
	       stat(SNAPSHOT, &status) ? 0LL : (long long)status.st_size,
	       number(info, "used_memory:"));
	fflush(stdout);
	sent(file, "SHUTDOWN NOSAVE\r\n", 17);
	waitpid(server, NULL, 0);
	unlink(SNAPSHOT);
	return is_saved && count < MOST ? 0 : 1;
}
