/* Checks the calls on users and groups: permitted and refused changes, the owners of new files,
 * children and new programs, and the listings of /proc. Needs root. Raw calls: a C library changes
 * all threads. */
#include "test.h"
#include <sys/auxv.h>
#include <sys/stat.h>

static char folder[] = "/tmp/usersXXXXXX";

static void are(int group, unsigned real, unsigned effective, unsigned saved, unsigned files)
{
	unsigned r, e, s, shown[4];
	char line[200];
	OK(syscall(group ? SYS_getresgid : SYS_getresuid, &r, &e, &s));
	EQ(r, real);
	EQ(e, effective);
	EQ(s, saved);
	EQ(syscall(group ? SYS_getgid : SYS_getuid), real);
	EQ(syscall(group ? SYS_getegid : SYS_geteuid), effective);
	EQ(syscall(group ? SYS_setfsgid : SYS_setfsuid, -1), files);
	FILE *status = fopen("/proc/self/status", "r");
	CHECK(status);
	while (fgets(line, sizeof line, status))
		if (sscanf(line, group ? "Gid: %u %u %u %u" : "Uid: %u %u %u %u", shown, shown + 1,
			   shown + 2, shown + 3) == 4)
			break;
	fclose(status);
	EQ(shown[0], real);
	EQ(shown[1], effective);
	EQ(shown[2], saved);
	EQ(shown[3], files);
}

static void in_child(void (*test)(int), int argument)
{
	pid_t pid = OK(fork());
	if (pid == 0) {
		test(argument);
		_exit(0);
	}
	exits_with(pid, 0);
}

/* The calls of users, or of groups. */
static long set(int group, long id) { return syscall(group ? SYS_setgid : SYS_setuid, id); }
static long set_two(int group, long real, long effective)
{
	return syscall(group ? SYS_setregid : SYS_setreuid, real, effective);
}
static long set_three(int group, long real, long effective, long saved)
{
	return syscall(group ? SYS_setresgid : SYS_setresuid, real, effective, saved);
}
static long set_files(int group, long id)
{
	return syscall(group ? SYS_setfsgid : SYS_setfsuid, id);
}

/* Groups are changed by a user that is root no more, as users are. */
static void drop(int group)
{
	if (group)
		OK(syscall(SYS_setuid, 77));
}

static void with_set(int group)
{
	are(group, 0, 0, 0, 0);
	ERR(set(group, -1), EINVAL);
	OK(set(group, 1000));
	are(group, 1000, 1000, 1000, 1000);
	drop(group);
	ERR(set(group, 0), EPERM);
	ERR(set(group, 1001), EPERM);
	OK(set(group, 1000));
	ERR(set(group, -1), EINVAL);
	are(group, 1000, 1000, 1000, 1000);
}

static void with_two(int group)
{
	OK(set_two(group, 1, 2));
	are(group, 1, 2, 2, 2);
	drop(group);
	OK(set_two(group, -1, 1));
	are(group, 1, 1, 2, 1);
	OK(set_two(group, -1, 2));
	are(group, 1, 2, 2, 2);
	ERR(set_two(group, 3, -1), EPERM);
	ERR(set_two(group, 2, 0), EPERM);
	OK(set_two(group, 2, 1));
	are(group, 2, 1, 1, 1);
	OK(set_two(group, -1, -1));
	are(group, 2, 1, 1, 1);
}

static void with_three(int group)
{
	OK(set_three(group, 1, 2, 3));
	are(group, 1, 2, 3, 2);
	drop(group);
	OK(set_three(group, -1, 3, -1));
	are(group, 1, 3, 3, 3);
	OK(set_three(group, 3, 1, 3));
	are(group, 3, 1, 3, 1);
	ERR(set_three(group, 3, 2, 3), EPERM);
	ERR(set_three(group, 0, -1, -1), EPERM);
	OK(set(group, 3));
	are(group, 3, 3, 3, 3);
}

static void with_files(int group)
{
	EQ(set_files(group, 5), 0);
	are(group, 0, 0, 0, 5);
	OK(set_three(group, 1, 2, 3));
	drop(group);
	EQ(set_files(group, 9), 2);
	EQ(set_files(group, 3), 2);
	EQ(set_files(group, 2), 3);
	are(group, 1, 2, 3, 2);
}

/* A child, new files and a new program get the user and the group of their maker. */
static void inherited(int unused)
{
	struct stat status;
	char path[64];
	(void)unused;
	unsigned groups[] = {30, 10, 20};
	OK(syscall(SYS_setgroups, 3, groups));
	OK(syscall(SYS_setresgid, 11, 12, 13));
	OK(syscall(SYS_setresuid, 1, 2, 3));
	pid_t pid = OK(fork());
	if (pid == 0) {
		are(0, 1, 2, 3, 2);
		are(1, 11, 12, 13, 12);
		_exit(0);
	}
	exits_with(pid, 0);
	sprintf(path, "%s/file", folder);
	close(OK(open(path, O_CREAT | O_WRONLY, 0600)));
	OK(stat(path, &status));
	EQ(status.st_uid, 2);
	EQ(status.st_gid, 12);
	OK(unlink(path));
	OK(mkdir(path, 0700));
	OK(stat(path, &status));
	EQ(status.st_uid, 2);
	EQ(status.st_gid, 12);
	OK(rmdir(path));
	OK(symlink("x", path));
	OK(lstat(path, &status));
	EQ(status.st_uid, 2);
	EQ(status.st_gid, 12);
	OK(unlink(path));
	OK(syscall(SYS_setresuid, 1, 1, 3));
	pid = OK(fork());
	if (pid == 0) {
		execl("/proc/self/exe", "users", ":", NULL);
		_exit(1);
	}
	exits_with(pid, 0);
}

static void groups(int unused)
{
	static unsigned many[65537], read_back[65537];
	(void)unused;
	OK(syscall(SYS_setgroups, 0, NULL));
	EQ(syscall(SYS_getgroups, 0, NULL), 0);
	for (int i = 0; i < 65537; i++)
		many[i] = 100000 - i;
	OK(syscall(SYS_setgroups, 65536, many));
	ERR(syscall(SYS_setgroups, 65537, many), EINVAL);
	ERR(syscall(SYS_setgroups, -1, many), EINVAL);
	ERR(syscall(SYS_getgroups, 65535, read_back), EINVAL);
	ERR(syscall(SYS_getgroups, -1, read_back), EINVAL);
	EQ(syscall(SYS_getgroups, 65537, read_back), 65536);
	for (int i = 0; i < 65536; i++)
		EQ(read_back[i], 100000 - 65535 + i);
	ERR(syscall(SYS_getgroups, 65536, (void *)1), EFAULT);
	ERR(syscall(SYS_setgroups, 2, (void *)1), EFAULT);
	many[1] = -1;
	ERR(syscall(SYS_setgroups, 2, many), EINVAL);
	EQ(syscall(SYS_getgroups, 0, NULL), 65536);
	OK(syscall(SYS_setuid, 1));
	ERR(syscall(SYS_setgroups, 1, many), EPERM);
	ERR(syscall(SYS_setgroups, -1, (void *)1), EPERM);
	EQ(syscall(SYS_getgroups, 0, NULL), 65536);
}

/* A new program: the saved number is the effective one. */
static int executed(void)
{
	unsigned list[4];
	are(0, 1, 1, 1, 1);
	are(1, 11, 12, 12, 12);
	EQ(getauxval(AT_UID), 1);
	EQ(getauxval(AT_EUID), 1);
	EQ(getauxval(AT_GID), 11);
	EQ(getauxval(AT_EGID), 12);
	EQ(syscall(SYS_getgroups, 4, list), 3);
	EQ(list[0], 10);
	EQ(list[1], 20);
	EQ(list[2], 30);
	return 0;
}

int main(int argc, char **argv)
{
	if (argc > 1 && argv[1][0] == ':')
		return executed();
	CHECK(mkdtemp(folder));
	OK(chmod(folder, 0777));
	for (int group = 0; group < 2; group++) {
		in_child(with_set, group);
		in_child(with_two, group);
		in_child(with_three, group);
		in_child(with_files, group);
	}
	in_child(inherited, 0);
	in_child(groups, 0);
	OK(rmdir(folder));
	are(0, 0, 0, 0, 0);
	printf("users: users and groups change as they should\n");
	return 0;
}
