/* Checks limits and protection of files: a file that is executed is not written (ETXTBSY), names
 * are counted, and a call that fails for want of memory leaves names as they were.
 * `names PERCENT`. */
#include "test.h"
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/utsname.h>

static char folder[64], path[160], other[160];
static char *none[] = {NULL};

static void set(char *to, const char *name) { snprintf(to, sizeof path, "%s/%s", folder, name); }

/* Copies this program to `path`. */
static void copy_itself(void)
{
	int from = OK(open("/proc/self/exe", O_RDONLY));
	int to = OK(open(path, O_CREAT | O_TRUNC | O_WRONLY, 0700));
	while (OK(sendfile(to, from, NULL, 1 << 20)) > 0)
		;
	OK(close(from));
	OK(close(to));
}

/* Starts `path`, which tells when it runs, and waits until its standard input ends. */
static pid_t start(int *hold)
{
	int input[2], output[2];
	char byte;
	OK(pipe2(input, O_CLOEXEC));
	OK(pipe2(output, O_CLOEXEC));
	pid_t pid = OK(fork());
	if (pid == 0) {
		OK(dup2(input[0], 0));
		OK(dup2(output[1], 1));
		execve(path, (char *[]){"names", ":", NULL}, none);
		_exit(98);
	}
	OK(close(input[0]));
	OK(close(output[1]));
	EQ(read(output[0], &byte, 1), 1);
	OK(close(output[0]));
	*hold = input[1];
	return pid;
}

static void refuses_writers(void)
{
	ERR(open(path, O_WRONLY), ETXTBSY);
	ERR(open(path, O_RDWR), ETXTBSY);
	ERR(open(path, O_RDONLY | O_TRUNC), ETXTBSY);
	ERR(open(path, O_CREAT | O_WRONLY, 0700), ETXTBSY);
	ERR(truncate(path, 0), ETXTBSY);
	OK(close(OK(open(path, O_RDONLY))));
	OK(close(OK(open(path, O_PATH))));
}

static void accepts_writers(void)
{
	OK(close(OK(open(path, O_RDWR))));
	struct stat status;
	OK(stat(path, &status));
	OK(truncate(path, status.st_size));
}

static void executed(void)
{
	int hold, code;
	set(path, "program");
	set(other, "another");
	copy_itself();
	/* A writer keeps programs out. */
	int writer = OK(open(path, O_WRONLY));
	ERR(execve(path, none, none), ETXTBSY);
	OK(close(writer));
	/* A program keeps writers out; so does a child that it forks, which outlives it. */
	pid_t pid = start(&hold);
	refuses_writers();
	OK(rename(path, other));
	OK(link(other, path));
	refuses_writers();
	OK(unlink(other));
	OK(chmod(path, 0755));
	EQ(write(hold, "f", 1), 1);
	exits_with(pid, 5);
	refuses_writers();
	OK(close(hold));
	/* The child is no child of this process, and ends some time later. */
	while ((code = open(path, O_RDWR)) < 0) {
		EQ(errno, ETXTBSY);
		sched_yield();
	}
	OK(close(code));
	accepts_writers();
	/* One that is killed, and one that replaces itself by another program. */
	pid = start(&hold);
	refuses_writers();
	OK(kill(pid, SIGKILL));
	killed_by(pid, SIGKILL);
	accepts_writers();
	OK(close(hold));
	pid = start(&hold);
	refuses_writers();
	EQ(write(hold, "r", 1), 1);
	exits_with(pid, 6);
	accepts_writers();
	OK(close(hold));
	/* The description that memfd_create returns is no writer. */
	int memfd = OK(memfd_create("program", MFD_CLOEXEC)), from = OK(open(path, O_RDONLY));
	while (OK(sendfile(memfd, from, NULL, 1 << 20)) > 0)
		;
	OK(close(from));
	char link[64];
	snprintf(link, sizeof link, "/proc/self/fd/%d", memfd);
	pid = OK(fork());
	if (pid == 0) {
		execve(link, (char *[]){"names", ":", "end", NULL}, none);
		_exit(97);
	}
	exits_with(pid, 6);
	OK(close(memfd));
	OK(unlink(path));
}

static int role(int argc)
{
	char byte;
	if (argc > 2)
		return 6;
	EQ(write(1, "", 1), 1);
	if (read(0, &byte, 1) != 1)
		return 4;
	if (byte == 'r') {
		/* By its path, it is the same file, and ends at once. */
		execve("/proc/self/exe", (char *[]){"names", ":", "end", NULL}, none);
		return 96;
	}
	if (OK(fork()) == 0)
		_exit(read(0, &byte, 1));
	return 5;
}

/* Makes links until there is no room. Returns how many. */
static long fill(const char *prefix, const char *target, long most)
{
	long made = 0;
	for (; made < most; made++) {
		snprintf(other, sizeof other, "%s/%s%ld", folder, prefix, made);
		/* A symbolic link to nothing, or another name of a file. */
		if ((target[0] == '.' ? symlink(target, other) : link(target, other)) != 0) {
			EQ(errno, ENOSPC);
			break;
		}
	}
	return made;
}

static void empty(const char *prefix, long from, long to)
{
	for (long i = from; i < to; i++) {
		snprintf(other, sizeof other, "%s/%s%ld", folder, prefix, i);
		OK(unlink(other));
	}
}

/* On Samara, names use a budget. When it is used up, calls fail, and nothing has changed. */
static void many(void)
{
	struct utsname name;
	struct stat status;
	OK(uname(&name));
	int is_samara = strstr(name.release, "samara") != NULL;
	long most = is_samara ? 1 << 22 : 1000;
	set(path, "file");
	OK(close(OK(open(path, O_CREAT | O_WRONLY, 0600))));
	static char target[4000];
	memset(target, '.', sizeof target - 1);
	long large = fill("large", target, most);
	if (is_samara)
		empty("large", 0, 8);
	long made = fill("small", path, most);
	OK(stat(path, &status));
	EQ(status.st_nlink, made + 1);
	if (is_samara) {
		CHECK(made > 20 && made < most);
		ERR(mkdir(other, 0700), ENOSPC);
		/* The names stay. Another process has memory. */
		EQ(access(path, F_OK), 0);
		ERR(access(other, F_OK), ENOENT);
		pid_t pid = OK(fork());
		if (pid == 0)
			_exit(9);
		exits_with(pid, 9);
	}
	empty("small", 0, made);
	empty("large", is_samara ? 8 : 0, large);
	OK(stat(path, &status));
	EQ(status.st_nlink, 1);
	OK(rename(path, other));
	OK(unlink(other));
}

int main(int argc, char **argv)
{
	if (argc > 1 && strcmp(argv[1], ":") == 0)
		return role(argc);
	long rounds = sized(argc, argv, 20);
	sprintf(folder, "/tmp/names-%d", getpid());
	OK(mkdir(folder, 0700));
	for (long i = 0; i < rounds; i++)
		executed();
	many();
	OK(rmdir(folder));
	printf("names: %ld rounds\n", rounds);
	return 0;
}
