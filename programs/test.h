/* The common part of all programs: checks that name the first difference and exit with status 1,
 * raw calls, and constants that musl's headers lack. A program takes one argument, its size in
 * percent (100 by default), so that a slow machine can run less of it. */
#ifndef TEST_H
#define TEST_H
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PAGE 4096UL

/* Not in the headers of Debian 12. */
#ifndef SYS_mseal
#define SYS_mseal 462
#endif

/* A difference: written by one call to standard output, also from a child or a handler. */
static void differs(const char *file, int line, const char *format, ...)
{
	char text[600];
	int length = snprintf(text, sizeof text, "%s:%d: ", file, line);
	va_list list;
	va_start(list, format);
	length += vsnprintf(text + length, sizeof text - length - 1, format, list);
	va_end(list);
	if (length > (int)sizeof text - 2)
		length = sizeof text - 2;
	text[length++] = '\n';
	if (write(1, text, length) < 0)
		_exit(2);
	_exit(1);
}

#define CHECK(condition)                                                                           \
	do {                                                                                       \
		if (!(condition))                                                                  \
			differs(__FILE__, __LINE__, "%s is false (errno %d)", #condition, errno);  \
	} while (0)

#define EQ(call, expected)                                                                         \
	do {                                                                                       \
		long long found_ = (long long)(call), expected_ = (long long)(expected);           \
		if (found_ != expected_)                                                           \
			differs(__FILE__, __LINE__, "%s is %lld (0x%llx), not %lld (errno %d)",    \
				#call, found_, found_, expected_, errno);                          \
	} while (0)

/* The result of a call that must not fail. */
#define OK(call)                                                                                   \
	({                                                                                         \
		long result_ = (long)(call);                                                       \
		if (result_ == -1)                                                                 \
			differs(__FILE__, __LINE__, "%s fails: %s", #call, strerror(errno));       \
		result_;                                                                           \
	})

/* A call that must fail with the error. */
#define ERR(call, error)                                                                           \
	do {                                                                                       \
		errno = 0;                                                                         \
		long result_ = (long)(call);                                                       \
		if (result_ != -1 || errno != (error))                                             \
			differs(__FILE__, __LINE__, "%s is %ld, errno %d, not -1, errno %d",       \
				#call, result_, errno, (error));                                   \
	} while (0)

/* Waits for a child, which must exit with the status. */
__attribute__((unused)) static void exits_with(pid_t pid, int expected)
{
	int status;
	EQ(waitpid(pid, &status, 0), pid);
	if (!WIFEXITED(status) || WEXITSTATUS(status) != expected)
		differs(__FILE__, __LINE__, "child ends with status 0x%x, not exit code %d", status,
			expected);
}

/* Waits for a child, which must be killed by the signal. */
__attribute__((unused)) static void killed_by(pid_t pid, int signal)
{
	int status;
	EQ(waitpid(pid, &status, 0), pid);
	if (!WIFSIGNALED(status) || WTERMSIG(status) != signal)
		differs(__FILE__, __LINE__, "child ends with status 0x%x, not by signal %d", status,
			signal);
}

/* The first argument as a percentage of `full`, at least 1. */
__attribute__((unused)) static long sized(int argc, char **argv, long full)
{
	long percent = argc > 1 ? atol(argv[1]) : 100;
	long size = full * percent / 100;
	return size < 1 ? 1 : size;
}

__attribute__((unused)) static void *map(size_t length, int protection, int flags)
{
	return (void *)OK(mmap(NULL, length, protection, flags | MAP_ANONYMOUS, -1, 0));
}

/* A pseudo-random number (splitmix64). */
__attribute__((unused)) static uint64_t next_random(uint64_t *state)
{
	uint64_t z = *state += 0x9e3779b97f4a7c15;
	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
	z = (z ^ z >> 27) * 0x94d049bb133111eb;
	return z ^ z >> 31;
}

#ifndef MADV_WIPEONFORK
#define MADV_WIPEONFORK 18
#endif
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
#ifndef MAP_FIXED_NOREPLACE
#define MAP_FIXED_NOREPLACE 0x100000
#endif
#ifndef SYS_clone3
#define SYS_clone3 435
#endif
#ifndef SYS_rseq
#define SYS_rseq 334
#endif
#endif
