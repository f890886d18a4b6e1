/* Tries to read, write and enter the kernel, by each call that takes a pointer and by the CPU:
 * loads, stores, jumps and stacks there, forged signal frames, bases, privileged instructions, a
 * trace flag over a call, a call at the end of user space. Each attempt must fail with an error or
 * with a signal; an attempt that kills runs in a child. Nothing of it may reach the kernel. */
#include "test.h"
#include <sys/uio.h>
#include <ucontext.h>

static const unsigned long addresses[] = {
	0x7ffffffff000,	    0x7fffffffffff,	0x800000000000,	    0xffff7fffffffffff,
	0xffff800000000000, 0xffff888000000000, 0xffff888000100000, 0xffff888001000000,
	0xffffc90000000000, 0xfffffe0000001000, 0xfffffe0000010000, 0xffffffff80000000,
	0xffffffff80200000, 0xffffffff81000000, 0xffffffffa0000000, 0xfffffffffffff000,
};
enum { ADDRESSES = sizeof addresses / sizeof *addresses, CALLS = 45 };
static int attempts, ends[2], file;
static char *area;

/* The calls, with `at` as a pointer. Those that must fail return -1. */
static long call(int which, unsigned long at)
{
	struct iovec vector = {(void *)at, 64};
	unsigned long *user = (unsigned long *)area;
	char *vectors[] = {"x", (char *)at, NULL};
	memset(area, 0, PAGE);
	switch (which) {
	case 0: return syscall(SYS_write, ends[1], at, 64);
	case 1: return syscall(SYS_read, file, at, 64);
	case 2: return syscall(SYS_pwrite64, file, at, 64, 0);
	case 3: return syscall(SYS_pread64, file, at, 64, 0);
	case 4: return syscall(SYS_writev, ends[1], &vector, 1);
	case 5: return syscall(SYS_readv, file, &vector, 1);
	case 6: return syscall(SYS_writev, ends[1], at, 1);
	case 7: return syscall(SYS_readv, file, at, 1);
	case 8: return syscall(SYS_open, at, O_RDONLY);
	case 9: return syscall(SYS_fstat, file, at);
	case 10: return syscall(SYS_stat, "/proc/self/exe", at);
	case 11: return syscall(SYS_statx, AT_FDCWD, "/proc/self/exe", 0, 0x7ff, at);
	case 12: return syscall(SYS_readlink, "/proc/self/exe", at, 64);
	case 13: return syscall(SYS_getcwd, at, 64);
	case 14: return syscall(SYS_pipe, at);
	case 15: return syscall(SYS_uname, at);
	case 16: return syscall(SYS_clock_gettime, CLOCK_MONOTONIC, at);
	case 17: return syscall(SYS_nanosleep, at, NULL);
	case 18: return syscall(SYS_rt_sigaction, SIGUSR1, at, NULL, 8);
	case 19: return syscall(SYS_rt_sigaction, SIGUSR1, NULL, at, 8);
	case 20: return syscall(SYS_rt_sigprocmask, SIG_BLOCK, at, NULL, 8);
	case 21: return syscall(SYS_rt_sigprocmask, SIG_BLOCK, NULL, at, 8);
	case 22: return syscall(SYS_rt_sigpending, at, 8);
	case 23: return syscall(SYS_sigaltstack, at, NULL);
	case 24: return syscall(SYS_sigaltstack, NULL, at);
	case 25: return syscall(SYS_getrandom, at, 64, 0);
	case 26: return syscall(SYS_sched_getaffinity, 0, 128, at);
	case 27: return syscall(SYS_sched_setaffinity, 0, 128, at);
	case 28: return syscall(SYS_futex, at & -4, 0, 0, NULL, NULL, 0);
	case 29: return syscall(SYS_futex, at & -4, 128, 0, at, NULL, 0);
	case 30: return syscall(SYS_futex, user, 3, 1, 1, at & -4, 0);
	case 31: return syscall(SYS_futex, user, 133, 1, 1, at & -4, 1 << 12);
	case 32: return syscall(SYS_execve, at, NULL, NULL);
	case 33: return syscall(SYS_execve, "/proc/self/exe", at, NULL);
	case 34: return syscall(SYS_execve, "/proc/self/exe", vectors, NULL);
	case 35: return syscall(SYS_execve, "/proc/self/exe", NULL, vectors);
	case 36: return syscall(SYS_memfd_create, at, 0);
	case 37: return syscall(SYS_getdents64, OK(open("/proc/self", O_RDONLY)), at, 4096);
	case 38: return syscall(SYS_arch_prctl, 0x1002, at); /* ARCH_SET_FS */
	case 39: return syscall(SYS_arch_prctl, 0x1001, at); /* ARCH_SET_GS */
	case 40: return syscall(SYS_arch_prctl, 0x1003, at); /* ARCH_GET_FS */
	case 41: return syscall(SYS_mprotect, at & -PAGE, PAGE, PROT_READ);
	case 42: return syscall(SYS_mmap, at & -PAGE, PAGE, PROT_READ,
				MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
	case 43: return syscall(SYS_madvise, at & -PAGE, PAGE, MADV_DONTNEED);
	case 44: return syscall(SYS_clone3, at, 88);
	}
	return 0;
}

static void calls(unsigned long at)
{
	for (int which = 0; which < CALLS; which++) {
		errno = 0;
		long result = call(which, at);
		if (result != -1 || (errno != EFAULT && errno != EINVAL && errno != ENOMEM &&
				     errno != EPERM && errno != ENOSYS))
			differs(__FILE__, __LINE__, "call %d with 0x%lx is %ld, errno %d", which, at,
				result, errno);
		attempts++;
	}
}

/* Attempts that end the process: each returns only if it has been let through. */
enum fatal { LOAD, STORE, JUMP, CALL, RETURN_RIP, RETURN_STACK, RETURN_FPU, SIGNAL_STACK, STACK,
	     FS_BASE, GS_BASE, CLONE_STACK, FATALS };
static unsigned long target;
static enum fatal forged;

static void forge(int signal, siginfo_t *info, void *context)
{
	ucontext_t *user = context;
	(void)signal;
	(void)info;
	if (forged == RETURN_RIP)
		user->uc_mcontext.gregs[REG_RIP] = target;
	else if (forged == RETURN_STACK)
		user->uc_mcontext.gregs[REG_RSP] = target;
	else if (forged == RETURN_FPU)
		user->uc_mcontext.fpregs = (void *)target;
}

static void fatal(enum fatal which)
{
	struct sigaction action = {.sa_sigaction = forge, .sa_flags = SA_SIGINFO | SA_ONSTACK};
	stack_t stack = {.ss_sp = (void *)(target - 65536), .ss_size = 65536};
	forged = which;
	switch (which) {
	case LOAD:
		(void)*(volatile char *)target;
		break;
	case STORE:
		*(volatile char *)target = 0;
		break;
	case JUMP:
		__asm__ volatile("jmp *%0" : : "r"(target));
		break;
	case CALL:
		__asm__ volatile("call *%0" : : "r"(target) : "memory");
		break;
	case SIGNAL_STACK:
		/* A stack that wraps or is not there: refused now, or of no use later. */
		OK(sigaltstack(&stack, NULL));
		/* fall through */
	case RETURN_RIP: case RETURN_STACK: case RETURN_FPU:
		OK(sigaction(SIGUSR1, &action, NULL));
		raise(SIGUSR1);
		break;
	case STACK:
		/* A call with such a stack must come back; then the push fails. */
		__asm__ volatile("mov %0, %%rsp; mov $39, %%eax; syscall; push %%rax"
				 :
				 : "r"(target)
				 : "rax", "rcx", "r11", "memory");
		break;
	case FS_BASE:
		__asm__ volatile("wrfsbase %0; mov $39, %%eax; syscall; mov %%fs:0, %%rax"
				 :
				 : "r"(target)
				 : "rax", "rcx", "r11", "memory");
		break;
	case GS_BASE:
		__asm__ volatile("wrgsbase %0; mov $39, %%eax; syscall; mov %%gs:0, %%rax"
				 :
				 : "r"(target)
				 : "rax", "rcx", "r11", "memory");
		break;
	case CLONE_STACK:
		/* CLONE_VM | FS | FILES | SIGHAND | THREAD */
		__asm__ volatile("syscall; test %%rax, %%rax; js 2f; jnz 1f; push %%rax\n"
				 "1: mov $34, %%eax; syscall; jmp 1b\n"
				 "2: movl $1, 8"
				 :
				 : "a"(SYS_clone), "D"(0x10f00), "S"(target), "d"(0)
				 : "rcx", "r11", "memory");
		break;
	default:
		break;
	}
}

static void in_child(enum fatal which, unsigned long at)
{
	pid_t pid = OK(fork());
	if (pid == 0) {
		target = at;
		fatal(which);
		differs(__FILE__, __LINE__, "attempt %d with 0x%lx went through", which, at);
	}
	int status;
	EQ(waitpid(pid, &status, 0), pid);
	/* A CPU without the instructions of bases gives SIGILL. A stack outside the canonical range
	 * raises a stack fault, which is a SIGBUS. */
	int signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
	if (signal != SIGSEGV && signal != SIGBUS &&
	    !(signal == SIGILL && (which == FS_BASE || which == GS_BASE)))
		differs(__FILE__, __LINE__, "attempt %d with 0x%lx ends with status 0x%x", which, at,
			status);
	attempts++;
}

/* Instructions that only a kernel may run, and gates that only an interrupt may pass. */
#define PRIVILEGED(instruction)                                                                    \
	do {                                                                                       \
		pid_t pid = OK(fork());                                                            \
		if (pid == 0) {                                                                    \
			__asm__ volatile(instruction : : "a"(0), "c"(0xc0000080), "d"(0x80));      \
			differs(__FILE__, __LINE__, "%s went through", instruction);               \
		}                                                                                  \
		killed_by(pid, SIGSEGV);                                                           \
		attempts++;                                                                        \
	} while (0)

static void privileged(void)
{
	PRIVILEGED("hlt");
	PRIVILEGED("cli");
	PRIVILEGED("sti");
	PRIVILEGED("in %%dx, %%al");
	PRIVILEGED("out %%al, %%dx");
	PRIVILEGED("rdmsr");
	PRIVILEGED("wrmsr");
	PRIVILEGED("mov %%cr0, %%rax");
	PRIVILEGED("mov %%rax, %%cr3");
	PRIVILEGED("mov %%rax, %%cr4");
	PRIVILEGED("mov %%rax, %%dr7");
	PRIVILEGED("lgdt (%%rsp)");
	PRIVILEGED("lidt (%%rsp)");
	PRIVILEGED("ltr %%ax");
	PRIVILEGED("lldt %%ax");
	PRIVILEGED("invlpg (%%rsp)");
	/* Not wbinvd: some emulators let programs execute it, as nothing. */
	PRIVILEGED("swapgs");
	PRIVILEGED("sysretq");
	PRIVILEGED("int $2");
	PRIVILEGED("int $8");
	PRIVILEGED("int $14");
	PRIVILEGED("int $32");
	PRIVILEGED("int $255");
}

static long new_flags, new_code;
static int keep_code;

static void forge_modes(int signal, siginfo_t *info, void *context)
{
	ucontext_t *user = context;
	(void)signal;
	(void)info;
	user->uc_mcontext.gregs[REG_EFL] = new_flags;
	if (!keep_code)
		user->uc_mcontext.gregs[REG_CSGSFS] = new_code;
}

/* Frames with the flags and selectors of a kernel: the program goes on in ring 3 with its flags, or
 * is killed. */
static void modes(void)
{
	struct sigaction action = {.sa_sigaction = forge_modes, .sa_flags = SA_SIGINFO};
	/* IOPL, NT, VM, VIF, VIP, ID; none; and without the interrupt flag. */
	static const long flags[] = {0x3202, 0x4202, 0x20202, 0x80202, 0x100202, 0x1fb002, 0, 2};
	/* CS in the low 16 bits, SS in the high ones. */
	static const unsigned long codes[] = {0x08,	0x10,	0x0b,	0x13,	0x18, 0x28,
					      0xfff8,	0x40,	0x0010000000000010,
					      0x0018000000000033, 0x0000000000000033};
	OK(sigaction(SIGUSR1, &action, NULL));
	keep_code = 1;
	for (unsigned i = 0; i < sizeof flags / sizeof *flags; i++) {
		unsigned long found;
		new_flags = flags[i];
		raise(SIGUSR1);
		__asm__ volatile("pushfq; pop %0" : "=r"(found));
		/* IF must be on; IOPL, NT, VM, VIF, VIP off. */
		EQ(found & 0x1a7200, 0x200);
		attempts++;
	}
	keep_code = 0;
	new_flags = 0x202;
	for (unsigned i = 0; i < sizeof codes / sizeof *codes; i++) {
		pid_t pid = OK(fork());
		if (pid == 0) {
			new_code = codes[i];
			raise(SIGUSR1);
			unsigned short code, stack;
			__asm__ volatile("mov %%cs, %0; mov %%ss, %1" : "=r"(code), "=r"(stack));
			EQ(code & 3, 3);
			_exit(0);
		}
		int status;
		EQ(waitpid(pid, &status, 0), pid);
		if (status != 0 && !(WIFSIGNALED(status) && (WTERMSIG(status) == SIGSEGV ||
							     WTERMSIG(status) == SIGBUS)))
			differs(__FILE__, __LINE__, "selectors 0x%lx: status 0x%x", codes[i],
				status);
		attempts++;
	}
}

/* Vector registers that a CPU refuses to load: reserved bits of MXCSR and of the header. Frames
 * with bits that a CPU has go through. */
static unsigned new_mxcsr;
static uint64_t new_parts;

static void forge_vectors(int signal, siginfo_t *info, void *context)
{
	ucontext_t *user = context;
	(void)signal;
	(void)info;
	user->uc_mcontext.fpregs->mxcsr ^= new_mxcsr;
	*(uint64_t *)((char *)user->uc_mcontext.fpregs + 512) ^= new_parts;
}

static void vectors(void)
{
	struct sigaction action = {.sa_sigaction = forge_vectors, .sa_flags = SA_SIGINFO};
	static const struct {
		unsigned mxcsr;
		uint64_t parts;
		int good;
	} cases[] = {
		{0, 0, 1}, {0x8000, 0, 1}, {0x10000, 0, 0}, {0x80000000, 0, 0},
		{0, 1UL << 62, 0}, {0, 1UL << 40, 0},
	};
	OK(sigaction(SIGUSR1, &action, NULL));
	for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
		pid_t pid = OK(fork());
		if (pid == 0) {
			new_mxcsr = cases[i].mxcsr;
			new_parts = cases[i].parts;
			unsigned before, after;
			__asm__ volatile("stmxcsr %0" : "=m"(before));
			raise(SIGUSR1);
			__asm__ volatile("stmxcsr %0" : "=m"(after));
			EQ(before ^ after, new_mxcsr);
			_exit(0);
		}
		if (cases[i].good)
			exits_with(pid, 0);
		else
			killed_by(pid, SIGSEGV);
		attempts++;
	}
}

static volatile int traps;

static void on_trap(int signal, siginfo_t *info, void *context)
{
	ucontext_t *user = context;
	(void)signal;
	(void)info;
	traps++;
	CHECK((unsigned long)user->uc_mcontext.gregs[REG_RIP] < 0x7ffffffff000);
}

/* Single steps over calls: the trap comes in user mode, behind the call. */
static void steps(void)
{
	struct sigaction action = {.sa_sigaction = on_trap, .sa_flags = SA_SIGINFO};
	OK(sigaction(SIGTRAP, &action, NULL));
	long result;
	__asm__ volatile("sub $128, %%rsp; pushfq; orl $0x100, (%%rsp); popfq\n"
			 "mov $39, %%eax; syscall; nop; mov $39, %%eax; syscall\n"
			 "pushfq; andl $~0x100, (%%rsp); popfq; add $128, %%rsp"
			 : "=a"(result)
			 :
			 : "rcx", "r11", "memory");
	EQ(result, getpid());
	CHECK(traps >= 5);
	attempts++;
	/* mov ss with a watch of the trap flag, then a call: the trap is delayed behind the entry. */
	__asm__ volatile("sub $128, %%rsp; mov %%ss, %%edx; pushfq; orl $0x100, (%%rsp); popfq\n"
			 "mov $39, %%eax; mov %%edx, %%ss; syscall\n"
			 "pushfq; andl $~0x100, (%%rsp); popfq; add $128, %%rsp"
			 : "=a"(result)
			 :
			 : "rcx", "rdx", "r11", "memory");
	EQ(result, getpid());
	attempts++;
}

/* A call by the last two bytes of user space returns to an address that is not mapped. */
static void last_bytes(void)
{
	pid_t pid = OK(fork());
	if (pid == 0) {
		/* The stack may be there; it is left where it is, and its frames are far below. */
		char *page = (char *)0x7fffffffe000;
		char far[65536];
		__asm__ volatile("" : : "r"(far) : "memory");
		char *new = (char *)OK(mmap(page, PAGE, PROT_READ | PROT_WRITE,
					    MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0));
		EQ(new, page);
		memcpy(page + PAGE - 2, "\x0f\x05", 2);
		OK(mprotect(page, PAGE, PROT_READ | PROT_EXEC));
		__asm__ volatile("jmp *%1" : : "a"(39L), "r"(page + PAGE - 2) : "rcx", "r11");
		__builtin_unreachable();
	}
	killed_by(pid, SIGSEGV);
	ERR(mmap((void *)0x7ffffffff000, PAGE, PROT_READ,
		 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0),
	    ENOMEM);
	attempts += 2;
}

/* Words that the kernel writes when a thread ends: it must leave those of the kernel alone. */
static void at_exit(unsigned long at)
{
	for (int which = 0; which < 4; which++) {
		pid_t pid = OK(fork());
		if (pid == 0) {
			unsigned long head[3] = {(unsigned long)head, 0, 0};
			if (which == 0)
				syscall(SYS_set_tid_address, at);
			if (which == 1)
				head[0] = at;
			if (which == 2)
				head[2] = at;
			/* The offset of the words leads there, too. */
			if (which == 3)
				head[0] = (unsigned long)area, head[1] = at - (unsigned long)area;
			if (which)
				OK(syscall(SYS_set_robust_list, head, 24));
			syscall(SYS_exit, 0);
		}
		exits_with(pid, 0);
		if (which == 0) {
			/* The words that clone writes for the parent and for the child. */
			pid = syscall(SYS_clone, 0x00100000 | 0x01000000 | 0x00200000 | SIGCHLD, 0,
				      at, at, 0);
			if (pid == 0)
				syscall(SYS_exit_group, 0);
			if (pid > 0)
				exits_with(pid, 0);
			else
				EQ(errno, EFAULT);
		}
		attempts++;
	}
}

int main(void)
{
	area = map(2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE);
	memset(area + PAGE, 0x5a, PAGE);
	OK(pipe2(ends, O_NONBLOCK));
	file = OK(open("/dev/zero", O_RDWR));
	for (int i = 0; i < ADDRESSES; i++) {
		pid_t pid = OK(fork());
		if (pid == 0) {
			file = OK(syscall(SYS_memfd_create, "attack", 0));
			OK(ftruncate(file, PAGE));
			calls(addresses[i]);
			_exit(0);
		}
		exits_with(pid, 0);
		attempts += CALLS;
		char leaked[64];
		ERR(read(ends[0], leaked, sizeof leaked), EAGAIN);
		for (enum fatal which = 0; which < FATALS; which++)
			in_child(which, addresses[i]);
		at_exit(addresses[i]);
	}
	privileged();
	modes();
	vectors();
	steps();
	last_bytes();
	for (unsigned long i = 0; i < PAGE; i++)
		EQ(area[PAGE + i], 0x5a);
	printf("attack: %d attempts\n", attempts);
	return 0;
}
