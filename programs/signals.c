/* Checks signals: masks, pending signals, handlers with each flag, alternate stacks, tgkill, alarm,
 * interval timers, sigsuspend, sigwait, faults that a handler repairs. */
#include "test.h"
#include <poll.h>
#include <pthread.h>
#include <sys/time.h>
#include <ucontext.h>

static volatile sig_atomic_t calls, nested, deepest, last_code, last_pid;
static volatile long last_value;
static char *volatile handler_stack;
static volatile int in_pending;

static void count(int signal)
{
	(void)signal;
	calls++;
}

static void inform(int signal, siginfo_t *info, void *context)
{
	(void)signal;
	(void)context;
	last_code = info->si_code;
	last_pid = info->si_pid;
	last_value = info->si_value.sival_int;
	calls++;
}

static void masks(void)
{
	sigset_t set, old, pending;
	struct sigaction action = {.sa_sigaction = inform, .sa_flags = SA_SIGINFO}, found;
	OK(sigaction(SIGUSR1, &action, NULL));
	OK(sigaction(SIGUSR1, NULL, &found));
	CHECK(found.sa_sigaction == inform);
	EQ(found.sa_flags & SA_SIGINFO, SA_SIGINFO);
	sigemptyset(&set);
	sigaddset(&set, SIGUSR1);
	OK(sigprocmask(SIG_BLOCK, &set, &old));
	calls = 0;
	OK(kill(getpid(), SIGUSR1));
	OK(kill(getpid(), SIGUSR1));
	EQ(calls, 0);
	OK(sigpending(&pending));
	EQ(sigismember(&pending, SIGUSR1), 1);
	EQ(sigismember(&pending, SIGUSR2), 0);
	OK(sigprocmask(SIG_SETMASK, &old, NULL));
	/* A standard signal is pending once. */
	EQ(calls, 1);
	EQ(last_code, SI_USER);
	EQ(last_pid, getpid());
	OK(sigpending(&pending));
	EQ(sigismember(&pending, SIGUSR1), 0);
	OK(syscall(SYS_tgkill, getpid(), syscall(SYS_gettid), SIGUSR1));
	EQ(calls, 2);
	EQ(last_code, SI_TKILL);
	/* A signal that is ignored is gone, also if it was pending. */
	OK(sigprocmask(SIG_BLOCK, &set, NULL));
	OK(raise(SIGUSR1));
	signal(SIGUSR1, SIG_IGN);
	OK(sigpending(&pending));
	EQ(sigismember(&pending, SIGUSR1), 0);
	OK(sigprocmask(SIG_SETMASK, &old, NULL));
	/* SIGKILL and SIGSTOP can be neither caught nor blocked. */
	ERR(sigaction(SIGKILL, &action, NULL), EINVAL);
	ERR(sigaction(SIGSTOP, &action, NULL), EINVAL);
	sigfillset(&set);
	OK(sigprocmask(SIG_BLOCK, &set, NULL));
	OK(sigprocmask(SIG_BLOCK, NULL, &set));
	EQ(sigismember(&set, SIGKILL), 0);
	EQ(sigismember(&set, SIGSTOP), 0);
	EQ(sigismember(&set, SIGTERM), 1);
	OK(sigprocmask(SIG_SETMASK, &old, NULL));
	ERR(sigprocmask(77, &old, NULL), EINVAL);
}

static void nest(int signal)
{
	handler_stack = __builtin_frame_address(0);
	calls++;
	if (++nested > deepest)
		deepest = nested;
	if (calls < 3)
		raise(signal);
	nested--;
}

static void flags(void)
{
	struct sigaction action = {.sa_handler = nest}, found;
	calls = deepest = 0;
	OK(sigaction(SIGUSR1, &action, NULL));
	raise(SIGUSR1);
	EQ(calls, 3);
	EQ(deepest, 1);
	action.sa_flags = SA_NODEFER;
	calls = deepest = 0;
	OK(sigaction(SIGUSR1, &action, NULL));
	raise(SIGUSR1);
	EQ(calls, 3);
	EQ(deepest, 3);
	action.sa_handler = count;
	action.sa_flags = SA_RESETHAND;
	calls = 0;
	OK(sigaction(SIGUSR1, &action, NULL));
	raise(SIGUSR1);
	EQ(calls, 1);
	OK(sigaction(SIGUSR1, NULL, &found));
	CHECK(found.sa_handler == SIG_DFL);

	/* The alternate stack: used with SA_ONSTACK only; it cannot change while in use. */
	char *alternate = map(8 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE);
	stack_t stack = {.ss_sp = alternate, .ss_size = 8 * PAGE}, old;
	OK(sigaltstack(&stack, &old));
	EQ(old.ss_flags, SS_DISABLE);
	OK(sigaltstack(NULL, &old));
	EQ(old.ss_sp, alternate);
	EQ(old.ss_size, 8 * PAGE);
	EQ(old.ss_flags, 0);
	action.sa_handler = nest;
	for (int on = 0; on < 2; on++) {
		action.sa_flags = on ? SA_ONSTACK : 0;
		OK(sigaction(SIGUSR1, &action, NULL));
		calls = 5;
		raise(SIGUSR1);
		EQ(handler_stack >= alternate && handler_stack < alternate + 8 * PAGE, on);
	}
	stack.ss_size = 100;
	ERR(sigaltstack(&stack, NULL), ENOMEM);
	stack.ss_flags = SS_DISABLE;
	OK(sigaltstack(&stack, NULL));
	OK(munmap(alternate, 8 * PAGE));
	signal(SIGUSR1, SIG_DFL);
}

static void waiting(void)
{
	sigset_t set, old;
	siginfo_t info;
	int number;
	struct timespec none = {0}, soon = {0, 1000000};
	sigemptyset(&set);
	sigaddset(&set, SIGUSR1);
	sigaddset(&set, SIGUSR2);
	OK(sigprocmask(SIG_BLOCK, &set, &old));
	ERR(sigtimedwait(&set, &info, &none), EAGAIN);
	ERR(sigtimedwait(&set, &info, &soon), EAGAIN);
	raise(SIGUSR2);
	EQ(sigwait(&set, &number), 0);
	EQ(number, SIGUSR2);
	kill(getpid(), SIGUSR1);
	EQ(sigwaitinfo(&set, &info), SIGUSR1);
	EQ(info.si_code, SI_USER);
	EQ(info.si_pid, getpid());
	/* Real-time signals queue, with their values, the lowest number first. */
	sigaddset(&set, SIGRTMIN);
	sigaddset(&set, SIGRTMIN + 1);
	OK(sigprocmask(SIG_BLOCK, &set, NULL));
	union sigval value;
	for (int i = 0; i < 6; i++) {
		value.sival_int = i;
		OK(sigqueue(getpid(), i % 2 ? SIGRTMIN : SIGRTMIN + 1, value));
	}
	for (int i = 0; i < 6; i++) {
		EQ(sigwaitinfo(&set, &info), i < 3 ? SIGRTMIN : SIGRTMIN + 1);
		EQ(info.si_value.sival_int, i < 3 ? i * 2 + 1 : (i - 3) * 2);
		EQ(info.si_code, SI_QUEUE);
	}
	/* sigsuspend runs the handler and comes back with the old mask. */
	calls = 0;
	signal(SIGUSR1, count);
	raise(SIGUSR1);
	EQ(calls, 0);
	ERR(sigsuspend(&old), EINTR);
	EQ(calls, 1);
	sigset_t now;
	OK(sigprocmask(SIG_SETMASK, NULL, &now));
	EQ(sigismember(&now, SIGUSR1), 1);
	OK(sigprocmask(SIG_SETMASK, &old, NULL));
}

static void timers(void)
{
	sigset_t block, old;
	struct itimerval timer = {{0, 2000}, {0, 1000}}, left;
	sigemptyset(&block);
	sigaddset(&block, SIGALRM);
	OK(sigprocmask(SIG_BLOCK, &block, &old));
	signal(SIGALRM, count);
	calls = 0;
	OK(setitimer(ITIMER_REAL, &timer, NULL));
	while (calls < 5)
		ERR(sigsuspend(&old), EINTR);
	OK(getitimer(ITIMER_REAL, &left));
	EQ(left.it_interval.tv_usec, 2000);
	CHECK(left.it_value.tv_sec == 0 && left.it_value.tv_usec <= 2000);
	memset(&timer, 0, sizeof timer);
	OK(setitimer(ITIMER_REAL, &timer, NULL));
	EQ(alarm(100), 0);
	long before = alarm(50);
	CHECK(before > 0 && before <= 100);
	before = alarm(0);
	CHECK(before > 0 && before <= 50);
	EQ(alarm(0), 0);
	OK(sigprocmask(SIG_SETMASK, &old, NULL));
}

static pthread_t reader;
static int ends[2];

static void *interrupt(void *argument)
{
	/* Until the read has returned. A signal before it only counts. */
	while (__atomic_load_n(&in_pending, __ATOMIC_SEQ_CST)) {
		pthread_kill(reader, SIGUSR1);
		sched_yield();
	}
	return argument;
}

static void *feed(void *argument)
{
	long until = calls + 3;
	while (calls < until) {
		pthread_kill(reader, SIGUSR1);
		sched_yield();
	}
	EQ(write(ends[1], "x", 1), 1);
	return argument;
}

/* A read of an empty pipe: EINTR, or goes on with SA_RESTART. */
static void restarting(void)
{
	char byte;
	pthread_t other;
	struct sigaction action = {.sa_handler = count};
	reader = pthread_self();
	OK(pipe(ends));
	OK(sigaction(SIGUSR1, &action, NULL));
	in_pending = 1;
	EQ(pthread_create(&other, NULL, interrupt, NULL), 0);
	ERR(read(ends[0], &byte, 1), EINTR);
	__atomic_store_n(&in_pending, 0, __ATOMIC_SEQ_CST);
	EQ(pthread_join(other, NULL), 0);
	action.sa_flags = SA_RESTART;
	OK(sigaction(SIGUSR1, &action, NULL));
	EQ(pthread_create(&other, NULL, feed, NULL), 0);
	EQ(read(ends[0], &byte, 1), 1);
	EQ(byte, 'x');
	EQ(pthread_join(other, NULL), 0);
	OK(close(ends[0]));
	OK(close(ends[1]));
	signal(SIGUSR1, SIG_DFL);
}

/* Calls with a deadline never go on after a handler. */
static void deadlines(void)
{
	struct timespec time = {100, 0};
	pthread_t other;
	int word = 0;
	struct sigaction action = {.sa_handler = count, .sa_flags = SA_RESTART};
	OK(sigaction(SIGUSR1, &action, NULL));
	reader = pthread_self();
	in_pending = 1;
	/* A call that starts anew never ends. */
	alarm(30);
	EQ(pthread_create(&other, NULL, interrupt, NULL), 0);
	ERR(nanosleep(&time, NULL), EINTR);
	ERR(poll(NULL, 0, 100000), EINTR);
	ERR(syscall(SYS_futex, &word, 0, 0, &time, NULL, 0), EINTR);
	__atomic_store_n(&in_pending, 0, __ATOMIC_SEQ_CST);
	EQ(pthread_join(other, NULL), 0);
	alarm(0);
	signal(SIGUSR1, SIG_DFL);
}

static void again(int number) { raise(number); }

/* Handlers that call each other use up an alternate stack. The memory below stays as it is. */
static void full_stack(void)
{
	char *memory = map(16 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED);
	memset(memory, 0x5a, 16 * PAGE);
	pid_t pid = OK(fork());
	if (pid == 0) {
		stack_t stack = {.ss_sp = memory + 12 * PAGE, .ss_size = 4 * PAGE};
		struct sigaction action = {.sa_handler = again, .sa_flags = SA_ONSTACK | SA_NODEFER};
		OK(sigaltstack(&stack, NULL));
		OK(sigaction(SIGUSR1, &action, NULL));
		raise(SIGUSR1);
		_exit(0);
	}
	killed_by(pid, SIGSEGV);
	/* The handlers' own frames may reach a little further. */
	for (size_t at = 0; at < 11 * PAGE; at++)
		EQ(memory[at], 0x5a);
	OK(munmap(memory, 16 * PAGE));
}

static char *volatile page;
static volatile int repaired;

static void repair(int signal, siginfo_t *info, void *context)
{
	ucontext_t *user = context;
	repaired++;
	if (signal == SIGSEGV) {
		EQ(info->si_addr, page + 5);
		OK(mprotect(page, PAGE, PROT_READ | PROT_WRITE));
	} else if (signal == SIGILL) {
		EQ(info->si_addr, user->uc_mcontext.gregs[REG_RIP]);
		user->uc_mcontext.gregs[REG_RIP] += 2;
		user->uc_mcontext.gregs[REG_RBX] = 4321;
	} else if (signal == SIGFPE) {
		EQ(info->si_code, FPE_INTDIV);
		user->uc_mcontext.gregs[REG_RCX] = 5;
	} else if (signal == SIGTRAP) {
		EQ(info->si_code, SI_KERNEL);
	}
}

static void faults(void)
{
	struct sigaction action = {.sa_sigaction = repair, .sa_flags = SA_SIGINFO};
	int signals[] = {SIGSEGV, SIGILL, SIGFPE, SIGTRAP};
	for (int i = 0; i < 4; i++)
		OK(sigaction(signals[i], &action, NULL));
	page = map(PAGE, PROT_NONE, MAP_PRIVATE);
	repaired = 0;
	*(volatile char *)(page + 5) = 9;
	EQ(page[5], 9);
	EQ(repaired, 1);
	long rbx = 1;
	__asm__ volatile("ud2" : "+b"(rbx));
	EQ(rbx, 4321);
	int low = 100, high = 0, divisor = 0;
	__asm__ volatile("idivl %%ecx" : "+a"(low), "+d"(high), "+c"(divisor));
	EQ(low, 20);
	__asm__ volatile("int3");
	EQ(repaired, 4);
	OK(munmap(page, PAGE));
	/* A blocked fault kills. */
	pid_t pid = OK(fork());
	if (pid == 0) {
		sigset_t all;
		sigfillset(&all);
		OK(sigprocmask(SIG_BLOCK, &all, NULL));
		__asm__ volatile("movl $1, 8");
		_exit(0);
	}
	killed_by(pid, SIGSEGV);
	for (int i = 0; i < 4; i++)
		signal(signals[i], SIG_DFL);
	/* No stack for the handler: killed. */
	pid = OK(fork());
	if (pid == 0) {
		signal(SIGUSR1, count);
		__asm__ volatile("mov $64, %%rsp; syscall"
				 :
				 : "a"(SYS_tgkill), "D"(getpid()), "S"(syscall(SYS_gettid)),
				   "d"(SIGUSR1)
				 : "rcx", "r11", "memory");
		_exit(0);
	}
	killed_by(pid, SIGSEGV);
}

static volatile int at_thread;

static void where(int signal)
{
	(void)signal;
	at_thread = syscall(SYS_gettid);
}

static void *directed(void *argument)
{
	int *tid = argument;
	__atomic_store_n(tid, (int)syscall(SYS_gettid), __ATOMIC_SEQ_CST);
	while (__atomic_load_n(tid, __ATOMIC_SEQ_CST) != 0)
		sched_yield();
	return NULL;
}

static void threads(void)
{
	pthread_t other;
	int tid = 0;
	signal(SIGUSR2, where);
	EQ(pthread_create(&other, NULL, directed, &tid), 0);
	while (__atomic_load_n(&tid, __ATOMIC_SEQ_CST) == 0)
		sched_yield();
	at_thread = 0;
	OK(syscall(SYS_tgkill, getpid(), tid, SIGUSR2));
	while (at_thread == 0)
		sched_yield();
	EQ(at_thread, tid);
	/* A signal to the process goes to a thread that does not block it. */
	sigset_t block, old;
	sigemptyset(&block);
	sigaddset(&block, SIGUSR2);
	EQ(pthread_sigmask(SIG_BLOCK, &block, &old), 0);
	at_thread = 0;
	OK(kill(getpid(), SIGUSR2));
	while (at_thread == 0)
		sched_yield();
	EQ(at_thread, tid);
	EQ(pthread_sigmask(SIG_SETMASK, &old, NULL), 0);
	__atomic_store_n(&tid, 0, __ATOMIC_SEQ_CST);
	EQ(pthread_join(other, NULL), 0);
	ERR(syscall(SYS_tgkill, getpid(), getpid(), 65), EINVAL);
	ERR(syscall(SYS_tgkill, getpid(), -1, SIGUSR2), EINVAL);
	ERR(syscall(SYS_tgkill, getpid(), 0x3fffffff, SIGUSR2), ESRCH);
}

int main(int argc, char **argv)
{
	long rounds = sized(argc, argv, 5);
	for (long i = 0; i < rounds; i++) {
		masks();
		flags();
		waiting();
		timers();
		restarting();
	deadlines();
	full_stack();
		faults();
		threads();
	}
	printf("signals: %ld rounds\n", rounds);
	return 0;
}
