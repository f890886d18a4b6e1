/* Checks the calls of memory, with contents: mmap, munmap, mprotect, mremap, madvise, brk, mincore,
 * mlock, msync, memfd with ftruncate. SIGSEGV and SIGBUS arrive on an alternate stack with the
 * right address and code. A fork copies on write in both directions; shared memory stays shared. */
#include "test.h"
#include <setjmp.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/uio.h>

static sigjmp_buf back;
static volatile siginfo_t caught;
static char *alternate;

static void handler(int signal, siginfo_t *info, void *context)
{
	char here;
	(void)context;
	CHECK(&here >= alternate && &here < alternate + 16 * PAGE);
	EQ(signal, info->si_signo);
	caught.si_signo = signal;
	caught.si_code = info->si_code;
	caught.si_addr = info->si_addr;
	siglongjmp(back, 1);
}

enum access { READ, WRITE, JUMP };

static void attempt(enum access access, void *address)
{
	caught.si_signo = 0;
	if (sigsetjmp(back, 1) == 0) {
		if (access == READ)
			(void)*(volatile char *)address;
		else if (access == WRITE)
			*(volatile char *)address = 1;
		else
			((void (*)(void))address)();
	}
}

/* The access must raise the signal with the code and the address. */
static void raises(int line, enum access access, void *address, int signal, int code, void *found)
{
	attempt(access, address);
	if (caught.si_signo != signal || caught.si_code != code || caught.si_addr != found)
		differs(__FILE__, line, "access %d at %p: signal %d code %d address %p, not %d %d %p",
			access, address, caught.si_signo, caught.si_code, caught.si_addr, signal,
			code, found);
}
#define RAISES(access, address, signal, code)                                                      \
	raises(__LINE__, access, address, signal, code, address)

#define NONCANONICAL(access, address)                                                              \
	do {                                                                                       \
		attempt(access, address);                                                          \
		if (caught.si_code != SEGV_MAPERR)                                                 \
			raises(__LINE__, access, address, SIGSEGV, SI_KERNEL, NULL);               \
		else                                                                               \
			RAISES(access, address, SIGSEGV, SEGV_MAPERR);                             \
	} while (0)

static void fill(char *at, size_t length, int seed)
{
	for (size_t i = 0; i < length; i++)
		at[i] = seed + i / PAGE * 7 + i % 251;
}

static void holds(int line, const char *at, size_t length, int seed)
{
	for (size_t i = 0; i < length; i++)
		if (at[i] != (char)(seed + i / PAGE * 7 + i % 251))
			differs(__FILE__, line, "byte %zu is %d, not of pattern %d", i, at[i], seed);
}
#define HOLDS(at, length, seed) holds(__LINE__, at, length, seed)

static void zero(int line, const char *at, size_t length)
{
	for (size_t i = 0; i < length; i++)
		if (at[i])
			differs(__FILE__, line, "byte %zu is %d, not 0", i, at[i]);
}
#define ZERO(at, length) zero(__LINE__, at, length)

static void mapping(void)
{
	char *p = map(16 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE);
	EQ((uintptr_t)p % PAGE, 0);
	ZERO(p, 16 * PAGE);
	fill(p, 16 * PAGE, 1);
	OK(munmap(p + 4 * PAGE, 2 * PAGE));
	RAISES(READ, p + 4 * PAGE, SIGSEGV, SEGV_MAPERR);
	RAISES(WRITE, p + 6 * PAGE - 1, SIGSEGV, SEGV_MAPERR);
	HOLDS(p, 4 * PAGE, 1);
	/* A fixed map replaces the map that was there. */
	EQ(mmap(p + 3 * PAGE, 2 * PAGE, PROT_READ | PROT_WRITE,
		MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0),
	   p + 3 * PAGE);
	ZERO(p + 3 * PAGE, 2 * PAGE);
	ERR(mmap(p, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0),
	    EEXIST);
	/* A hint that is free is taken. */
	EQ(mmap(p + 5 * PAGE, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0),
	   p + 5 * PAGE);
	OK(munmap(p, 16 * PAGE));
	OK(munmap(p, 16 * PAGE));
	ERR(munmap(p + 1, PAGE), EINVAL);
	ERR(mmap(NULL, 0, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), EINVAL);
	ERR(mmap(NULL, 1UL << 48, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), ENOMEM);
	unsigned char there[4];
	p = map(4 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_POPULATE);
	OK(mincore(p, 4 * PAGE, there));
	for (int i = 0; i < 4; i++)
		EQ(there[i] & 1, 1);
	OK(munmap(p, 4 * PAGE));
}

static void protection(void)
{
	char *p = map(8 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE);
	fill(p, 8 * PAGE, 2);
	OK(mprotect(p + 2 * PAGE, 2 * PAGE, PROT_READ));
	HOLDS(p, 8 * PAGE, 2);
	RAISES(WRITE, p + 2 * PAGE, SIGSEGV, SEGV_ACCERR);
	RAISES(WRITE, p + 4 * PAGE - 1, SIGSEGV, SEGV_ACCERR);
	p[4 * PAGE] = p[4 * PAGE];
	OK(mprotect(p + 3 * PAGE, PAGE, PROT_NONE));
	RAISES(READ, p + 3 * PAGE + 5, SIGSEGV, SEGV_ACCERR);
	RAISES(JUMP, p, SIGSEGV, SEGV_ACCERR);
	OK(mprotect(p, 8 * PAGE, PROT_READ | PROT_WRITE));
	HOLDS(p, 8 * PAGE, 2);
	/* Code that a program writes, then runs: mov $77, %eax; ret. */
	memcpy(p, "\xb8\x4d\0\0\0\xc3", 6);
	OK(mprotect(p, PAGE, PROT_READ | PROT_EXEC));
	EQ(((int (*)(void))p)(), 77);
	RAISES(WRITE, p, SIGSEGV, SEGV_ACCERR);
	OK(munmap(p + 7 * PAGE, PAGE));
	ERR(mprotect(p + 6 * PAGE, 2 * PAGE, PROT_READ), ENOMEM);
	RAISES(WRITE, p + 6 * PAGE, SIGSEGV, SEGV_ACCERR);
	/* By the raw call, because musl rounds the address. */
	ERR(syscall(SYS_mprotect, p + 1, PAGE, PROT_READ), EINVAL);
	OK(munmap(p, 7 * PAGE));

	RAISES(READ, NULL, SIGSEGV, SEGV_MAPERR);
	RAISES(READ, (char *)0x7ffffffff000, SIGSEGV, SEGV_MAPERR);
	RAISES(WRITE, (char *)0xffffffff80200000, SIGSEGV, SEGV_MAPERR);
	RAISES(READ, (char *)0xffff888000000000, SIGSEGV, SEGV_MAPERR);
	/* A non-canonical address: a protection fault of the CPU, which names no address. QEMU 8.2
	   reports a page fault. */
	NONCANONICAL(READ, (char *)0x0000800000000000);
	NONCANONICAL(WRITE, (char *)0x8000000000000000);
}

static void moving(void)
{
	char *p = map(8 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE), *q;
	fill(p, 8 * PAGE, 3);
	EQ(mremap(p, 8 * PAGE, 4 * PAGE, 0), p);
	HOLDS(p, 4 * PAGE, 3);
	RAISES(READ, p + 4 * PAGE, SIGSEGV, SEGV_MAPERR);
	EQ(mremap(p, 4 * PAGE, 8 * PAGE, 0), p);
	HOLDS(p, 4 * PAGE, 3);
	ZERO(p + 4 * PAGE, 4 * PAGE);
	fill(p, 8 * PAGE, 4);
	/* With a neighbour it must move. */
	EQ(mmap(p + 8 * PAGE, PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0),
	   p + 8 * PAGE);
	ERR(mremap(p, 8 * PAGE, 600 * PAGE, 0), ENOMEM);
	q = (char *)OK(mremap(p, 8 * PAGE, 600 * PAGE, MREMAP_MAYMOVE));
	CHECK(q != p);
	HOLDS(q, 8 * PAGE, 4);
	ZERO(q + 8 * PAGE, 592 * PAGE);
	RAISES(READ, p, SIGSEGV, SEGV_MAPERR);
	fill(q, 600 * PAGE, 5);
	p = map(600 * PAGE, PROT_READ, MAP_PRIVATE);
	EQ(mremap(q, 600 * PAGE, 600 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, p), p);
	HOLDS(p, 600 * PAGE, 5);
	p[0] = p[0];
	RAISES(READ, q, SIGSEGV, SEGV_MAPERR);
	ERR(mremap(q, PAGE, 2 * PAGE, MREMAP_MAYMOVE), EFAULT);
	/* With DONTUNMAP, the lengths must be equal in pages, not in bytes. */
	q = (char *)OK(mremap(p, 8 * PAGE - 9, 8 * PAGE, MREMAP_MAYMOVE | MREMAP_DONTUNMAP));
	ERR(mremap(q, 8 * PAGE, 7 * PAGE, MREMAP_MAYMOVE | MREMAP_DONTUNMAP), EINVAL);
	EQ(munmap(q, 8 * PAGE), 0);
	OK(munmap(p, 600 * PAGE));
}

static void advice(void)
{
	unsigned char there[8];
	char *p = map(8 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE);
	OK(mincore(p, 8 * PAGE, there));
	for (int i = 0; i < 8; i++)
		EQ(there[i] & 1, 0);
	fill(p, 8 * PAGE, 6);
	OK(madvise(p + 2 * PAGE, PAGE, MADV_DONTNEED));
	OK(mincore(p, 8 * PAGE, there));
	for (int i = 0; i < 8; i++)
		EQ(there[i] & 1, i != 2);
	ZERO(p + 2 * PAGE, PAGE);
	HOLDS(p, 2 * PAGE, 6);
	OK(mlock(p, 2 * PAGE));
	ERR(madvise(p, PAGE, MADV_DONTNEED), EINVAL);
	HOLDS(p, 2 * PAGE, 6);
	OK(munlock(p, 2 * PAGE));
	OK(madvise(p, PAGE, MADV_DONTNEED));
	ZERO(p, PAGE);
	OK(madvise(p, 8 * PAGE, MADV_FREE));
	p[PAGE] = 'w';
	EQ(p[PAGE], 'w');
	ERR(madvise(p, PAGE, 12345), EINVAL);
	OK(munmap(p + 4 * PAGE, PAGE));
	ERR(madvise(p, 8 * PAGE, MADV_DONTNEED), ENOMEM);
	ERR(mincore(p, 8 * PAGE, there), ENOMEM);
	ERR(mlock(p, 8 * PAGE), ENOMEM);
	OK(munmap(p, 8 * PAGE));
	p = map(4 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE);
	OK(mlock(p, 4 * PAGE));
	OK(mincore(p, 4 * PAGE, there));
	for (int i = 0; i < 4; i++)
		EQ(there[i] & 1, 1);
	OK(munmap(p, 4 * PAGE));
}

static void heap(void)
{
	/* The libraries keep the break of their own; the call moves it beyond. */
	char *old = (char *)syscall(SYS_brk, 0);
	CHECK(old != NULL);
	EQ(syscall(SYS_brk, old + 10 * PAGE), (long)(old + 10 * PAGE));
	ZERO(old, 10 * PAGE);
	fill(old, 10 * PAGE, 7);
	EQ(syscall(SYS_brk, old + 5 * PAGE), (long)(old + 5 * PAGE));
	HOLDS(old, 5 * PAGE, 7);
	EQ(syscall(SYS_brk, old + 10 * PAGE), (long)(old + 10 * PAGE));
	char *first = (char *)(((uintptr_t)old + 5 * PAGE + PAGE - 1) & -PAGE);
	ZERO(first, 4 * PAGE);
	/* An impossible break changes nothing. */
	EQ(syscall(SYS_brk, 1), (long)(old + 10 * PAGE));
	EQ(syscall(SYS_brk, 1UL << 47), (long)(old + 10 * PAGE));
	EQ(syscall(SYS_brk, old), (long)old);
}

static void files(void)
{
	int fd = OK(syscall(SYS_memfd_create, "memory", 0));
	OK(ftruncate(fd, 3 * PAGE + 100));
	char *shared = (char *)OK(mmap(NULL, 6 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0));
	char *private =
		(char *)OK(mmap(NULL, 6 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0));
	fill(shared, 3 * PAGE + 100, 8);
	HOLDS(private, 3 * PAGE + 100, 8);
	ZERO(shared + 3 * PAGE + 100, PAGE - 100);
	RAISES(READ, shared + 4 * PAGE, SIGBUS, BUS_ADRERR);
	RAISES(WRITE, private + 5 * PAGE + 9, SIGBUS, BUS_ADRERR);
	private[PAGE] = 'p';
	CHECK(shared[PAGE] != 'p');
	shared[0] = 's';
	EQ(private[0], 's');
	shared[PAGE] = 't';
	EQ(private[PAGE], 'p');
	char read_back[2];
	EQ(pread(fd, read_back, 2, PAGE), 2);
	EQ(read_back[0], 't');
	OK(msync(shared, 3 * PAGE, MS_SYNC));
	OK(msync(shared, PAGE, MS_ASYNC));
	ERR(msync(shared, PAGE, MS_SYNC | MS_ASYNC), EINVAL);
	/* Shorter: pages behind the end go away, those copied before, too. */
	private[2 * PAGE] = 'q';
	OK(ftruncate(fd, PAGE + 10));
	RAISES(READ, shared + 2 * PAGE, SIGBUS, BUS_ADRERR);
	RAISES(READ, private + 2 * PAGE, SIGBUS, BUS_ADRERR);
	EQ(private[PAGE], 'p');
	OK(ftruncate(fd, 4 * PAGE));
	ZERO(shared + PAGE + 10, 3 * PAGE - 10);
	ZERO(private + 2 * PAGE, 2 * PAGE);
	/* Written by call, read by map. */
	EQ(pwrite(fd, "written", 7, 3 * PAGE - 3), 7);
	CHECK(memcmp(shared + 3 * PAGE - 3, "written", 7) == 0);
	OK(munmap(shared, 6 * PAGE));
	ERR(msync(shared, PAGE, MS_SYNC), ENOMEM);
	OK(close(fd));
	EQ(private[3 * PAGE], 't');
	OK(munmap(private, 6 * PAGE));
	/* A descriptor that may not be written makes no shared writable map. */
	fd = OK(open("/proc/self/exe", O_RDONLY));
	ERR(mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), EACCES);
	char *image = (char *)OK(mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0));
	CHECK(memcmp(image, "\177ELF", 4) == 0);
	memcpy(image, "mine", 4);
	EQ(pread(fd, read_back, 2, 0), 2);
	EQ(read_back[0], 0x7f);
	OK(munmap(image, PAGE));
	OK(close(fd));
	/* A file of huge pages can be made, also where there are none. */
	enum { HUGE = 4, SIZE_2M = 21 << 26, SIZE_8K = 13 << 26 };
	fd = OK(syscall(SYS_memfd_create, "huge", HUGE | SIZE_2M));
	EQ(lseek(fd, 0, SEEK_END), 0);
	OK(close(fd));
	ERR(syscall(SYS_memfd_create, "huge", HUGE | SIZE_8K), ENODEV);
}

/* The mode of execution of a memfd can be sealed; an executable one is then not written. */
static void sealed_execution(void)
{
	enum { NOEXEC_SEAL = 8, SEAL_EXEC = 0x20, ALL_BUT_SEAL = 0x3e };
	int fd = OK(syscall(SYS_memfd_create, "noexec", NOEXEC_SEAL));
	struct stat status;
	OK(fstat(fd, &status));
	EQ(status.st_mode & 0777, 0666);
	EQ(fcntl(fd, F_GET_SEALS), SEAL_EXEC);
	ERR(fchmod(fd, 0777), EPERM);
	OK(fchmod(fd, 0600));
	OK(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK));
	OK(close(fd));
	fd = OK(syscall(SYS_memfd_create, "exec", MFD_ALLOW_SEALING));
	OK(ftruncate(fd, PAGE));
	char *shared =
		(char *)OK(mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0));
	ERR(fcntl(fd, F_ADD_SEALS, SEAL_EXEC), EBUSY);
	OK(munmap(shared, PAGE));
	OK(fcntl(fd, F_ADD_SEALS, SEAL_EXEC));
	EQ(fcntl(fd, F_GET_SEALS), ALL_BUT_SEAL);
	ERR(write(fd, "x", 1), EPERM);
	ERR(fchmod(fd, 0666), EPERM);
	OK(close(fd));
}

/* Memory that a process cannot get any more, and memory that no call changes. */
static void denials(void)
{
	enum { SET_MDWE = 65, GET_MDWE = 66, MSEAL = 462, IPC_LOCK = 14, PATCH = 0x20080522 };
	pid_t child = OK(fork());
	if (child == 0) {
		char *p = map(2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE);
		OK(prctl(SET_MDWE, 3, 0, 0, 0));
		EQ(prctl(GET_MDWE, 0, 0, 0, 0), 3);
		ERR(prctl(SET_MDWE, 1, 0, 0, 0), EPERM);
		ERR(mprotect(p, PAGE, PROT_READ | PROT_EXEC), EACCES);
		pid_t grandchild = OK(fork());
		if (grandchild == 0) {
			EQ(prctl(GET_MDWE, 0, 0, 0, 0), 0);
			_exit(4);
		}
		exits_with(grandchild, 4);
		p[0] = 's';
		OK(syscall(MSEAL, p, PAGE, 0));
		ERR(syscall(MSEAL, p, PAGE, 1), EINVAL);
		ERR(munmap(p, PAGE), EPERM);
		ERR(mprotect(p, PAGE, PROT_READ), EPERM);
		EQ(p[0], 's');
		OK(munmap(p + PAGE, PAGE));
		/* Without the capability, the limit of locked memory counts. */
		struct rlimit limit;
		OK(getrlimit(RLIMIT_MEMLOCK, &limit));
		limit.rlim_cur = 4 * PAGE;
		OK(setrlimit(RLIMIT_MEMLOCK, &limit));
		unsigned header[2] = {PATCH, 0}, data[6];
		OK(syscall(SYS_capget, header, data));
		data[0] &= ~(1U << IPC_LOCK);
		OK(syscall(SYS_capset, header, data));
		p = map(8 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE);
		OK(mlock(p, 4 * PAGE));
		ERR(mlock(p + 4 * PAGE, PAGE), ENOMEM);
		_exit(3);
	}
	exits_with(child, 3);
}

/* Memory that went into a pipe stays as it was. */
static void splices(void)
{
	int ends[2];
	char text[8];
	char *p = map(PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE);
	OK(pipe(ends));
	memcpy(p, "spliced", 8);
	struct iovec part = {p, 8};
	EQ(vmsplice(ends[1], &part, 1, 0), 8);
	OK(munmap(p, PAGE));
	EQ(read(ends[0], text, 8), 8);
	CHECK(memcmp(text, "spliced", 8) == 0);
	ERR(vmsplice(ends[1], &part, 1, 16), EINVAL);
	ERR(vmsplice(1000, &part, 1, 0), EBADF);
	OK(close(ends[0]));
	OK(close(ends[1]));
}

static void forks(void)
{
	int down[2], up[2];
	char byte = 0;
	char *private = map(64 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE);
	char *shared = map(4 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED);
	char *wiped = map(PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE);
	char *kept = map(PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE);
	fill(private, 64 * PAGE, 9);
	fill(shared, 4 * PAGE, 10);
	wiped[5] = kept[5] = 'w';
	OK(madvise(wiped, PAGE, MADV_WIPEONFORK));
	OK(madvise(kept, PAGE, MADV_DONTFORK));
	OK(pipe(down));
	OK(pipe(up));
	pid_t child = OK(fork());
	if (child == 0) {
		HOLDS(private, 64 * PAGE, 9);
		fill(private, 32 * PAGE, 11);
		fill(shared, PAGE, 12);
		EQ(wiped[5], 0);
		RAISES(READ, kept, SIGSEGV, SEGV_MAPERR);
		EQ(write(up[1], &byte, 1), 1);
		EQ(read(down[0], &byte, 1), 1);
		/* The parent has written all of its copy meanwhile. */
		HOLDS(private, 32 * PAGE, 11);
		for (int i = 32; i < 64; i++)
			EQ(private[i * PAGE], (char)(9 + i * 7 + i * PAGE % 251));
		HOLDS(shared, PAGE, 14);
		pid_t grandchild = OK(fork());
		if (grandchild == 0) {
			HOLDS(private, 32 * PAGE, 11);
			memset(private, 0, 64 * PAGE);
			_exit(3);
		}
		exits_with(grandchild, 3);
		HOLDS(private, 32 * PAGE, 11);
		_exit(0);
	}
	EQ(read(up[0], &byte, 1), 1);
	HOLDS(private, 64 * PAGE, 9);
	HOLDS(shared, PAGE, 12);
	EQ(wiped[5], 'w');
	EQ(kept[5], 'w');
	fill(private, 64 * PAGE, 13);
	fill(shared, PAGE, 14);
	EQ(write(down[1], &byte, 1), 1);
	exits_with(child, 0);
	HOLDS(private, 64 * PAGE, 13);
	OK(munmap(private, 64 * PAGE));
	OK(munmap(shared, 4 * PAGE));
	OK(munmap(wiped, PAGE));
	OK(munmap(kept, PAGE));
	for (int i = 0; i < 2; i++) {
		OK(close(down[i]));
		OK(close(up[i]));
	}
}

/* Copies of another process's memory: the bytes before a fault on either side count. */
static void copies(void)
{
	char *there = map(4 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE);
	char *here = map(4 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE);
	memset(there, 't', 4 * PAGE);
	pid_t pid = OK(fork());
	if (pid == 0) {
		OK(munmap(there + 3 * PAGE, PAGE));
		for (;;)
			pause();
	}
	struct iovec local = {here, 4 * PAGE}, remote = {there + 100, 4 * PAGE - 100};
	/* Until the child has unmapped its page. */
	while (OK(process_vm_readv(pid, &local, 1, &remote, 1, 0)) != 3 * PAGE - 100)
		sched_yield();
	EQ(here[3 * PAGE - 101], 't');
	memset(here, 'h', 4 * PAGE);
	EQ(process_vm_writev(pid, &local, 1, &remote, 1, 0), 3 * PAGE - 100);
	/* Two pieces: the second is not begun. */
	struct iovec pieces[] = {{there + 2 * PAGE, 2 * PAGE}, {there, PAGE}};
	EQ(process_vm_readv(pid, &local, 1, pieces, 2, 0), PAGE);
	remote.iov_base = there + 3 * PAGE;
	ERR(process_vm_readv(pid, &local, 1, &remote, 1, 0), EFAULT);
	/* A fault on this side. */
	OK(munmap(here + 2 * PAGE, 2 * PAGE));
	local.iov_base = here + 10;
	remote = (struct iovec){there, 3 * PAGE};
	EQ(process_vm_readv(pid, &local, 1, &remote, 1, 0), 2 * PAGE - 10);
	EQ(here[2 * PAGE - 1], 'h');
	EQ(process_vm_writev(pid, &local, 1, &remote, 1, 0), 2 * PAGE - 10);
	local.iov_base = here + 2 * PAGE;
	ERR(process_vm_readv(pid, &local, 1, &remote, 1, 0), EFAULT);
	OK(kill(pid, SIGKILL));
	killed_by(pid, SIGKILL);
	OK(munmap(here, 2 * PAGE));
	OK(munmap(there, 4 * PAGE));
}

int main(int argc, char **argv)
{
	alternate = map(16 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE);
	stack_t stack = {.ss_sp = alternate, .ss_size = 16 * PAGE};
	OK(sigaltstack(&stack, NULL));
	struct sigaction action = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO | SA_ONSTACK};
	OK(sigaction(SIGSEGV, &action, NULL));
	OK(sigaction(SIGBUS, &action, NULL));
	long rounds = sized(argc, argv, 5);
	for (long i = 0; i < rounds; i++) {
		mapping();
		copies();
		protection();
		moving();
		advice();
		heap();
		files();
	sealed_execution();
		forks();
		denials();
		splices();
	}
	printf("memory: %ld rounds\n", rounds);
	return 0;
}
