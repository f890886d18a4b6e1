/* Makes each call wrongly: for each argument in turn, each bad value of its kind, with the other
 * arguments right. Prints a line a case, `call(arguments) = result`, where addresses and process
 * ids are replaced by names. The output must equal that of the Linux that runs programs/check. No
 * case can block. A case that depends on the user or on a container is left out. `wrong NAME` makes
 * only the cases of one call. */
#include "test.h"
#include <limits.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/timerfd.h>

/* Kinds of arguments. */
enum kind {
	NONE,
	FIXED,    /* no bad values: the value of the table */
	IN,       /* memory that the call reads; the value is its size */
	OUT,      /* memory that the call writes; the value is its size */
	OPTIONAL_IN, /* the same, but NULL is allowed, and so is left to the table of values */
	OPTIONAL_OUT,
	STRING,   /* the path or name in `strings` */
	FD,       /* a descriptor */
	LENGTH,   /* bytes of the memory before */
	FLAGS,    /* all bits but the value's are bad */
	NUMBER,   /* signal numbers, clocks, commands */
	START,    /* a page-aligned range */
	SIZE,     /* the length of a range */
	PID,
};

struct argument {
	enum kind kind;
	long value;
};

struct call {
	const char *name;
	int number;
	struct argument arguments[6];
};

#define USER_END 0x7ffffffff000
enum { AREA_PAGES = 16 };
static char *area, *read_only, *no_access, *hole, *text;
static int file, directory, pipe_ends[2], epoll, event, timer, stream, datagram;

static struct {
	const char *name;
	unsigned long value;
} bad_pointers[] = {
	{"NULL", 0},
	{"1", 1},
	{"0xfff", 0xfff},
	{"END-1", USER_END - 1},
	{"END", USER_END},
	{"1<<47", 1UL << 47},
	{"(1<<47)-1", (1UL << 47) - 1},
	{"noncanonical", 0x8000000000000000},
	{"noncanonical-high", 0xffff7fffffffffff},
	{"kernel-start", 0xffff800000000000},
	{"direct-map", 0xffff888000000000},
	{"direct-map+16M", 0xffff888001000000},
	{"kernel-stacks", 0xffffc90000000000},
	{"cpu-entry", 0xfffffe0000010000},
	{"kernel-image", 0xffffffff80200000},
	{"kernel-modules", 0xffffffffa0000000},
	{"fixmap", 0xffffffffff5fd000},
	{"-4096", -4096},
	{"-8", -8},
	{"-1", -1},
};
enum { BAD_POINTERS = sizeof bad_pointers / sizeof *bad_pointers };

static long bad_lengths[] = {0, -1, LONG_MIN, (long)(1UL << 47), (long)0xffff800000000000};
static long bad_sizes[] = {0, 1, -1, -4096, LONG_MIN, (long)(1UL << 47), (long)USER_END};
static long bad_fds[] = {-1, -2, 999, 100000, INT32_MAX, INT32_MIN, 0x100000000 | 999};
static long bad_numbers[] = {-1, 64, 65, 77, 1000, INT32_MAX, INT32_MIN};
static long bad_pids[] = {0x3fffffff, INT32_MAX};

#define F(v) {FIXED, v}
#define N {NONE, 0}
#define CALL(n, ...) {#n, SYS_##n, {__VA_ARGS__}}
#define AT_FD {FIXED, AT_FDCWD}

/* Values that only exist at run time. */
enum { THE_FILE = -1001, THE_DIRECTORY = -1002, THE_AREA = -1003, THE_PIPE = -1004,
       A_PATH = -1005, A_TIME = -1006, A_FUTEX = -1007, AN_IOVEC = -1008, SELF = -1009,
       THE_EPOLL = -1010, THE_EVENT = -1011, THE_TIMER = -1012, THE_STREAM = -1013,
       THE_DATAGRAM = -1014, A_LENGTH = -1015 };

static const struct call table[] = {
	CALL(read, {FD, THE_FILE}, {OUT, 64}, {LENGTH, 64}),
	CALL(write, {FD, THE_FILE}, {IN, 64}, {LENGTH, 64}),
	CALL(pread64, {FD, THE_FILE}, {OUT, 64}, {LENGTH, 64}, F(0)),
	CALL(pwrite64, {FD, THE_FILE}, {IN, 64}, {LENGTH, 64}, F(0)),
	CALL(pread64, F(THE_FILE), F(THE_AREA), F(64), F(-1)),
	CALL(pwrite64, F(THE_FILE), F(THE_AREA), F(64), F(-1)),
	CALL(readv, {FD, THE_FILE}, {IN, AN_IOVEC}, {NUMBER, 1}),
	CALL(writev, {FD, THE_FILE}, {IN, AN_IOVEC}, {NUMBER, 1}),
	CALL(preadv, {FD, THE_FILE}, {IN, AN_IOVEC}, {NUMBER, 1}, F(0)),
	CALL(pwritev, {FD, THE_FILE}, {IN, AN_IOVEC}, {NUMBER, 1}, F(0)),
	CALL(lseek, {FD, THE_FILE}, F(0), {NUMBER, SEEK_SET}),
	CALL(lseek, F(THE_FILE), F(-1), F(SEEK_SET)),
	CALL(lseek, F(THE_PIPE), F(0), F(SEEK_SET)),
	CALL(read, F(THE_DIRECTORY), F(THE_AREA), F(64)),
	CALL(open, {STRING, A_PATH}, F(O_RDONLY), F(0)),
	CALL(openat, AT_FD, {STRING, A_PATH}, F(O_RDONLY), F(0)),
	CALL(openat, {FD, THE_FILE}, F(THE_AREA), F(O_RDONLY), F(0)),
	CALL(close, {FD, 998}),
	CALL(stat, {STRING, A_PATH}, {OUT, 144}),
	CALL(lstat, {STRING, A_PATH}, {OUT, 144}),
	CALL(fstat, {FD, THE_FILE}, {OUT, 144}),
	CALL(newfstatat, AT_FD, {STRING, A_PATH}, {OUT, 144}, {FLAGS, 0}),
	CALL(statx, AT_FD, {STRING, A_PATH}, {FLAGS, 0}, F(0x7ff), {OUT, 256}),
	CALL(access, {STRING, A_PATH}, {NUMBER, 0}),
	CALL(readlink, {STRING, A_PATH}, {OUT, 64}, {LENGTH, 64}),
	CALL(getcwd, {OUT, 0}, F(4096)),
	CALL(getcwd, F(THE_AREA), F(0)),
	CALL(getcwd, F(THE_AREA), F(1)),
	CALL(chdir, {STRING, A_PATH}),
	CALL(mkdir, {STRING, A_PATH}, F(0700)),
	CALL(rmdir, {STRING, A_PATH}),
	CALL(unlink, {STRING, A_PATH}),
	CALL(unlinkat, AT_FD, {STRING, A_PATH}, {FLAGS, 0}),
	CALL(rename, {STRING, A_PATH}, {STRING, A_PATH}),
	CALL(truncate, {STRING, A_PATH}, F(0)),
	CALL(ftruncate, {FD, THE_FILE}, F(4096)),
	CALL(ftruncate, F(THE_FILE), F(-1)),
	CALL(ftruncate, F(THE_PIPE), F(0)),
	CALL(ftruncate, F(THE_DIRECTORY), F(0)),
	CALL(sync_file_range, {FD, THE_FILE}, {SIZE, 0}, {SIZE, 4096}, {FLAGS, 7}),
	CALL(sync_file_range, F(THE_FILE), F(4096), {SIZE, 0}, F(0)),
	CALL(sync_file_range, F(THE_FILE), F(LONG_MAX), F(1), F(2)),
	CALL(sync_file_range, F(THE_DIRECTORY), F(0), F(0), F(2)),
	CALL(sync_file_range, F(THE_PIPE), F(0), F(0), F(2)),
	CALL(sync_file_range, F(THE_EVENT), F(0), F(0), F(2)),
	CALL(getdents64, {FD, THE_DIRECTORY}, {OUT, 1024}, F(1024)),
	CALL(getdents64, F(THE_FILE), F(THE_AREA), F(1024)),
	CALL(getdents64, F(THE_DIRECTORY), F(THE_AREA), F(1)),
	CALL(pipe, {OUT, 8}),
	CALL(pipe2, {OUT, 8}, {FLAGS, O_CLOEXEC}),
	CALL(dup, {FD, 998}),
	CALL(dup2, {FD, 998}, F(5)),
	CALL(dup2, F(THE_FILE), {FD, 997}),
	CALL(dup3, {FD, 998}, F(5), F(0)),
	CALL(dup3, F(THE_FILE), F(THE_FILE), F(0)),
	CALL(dup3, F(THE_FILE), F(995), {FLAGS, O_CLOEXEC}),
	CALL(fcntl, {FD, THE_FILE}, F(F_GETFL), F(0)),
	CALL(fcntl, F(THE_FILE), {NUMBER, F_GETFD}, F(0)),
	CALL(fcntl, F(THE_FILE), F(F_DUPFD), F(-1)),
	CALL(memfd_create, {STRING, A_PATH}, {FLAGS, 0}),
	CALL(memfd_create, F(0), F(4)),
	CALL(memfd_create, F(1), F(0x54000004)),
	CALL(memfd_create, F(THE_AREA), F(0xa0000004)),
	CALL(mmap, F(0), {SIZE, 4096}, F(PROT_READ), F(MAP_PRIVATE | MAP_ANONYMOUS), F(-1), F(0)),
	CALL(mmap, F(0), F(4096), F(PROT_READ), F(MAP_ANONYMOUS), F(-1), F(0)),
	CALL(mmap, F(0), F(4096), F(PROT_READ), F(MAP_PRIVATE), {FD, THE_FILE}, F(0)),
	CALL(mmap, F(0), F(4096), F(PROT_READ), F(MAP_PRIVATE), F(THE_FILE), {NUMBER, 0}),
	CALL(mmap, F(0), F(4096), F(PROT_READ), F(MAP_PRIVATE), F(THE_FILE), F(-4096)),
	CALL(mmap, F(0), F(4096), F(PROT_READ), F(MAP_PRIVATE), F(THE_DIRECTORY), F(0)),
	CALL(mmap, F(0), F(4096), F(PROT_READ), F(MAP_PRIVATE), F(THE_PIPE), F(0)),
	CALL(mmap, {START, 0}, F(4096), F(PROT_READ),
	     F(MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE), F(-1), F(0)),
	CALL(munmap, {START, THE_AREA}, F(4096)),
	CALL(munmap, F(THE_AREA), {SIZE, 4096}),
	CALL(mprotect, {START, THE_AREA}, F(4096), F(PROT_READ)),
	CALL(mprotect, F(THE_AREA), {SIZE, 4096}, F(PROT_READ | PROT_WRITE)),
	CALL(mprotect, F(THE_AREA), F(4096), {NUMBER, PROT_READ | PROT_WRITE}),
	CALL(mremap, {START, THE_AREA}, F(4096), F(8192), F(MREMAP_MAYMOVE)),
	CALL(mremap, F(THE_AREA), F(4096), {SIZE, 4096}, F(MREMAP_MAYMOVE)),
	CALL(mremap, F(THE_AREA), {SIZE, 4096}, F(4096), F(0)),
	CALL(mremap, F(THE_AREA), F(4096), F(4096), {FLAGS, MREMAP_MAYMOVE}, F(THE_AREA)),
	CALL(mremap, F(THE_AREA), F(4096), F(4096), F(MREMAP_MAYMOVE | MREMAP_FIXED),
	     {START, THE_AREA}),
	CALL(madvise, {START, THE_AREA}, F(4096), F(MADV_DONTNEED)),
	CALL(madvise, F(THE_AREA), {SIZE, 4096}, F(MADV_FREE)),
	CALL(madvise, F(THE_AREA), F(4096), {NUMBER, MADV_NORMAL}),
	CALL(msync, {START, THE_AREA}, F(4096), F(MS_SYNC)),
	CALL(msync, F(THE_AREA), {SIZE, 4096}, F(MS_SYNC)),
	CALL(msync, F(THE_AREA), F(4096), {FLAGS, MS_SYNC}),
	CALL(mincore, {START, THE_AREA}, F(4096), F(THE_AREA)),
	CALL(mincore, F(THE_AREA), F(4096), {OUT, 1}),
	CALL(mlock, {START, THE_AREA}, F(4096)),
	CALL(mlock, F(THE_AREA), F(0)),
	CALL(mlock, F(THE_AREA), F(-1)),
	CALL(mlock2, F(THE_AREA), F(4096), {FLAGS, 0}),
	CALL(munlock, {START, THE_AREA}, F(4096)),
	CALL(mlockall, F(0)),
	CALL(mlockall, F(8)),
	CALL(mlockall, F(4)),
	CALL(brk, F(1)),
	CALL(rt_sigaction, {NUMBER, SIGUSR1}, F(0), F(0), F(8)),
	CALL(rt_sigaction, F(SIGUSR1), {OPTIONAL_IN, 32}, F(0), F(8)),
	CALL(rt_sigaction, F(SIGUSR1), F(0), {OPTIONAL_OUT, 32}, F(8)),
	CALL(rt_sigaction, F(SIGUSR1), F(0), F(0), {LENGTH, 8}),
	CALL(rt_sigaction, F(SIGKILL), F(THE_AREA), F(0), F(8)),
	CALL(rt_sigprocmask, F(SIG_BLOCK), {OPTIONAL_IN, 8}, F(0), F(8)),
	CALL(rt_sigprocmask, {NUMBER, SIG_BLOCK}, F(THE_AREA), F(0), F(8)),
	CALL(rt_sigprocmask, F(SIG_BLOCK), F(0), {OPTIONAL_OUT, 8}, F(8)),
	CALL(rt_sigprocmask, F(SIG_BLOCK), F(0), F(0), {LENGTH, 8}),
	CALL(rt_sigpending, {OUT, 8}, F(8)),
	CALL(rt_sigpending, F(THE_AREA), F(16)),
	CALL(rt_sigtimedwait, {IN, 8}, F(0), F(A_TIME), F(8)),
	CALL(rt_sigtimedwait, F(THE_AREA), F(0), F(A_TIME), {LENGTH, 8}),
	CALL(rt_sigsuspend, F(THE_AREA), F(0)),
	CALL(rt_sigsuspend, F(THE_AREA), F(16)),
	CALL(rt_sigsuspend, F(0), F(8)),
	CALL(rt_sigsuspend, F((long)0xffffffff80200000), F(8)),
	CALL(sigaltstack, {OPTIONAL_IN, 24}, F(0)),
	CALL(sigaltstack, F(0), {OPTIONAL_OUT, 24}),
	CALL(kill, {PID, SELF}, F(0)),
	CALL(kill, F(SELF), {NUMBER, 0}),
	CALL(tkill, {PID, SELF}, F(0)),
	CALL(tkill, F(0), F(0)),
	CALL(tgkill, {PID, SELF}, F(SELF), F(0)),
	CALL(tgkill, F(SELF), {PID, SELF}, F(0)),
	CALL(tgkill, F(SELF), F(0), F(0)),
	CALL(tgkill, F(SELF), F(SELF), {NUMBER, 0}),
	CALL(getitimer, {NUMBER, 0}, F(THE_AREA)),
	CALL(getitimer, F(0), {OUT, 32}),
	CALL(setitimer, {NUMBER, 0}, F(A_TIME), F(0)),
	CALL(setitimer, F(0), F(A_TIME), {OPTIONAL_OUT, 32}),
	CALL(nanosleep, {IN, A_TIME}, F(0)),
	CALL(clock_nanosleep, {NUMBER, CLOCK_MONOTONIC}, F(0), F(A_TIME), F(0)),
	CALL(clock_gettime, {NUMBER, CLOCK_MONOTONIC}, F(THE_AREA)),
	CALL(clock_gettime, F(CLOCK_MONOTONIC), {OUT, 16}),
	CALL(clock_getres, F(CLOCK_MONOTONIC), {OPTIONAL_OUT, 16}),
	CALL(gettimeofday, {OPTIONAL_OUT, 16}, F(0)),
	CALL(gettimeofday, F(0), {OPTIONAL_OUT, 8}),
	CALL(wait4, {PID, -1}, F(0), F(WNOHANG), F(0)),
	CALL(wait4, F(-1), F(0), {FLAGS, WNOHANG}, F(0)),
	CALL(waitid, {NUMBER, P_ALL}, F(0), F(0), F(WNOHANG | WEXITED), F(0)),
	CALL(waitid, F(P_ALL), F(0), F(0), F(WNOHANG), F(0)),
	CALL(clone3, {IN, 0}, {LENGTH, 64}),
	CALL(clone, F(CLONE_THREAD), F(0), F(0), F(0), F(0)),
	CALL(clone, F(CLONE_SIGHAND), F(0), F(0), F(0), F(0)),
	CALL(clone, F(CLONE_THREAD | CLONE_SIGHAND), F(0), F(0), F(0), F(0)),
	CALL(clone, F(CLONE_FS | 0x20000), F(0), F(0), F(0), F(0)),
	CALL(execve, {STRING, A_PATH}, F(0), F(0)),
	CALL(futex, {IN, A_FUTEX}, F(0), F(5), F(0), F(0), F(0)),
	CALL(futex, F(A_FUTEX), {NUMBER, 129}, F(1), F(0), F(0), F(0)),
	CALL(futex, {IN, A_FUTEX}, F(129), F(1), F(0), F(0), F(0)),
	CALL(futex, {IN, A_FUTEX}, F(1), F(1), F(0), F(0), F(0)),
	CALL(futex, F(A_FUTEX), F(128), F(5), {OPTIONAL_IN, A_TIME}, F(0), F(0)),
	CALL(futex, F(A_FUTEX), F(131), F(1), F(1), {IN, A_FUTEX}, F(0)),
	CALL(futex, F(A_FUTEX), F(132), F(1), F(1), {IN, A_FUTEX}, F(0)),
	CALL(futex, F(A_FUTEX), F(131), F(-1), F(1), F(A_FUTEX), F(0)),
	CALL(futex, F(A_FUTEX), F(133), F(1), F(1), {OUT, 4}, F(0)),
	CALL(set_robust_list, F(THE_AREA), {LENGTH, 24}),
	CALL(get_robust_list, {PID, 0}, F(THE_AREA), F(THE_AREA)),
	CALL(get_robust_list, F(0), {OUT, 8}, F(THE_AREA)),
	CALL(get_robust_list, F(0), F(THE_AREA), {OUT, 8}),
	CALL(sched_getaffinity, {PID, 0}, F(128), F(THE_AREA)),
	CALL(sched_getaffinity, F(0), {LENGTH, 128}, F(THE_AREA)),
	CALL(sched_getaffinity, F(0), F(128), {OUT, 128}),
	CALL(sched_setaffinity, {PID, 0}, F(128), F(THE_AREA)),
	CALL(sched_setaffinity, F(0), F(128), {IN, 128}),
	CALL(sched_setaffinity, F(0), F(0), F(THE_AREA)),
	CALL(getcpu, {OPTIONAL_OUT, 4}, F(0), F(0)),
	CALL(getcpu, F(0), {OPTIONAL_OUT, 4}, F(0)),
	CALL(uname, {OUT, 390}),
	CALL(getrusage, {NUMBER, 0}, F(THE_AREA)),
	CALL(getrusage, F(0), {OUT, 144}),
	CALL(getrlimit, {NUMBER, 3}, F(THE_AREA)),
	CALL(getrlimit, F(3), {OUT, 16}),
	CALL(prlimit64, {PID, 0}, F(3), F(0), F(0)),
	CALL(prlimit64, F(0), {NUMBER, 3}, F(0), F(0)),
	CALL(prlimit64, F(0), F(3), F(0), {OPTIONAL_OUT, 16}),
	CALL(sysinfo, {OUT, 112}),
	CALL(getrandom, {OUT, 16}, F(16), {FLAGS, 0}),
	CALL(arch_prctl, F(0x1002), F((long)0xffff800000000000)),
	CALL(arch_prctl, F(0x1002), F(USER_END)),
	CALL(arch_prctl, F(0x1001), F((long)0xffffffff80200000)),
	CALL(arch_prctl, F(0x1001), F(1L << 47)),
	CALL(arch_prctl, F(0x1003), {OUT, 8}),
	CALL(arch_prctl, F(0x1004), {OUT, 8}),
	CALL(arch_prctl, {NUMBER, 0x7777}, F(0)),
	CALL(futex, {IN, A_FUTEX}, F(136), F(0), F(0), F(0), F(0)),
	CALL(futex, {IN, A_FUTEX}, F(7), F(0), F(0), F(0), F(0)),
	CALL(futex, F(A_FUTEX), F(6 | 256), F(0), F(0), F(0), F(0)),
	CALL(pidfd_open, {PID, SELF}, F(0)),
	CALL(pidfd_open, F(SELF), F(0x40000000)),
	CALL(pidfd_send_signal, {FD, 998}, F(0), F(0), F(0)),
	CALL(pidfd_send_signal, F(THE_FILE), F(0), F(0), F(0)),
	CALL(pidfd_send_signal, F(998), F(0), F(0), F(8)),
	CALL(pidfd_getfd, {FD, 998}, F(0), F(0)),
	CALL(pidfd_getfd, F(998), F(0), F(1)),
	CALL(process_madvise, {FD, 998}, F(AN_IOVEC), F(1), F(20), F(0)),
	CALL(process_madvise, F(998), F(AN_IOVEC), F(1), F(20), F(1)),
	CALL(waitid, F(3), {FD, 998}, F(0), F(WEXITED), F(0)),
	CALL(shmget, F(0x7a7a7a7a), F(4096), F(0)),
	CALL(shmget, F(0), F(0), F(0600)),
	CALL(shmat, {NUMBER, -5}, F(0), F(0)),
	CALL(shmdt, {START, THE_AREA}),
	CALL(shmctl, {NUMBER, -5}, F(0), F(0)),
	CALL(pkey_alloc, F(1), F(0)),
	CALL(pkey_alloc, F(0), F(8)),
	CALL(pkey_free, {NUMBER, 14}),
	CALL(pkey_mprotect, {START, THE_AREA}, F(4096), F(PROT_READ), F(-1)),
	CALL(pkey_mprotect, F(THE_AREA), F(4096), F(PROT_READ), F(14)),
	CALL(remap_file_pages, {START, THE_AREA}, F(4096), F(0), F(0), F(0)),
	CALL(remap_file_pages, F(THE_AREA), {SIZE, 4096}, F(0), F(0), F(0)),
	CALL(timer_create, F(CLOCK_MONOTONIC), {OPTIONAL_IN, 64}, F(THE_AREA)),
	CALL(timer_create, F(CLOCK_MONOTONIC), F(0), {OUT, 4}),
	CALL(timer_create, F(100), F(0), F(THE_AREA)),
	CALL(timer_create, F(CLOCK_MONOTONIC_COARSE), F(0), F(THE_AREA)),
	CALL(timer_settime, {NUMBER, 999}, F(0), F(A_TIME), F(0)),
	CALL(timer_settime, F(999), F(0), {IN, 32}, F(0)),
	CALL(timer_gettime, {NUMBER, 999}, F(THE_AREA)),
	CALL(timer_getoverrun, {NUMBER, 999}),
	CALL(timer_delete, {NUMBER, 999}),
	CALL(getresuid, {OUT, 4}, F(THE_AREA), F(THE_AREA)),
	CALL(getresgid, F(THE_AREA), F(THE_AREA), {OUT, 4}),
	CALL(setuid, F(-1)),
	CALL(setgid, F(-1)),
	CALL(getgroups, F(-1), F(0)),
	CALL(setgroups, F(65537), F(0)),
	CALL(setgroups, F(1), {IN, 4}),
	CALL(getpriority, {NUMBER, 0}, F(0)),
	CALL(getpriority, F(0), {PID, 0}),
	CALL(setpriority, {NUMBER, 0}, F(0), F(0)),
	CALL(setpriority, F(0), {PID, 0}, F(0)),
	CALL(sched_getparam, {PID, 0}, F(THE_AREA)),
	CALL(sched_getparam, F(0), {OUT, 4}),
	CALL(sched_setparam, {PID, 0}, F(THE_AREA)),
	CALL(sched_setparam, F(0), {IN, 4}),
	CALL(sched_getscheduler, {PID, 0}),
	CALL(sched_getscheduler, F(-1)),
	CALL(sched_setscheduler, {PID, 0}, F(0), F(THE_AREA)),
	CALL(sched_setscheduler, F(0), {NUMBER, 0}, F(THE_AREA)),
	CALL(sched_setscheduler, F(0), F(0), {IN, 4}),
	CALL(sched_get_priority_max, {NUMBER, 0}),
	CALL(sched_get_priority_min, {NUMBER, 1}),
	CALL(sched_rr_get_interval, {PID, 0}, F(THE_AREA)),
	CALL(sched_rr_get_interval, F(0), {OUT, 16}),
	CALL(sched_getattr, {PID, 0}, F(THE_AREA), F(56), F(0)),
	CALL(sched_getattr, F(0), {OUT, 48}, F(48), F(0)),
	CALL(sched_getattr, F(0), F(THE_AREA), {LENGTH, 48}, F(0)),
	CALL(sched_getattr, F(0), F(THE_AREA), F(56), {FLAGS, 0}),
	CALL(sched_setattr, {PID, 0}, F(THE_AREA), F(0)),
	CALL(sched_setattr, F(0), {IN, 48}, F(0)),
	CALL(sched_setattr, F(0), F(THE_AREA), {FLAGS, 0}),
	CALL(getxattr, {STRING, A_PATH}, F(A_PATH), F(THE_AREA), F(64)),
	CALL(getxattr, F(A_PATH), {STRING, A_PATH}, F(THE_AREA), F(64)),
	CALL(lgetxattr, {STRING, A_PATH}, F(A_PATH), F(THE_AREA), F(64)),
	CALL(fgetxattr, {FD, THE_FILE}, F(A_PATH), F(THE_AREA), F(64)),
	CALL(setxattr, {STRING, A_PATH}, F(A_PATH), F(THE_AREA), F(1), F(0)),
	CALL(setxattr, F(A_PATH), {STRING, A_PATH}, F(THE_AREA), F(1), F(0)),
	CALL(setxattr, F(A_PATH), F(A_PATH), {IN, 64}, F(64), F(0)),
	CALL(setxattr, F(A_PATH), F(A_PATH), F(THE_AREA), {LENGTH, 64}, F(0)),
	CALL(setxattr, F(A_PATH), F(A_PATH), F(THE_AREA), F(1), {FLAGS, 0}),
	CALL(fsetxattr, {FD, THE_FILE}, F(A_PATH), F(THE_AREA), F(1), F(0)),
	CALL(listxattr, {STRING, A_PATH}, F(THE_AREA), F(64)),
	CALL(flistxattr, {FD, THE_FILE}, F(THE_AREA), F(64)),
	CALL(removexattr, {STRING, A_PATH}, F(A_PATH)),
	CALL(removexattr, F(A_PATH), {STRING, A_PATH}),
	CALL(fremovexattr, {FD, THE_FILE}, F(A_PATH)),
	CALL(creat, {STRING, A_PATH}, F(0600)),
	CALL(mkdirat, {FD, THE_FILE}, F(A_PATH), F(0700)),
	CALL(mkdirat, AT_FD, {STRING, A_PATH}, F(0700)),
	CALL(mknod, {STRING, A_PATH}, F(S_IFIFO | 0600), F(0)),
	CALL(mknodat, AT_FD, F(A_PATH), {NUMBER, S_IFIFO}, F(0)),
	CALL(link, {STRING, A_PATH}, F(A_PATH)),
	CALL(link, F(A_PATH), {STRING, A_PATH}),
	CALL(linkat, AT_FD, F(A_PATH), AT_FD, F(A_PATH), {FLAGS, AT_SYMLINK_FOLLOW | AT_EMPTY_PATH}),
	CALL(symlink, {STRING, A_PATH}, F(A_PATH)),
	CALL(symlink, F(A_PATH), {STRING, A_PATH}),
	CALL(symlinkat, F(A_PATH), {FD, THE_FILE}, F(THE_AREA)),
	CALL(readlinkat, AT_FD, {STRING, A_PATH}, F(THE_AREA), {LENGTH, 64}),
	CALL(renameat, AT_FD, {STRING, A_PATH}, AT_FD, {STRING, A_PATH}),
	CALL(renameat2, AT_FD, F(A_PATH), AT_FD, F(A_PATH), {FLAGS, 7}),
	CALL(renameat2, AT_FD, F(A_PATH), AT_FD, F(A_PATH), F(3)),
	CALL(chmod, {STRING, A_PATH}, F(0600)),
	CALL(fchmod, {FD, THE_FILE}, F(0600)),
	CALL(fchmodat, AT_FD, {STRING, A_PATH}, F(0600)),
	CALL(chown, {STRING, A_PATH}, F(-1), F(-1)),
	CALL(lchown, {STRING, A_PATH}, F(-1), F(-1)),
	CALL(fchown, {FD, THE_FILE}, F(-1), F(-1)),
	CALL(fchownat, AT_FD, {STRING, A_PATH}, F(-1), F(-1), {FLAGS, 0x1100}),
	CALL(faccessat, AT_FD, {STRING, A_PATH}, {NUMBER, 0}),
	CALL(faccessat2, AT_FD, {STRING, A_PATH}, F(0), {FLAGS, 0x1300}),
	CALL(statfs, {STRING, A_PATH}, {OUT, 120}),
	CALL(fstatfs, {FD, THE_FILE}, {OUT, 120}),
	CALL(utimensat, AT_FD, {STRING, A_PATH}, F(0), F(0)),
	CALL(utimensat, {FD, THE_FILE}, F(0), {OPTIONAL_IN, 32}, F(0)),
	CALL(utimensat, F(THE_FILE), F(0), F(0), {FLAGS, 0x1100}),
	CALL(utimes, {STRING, A_PATH}, F(0)),
	CALL(fchdir, {FD, THE_DIRECTORY}),
	CALL(fchdir, F(THE_FILE)),
	CALL(flock, {FD, THE_FILE}, F(LOCK_UN)),
	CALL(flock, F(THE_FILE), {NUMBER, LOCK_UN}),
	CALL(fsync, {FD, THE_FILE}),
	CALL(fsync, F(THE_PIPE)),
	CALL(fdatasync, {FD, THE_FILE}),
	CALL(fdatasync, F(THE_EVENT)),
	CALL(syncfs, {FD, THE_FILE}),
	CALL(fadvise64, {FD, THE_FILE}, F(0), F(0), F(0)),
	CALL(fadvise64, F(THE_FILE), F(0), F(0), {NUMBER, 0}),
	CALL(fadvise64, F(THE_FILE), F(0), F(-1), F(0)),
	CALL(fadvise64, F(THE_PIPE), F(0), F(0), F(0)),
	CALL(fallocate, {FD, THE_FILE}, F(0), F(0), F(4096)),
	CALL(fallocate, F(THE_FILE), {FLAGS, 3}, F(0), F(4096)),
	CALL(fallocate, F(THE_FILE), F(0), F(-1), F(4096)),
	CALL(fallocate, F(THE_FILE), F(0), F(0), F(0)),
	CALL(fallocate, F(THE_PIPE), F(0), F(0), F(4096)),
	CALL(fallocate, F(THE_DIRECTORY), F(0), F(0), F(4096)),
	CALL(copy_file_range, {FD, THE_FILE}, F(0), F(THE_FILE), F(0), F(0), F(0)),
	CALL(copy_file_range, F(THE_FILE), {OPTIONAL_OUT, 8}, F(THE_FILE), F(0), F(1), F(0)),
	CALL(copy_file_range, F(THE_FILE), F(0), {FD, THE_FILE}, F(0), F(1), F(0)),
	CALL(copy_file_range, F(THE_FILE), F(0), F(THE_FILE), F(0), F(1), {FLAGS, 0}),
	CALL(copy_file_range, F(THE_PIPE), F(0), F(THE_FILE), F(0), F(1), F(0)),
	CALL(sendfile, {FD, THE_STREAM}, F(THE_FILE), F(0), F(0)),
	CALL(sendfile, F(THE_STREAM), {FD, THE_FILE}, F(0), F(0)),
	CALL(sendfile, F(THE_FILE), F(THE_FILE), {OPTIONAL_OUT, 8}, F(0)),
	CALL(vmsplice, {FD, THE_PIPE}, F(AN_IOVEC), F(0), F(0)),
	CALL(vmsplice, F(THE_FILE), F(AN_IOVEC), F(1), F(0)),
	CALL(close_range, F(900), F(800), F(0)),
	CALL(close_range, F(900), F(901), {FLAGS, 6}),
	CALL(ioctl, {FD, THE_FILE}, F(0x5401), F(THE_AREA)),
	CALL(ioctl, F(THE_PIPE), F(0x541b), {OUT, 4}),
	CALL(mseal, {START, THE_AREA}, F(4096), F(0)),
	CALL(mseal, F(THE_AREA), F(4096), {FLAGS, 0}),
	CALL(mseal, F(THE_AREA), F(-4096), F(0)),
	CALL(process_vm_readv, {PID, SELF}, F(AN_IOVEC), F(1), F(AN_IOVEC), F(1), F(0)),
	CALL(process_vm_readv, F(SELF), {IN, AN_IOVEC}, F(1), F(AN_IOVEC), F(1), F(0)),
	CALL(process_vm_readv, F(SELF), F(AN_IOVEC), {NUMBER, 1}, F(AN_IOVEC), F(1), F(0)),
	CALL(process_vm_readv, F(SELF), F(AN_IOVEC), F(1), {IN, AN_IOVEC}, F(1), F(0)),
	CALL(process_vm_readv, F(SELF), F(AN_IOVEC), F(1), F(AN_IOVEC), {NUMBER, 1}, F(0)),
	CALL(process_vm_writev, F(SELF), F(AN_IOVEC), F(1), F(AN_IOVEC), F(1), {FLAGS, 0}),
	CALL(process_vm_writev, F(SELF), F(AN_IOVEC), F(1), {IN, AN_IOVEC}, F(1), F(0)),
	CALL(poll, {IN, 8}, F(1), F(0)),
	CALL(poll, F(THE_AREA), {LENGTH, 1}, F(0)),
	CALL(ppoll, F(THE_AREA), F(1), {OPTIONAL_IN, A_TIME}, F(0), F(8)),
	CALL(ppoll, F(THE_AREA), F(1), F(A_TIME), {OPTIONAL_IN, 8}, F(8)),
	CALL(ppoll, F(THE_AREA), F(1), F(A_TIME), F(THE_AREA), {LENGTH, 8}),
	CALL(select, {NUMBER, 1}, F(0), F(0), F(0), F(A_TIME)),
	CALL(select, F(64), {OPTIONAL_IN, 8}, F(0), F(0), F(A_TIME)),
	CALL(select, F(64), F(0), F(0), {OPTIONAL_IN, 8}, F(A_TIME)),
	CALL(select, F(64), F(0), F(THE_AREA), F(0), {OPTIONAL_IN, 16}),
	CALL(pselect6, F(64), F(0), F(THE_AREA), F(0), F(A_TIME), {OPTIONAL_IN, 16}),
	CALL(rt_sigqueueinfo, {PID, SELF}, F(0), F(THE_AREA)),
	CALL(rt_sigqueueinfo, F(SELF), F(0), {IN, 128}),
	CALL(rt_sigqueueinfo, F(SELF), {NUMBER, 0}, F(THE_AREA)),
	CALL(rt_tgsigqueueinfo, F(SELF), {PID, SELF}, F(0), F(THE_AREA)),
	CALL(rt_tgsigqueueinfo, F(SELF), F(SELF), F(0), {IN, 128}),
	CALL(rt_tgsigqueueinfo, F(0), F(SELF), F(0), F(THE_AREA)),
	CALL(getpgid, {PID, SELF}),
	CALL(getpgid, F(-1)),
	CALL(setpgid, {PID, 0}, F(0)),
	CALL(setpgid, F(0), F(-1)),
	CALL(getsid, {PID, SELF}),
	CALL(setreuid, F(-1), F(-1)),
	CALL(setregid, F(-1), F(-1)),
	CALL(setresuid, F(-1), F(-1), F(-1)),
	CALL(setresgid, F(-1), F(-1), F(-1)),
	CALL(setrlimit, {NUMBER, 3}, F(THE_AREA)),
	CALL(setrlimit, F(3), {IN, 16}),
	CALL(capget, {OUT, 8}, F(0)),
	CALL(capset, {IN, 8}, F(0)),
	CALL(prctl, F(-1), F(0), F(0), F(0), F(0)),
	CALL(prctl, F(15), {STRING, A_PATH}, F(0), F(0), F(0)),
	CALL(prctl, F(16), {OUT, 16}, F(0), F(0), F(0)),
	CALL(membarrier, F(-1), F(0)),
	CALL(membarrier, F(0), F(1)),
	CALL(userfaultfd, {FLAGS, 02004001}),
	CALL(time, {OPTIONAL_OUT, 8}),
	CALL(times, {OPTIONAL_OUT, 32}),
	CALL(lsetxattr, F(A_PATH), {STRING, A_PATH}, F(THE_AREA), F(1), F(0)),
	CALL(llistxattr, {STRING, A_PATH}, F(THE_AREA), F(64)),
	CALL(lremovexattr, F(A_PATH), {STRING, A_PATH}),
	CALL(epoll_create, {NUMBER, 1}),
	CALL(epoll_create1, {FLAGS, EPOLL_CLOEXEC}),
	CALL(epoll_ctl, {FD, THE_EPOLL}, F(EPOLL_CTL_ADD), F(THE_EVENT), F(THE_AREA)),
	CALL(epoll_ctl, {FD, THE_EVENT}, F(EPOLL_CTL_ADD), F(THE_EVENT), F(THE_AREA)),
	CALL(epoll_ctl, F(THE_EPOLL), {NUMBER, EPOLL_CTL_ADD}, F(THE_EVENT), F(THE_AREA)),
	CALL(epoll_ctl, F(THE_EPOLL), F(EPOLL_CTL_ADD), {FD, THE_EVENT}, F(THE_AREA)),
	CALL(epoll_ctl, F(THE_EPOLL), F(EPOLL_CTL_ADD), F(THE_EPOLL), F(THE_AREA)),
	CALL(epoll_ctl, F(THE_EPOLL), F(EPOLL_CTL_ADD), F(THE_FILE), F(THE_AREA)),
	CALL(epoll_ctl, F(THE_EPOLL), F(EPOLL_CTL_ADD), F(THE_EVENT), {IN, 12}),
	CALL(epoll_ctl, F(THE_EPOLL), F(EPOLL_CTL_MOD), F(THE_TIMER), {IN, 12}),
	CALL(epoll_ctl, F(THE_EPOLL), F(EPOLL_CTL_DEL), {FD, THE_TIMER}, F(0)),
	CALL(epoll_wait, {FD, THE_EPOLL}, F(THE_AREA), F(1), F(0)),
	CALL(epoll_wait, F(THE_EPOLL), {OUT, 12}, F(1), F(0)),
	CALL(epoll_wait, F(THE_EPOLL), F(THE_AREA), {NUMBER, 1}, F(0)),
	CALL(epoll_pwait, F(THE_EPOLL), F(THE_AREA), F(1), F(0), {OPTIONAL_IN, 8}, F(8)),
	CALL(epoll_pwait, F(THE_EPOLL), F(THE_AREA), F(1), F(0), F(THE_AREA), {LENGTH, 8}),
	CALL(epoll_pwait2, {FD, THE_EPOLL}, F(THE_AREA), F(1), F(A_TIME), F(0), F(8)),
	CALL(epoll_pwait2, F(THE_EPOLL), F(THE_AREA), F(1), {OPTIONAL_IN, 16}, F(0), F(8)),
	CALL(eventfd, {NUMBER, 1}),
	CALL(eventfd2, F(0), {FLAGS, EFD_SEMAPHORE | EFD_CLOEXEC | EFD_NONBLOCK}),
	CALL(read, F(THE_EVENT), {OUT, 8}, F(8)),
	CALL(read, F(THE_EVENT), F(THE_AREA), {LENGTH, 8}),
	CALL(write, F(THE_EVENT), {IN, 8}, F(8)),
	CALL(write, F(THE_EVENT), F(THE_AREA), {LENGTH, 8}),
	CALL(lseek, F(THE_EVENT), F(3), {NUMBER, SEEK_SET}),
	CALL(timerfd_create, {NUMBER, CLOCK_MONOTONIC}, F(0)),
	CALL(timerfd_create, F(CLOCK_MONOTONIC), {FLAGS, TFD_CLOEXEC | TFD_NONBLOCK}),
	CALL(timerfd_settime, {FD, THE_TIMER}, F(0), F(THE_AREA), F(0)),
	CALL(timerfd_settime, {FD, THE_EVENT}, F(0), F(THE_AREA), F(0)),
	CALL(timerfd_settime, F(THE_TIMER), {FLAGS, 3}, F(THE_AREA), F(0)),
	CALL(timerfd_settime, F(THE_TIMER), F(0), {IN, 32}, F(0)),
	CALL(timerfd_settime, F(THE_TIMER), F(0), F(THE_AREA), {OPTIONAL_OUT, 32}),
	CALL(timerfd_gettime, {FD, THE_TIMER}, F(THE_AREA)),
	CALL(timerfd_gettime, F(THE_TIMER), {OUT, 32}),
	CALL(read, F(THE_TIMER), {OUT, 8}, F(8)),
	CALL(write, F(THE_TIMER), {IN, 8}, F(8)),
	CALL(socket, {NUMBER, AF_UNIX}, F(SOCK_STREAM), F(0)),
	CALL(socket, F(AF_UNIX), {FLAGS, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK}, F(0)),
	CALL(socket, F(AF_UNIX), F(SOCK_STREAM), {NUMBER, 0}),
	CALL(socketpair, {NUMBER, AF_UNIX}, F(SOCK_STREAM), F(0), F(THE_AREA)),
	CALL(socketpair, F(AF_UNIX), F(SOCK_STREAM), F(0), {OUT, 8}),
	CALL(bind, {FD, THE_DATAGRAM}, F(THE_AREA), F(110)),
	CALL(bind, F(THE_FILE), F(THE_AREA), F(110)),
	CALL(bind, F(THE_DATAGRAM), {IN, 110}, F(110)),
	CALL(bind, F(THE_DATAGRAM), F(THE_AREA), {LENGTH, 110}),
	CALL(listen, {FD, THE_STREAM}, F(1)),
	CALL(listen, F(THE_FILE), F(1)),
	CALL(listen, F(THE_STREAM), F(1)),
	CALL(listen, F(THE_DATAGRAM), F(1)),
	CALL(accept, {FD, THE_STREAM}, F(0), F(0)),
	CALL(accept, F(THE_FILE), F(0), F(0)),
	CALL(accept, F(THE_STREAM), F(0), F(0)),
	CALL(accept, F(THE_DATAGRAM), F(0), F(0)),
	CALL(accept4, F(THE_STREAM), F(0), F(0), {FLAGS, SOCK_CLOEXEC | SOCK_NONBLOCK}),
	CALL(connect, {FD, THE_STREAM}, F(THE_AREA), F(110)),
	CALL(connect, F(THE_STREAM), {IN, 110}, F(110)),
	CALL(connect, F(THE_STREAM), F(THE_AREA), {LENGTH, 110}),
	CALL(getsockname, {FD, THE_STREAM}, F(THE_AREA), F(A_LENGTH)),
	CALL(getsockname, F(THE_FILE), F(THE_AREA), F(A_LENGTH)),
	CALL(getsockname, F(THE_STREAM), {OUT, 2}, F(A_LENGTH)),
	CALL(getsockname, F(THE_STREAM), F(THE_AREA), {OUT, 4}),
	CALL(getpeername, {FD, THE_STREAM}, F(THE_AREA), F(A_LENGTH)),
	CALL(getpeername, F(THE_STREAM), {OUT, 2}, F(A_LENGTH)),
	CALL(getpeername, F(THE_STREAM), F(THE_AREA), {OUT, 4}),
	CALL(getpeername, F(THE_DATAGRAM), F(THE_AREA), F(A_LENGTH)),
	CALL(shutdown, {FD, THE_STREAM}, F(3)),
	CALL(shutdown, F(THE_STREAM), {NUMBER, 3}),
	CALL(getsockopt, {FD, THE_STREAM}, F(SOL_SOCKET), F(SO_TYPE), F(THE_AREA), F(A_LENGTH)),
	CALL(getsockopt, F(THE_STREAM), {NUMBER, 99}, F(SO_TYPE), F(THE_AREA), F(A_LENGTH)),
	CALL(getsockopt, F(THE_STREAM), F(SOL_SOCKET), F(1000), F(THE_AREA), F(A_LENGTH)),
	CALL(getsockopt, F(THE_STREAM), F(SOL_SOCKET), F(SO_TYPE), {OUT, 4}, F(A_LENGTH)),
	CALL(getsockopt, F(THE_STREAM), F(SOL_SOCKET), F(SO_TYPE), F(THE_AREA), {OUT, 4}),
	CALL(setsockopt, {FD, THE_STREAM}, F(SOL_SOCKET), F(SO_PASSCRED), F(THE_AREA), F(4)),
	CALL(setsockopt, F(THE_STREAM), {NUMBER, 99}, F(SO_PASSCRED), F(THE_AREA), F(4)),
	CALL(setsockopt, F(THE_STREAM), F(SOL_SOCKET), F(1000), F(THE_AREA), F(4)),
	CALL(setsockopt, F(THE_STREAM), F(SOL_SOCKET), F(SO_TYPE), F(THE_AREA), F(4)),
	CALL(setsockopt, F(THE_STREAM), F(SOL_SOCKET), F(SO_PASSCRED), {IN, 4}, F(4)),
	CALL(setsockopt, F(THE_STREAM), F(SOL_SOCKET), F(SO_PASSCRED), F(THE_AREA), {LENGTH, 4}),
	CALL(setsockopt, F(THE_STREAM), F(SOL_SOCKET), F(SO_RCVTIMEO), {IN, 16}, F(16)),
	CALL(setsockopt, F(THE_STREAM), F(SOL_SOCKET), F(SO_RCVTIMEO), F(THE_AREA), F(8)),
	CALL(read, F(THE_STREAM), {OUT, 64}, F(64)),
	CALL(write, F(THE_STREAM), {IN, 64}, F(64)),
	CALL(write, F(THE_DATAGRAM), {IN, 64}, F(64)),
	CALL(sendto, {FD, THE_STREAM}, F(THE_AREA), F(64), F(MSG_DONTWAIT), F(0), F(0)),
	CALL(sendto, F(THE_FILE), F(THE_AREA), F(64), F(MSG_DONTWAIT), F(0), F(0)),
	CALL(sendto, F(THE_STREAM), {IN, 64}, F(64), F(MSG_DONTWAIT), F(0), F(0)),
	CALL(sendto, F(THE_STREAM), F(THE_AREA), F(64), F(MSG_DONTWAIT), F(THE_AREA), F(110)),
	CALL(sendto, F(THE_DATAGRAM), F(THE_AREA), F(64), F(MSG_DONTWAIT), {IN, 110}, F(110)),
	CALL(sendto, F(THE_DATAGRAM), F(THE_AREA), F(64), F(MSG_DONTWAIT), F(THE_AREA), {LENGTH, 110}),
	CALL(recvfrom, {FD, THE_STREAM}, F(THE_AREA), F(64), F(MSG_DONTWAIT), F(0), F(0)),
	CALL(recvfrom, F(THE_FILE), F(THE_AREA), F(64), F(MSG_DONTWAIT), F(0), F(0)),
	CALL(recvfrom, F(THE_STREAM), {OUT, 64}, F(64), F(MSG_DONTWAIT), F(0), F(0)),
	CALL(sendmsg, {FD, THE_STREAM}, F(THE_AREA), F(MSG_DONTWAIT)),
	CALL(sendmsg, F(THE_FILE), F(THE_AREA), F(MSG_DONTWAIT)),
	CALL(sendmsg, F(THE_STREAM), {IN, 56}, F(MSG_DONTWAIT)),
	CALL(recvmsg, {FD, THE_STREAM}, F(THE_AREA), F(MSG_DONTWAIT)),
	CALL(recvmsg, F(THE_FILE), F(THE_AREA), F(MSG_DONTWAIT)),
	CALL(recvmsg, F(THE_STREAM), {IN, 56}, F(MSG_DONTWAIT)),
	CALL(sendmmsg, {FD, THE_STREAM}, F(THE_AREA), F(1), F(MSG_DONTWAIT)),
	CALL(sendmmsg, F(THE_STREAM), {IN, 64}, F(1), F(MSG_DONTWAIT)),
	CALL(recvmmsg, {FD, THE_STREAM}, F(THE_AREA), F(1), F(MSG_DONTWAIT), F(0)),
	CALL(recvmmsg, F(THE_STREAM), {IN, 64}, F(1), F(MSG_DONTWAIT), F(0)),
	CALL(recvmmsg, F(THE_STREAM), F(THE_AREA), F(1), F(MSG_DONTWAIT), {OPTIONAL_IN, 16}),
};

static void name_of(char *to, unsigned long value)
{
	if (value == (unsigned long)file)
		strcpy(to, "file");
	else if (value == (unsigned long)directory)
		strcpy(to, "directory");
	else if (value == (unsigned long)pipe_ends[0])
		strcpy(to, "pipe");
	else if (value == (unsigned long)epoll)
		strcpy(to, "epoll");
	else if (value == (unsigned long)event)
		strcpy(to, "event");
	else if (value == (unsigned long)timer)
		strcpy(to, "timer");
	else if (value == (unsigned long)stream)
		strcpy(to, "stream");
	else if (value == (unsigned long)datagram)
		strcpy(to, "datagram");
	else if (value >= (unsigned long)area && value < (unsigned long)area + AREA_PAGES * PAGE)
		sprintf(to, "area+%ld", (long)value - (long)area);
	else if ((long)value >= -100000 && (long)value < 1000000)
		sprintf(to, "%ld", (long)value);
	else
		sprintf(to, "0x%lx", value);
	for (int i = 0; i < BAD_POINTERS; i++)
		if (value == bad_pointers[i].value && i > 2)
			strcpy(to, bad_pointers[i].name);
	if (value == (unsigned long)text)
		strcpy(to, "code");
}

/* Right values, at their places in the area: each kind of value has a page. */
static unsigned long right(const struct argument *a, int index)
{
	switch (a->value) {
	case THE_FILE: return file;
	case THE_DIRECTORY: return directory;
	case THE_PIPE: return pipe_ends[0];
	case THE_AREA: return (unsigned long)area;
	case THE_EPOLL: return epoll;
	case THE_EVENT: return event;
	case THE_TIMER: return timer;
	case THE_STREAM: return stream;
	case THE_DATAGRAM: return datagram;
	case A_LENGTH: return (unsigned long)area + 4 * PAGE + 128;
	case SELF: return getpid();
	case A_PATH: return (unsigned long)area + PAGE;
	case A_TIME: return (unsigned long)area + 2 * PAGE;
	case A_FUTEX: return (unsigned long)area + 3 * PAGE;
	case AN_IOVEC: return (unsigned long)area + 4 * PAGE;
	}
	if (a->kind == IN || a->kind == OUT || a->kind == OPTIONAL_IN || a->kind == OPTIONAL_OUT)
		return (unsigned long)area + (5 + index) * PAGE;
	return a->value;
}

static void prepare(void)
{
	/* Cases before may have taken the area away, or have filled the hole. */
	munmap(hole, PAGE);
	if (mmap(area, AREA_PAGES * PAGE, PROT_READ | PROT_WRITE,
		 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != area)
		_exit(3);
	strcpy(area + PAGE, "/nowhere/at/all");
	unsigned long *vector = (unsigned long *)(area + 4 * PAGE);
	vector[0] = (unsigned long)area;
	vector[1] = 64;
	vector[16] = 110;
	OK(ftruncate(file, 4096));
	OK(lseek(file, 0, SEEK_SET));
	OK(lseek(directory, 0, SEEK_SET));
}

static const char *error_name(int error)
{
	static char number[16];
	static const struct {
		int error;
		const char *name;
	} names[] = {{EPERM, "EPERM"}, {ENOENT, "ENOENT"}, {ESRCH, "ESRCH"}, {EINTR, "EINTR"},
		     {EBADF, "EBADF"}, {ECHILD, "ECHILD"}, {EAGAIN, "EAGAIN"}, {ENOMEM, "ENOMEM"},
		     {EACCES, "EACCES"}, {EFAULT, "EFAULT"}, {EEXIST, "EEXIST"}, {ENODEV, "ENODEV"},
		     {ENOTDIR, "ENOTDIR"}, {EISDIR, "EISDIR"}, {EINVAL, "EINVAL"},
		     {EMFILE, "EMFILE"}, {ENOTTY, "ENOTTY"}, {EFBIG, "EFBIG"}, {ESPIPE, "ESPIPE"},
		     {ERANGE, "ERANGE"}, {ENAMETOOLONG, "ENAMETOOLONG"}, {ENOSYS, "ENOSYS"},
		     {EOVERFLOW, "EOVERFLOW"}, {EOPNOTSUPP, "EOPNOTSUPP"}, {ENOEXEC, "ENOEXEC"},
		     {E2BIG, "E2BIG"}, {ENODATA, "ENODATA"}, {ELOOP, "ELOOP"}};
	for (unsigned i = 0; i < sizeof names / sizeof *names; i++)
		if (names[i].error == error)
			return names[i].name;
	sprintf(number, "%d", error);
	return number;
}

/* Calls whose results are addresses, descriptors or other numbers that may differ. */
static int varies(int number)
{
	switch (number) {
	case SYS_mmap: case SYS_mremap: case SYS_brk: case SYS_open: case SYS_openat:
	case SYS_memfd_create: case SYS_dup: case SYS_getdents64: case SYS_sched_getaffinity:
	case SYS_getcwd: case SYS_fcntl: case SYS_kill: case SYS_epoll_create:
	case SYS_epoll_create1: case SYS_eventfd: case SYS_eventfd2: case SYS_timerfd_create:
	case SYS_socket: case SYS_userfaultfd: case SYS_time: case SYS_times: case SYS_getpgid:
	case SYS_getsid: case SYS_membarrier: case SYS_prctl:
		return 1;
	}
	return 0;
}

static void make(const struct call *call, const unsigned long *v, const char *named, int at)
{
	char line[400], *to = line;
	to += sprintf(to, "%s(", call->name);
	for (int i = 0; i < 6 && call->arguments[i].kind != NONE; i++) {
		to += sprintf(to, i ? ", " : "");
		if (i == at && named)
			to += sprintf(to, "%s", named);
		else if (i != at && call->arguments[i].value == SELF)
			to += sprintf(to, "self");
		else
			name_of(to, v[i]), to += strlen(to);
	}
	errno = 0;
	long result = syscall(call->number, v[0], v[1], v[2], v[3], v[4], v[5]);
	if (result == -1)
		to += sprintf(to, ") = %s\n", error_name(errno));
	else if (varies(call->number))
		to += sprintf(to, ") = ok\n");
	else
		to += sprintf(to, ") = %ld\n", result);
	if (write(1, line, to - line) != to - line)
		_exit(4);
	/* Descriptors that a case has opened. */
	if (result > pipe_ends[1] && varies(call->number))
		close(result);
}

static void try(const struct call *call, int at, unsigned long value, const char *named)
{
	unsigned long v[6] = {0};
	prepare();
	for (int i = 0; i < 6 && call->arguments[i].kind != NONE; i++)
		v[i] = right(&call->arguments[i], i);
	if (at >= 0)
		v[at] = value;
	make(call, v, named, at);
}

#define EACH(list)                                                                                 \
	for (unsigned j = 0; j < sizeof list / sizeof *list; j++)                                  \
		try(call, i, list[j], NULL);

/* Flags whose result depends on the version or the configuration of Linux: huge pages and the
 * rights of memfd_create, watch queues of pipe2. */
static int configured(int number, int bit)
{
	return (number == SYS_memfd_create && ((bit >= 2 && bit <= 4) || bit >= 26)) ||
	       (number == SYS_pipe2 && bit == 7);
}

static void cases(const struct call *call)
{
	int any = 0;
	for (int i = 0; i < 6 && call->arguments[i].kind != NONE; i++) {
		enum kind kind = call->arguments[i].kind;
		long value = call->arguments[i].value;
		any |= kind != FIXED;
		switch (kind) {
		case IN: case OUT: case STRING: case OPTIONAL_IN: case OPTIONAL_OUT:
			for (int j = 0; j < BAD_POINTERS; j++)
				if (j > 0 || kind == IN || kind == OUT || kind == STRING)
					try(call, i, bad_pointers[j].value, bad_pointers[j].name);
			try(call, i, (unsigned long)no_access, "no-access");
			try(call, i, (unsigned long)hole, "hole");
			if (kind == OUT || kind == OPTIONAL_OUT) {
				try(call, i, (unsigned long)read_only, "read-only");
				try(call, i, (unsigned long)text, "code");
			}
			/* Ends in the page that is not there. */
			if (kind != STRING && value > 1)
				try(call, i, (unsigned long)hole - 1, "hole-1");
			if (kind == STRING) {
				memset(hole - 3, 'x', 3);
				try(call, i, (unsigned long)hole - 3, "hole-3");
				try(call, i, (unsigned long)read_only, "too-long");
			}
			break;
		case FD: EACH(bad_fds) break;
		case LENGTH: EACH(bad_lengths) break;
		case SIZE: EACH(bad_sizes) break;
		case NUMBER: EACH(bad_numbers) break;
		case PID: EACH(bad_pids) break;
		case START:
			for (int j = 0; j < BAD_POINTERS; j++)
				if (bad_pointers[j].value != 0)
					try(call, i, bad_pointers[j].value, bad_pointers[j].name);
			try(call, i, (unsigned long)area + 1, NULL);
			try(call, i, (unsigned long)hole, "hole");
			break;
		case FLAGS:
			for (int bit = 0; bit < 32; bit++)
				if ((1L << bit & value) == 0 && !configured(call->number, bit))
					try(call, i, value | 1L << bit, NULL);
			break;
		default:
			break;
		}
	}
	if (!any)
		try(call, -1, 0, NULL);
}

int main(int argc, char **argv)
{
	area = map((AREA_PAGES + 1) * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE);
	/* Calls on too long a range stop behind the area, at a file that cannot be written. */
	int program = OK(open("/proc/self/exe", O_RDONLY));
	char *end = area + AREA_PAGES * PAGE;
	if (mmap(end, PAGE, PROT_READ, MAP_SHARED | MAP_FIXED, program, 0) != end)
		return 1;
	OK(close(program));
	read_only = map(4 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE);
	memset(read_only, 'l', 4 * PAGE);
	OK(mprotect(read_only, 4 * PAGE, PROT_READ));
	char *three = map(3 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE);
	no_access = three;
	OK(mprotect(no_access, PAGE, PROT_NONE));
	hole = three + 2 * PAGE;
	OK(munmap(hole, PAGE));
	
	text = (char *)((uintptr_t)cases & -PAGE);
	file = OK(syscall(SYS_memfd_create, "wrong", 0));
	file = OK(fcntl(file, F_DUPFD, 40));
	directory = OK(fcntl(OK(open("/proc/self", O_RDONLY | O_DIRECTORY)), F_DUPFD, 41));
	int ends[2];
	OK(pipe2(ends, O_NONBLOCK));
	pipe_ends[0] = OK(fcntl(ends[0], F_DUPFD, 42));
	pipe_ends[1] = OK(fcntl(ends[1], F_DUPFD, 43));
	epoll = OK(fcntl(OK(epoll_create1(0)), F_DUPFD, 45));
	event = OK(fcntl(OK(eventfd(10000, EFD_SEMAPHORE | EFD_NONBLOCK)), F_DUPFD, 46));
	timer = OK(fcntl(OK(timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK)), F_DUPFD, 47));
	OK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends));
	stream = OK(fcntl(ends[0], F_DUPFD, 49));
	datagram = OK(fcntl(OK(socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK, 0)), F_DUPFD, 50));
	/* Some numbers of descriptors are bad only by this limit. */
	struct rlimit limit = {1024, 1024};
	setrlimit(RLIMIT_NOFILE, &limit);
	/* One of the numbers that the calls try is a signal. */
	sigset_t last;
	sigemptyset(&last);
	sigaddset(&last, 64);
	OK(sigprocmask(SIG_BLOCK, &last, NULL));
	for (unsigned i = 0; i < sizeof table / sizeof *table; i++) {
		if (argc > 1 && strcmp(argv[1], table[i].name))
			continue;
		pid_t pid = OK(fork());
		if (pid == 0) {
			cases(&table[i]);
			_exit(0);
		}
		int status;
		EQ(waitpid(pid, &status, 0), pid);
		if (status) {
			printf("%s: ends with status 0x%x\n", table[i].name, status);
			fflush(stdout);
		}
	}
	return 0;
}
