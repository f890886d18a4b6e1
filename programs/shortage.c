/* Memory that runs out: which process is killed, and that a parent which has waited for a child has
 * its memory back. `shortage PERCENT all` takes all memory of the machine, so it is not for a Linux
 * with other work; without `all` it looks at the files of /proc only. */
#include "test.h"
#include <sys/sysinfo.h>

static size_t free_bytes(void)
{
	struct sysinfo info;
	OK(sysinfo(&info));
	return info.freeram * info.mem_unit;
}

/* Maps memory, and writes to each page. */
static char *take(size_t bytes)
{
	char *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
			MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	CHECK(at != MAP_FAILED);
	for (size_t page = 0; page < bytes; page += PAGE)
		at[page] = 1;
	return at;
}

static void set_points(int points)
{
	char text[16];
	int length = snprintf(text, sizeof text, "%d\n", points);
	int fd = OK(open("/proc/self/oom_score_adj", O_WRONLY));
	EQ(write(fd, text, length), length);
	OK(close(fd));
}

static int number_of(const char *name)
{
	char text[16] = "";
	int fd = OK(open(name, O_RDONLY));
	CHECK(read(fd, text, sizeof text - 1) > 0);
	OK(close(fd));
	return atoi(text);
}

/* A child that holds memory, and waits. `ends` gets a byte when it holds all. */
static pid_t holder(size_t bytes, int points, int ends)
{
	pid_t child = OK(fork());
	if (child)
		return child;
	set_points(points);
	take(bytes);
	OK(write(ends, "x", 1));
	for (;;)
		pause();
}

static int status_of(pid_t child)
{
	int status;
	EQ(waitpid(child, &status, 0), child);
	return status;
}

/* A child that takes all there is ends; the parent takes as much at once. */
static void again(size_t all, int rounds)
{
	for (int round = 0; round < rounds; round++) {
		pid_t child = OK(fork());
		if (!child) {
			take(2 * all);
			_exit(3);
		}
		EQ(status_of(child), SIGKILL);
		size_t most = all / 4 * 3;
		OK(munmap(take(most), most));
	}
}

/* The one that asks for a page is small: the large one ends, or the one whose points say so. One
 * that is never to be killed is not. A copy by a call asks, too. */
static void chosen(size_t all)
{
	int ends[2];
	char byte;
	OK(pipe(ends));
	pid_t large = holder(all / 2, 0, ends[1]);
	EQ(read(ends[0], &byte, 1), 1);
	pid_t kept = holder(all / 5, -1000, ends[1]);
	EQ(read(ends[0], &byte, 1), 1);
	pid_t marked = holder(all / 10, 900, ends[1]);
	EQ(read(ends[0], &byte, 1), 1);
	size_t part = all / 4;
	char *at = take(part);
	EQ(status_of(marked), SIGKILL);
	EQ(waitpid(large, NULL, WNOHANG), 0);
	/* By read(2), into memory without pages. */
	int fd = OK(open("/dev/zero", O_RDONLY));
	char *more = mmap(NULL, part, PROT_READ | PROT_WRITE,
			  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	EQ(read(fd, more, part), part);
	OK(close(fd));
	EQ(status_of(large), SIGKILL);
	EQ(waitpid(kept, NULL, WNOHANG), 0);
	OK(kill(kept, SIGTERM));
	EQ(status_of(kept), SIGTERM);
	OK(munmap(at, part));
	OK(munmap(more, part));
	OK(close(ends[0]));
	OK(close(ends[1]));
}

/* A fork fails before anything ends: the memory for the tables is not there. But it waits for the
 * memory of processes that are ending. */
static void forks(size_t all)
{
	int ends[2];
	char byte;
	OK(pipe(ends));
	pid_t child = OK(fork());
	if (!child) {
		OK(setpgid(0, 0));
		/* Down to what some of the children need. */
		char *at = mmap(NULL, 2 * all, PROT_READ | PROT_WRITE,
				MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
		CHECK(at != MAP_FAILED);
		for (size_t page = 0; free_bytes() > all / 50; page += PAGE)
			at[page] = 1;
		pid_t made[2000];
		int count = 0;
		for (; (made[count] = fork()) >= 0; count++) {
			if (!made[count])
				for (;;)
					pause();
			CHECK(count < 1999);
		}
		CHECK(errno == ENOMEM || errno == EAGAIN);
		CHECK(count > 0);
		while (count > 0)
			OK(kill(made[--count], SIGKILL));
		pid_t after = OK(fork());
		if (!after)
			_exit(5);
		EQ(status_of(after), 5 << 8);
		OK(write(ends[1], "x", 1));
		OK(killpg(0, SIGKILL));
	}
	EQ(read(ends[0], &byte, 1), 1);
	EQ(status_of(child), SIGKILL);
	OK(close(ends[0]));
	OK(close(ends[1]));
}

/* A process that is killed while a call fills memory ends: the call does not go on with pages that
 * are taken back from the process itself. */
static void filling(size_t all)
{
	pid_t child = OK(fork());
	if (!child) {
		const int populate_write = 23;
		size_t bytes = 64 * all;
		char *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
				MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
		CHECK(at != MAP_FAILED);
		madvise(at, bytes, populate_write);
		_exit(3);
	}
	OK(usleep(20000));
	OK(kill(child, SIGKILL));
	EQ(status_of(child), SIGKILL);
}

static void files(void)
{
	/* Points may grow without a privilege. */
	int first = number_of("/proc/self/oom_score_adj") + 17;
	set_points(first);
	pid_t child = OK(fork());
	if (!child) {
		EQ(number_of("/proc/self/oom_score_adj"), first);
		_exit(0);
	}
	EQ(status_of(child), 0);
	int fd = OK(open("/proc/self/oom_score_adj", O_RDWR));
	for (const char *const *text = (const char *const[]){ "1001", "-1001", "x", "" }; **text; text++) {
		EQ(write(fd, *text, strlen(*text)), -1);
		EQ(errno, EINVAL);
	}
	OK(close(fd));
	EQ(number_of("/proc/self/oom_score_adj"), first);
	int before = number_of("/proc/self/oom_score");
	set_points(first + 300);
	CHECK(number_of("/proc/self/oom_score") > before + 100);
}

int main(int count, char **arguments)
{
	files();
	if (count > 2 && !strcmp(arguments[2], "all")) {
		set_points(-1000);
		EQ(number_of("/proc/self/oom_score"), 0);
		set_points(0);
		size_t all = free_bytes();
		again(all, 1 + atoi(arguments[1]) / 20);
		chosen(all);
		forks(all);
		filling(all);
	}
	printf("shortage: ok\n");
	return 0;
}
