/* Checks that all registers, also SSE, AVX and AVX-512 where the CPU has them, and the modes of SSE
 * and of the x87 survive a handler that overwrites them, and preemption. */
#include "test.h"
#include <pthread.h>
#include <sys/time.h>

enum { RBX, RBP, R8, R9, R10, R12, R13, R14, R15, GENERAL };

/* Loads all registers from `in`; then sends signal 10 to the thread `tid` of `pid`, or spins if pid
 * is 0; then stores all registers to `out`. */
struct registers {
	uint64_t general[16];
	unsigned char vectors[32][64];
};
void hold_sse(const struct registers *in, struct registers *out, long spins, int pid, int tid);
void hold_avx(const struct registers *in, struct registers *out, long spins, int pid, int tid);
void hold_avx512(const struct registers *in, struct registers *out, long spins, int pid, int tid);

__asm__(".macro HOLD name move letter last\n"
	".globl \\name\n"
	".type \\name, @function\n"
	"\\name:\n"
	"push %rbx; push %rbp; push %r12; push %r13; push %r14; push %r15; push %rsi\n"
	".set i, 0\n"
	".irp n, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,"
	"30,31\n"
	".if i <= \\last\n"
	"\\move 128+64*\\n(%rdi), %\\letter\\n\n"
	".endif\n"
	".set i, i+1\n"
	".endr\n"
	"mov %rdx, %rax\n" /* spins */
	"mov %rcx, %rdx\n" /* pid */
	"mov %r8, %rsi\n"  /* tid */
	"mov (%rdi), %rbx; mov 8(%rdi), %rbp; mov 16(%rdi), %r8; mov 24(%rdi), %r9\n"
	"mov 32(%rdi), %r10; mov 40(%rdi), %r12; mov 48(%rdi), %r13; mov 56(%rdi), %r14\n"
	"mov 64(%rdi), %r15\n"
	"test %rdx, %rdx\n"
	"jz 2f\n"
	"mov %rdx, %rdi; mov $10, %edx; mov $234, %eax\n"
	"syscall\n"
	"jmp 3f\n"
	"2: dec %rax\n"
	"jnz 2b\n"
	"3: pop %rsi\n"
	"mov %rbx, (%rsi); mov %rbp, 8(%rsi); mov %r8, 16(%rsi); mov %r9, 24(%rsi)\n"
	"mov %r10, 32(%rsi); mov %r12, 40(%rsi); mov %r13, 48(%rsi); mov %r14, 56(%rsi)\n"
	"mov %r15, 64(%rsi)\n"
	".set i, 0\n"
	".irp n, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,"
	"30,31\n"
	".if i <= \\last\n"
	"\\move %\\letter\\n, 128+64*\\n(%rsi)\n"
	".endif\n"
	".set i, i+1\n"
	".endr\n"
	"pop %r15; pop %r14; pop %r13; pop %r12; pop %rbp; pop %rbx\n"
	"ret\n"
	".endm\n"
	"HOLD hold_sse movups xmm 15\n"
	"HOLD hold_avx vmovups ymm 15\n"
	"HOLD hold_avx512 vmovups zmm 31\n");

static void (*hold)(const struct registers *, struct registers *, long, int, int);
static int width, vectors;

static void choose(void)
{
	__builtin_cpu_init();
	hold = hold_sse, width = 16, vectors = 16;
	if (__builtin_cpu_supports("avx"))
		hold = hold_avx, width = 32;
	if (__builtin_cpu_supports("avx512f"))
		hold = hold_avx512, width = 64, vectors = 32;
}

static void pattern(struct registers *r, uint64_t seed)
{
	for (int i = 0; i < GENERAL; i++)
		r->general[i] = next_random(&seed);
	for (int i = 0; i < 32; i++)
		for (int j = 0; j < 64; j++)
			r->vectors[i][j] = next_random(&seed);
}

static void same(const struct registers *a, const struct registers *b)
{
	for (int i = 0; i < GENERAL; i++)
		if (a->general[i] != b->general[i])
			differs(__FILE__, __LINE__, "register %d is 0x%lx, not 0x%lx", i,
				b->general[i], a->general[i]);
	for (int i = 0; i < vectors; i++)
		for (int j = 0; j < width; j++)
			if (a->vectors[i][j] != b->vectors[i][j])
				differs(__FILE__, __LINE__, "byte %d of vector %d (of %d) differs",
					j, i, width);
}

static volatile sig_atomic_t calls;

/* Overwrites all registers, and the modes of SSE and of the x87. */
static void overwrite(int signal)
{
	static struct registers other, ignored;
	uint32_t mode = 0x7f80;
	uint16_t control = 0x0c7f;
	(void)signal;
	pattern(&other, 99);
	hold(&other, &ignored, 1, 0, 0);
	__asm__ volatile("ldmxcsr %0; fldcw %1" : : "m"(mode), "m"(control));
	calls++;
}

static void preserved(long rounds)
{
	struct registers in, out;
	uint32_t mode = 0x3f80, found_mode;
	uint16_t control = 0x077f, found_control;
	struct sigaction action = {.sa_handler = overwrite};
	OK(sigaction(SIGUSR1, &action, NULL));
	calls = 0;
	for (long i = 0; i < rounds; i++) {
		pattern(&in, i);
		__asm__ volatile("ldmxcsr %0; fldcw %1" : : "m"(mode), "m"(control));
		hold(&in, &out, 0, getpid(), syscall(SYS_gettid));
		__asm__ volatile("stmxcsr %0; fnstcw %1" : "=m"(found_mode), "=m"(found_control));
		same(&in, &out);
		EQ(found_mode, mode);
		EQ(found_control, control);
		EQ(calls, i + 1);
	}
	mode = 0x1f80, control = 0x037f;
	__asm__ volatile("ldmxcsr %0; fldcw %1" : : "m"(mode), "m"(control));
}

static void *spin(void *argument)
{
	struct registers in, out;
	long *job = argument;
	for (long i = 0; i < job[1]; i++) {
		pattern(&in, job[0] * 1000 + i);
		hold(&in, &out, 1000000, 0, 0);
		same(&in, &out);
	}
	return NULL;
}

/* More threads and processes than CPUs, each with its own registers, and a timer that runs a
 * handler which overwrites them. */
static void preempted(long rounds)
{
	enum { THREADS = 4, PROCESSES = 3 };
	pid_t pids[PROCESSES];
	for (int p = 0; p < PROCESSES; p++) {
		pids[p] = OK(fork());
		if (pids[p])
			continue;
		signal(SIGALRM, overwrite);
		struct itimerval timer = {{0, 3000}, {0, 3000}};
		OK(setitimer(ITIMER_REAL, &timer, NULL));
		pthread_t threads[THREADS];
		long jobs[THREADS][2];
		for (int t = 0; t < THREADS; t++) {
			jobs[t][0] = p * THREADS + t;
			jobs[t][1] = rounds;
			EQ(pthread_create(&threads[t], NULL, spin, jobs[t]), 0);
		}
		for (int t = 0; t < THREADS; t++)
			EQ(pthread_join(threads[t], NULL), 0);
		_exit(0);
	}
	for (int p = 0; p < PROCESSES; p++)
		exits_with(pids[p], 0);
}

int main(int argc, char **argv)
{
	choose();
	preserved(sized(argc, argv, 300));
	preempted(sized(argc, argv, 100));
	printf("registers: %d vectors of %d bytes\n", vectors, width);
	return 0;
}
