/* Runs a command between two marks that QEMU's plugin sees (counts.c), and says how it ended.
 *
 *   start COMMAND...          in the kernel of this project
 *   start --init COMMAND...   as the first program of Linux: mounts /proc and /dev, and
 *                             restarts the machine at the end
 *
 * The last line is JSON: the status of the command, 128 and the signal if it was killed. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#define MARK(n) __asm__ volatile(".byte 0x0f, 0x1f, 0x80, 'M', 'A', 'R', " #n ::: "memory")

static void mount_or_end(const char *type, const char *path)
{
	mkdir(path, 0755);
	if (mount(type, path, type, 0, NULL)) {
		perror(path);
		reboot(RB_AUTOBOOT);
	}
}

/* Linux works on after its boot. Both kernels get this second. */
static void settle(void)
{
	sleep(1);
}

int main(int argc, char **argv)
{
	int init = argc > 1 && !strcmp(argv[1], "--init"), status;
	argv += 1 + init;
	if (!*argv) {
		fputs("start [--init] COMMAND...\n", stderr);
		return 2;
	}
	if (init) {
		mount_or_end("proc", "/proc");
		mount_or_end("devtmpfs", "/dev");
	}
	mkdir("/tmp", 0777);
	setenv("PATH", "/usr/bin:/bin", 1);
	settle();
	MARK(0);
	pid_t child = fork();
	if (child == 0) {
		execvp(*argv, argv);
		perror(*argv);
		_exit(127);
	}
	if (child < 0 || waitpid(child, &status, 0) != child) {
		perror("start");
		status = 126 << 8;
	}
	MARK(1);
	status = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
	printf("{\"status\": %d}\n", status);
	fflush(stdout);
	tcdrain(1);
	if (init)
		reboot(RB_AUTOBOOT);
	return status;
}
