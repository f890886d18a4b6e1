/* The calls of `fuzz`, and random arguments for them. programs/build writes others.h: the calls of
 * the kernel that are not here. */
#include "test.h"
#include <setjmp.h>

/* The kind of an argument: pointer, length, descriptor, number, bits, path, address of a page,
 * timeout, process or thread, signal, offset, flags of clone, size of a set of signals; family,
 * address and message of a socket, 0, and a descriptor or a number. */
enum { END, P, L, FD, N, B, S, A, T, I, G, O, CLONE, SET, U, U2, M, Z, D };
struct call {
	short number;
	unsigned char kinds[6];
};
#define C(name, ...) {SYS_##name, {__VA_ARGS__}}
static const struct call calls[] = {
	C(mmap, A, L, B, B, FD, O), C(mmap, A, L, B, B, FD, O), C(mmap, A, L, B, B, FD, O),
	C(munmap, A, L), C(mprotect, A, L, B), C(mprotect, A, L, B), C(mremap, A, L, L, B, A),
	C(mremap, A, L, L, B, A), C(brk, A), C(madvise, A, L, N), C(madvise, A, L, N),
	C(mincore, A, L, P), C(mlock, A, L), C(mlock2, A, L, B), C(munlock, A, L), C(mlockall, B),
	C(munlockall), C(msync, A, L, B), C(process_vm_readv, I, P, N, P, N, B),
	C(process_vm_writev, I, P, N, P, N, B), C(open, S, B, B), C(openat, FD, S, B, B),
	C(open, S, B, B), C(creat, S, B), C(close, FD), C(close_range, N, N, B), C(dup, FD),
	C(dup2, FD, FD), C(dup3, FD, FD, B), C(pipe, P), C(pipe2, P, B), C(pipe, P),
	C(memfd_create, S, B), C(memfd_create, S, B), C(umask, N), C(fcntl, FD, N, N),
	C(fcntl, FD, N, P), C(flock, FD, N), C(ioctl, FD, N, P), C(read, FD, P, L),
	C(write, FD, P, L), C(read, FD, P, L), C(write, FD, P, L), C(pread64, FD, P, L, O),
	C(pwrite64, FD, P, L, O), C(readv, FD, P, N), C(writev, FD, P, N), C(preadv, FD, P, N, O),
	C(pwritev, FD, P, N, O), C(sendfile, FD, FD, P, L), C(copy_file_range, FD, P, FD, P, L, B),
	C(lseek, FD, O, N), C(truncate, S, O), C(ftruncate, FD, O), C(fallocate, FD, B, O, O),
	C(fsync, FD), C(fdatasync, FD), C(sync), C(syncfs, FD), C(fadvise64, FD, O, O, N),
	C(mkdir, S, B), C(mkdirat, FD, S, B), C(mknod, S, B, N), C(unlink, S),
	C(unlinkat, FD, S, B), C(rmdir, S), C(rename, S, S), C(renameat2, FD, S, FD, S, B),
	C(link, S, S), C(linkat, FD, S, FD, S, B), C(symlink, S, S), C(symlinkat, S, FD, S),
	C(readlink, S, P, L), C(readlinkat, FD, S, P, L), C(chdir, S), C(fchdir, FD),
	C(getcwd, P, L), C(getdents64, FD, P, L), C(stat, S, P), C(lstat, S, P), C(fstat, FD, P),
	C(newfstatat, FD, S, P, B), C(statx, FD, S, B, B, P), C(statfs, S, P), C(fstatfs, FD, P),
	C(access, S, N), C(faccessat2, FD, S, N, B), C(chmod, S, B), C(fchmod, FD, B),
	C(utimensat, FD, S, P, B), C(poll, P, N, N), C(ppoll, P, N, T, P, N),
	C(epoll_create1, B), C(eventfd2, N, B), C(timerfd_create, N, B), C(epoll_ctl, FD, N, FD, P),
	C(epoll_ctl, FD, N, FD, P), C(epoll_wait, FD, P, N, N), C(epoll_pwait, FD, P, N, N, P, SET),
	C(epoll_pwait2, FD, P, N, T, P, SET), C(timerfd_settime, FD, B, P, P),
	C(timerfd_gettime, FD, P), C(socket, U, N, Z), C(socketpair, U, N, Z, P), C(bind, FD, U2, N),
	C(bind, FD, U2, N), C(listen, FD, N), C(accept4, FD, P, P, B), C(connect, FD, U2, N),
	C(connect, FD, U2, N), C(getsockname, FD, P, P), C(getpeername, FD, P, P), C(shutdown, FD, N),
	C(getsockopt, FD, N, N, P, P), C(setsockopt, FD, N, N, P, N), C(sendto, FD, P, L, B, P, N),
	C(recvfrom, FD, P, L, B, P, P), C(sendmsg, FD, M, B), C(sendmsg, FD, M, B), C(recvmsg, FD, M, B),
	C(recvmsg, FD, M, B), C(sendmmsg, FD, M, N, B), C(recvmmsg, FD, M, N, B, T),
	C(select, N, P, P, P, T), C(pselect6, N, P, P, P, T, P), C(clone, CLONE, P, P, P, P),
	C(clone, CLONE, P, P, P, P), C(clone3, P, L), C(fork), C(fork), C(vfork), C(execve, S, P, P),
	C(execve, S, N, N), C(wait4, I, P, B, P), C(waitid, N, I, P, B, P), C(getpgid, I),
	C(setpgid, I, I), C(getsid, I), C(setsid), C(set_tid_address, P), C(arch_prctl, N, P),
	C(uname, P), C(getrandom, P, L, B), C(getcpu, P, P), C(sched_yield),
	C(sched_getaffinity, I, L, P), C(sched_setaffinity, I, L, P), C(prlimit64, I, N, P, P),
	C(getrlimit, N, P), C(setrlimit, N, P), C(prctl, N, P), C(futex, P, B, N, T, P, N),
	C(futex, P, B, N, T, P, N), C(futex, P, B, N, N, P, N), C(membarrier, B, N),
	C(set_robust_list, P, N), C(set_robust_list, P, 0), C(get_robust_list, I, P, P),
	C(rt_sigaction, G, P, P, SET), C(rt_sigaction, G, P, P, SET), C(rt_sigprocmask, N, P, P, SET),
	C(rt_sigprocmask, N, P, P, SET), C(rt_sigpending, P, L), C(rt_sigtimedwait, P, P, T, SET),
	C(rt_sigqueueinfo, I, G, P), C(rt_tgsigqueueinfo, I, I, G, P), C(rt_sigsuspend, P, SET),
	C(rt_sigreturn), C(sigaltstack, P, P), C(kill, I, G), C(tkill, I, G), C(tgkill, I, I, G),
	C(pause), C(alarm, N), C(setitimer, N, P, P), C(getitimer, N, P), C(clock_gettime, N, P),
	C(clock_getres, N, P), C(clock_nanosleep, N, B, T, P), C(nanosleep, T, P),
	C(gettimeofday, P, P), C(time, P), C(times, P), C(getrusage, N, P), C(sysinfo, P),
	C(exit, N), C(exit_group, N),
	C(setuid, N), C(setresuid, N, N, N), C(setregid, N, N), C(setfsgid, N), C(setgroups, N, P),
	C(getgroups, N, P), C(getresuid, P, P, P), C(getpriority, N, I), C(setpriority, N, I, N),
	C(sched_setscheduler, I, N, P), C(sched_setparam, I, P), C(sched_getparam, I, P),
	C(sched_getattr, I, P, L, N), C(sched_setattr, I, P, N), C(sched_rr_get_interval, I, P),
	C(pidfd_open, I, N), C(pidfd_open, I, 0), C(pidfd_send_signal, FD, G, P, N),
	C(pidfd_getfd, FD, FD, N), C(process_madvise, FD, P, N, N, N), C(shmget, N, L, B),
	C(shmat, N, A, B), C(shmdt, A), C(shmctl, N, N, P), C(shmctl, N, 0, P), C(pkey_alloc, N, N),
	C(pkey_mprotect, A, L, B, N), C(remap_file_pages, A, L, N, N, N),
	C(timer_create, N, P, P), C(timer_create, N, N, P), C(timer_settime, N, N, P, P),
	C(timer_gettime, N, P), C(timer_getoverrun, N), C(timer_delete, N),
	C(getxattr, S, P, P, L), C(setxattr, S, P, P, L, N), C(fgetxattr, FD, P, P, L),
	C(listxattr, S, P, L), C(fremovexattr, FD, P), C(mseal, A, L, B),
#include "others.h"
};
enum { CALLS = sizeof calls / sizeof *calls };

static const unsigned long edges[] = {
	0, 1, 2, 3, 4, 7, 8, 9, 16, 24, 63, 64, 65, 88, 100, 255, 256, 1023, 1024, 2048, 4095, 4096,
	4097, 8192, 0x10000, 0x1fffff, 0x200000, 0x200001, 0x7ffff000, 0x7fffffff, 0x80000000,
	0xffffffff, 0x100000000, 0x100000001, 1UL << 40, 1UL << 46, 1UL << 47, 1UL << 52, 1UL << 62,
	0x7ffffffffffff000, 0x7fffffffffffffff, 0x8000000000000000, -4096, -4095, -100, -9, -8, -2,
	-1,
};
static const unsigned long bad[] = {
	0, 1, 0xfff, 0x1000, 0x7ffffffeffff, 0x7fffffffe000, 0x7fffffffefff, 0x7ffffffff000,
	0x7fffffffffff, 0x800000000000, 0x8000000000000000, 0xffff7fffffffffff, 0xffff800000000000,
	0xffff888001000000, 0xffffc90000000000, 0xffffffff80000000, 0xffffffff80200000,
	0xfffffffffffff000, -8, -1,
};
/* A plain file from before, and a setting, which has no frames. */
#define SYSTEM_FILE "/sys/kernel/mm/transparent_hugepage/use_zero_page"
#define SETTING "/sys/kernel/mm/transparent_hugepage/enabled"
#define OF(table) table[pick(state, sizeof table / sizeof *table)]
static char long_name[5000];
static const char *paths[] = {
	"f0", "f1", "f2", "d0", "d0/f0", "d0/d1", "d0/d1/f1", "d1", "l0", "", "f0/f1", ".", long_name,
	"none/f0", "/dev/null", "/dev/zero", "/proc/self/maps", "/proc/self/smaps",
	"/proc/self/status", "/proc/self/stat", "/proc/self/pagemap", "/proc/self/fd/0",
	"/proc/self/fd", "/proc/self/task", "/proc/meminfo", "/proc/stat", "/proc",
	"e0", "e0", "/proc/self/cmdline", "/proc/self/mem",
	"/proc/sys/vm/overcommit_memory", SYSTEM_FILE, SETTING,
};
static char *area;
static __thread sigjmp_buf again;
static __thread int can_jump;
static int others[4];

static unsigned long pick(uint64_t *state, unsigned long below)
{
	return (next_random(state) >> 7) % below;
}

static unsigned long number(uint64_t *state)
{
	switch (pick(state, 4)) {
	case 0: return pick(state, 16);
	case 1: return 1UL << pick(state, 64);
	case 2: return OF(edges);
	default: return pick(state, 70);
	}
}

/* Most numbers between a MiB and a TiB become smaller: calls that use up all memory take long. */
static unsigned long bounded(uint64_t *state, unsigned long number)
{
	return number >> 20 && !(number >> 40) && pick(state, 50) ? number & 0xfffff : number;
}

/* Pages of the area: most can be written, 20 only read, 21 not at all, and 22 ends at a hole. */
static unsigned long pointer(uint64_t *state)
{
	unsigned long at = (unsigned long)area;
	switch (pick(state, 12)) {
	case 0: return OF(bad);
	case 1: return at + 23 * PAGE - pick(state, 200);
	case 2: return at + 20 * PAGE - pick(state, 200);
	case 3: return at + 20 * PAGE + pick(state, 2 * PAGE);
	case 4: return (unsigned long)pointer + pick(state, 4096);
	case 5: return 0;
	default: return at + pick(state, 20 * PAGE) / 8 * 8;
	}
}

static void on_signal(int number)
{
	if ((number == SIGSEGV || number == SIGBUS || number == SIGILL || number == SIGFPE) &&
	    can_jump)
		siglongjmp(again, 1);
}

/* Something for a call to find at its pointers. */
static void fill(uint64_t *state, unsigned long at)
{
	unsigned long words[8];
	if (at < (unsigned long)area || at > (unsigned long)area + 19 * PAGE)
		return;
	unsigned kind = pick(state, 6);
	for (int i = 0; i < 8; i++)
		words[i] = kind == 0 ? next_random(state) : pick(state, 2) ? number(state)
								       : pointer(state);
	if (kind == 1) { /* a short time */
		words[0] = 0;
		words[1] = pick(state, 2000000);
		words[2] = 0;
		words[3] = pick(state, 2000);
	} else if (kind == 2) { /* an action */
		static const unsigned long flags[] = {0, 4, 0x8000000, 0x10000000, 0x40000000,
						      0x80000000, 0x18000004};
		words[0] = pick(state, 3) ? (unsigned long)on_signal : pick(state, 3);
		words[1] = OF(flags) | (pick(state, 8) ? 0x4000000 : 0);
		words[2] = pick(state, 8) ? others[0] ? pointer(state) : 0 : number(state);
		words[3] = number(state);
	} else if (kind == 3) { /* vectors */
		for (int i = 0; i < 8; i += 2) {
			words[i] = pointer(state);
			words[i + 1] = pick(state, 3) ? pick(state, 9000) : number(state);
		}
	} else if (kind == 4) { /* clone3, or a stack */
		words[0] = pick(state, 2) ? (unsigned long)area : 1UL << pick(state, 34);
		words[1] = words[2] = words[3] = 0;
		words[4] = pick(state, 65);
	}
	memcpy((void *)at, words, sizeof words);
}

static unsigned long argument(uint64_t *state, int kind)
{
	unsigned long at;
	switch (kind) {
	case P:
		at = pointer(state);
		fill(state, at);
		return at;
	case L:
		if (pick(state, 3))
			return pick(state, 3 * PAGE);
		return bounded(state, number(state) * (pick(state, 2) ? PAGE : 1));
	case D:
		if (pick(state, 2))
			return number(state);
		/* fall through */
	case FD:
		return pick(state, 10) ? pick(state, 14) : pick(state, 2) ? -100UL : number(state);
	case B:
		at = number(state);
		for (int i = pick(state, 4); i > 0; i--)
			at |= 1UL << pick(state, pick(state, 4) ? 8 : 32);
		return at;
	case S:
		if (!pick(state, 12))
			return pointer(state);
		return (unsigned long)paths[pick(state, 3) ? pick(state, 9)
							   : pick(state, sizeof paths / sizeof *paths)];
	case A:
		if (pick(state, 8))
			return (unsigned long)area + pick(state, 40) * PAGE;
		return pointer(state) & (pick(state, 2) ? -PAGE : -1UL);
	case T:
		at = (unsigned long)area + pick(state, 16) * PAGE;
		((long *)at)[0] = 0;
		((long *)at)[1] = pick(state, 3000000);
		return pick(state, 20) ? at : pointer(state);
	case I:
		switch (pick(state, 8)) {
		case 0: return pick(state, 2) - 1;
		case 1: return number(state) | 2;
		case 3: return 2 + pick(state, 30);
		default: return syscall(pick(state, 2) ? SYS_getpid : SYS_gettid);
		}
	case G:
		/* The signals that kill at once are the parent's. */
		at = pick(state, 12) ? pick(state, 66) : number(state);
		return (unsigned)at == SIGKILL ? SIGUSR1 : at;
	case O:
		return pick(state, 3) ? pick(state, 20 * PAGE) : bounded(state, number(state));
	case CLONE:
		at = SIGCHLD;
		if (pick(state, 2))
			at = 0x10f00 | (pick(state, 2) ? 0 : pick(state, 1 << 26) & 0x1f90000);
		for (int i = pick(state, 4); i > 0; i--)
			at ^= 1UL << (8 + pick(state, 25));
		return at;
	case U:
		return pick(state, 20) ? 1 : number(state);
	case Z:
		return pick(state, 20) ? 0 : number(state);
	case U2:
		/* One of few names, so that calls meet. */
		at = (unsigned long)area + pick(state, 16) * PAGE;
		((short *)at)[0] = pick(state, 20) ? 1 : pick(state, 3);
		((char *)at)[2] = pick(state, 2) ? 0 : 's';
		((char *)at)[3] = pick(state, 4);
		((char *)at)[4] = 0;
		return pick(state, 20) ? at : pointer(state);
	case M: {
		/* A message: some bytes, and some files. */
		unsigned long words[8] = {0}, *control;
		at = (unsigned long)area + pick(state, 16) * PAGE;
		control = (unsigned long *)(at + 256);
		words[2] = at + 128;
		words[3] = pick(state, 4);
		for (int i = 0; i < 8; i += 2) {
			((unsigned long *)(at + 128))[i] = at + 512;
			((unsigned long *)(at + 128))[i + 1] = pick(state, 100);
		}
		words[4] = pick(state, 3) ? at + 256 : 0;
		words[5] = pick(state, 8) ? 24 : pick(state, 64);
		control[0] = pick(state, 8) ? 16 + 4 * pick(state, 3) : pick(state, 40);
		control[1] = 1 | (1UL + !pick(state, 4)) << 32;
		control[2] = pick(state, 14) | pick(state, 14) << 32;
		memcpy((void *)at, words, sizeof words);
		return at;
	}
	case SET:
		return pick(state, 30) ? 8 : number(state);
	default:
		return number(state);
	}
}
