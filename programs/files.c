/* Checks files in memory (below /tmp and /dev/shm), pipes, descriptors, directories, the devices
 * /dev/zero and /dev/null, and the files of /proc that a memory program reads. */
#include "test.h"
#include <dirent.h>
#include <sys/stat.h>
#include <sys/uio.h>

static char folder[64];

static const char *path(const char *name)
{
	static char paths[4][128];
	static int turn;
	char *to = paths[turn++ % 4];
	snprintf(to, sizeof paths[0], "%s/%s", folder, name);
	return to;
}

static void contents(void)
{
	char buffer[300], other[100];
	struct stat stat;
	ERR(open(path("a"), O_RDWR), ENOENT);
	int fd = OK(open(path("a"), O_RDWR | O_CREAT | O_EXCL, 0640));
	ERR(open(path("a"), O_RDWR | O_CREAT | O_EXCL, 0640), EEXIST);
	ERR(open(path("a"), O_RDWR | O_DIRECTORY), ENOTDIR);
	EQ(write(fd, "0123456789", 10), 10);
	EQ(lseek(fd, 0, SEEK_CUR), 10);
	EQ(read(fd, buffer, 5), 0);
	EQ(lseek(fd, 2, SEEK_SET), 2);
	EQ(read(fd, buffer, 3), 3);
	CHECK(memcmp(buffer, "234", 3) == 0);
	EQ(pread(fd, buffer, 100, 7), 3);
	EQ(pwrite(fd, "XY", 2, 4), 2);
	EQ(lseek(fd, 0, SEEK_CUR), 5);
	EQ(lseek(fd, -3, SEEK_END), 7);
	ERR(lseek(fd, -30, SEEK_END), EINVAL);
	/* A hole reads as zeroes. */
	EQ(pwrite(fd, "end", 3, 9000), 3);
	EQ(pread(fd, buffer, 300, 8800), 203);
	for (int i = 0; i < 200; i++)
		EQ(buffer[i], 0);
	OK(fstat(fd, &stat));
	EQ(stat.st_size, 9003);
	EQ(stat.st_mode & ~S_IFMT, 0640);
	CHECK(S_ISREG(stat.st_mode));
	EQ(stat.st_nlink, 1);
	OK(ftruncate(fd, 6));
	EQ(pread(fd, buffer, 100, 0), 6);
	CHECK(memcmp(buffer, "0123XY", 6) == 0);
	OK(ftruncate(fd, 20));
	EQ(pread(fd, buffer, 100, 0), 20);
	for (int i = 6; i < 20; i++)
		EQ(buffer[i], 0);
	struct iovec parts[3] = {{"abc", 3}, {"", 0}, {"defgh", 5}};
	EQ(lseek(fd, 0, SEEK_SET), 0);
	EQ(writev(fd, parts, 3), 8);
	EQ(lseek(fd, 0, SEEK_SET), 0);
	struct iovec to[2] = {{buffer, 2}, {other, 6}};
	EQ(readv(fd, to, 2), 8);
	CHECK(memcmp(buffer, "ab", 2) == 0 && memcmp(other, "cdefgh", 6) == 0);
	OK(close(fd));
	ERR(read(fd, buffer, 1), EBADF);

	fd = OK(open(path("a"), O_WRONLY | O_APPEND));
	EQ(write(fd, "+", 1), 1);
	EQ(lseek(fd, 0, SEEK_CUR), 21);
	ERR(read(fd, buffer, 1), EBADF);
	OK(close(fd));
	fd = OK(open(path("a"), O_RDONLY));
	ERR(write(fd, "x", 1), EBADF);
	OK(close(fd));
	fd = OK(open(path("a"), O_RDWR | O_TRUNC));
	OK(fstat(fd, &stat));
	EQ(stat.st_size, 0);
	/* An unlinked file lives as long as its descriptor. */
	EQ(write(fd, "alive", 5), 5);
	OK(unlink(path("a")));
	ERR(open(path("a"), O_RDWR), ENOENT);
	EQ(pread(fd, buffer, 5, 0), 5);
	OK(fstat(fd, &stat));
	EQ(stat.st_nlink, 0);
	OK(close(fd));
}

static void directories(void)
{
	struct stat stat;
	OK(mkdir(path("d"), 0755));
	ERR(mkdir(path("d"), 0755), EEXIST);
	ERR(mkdir(path("no/d"), 0755), ENOENT);
	OK(close(OK(open(path("d/x"), O_CREAT | O_WRONLY, 0600))));
	OK(close(OK(open(path("d/y"), O_CREAT | O_WRONLY, 0600))));
	OK(mkdir(path("d/e"), 0755));
	int fd = OK(open(path("d"), O_RDONLY | O_DIRECTORY)), found = 0;
	char entries[1024];
	long length = OK(syscall(SYS_getdents64, fd, entries, sizeof entries));
	for (long at = 0; at < length;) {
		char *name = entries + at + 19, type = entries[at + 18];
		const char *names[] = {".", "..", "x", "y", "e"};
		int which = 0;
		while (which < 5 && strcmp(name, names[which]))
			which++;
		CHECK(which < 5);
		EQ(found & 1 << which, 0);
		found |= 1 << which;
		EQ(type, which == 2 || which == 3 ? DT_REG : DT_DIR);
		at += *(uint16_t *)(entries + at + 16);
	}
	EQ(found, 31);
	EQ(syscall(SYS_getdents64, fd, entries, sizeof entries), 0);
	int file = OK(openat(fd, "x", O_RDWR));
	EQ(write(file, "named x", 7), 7);
	OK(rename(path("d/x"), path("d/y")));
	ERR(open(path("d/x"), O_RDONLY), ENOENT);
	OK(fstatat(fd, "y", &stat, 0));
	EQ(stat.st_size, 7);
	struct stat same;
	OK(fstat(file, &same));
	EQ(same.st_ino, stat.st_ino);
	OK(close(file));
	ERR(rmdir(path("d")), ENOTEMPTY);
	ERR(unlink(path("d/e")), EISDIR);
	ERR(open(path("d/e"), O_WRONLY), EISDIR);
	ERR(open(path("d/y/z"), O_RDONLY), ENOTDIR);
	OK(rename(path("d/e"), path("d/f")));
	OK(lstat(path("d/f"), &stat));
	CHECK(S_ISDIR(stat.st_mode));
	char here[200], before[200];
	CHECK(getcwd(before, sizeof before) != NULL);
	OK(chdir(path("d")));
	CHECK(getcwd(here, sizeof here) != NULL && strcmp(here, path("d")) == 0);
	OK(access("y", R_OK));
	ERR(access("x", R_OK), ENOENT);
	OK(rmdir("f"));
	OK(unlinkat(fd, "y", 0));
	OK(chdir(before));
	OK(close(fd));
	OK(rmdir(path("d")));

	/* statx: the mask, then at fixed places the mode and the size. */
	OK(close(OK(open(path("s"), O_CREAT | O_WRONLY, 0604))));
	OK(truncate(path("s"), 12345));
	uint32_t words[64];
	OK(syscall(SYS_statx, AT_FDCWD, path("s"), 0, 0x7ff, words));
	EQ(words[0] & 0x2ff, 0x2ff);
	EQ(words[1], PAGE);
	EQ(words[7] & 0xffff, S_IFREG | 0604);
	EQ(words[10], 12345);
	OK(unlink(path("s")));
}

static void descriptors(void)
{
	int ends[2];
	char buffer[100];
	OK(pipe2(ends, O_CLOEXEC | O_NONBLOCK));
	EQ(fcntl(ends[0], F_GETFD), FD_CLOEXEC);
	EQ(fcntl(ends[1], F_GETFL) & (O_NONBLOCK | O_ACCMODE), O_NONBLOCK | O_WRONLY);
	ERR(read(ends[0], buffer, 1), EAGAIN);
	ERR(lseek(ends[0], 0, SEEK_SET), ESPIPE);
	ERR(pread(ends[0], buffer, 1, 0), ESPIPE);
	EQ(write(ends[1], "through", 7), 7);
	EQ(read(ends[0], buffer, 3), 3);
	EQ(read(ends[0], buffer + 3, 100 - 3), 4);
	CHECK(memcmp(buffer, "through", 7) == 0);
	/* Full: then no more, until it is read. */
	long filled = 0, part;
	char page[PAGE];
	memset(page, 'f', PAGE);
	while ((part = write(ends[1], page, PAGE)) > 0)
		filled += part;
	EQ(errno, EAGAIN);
	EQ(filled, 65536);
	while ((part = read(ends[0], page, PAGE)) > 0)
		filled -= part;
	EQ(filled, 0);
	OK(fcntl(ends[0], F_SETFL, 0));
	OK(close(ends[1]));
	EQ(read(ends[0], buffer, 1), 0);
	OK(close(ends[0]));

	int fd = OK(open(path("f"), O_RDWR | O_CREAT, 0600));
	EQ(write(fd, "shared", 6), 6);
	/* Duplicates share the position, not the flag. */
	int second = OK(dup(fd));
	CHECK(second != fd);
	EQ(lseek(second, 0, SEEK_CUR), 6);
	OK(lseek(second, 1, SEEK_SET));
	EQ(lseek(fd, 0, SEEK_CUR), 1);
	EQ(dup2(fd, 77), 77);
	EQ(dup2(fd, fd), fd);
	ERR(dup3(fd, fd, 0), EINVAL);
	EQ(dup3(fd, 77, O_CLOEXEC), 77);
	EQ(fcntl(77, F_GETFD), FD_CLOEXEC);
	EQ(fcntl(fd, F_GETFD), 0);
	OK(fcntl(fd, F_SETFD, FD_CLOEXEC));
	EQ(fcntl(fd, F_GETFD), FD_CLOEXEC);
	EQ(fcntl(second, F_GETFD), 0);
	EQ(fcntl(fd, F_DUPFD, 78), 78);
	EQ(fcntl(fd, F_DUPFD_CLOEXEC, 78), 79);
	/* Another open has a position of its own. */
	int third = OK(open(path("f"), O_RDONLY));
	EQ(lseek(third, 0, SEEK_CUR), 0);
	/* The lowest free number. */
	OK(close(second));
	EQ(open(path("f"), O_RDONLY), second);
	OK(close(second));
	for (int number = 77; number < 80; number++)
		OK(close(number));
	OK(close(third));
	OK(close(fd));
	OK(unlink(path("f")));
}

/* Maps of a file: shared ones and calls see each other's writes, private ones keep theirs. */
static void maps(const char *name)
{
	char buffer[10];
	int fd = OK(open(name, O_RDWR | O_CREAT, 0600));
	OK(ftruncate(fd, 4 * PAGE));
	char *shared = (char *)OK(mmap(NULL, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0));
	char *later = (char *)OK(mmap(NULL, 2 * PAGE, PROT_READ, MAP_SHARED, fd, PAGE));
	char *private =
		(char *)OK(mmap(NULL, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0));
	OK(close(fd));
	shared[PAGE + 1] = 'a';
	EQ(later[1], 'a');
	EQ(private[PAGE + 1], 'a');
	private[PAGE + 1] = 'b';
	EQ(shared[PAGE + 1], 'a');
	fd = OK(open(name, O_RDWR));
	EQ(pread(fd, buffer, 1, PAGE + 1), 1);
	EQ(buffer[0], 'a');
	EQ(pwrite(fd, "c", 1, PAGE + 1), 1);
	EQ(shared[PAGE + 1], 'c');
	EQ(later[1], 'c');
	EQ(private[PAGE + 1], 'b');
	/* Read and write where the memory is a map of the same file. */
	EQ(pwrite(fd, shared + PAGE, 2, 0), 2);
	EQ(shared[1], 'c');
	EQ(pread(fd, shared + 3 * PAGE, 2, 0), 2);
	EQ(shared[3 * PAGE + 1], 'c');
	pid_t pid = OK(fork());
	if (pid == 0) {
		EQ(private[PAGE + 1], 'b');
		shared[2 * PAGE] = 'd';
		private[2 * PAGE] = 'e';
		_exit(0);
	}
	exits_with(pid, 0);
	EQ(shared[2 * PAGE], 'd');
	EQ(private[2 * PAGE], 'd');
	OK(unlink(name));
	OK(close(fd));
	EQ(later[PAGE], 'd');
	OK(munmap(shared, 4 * PAGE));
	OK(munmap(later, 2 * PAGE));
	OK(munmap(private, 4 * PAGE));
}

static void devices(void)
{
	char buffer[5000];
	int fd = OK(open("/dev/zero", O_RDWR));
	memset(buffer, 1, sizeof buffer);
	EQ(read(fd, buffer, sizeof buffer), sizeof buffer);
	for (unsigned i = 0; i < sizeof buffer; i++)
		EQ(buffer[i], 0);
	EQ(write(fd, buffer, 100), 100);
	char *p = (char *)OK(mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0));
	EQ(p[5], 0);
	p[5] = 1;
	OK(munmap(p, PAGE));
	OK(close(fd));
	fd = OK(open("/dev/null", O_RDWR));
	EQ(read(fd, buffer, 10), 0);
	EQ(write(fd, buffer, 10), 10);
	OK(close(fd));
	CHECK(getentropy(buffer, 16) == 0);
}

/* The whole text of a file that has no size. */
static char *text_of(const char *name)
{
	static char text[1 << 16];
	int fd = OK(open(name, O_RDONLY));
	long length = 0, part;
	/* In small parts, so that reads go on at positions. */
	while ((part = OK(read(fd, text + length, 1000))) > 0)
		length += part;
	CHECK(length > 0 && length < (long)sizeof text - 1);
	text[length] = 0;
	OK(close(fd));
	return text;
}

static void proc(void)
{
	char expected[100], link[200];
	char *p = map(4 * PAGE, PROT_READ, MAP_PRIVATE);
	OK(mprotect(p + PAGE, PAGE, PROT_READ | PROT_WRITE));
	OK(mprotect(p + 2 * PAGE, PAGE, PROT_NONE));
	char *text = text_of("/proc/self/maps");
	snprintf(expected, sizeof expected, "%lx-%lx rw-p 00000000 00:00 0", (long)p + PAGE,
		 (long)p + 2 * PAGE);
	CHECK(strstr(text, expected) != NULL);
	snprintf(expected, sizeof expected, "%lx-%lx ---p 00000000 00:00 0", (long)p + 2 * PAGE,
		 (long)p + 3 * PAGE);
	CHECK(strstr(text, expected) != NULL);
	CHECK(strstr(text, "[stack]") != NULL);
	CHECK(strstr(text, " r-xp ") != NULL);
	OK(munmap(p, 4 * PAGE));
	text = text_of("/proc/self/maps");
	CHECK(strstr(text, expected) == NULL);
	/* The lines are sorted, and none overlaps the next. */
	unsigned long last = 0, start, end;
	for (char *line = text; line && *line; line = strchr(line, '\n'), line += line != NULL) {
		EQ(sscanf(line, "%lx-%lx", &start, &end), 2);
		CHECK(start >= last && end > start);
		last = end;
	}
	text = text_of("/proc/self/status");
	snprintf(expected, sizeof expected, "\nPid:\t%d\n", getpid());
	CHECK(strstr(text, expected) != NULL);
	CHECK(strstr(text, "\nVmRSS:") != NULL);
	text = text_of("/proc/meminfo");
	long total = 0, available = 0;
	CHECK(sscanf(text, "MemTotal: %ld kB", &total) == 1);
	CHECK(strstr(text, "MemFree:") != NULL);
	CHECK(strstr(text, "MemAvailable:") != NULL);
	sscanf(strstr(text, "MemAvailable:"), "MemAvailable: %ld", &available);
	CHECK(total >= available && available > 0);
	long length = OK(readlink("/proc/self/exe", link, sizeof link - 1));
	link[length] = 0;
	CHECK(link[0] == '/');
	struct stat one, two;
	OK(stat("/proc/self/exe", &one));
	OK(stat(link, &two));
	EQ(one.st_ino, two.st_ino);
	EQ(one.st_size, two.st_size);
}

/* Folders nested so deep that a path from the root is too long. */
static void deep(void)
{
	enum { DEPTH = 20 };
	char name[256], link[64], text[8192];
	memset(name, 'd', 255);
	name[255] = 0;
	OK(chdir(folder));
	for (int depth = 0; depth < DEPTH; depth++) {
		OK(mkdir(name, 0700));
		OK(chdir(name));
	}
	int file = OK(open("file", O_CREAT | O_EXCL | O_RDWR, 0600));
	ERR(syscall(SYS_getcwd, text, sizeof text), ENAMETOOLONG);
	sprintf(link, "/proc/self/fd/%d", file);
	ERR(readlink(link, text, sizeof text), ENAMETOOLONG);
	EQ(write(file, "deep", 4), 4);
	void *at = (void *)OK(mmap(NULL, PAGE, PROT_READ, MAP_SHARED, file, 0));
	EQ(memcmp(at, "deep", 4), 0);
	OK(munmap(at, PAGE));
	OK(close(file));
	OK(unlink("file"));
	for (int depth = 0; depth < DEPTH; depth++) {
		OK(chdir(".."));
		OK(rmdir(name));
	}
	OK(chdir("/"));
}

int main(int argc, char **argv)
{
	long rounds = sized(argc, argv, 20);
	for (long i = 0; i < rounds; i++) {
		sprintf(folder, "/tmp/files-%d-%ld", getpid(), i);
		OK(mkdir(folder, 0700));
		contents();
		directories();
		deep();
		descriptors();
		maps(path("m"));
		char name[64];
		sprintf(name, "/dev/shm/files-%d", getpid());
		maps(name);
		OK(rmdir(folder));
		devices();
		proc();
	}
	printf("files: %ld rounds\n", rounds);
	return 0;
}
