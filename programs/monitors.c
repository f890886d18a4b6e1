/* Checks userfaultfd with monitors: threads that wait for missing, write-protected and minor pages;
 * reads and polls of messages; signals, kills and closing while threads wait; SIGBUS instead.
 * Calls that wait until monitors have read of forks, moves, removals and unmappings. */
#include "test.h"
#include <linux/userfaultfd.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <sys/ioctl.h>

enum { PAGES = 64, USER_MODE = 1 };
#define FEATURE_SIGBUS (1 << 7)
#define FEATURE_THREAD_ID (1 << 8)
#define FEATURE_MINOR_SHMEM (1 << 10)

static int open_monitor(unsigned long features, int flags)
{
	int fd = OK(syscall(SYS_userfaultfd, O_CLOEXEC | USER_MODE | flags));
	struct uffdio_api api = {.api = UFFD_API, .features = features};
	OK(ioctl(fd, UFFDIO_API, &api));
	EQ(api.features & features, features);
	return fd;
}

static void register_at(int fd, char *at, unsigned long pages, unsigned long mode)
{
	struct uffdio_register what = {{(unsigned long)at, pages * PAGE}, mode, 0};
	OK(ioctl(fd, UFFDIO_REGISTER, &what));
	CHECK(what.ioctls & 1 << _UFFDIO_WAKE);
	EQ(!(what.ioctls & 1 << _UFFDIO_WRITEPROTECT), !(mode & UFFDIO_REGISTER_MODE_WP));
}

static void protect(int fd, char *at, unsigned long pages, int on)
{
	struct uffdio_writeprotect what = {{(unsigned long)at, pages * PAGE}, on};
	OK(ioctl(fd, UFFDIO_WRITEPROTECT, &what));
}

/* A thread that answers all messages until its pipe is closed. */
struct monitor {
	int fd, stop[2], copies, zeros, writes, minors;
	char *memory, *alias;
	pthread_t thread;
};

static void answer(struct monitor *of, const struct uffd_msg *message)
{
	EQ(message->event, UFFD_EVENT_PAGEFAULT);
	unsigned long flags = message->arg.pagefault.flags, at = message->arg.pagefault.address;
	unsigned long number = (at - (unsigned long)of->memory) / PAGE;
	EQ(at % PAGE, 0);
	CHECK(number < PAGES);
	if (flags & UFFD_PAGEFAULT_FLAG_WP) {
		protect(of->fd, (char *)at, 1, 0);
		of->writes++;
	} else if (flags & UFFD_PAGEFAULT_FLAG_MINOR) {
		of->alias[number * PAGE + 1] = 'm';
		struct uffdio_continue what = {{at, PAGE}, 0, 0};
		int done = ioctl(of->fd, UFFDIO_CONTINUE, &what);
		CHECK(done == 0 || errno == EEXIST);
		of->minors++;
	} else if (number % 2) {
		char page[PAGE];
		memset(page, number, PAGE);
		struct uffdio_copy what = {at, (unsigned long)page, PAGE, 0, 0};
		int done = ioctl(of->fd, UFFDIO_COPY, &what);
		CHECK(done == 0 || (errno == EEXIST && what.copy == -EEXIST));
		struct uffdio_range range = {at, PAGE};
		if (done)
			OK(ioctl(of->fd, UFFDIO_WAKE, &range));
		of->copies += done == 0;
	} else {
		struct uffdio_zeropage what = {{at, PAGE}, 0, 0};
		int done = ioctl(of->fd, UFFDIO_ZEROPAGE, &what);
		CHECK(done == 0 || errno == EEXIST);
		if (done)
			OK(ioctl(of->fd, UFFDIO_WAKE, &what.range));
		of->zeros += done == 0;
	}
}

static void *watch(void *argument)
{
	struct monitor *of = argument;
	struct pollfd fds[2] = {{of->fd, POLLIN, 0}, {of->stop[0], POLLIN, 0}};
	for (;;) {
		CHECK(poll(fds, 2, -1) > 0);
		if (fds[1].revents)
			return NULL;
		struct uffd_msg messages[3];
		long size = read(of->fd, messages, sizeof messages);
		CHECK(size > 0 ? size % sizeof *messages == 0 : errno == EAGAIN);
		for (long i = 0; i < size / (long)sizeof *messages; i++)
			answer(of, &messages[i]);
	}
}

static void start(struct monitor *of, char *memory)
{
	of->memory = memory;
	OK(pipe(of->stop));
	EQ(pthread_create(&of->thread, NULL, watch, of), 0);
}

static void stop(struct monitor *of)
{
	OK(close(of->stop[1]));
	EQ(pthread_join(of->thread, NULL), 0);
	OK(close(of->stop[0]));
	OK(close(of->fd));
}

/* Threads that use each page: a byte of each is theirs. */
static char *used;

static void *use(void *argument)
{
	long me = (long)argument;
	for (int i = 0; i < PAGES; i++) {
		int number = (i * 7 + me * 13) % PAGES;
		volatile char *page = used + number * PAGE;
		EQ(page[0], number % 2 ? number : 0);
		page[100 + me] = me + 1;
		EQ(page[100 + me], me + 1);
	}
	return NULL;
}

static void threads(void)
{
	used = map(PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE);
	struct monitor of = {.fd = open_monitor(0, O_NONBLOCK)};
	register_at(of.fd, used, PAGES, UFFDIO_REGISTER_MODE_MISSING | UFFDIO_REGISTER_MODE_WP);
	start(&of, used);
	pthread_t threads[4];
	for (int round = 0; round < 3; round++) {
		for (long i = 0; i < 4; i++)
			EQ(pthread_create(&threads[i], NULL, use, (void *)i), 0);
		for (int i = 0; i < 4; i++)
			EQ(pthread_join(threads[i], NULL), 0);
		/* The next round waits for writes. */
		protect(of.fd, used, PAGES, 1);
	}
	stop(&of);
	EQ(of.copies + of.zeros, PAGES);
	CHECK(of.writes >= 2 * PAGES);
	used[0] = 1;
	OK(munmap(used, PAGES * PAGE));
}

static void minor(void)
{
	int memory = OK(memfd_create("minor", 0));
	OK(ftruncate(memory, PAGES * PAGE));
	struct monitor of = {.fd = open_monitor(FEATURE_MINOR_SHMEM, O_NONBLOCK)};
	char *map = (char *)OK(mmap(NULL, PAGES * PAGE, 3, MAP_SHARED, memory, 0));
	of.alias = (char *)OK(mmap(NULL, PAGES * PAGE, 3, MAP_SHARED, memory, 0));
	memset(of.alias, 'a', PAGES * PAGE);
	register_at(of.fd, map, PAGES, UFFDIO_REGISTER_MODE_MINOR);
	start(&of, map);
	for (int i = 0; i < PAGES; i += 9) {
		EQ(map[i * PAGE], 'a');
		EQ(map[i * PAGE + 1], 'm');
	}
	stop(&of);
	CHECK(of.minors >= PAGES / 9);
	OK(munmap(map, PAGES * PAGE));
	OK(munmap(of.alias, PAGES * PAGE));
	OK(close(memory));
}

static char *waited;
static volatile int handled, passed, tid;

static void on_signal(int signal)
{
	(void)signal;
	handled = 1;
}

static void *touch(void *argument)
{
	(void)argument;
	tid = syscall(SYS_gettid);
	(*(volatile char *)&waited[PAGE])++;
	passed = 1;
	return NULL;
}

/* A thread that waits handles signals, waits on, and goes on when the descriptor is closed. */
static void interrupted(void)
{
	waited = map(4 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE);
	int fd = open_monitor(FEATURE_THREAD_ID, 0);
	struct uffd_msg message;
	struct pollfd look = {fd, POLLIN, 0};
	EQ(poll(&look, 1, 0), 1);
	EQ(look.revents, POLLERR); /* It would block. */
	register_at(fd, waited, 4, UFFDIO_REGISTER_MODE_MISSING);
	handled = passed = 0;
	pthread_t thread;
	EQ(pthread_create(&thread, NULL, touch, NULL), 0);
	ERR(read(fd, &message, sizeof message - 1), EINVAL);
	EQ(read(fd, &message, sizeof message), sizeof message);
	EQ(message.arg.pagefault.address, (unsigned long)waited + PAGE);
	EQ(message.arg.pagefault.feat.ptid, tid);
	EQ(pthread_kill(thread, SIGUSR1), 0);
	/* It faults again after its handler. */
	EQ(read(fd, &message, sizeof message), sizeof message);
	EQ(handled, 1);
	EQ(passed, 0);
	/* A wake without a page: it faults once more. */
	struct uffdio_range range = {(unsigned long)waited, 4 * PAGE};
	OK(ioctl(fd, UFFDIO_WAKE, &range));
	EQ(read(fd, &message, sizeof message), sizeof message);
	EQ(passed, 0);
	OK(close(fd));
	EQ(pthread_join(thread, NULL), 0);
	EQ(passed, 1);
	EQ(waited[PAGE], 1);
	OK(munmap(waited, 4 * PAGE));
}

/* A process is killed while its threads wait. */
static void killed(void)
{
	pid_t child = OK(fork());
	if (child == 0) {
		waited = map(4 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE);
		int fd = open_monitor(0, O_NONBLOCK);
		register_at(fd, waited, 4, UFFDIO_REGISTER_MODE_MISSING);
		pthread_t threads[3];
		for (int i = 0; i < 3; i++)
			EQ(pthread_create(&threads[i], NULL, touch, NULL), 0);
		struct pollfd look = {fd, POLLIN, 0};
		EQ(poll(&look, 1, -1), 1);
		kill(getpid(), SIGKILL);
	}
	killed_by(child, SIGKILL);
}

static sigjmp_buf back;

static void on_bus(int signal, siginfo_t *info, void *context)
{
	(void)context;
	EQ(signal, SIGBUS);
	EQ((unsigned long)info->si_addr, (unsigned long)waited + 2 * PAGE + 5);
	siglongjmp(back, 1);
}

/* SIGBUS instead of waiting; calls of the kernel fail; moves, poison. */
static void refused(void)
{
	struct sigaction action = {.sa_sigaction = on_bus, .sa_flags = SA_SIGINFO};
	OK(sigaction(SIGBUS, &action, NULL));
	waited = map(4 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE);
	char *source = map(4 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE);
	memset(source, 's', 4 * PAGE);
	int fd = open_monitor(FEATURE_SIGBUS, O_NONBLOCK), zero = OK(open("/dev/zero", O_RDONLY));
	register_at(fd, waited, 4, UFFDIO_REGISTER_MODE_MISSING);
	if (sigsetjmp(back, 1) == 0) {
		*(volatile char *)&waited[2 * PAGE + 5] = 1;
		CHECK(0);
	}
	ERR(read(zero, waited, 1), EFAULT);
	struct uffdio_copy copy = {(unsigned long)waited, (unsigned long)source, PAGE + 1, 0, 0};
	ERR(ioctl(fd, UFFDIO_COPY, &copy), EINVAL);
	copy.len = 2 * PAGE;
	copy.mode = 4;
	ERR(ioctl(fd, UFFDIO_COPY, &copy), EINVAL);
	copy.mode = UFFDIO_COPY_MODE_DONTWAKE;
	OK(ioctl(fd, UFFDIO_COPY, &copy));
	EQ(copy.copy, 2 * PAGE);
	EQ(waited[2 * PAGE - 1], 's');
	/* The first page is there already. */
	copy.dst = (unsigned long)waited + PAGE;
	ERR(ioctl(fd, UFFDIO_COPY, &copy), EEXIST);
	EQ(copy.copy, -EEXIST);
	struct uffdio_zeropage zeros = {{(unsigned long)waited + 3 * PAGE, PAGE}, 0, 0};
	OK(ioctl(fd, UFFDIO_ZEROPAGE, &zeros));
	EQ(zeros.zeropage, PAGE);
	zeros.range.start -= PAGE;
	zeros.range.len = 2 * PAGE;
	ERR(ioctl(fd, UFFDIO_ZEROPAGE, &zeros), EAGAIN);
	EQ(zeros.zeropage, PAGE);
	OK(munmap(waited, 4 * PAGE));
	OK(munmap(source, 4 * PAGE));
	OK(close(fd));
	OK(close(zero));
}

/* A call of another thread, which waits until the monitor has read of it. */
enum { HEARS_ALL = 0xe | 1 << 6, EVENT_PAGES = 8 };

struct change {
	void (*make)(char *at);
	char *at;
	volatile int returned;
	pthread_t thread;
};

static void *make_change(void *argument)
{
	struct change *of = argument;
	of->make(of->at);
	of->returned = 1;
	return NULL;
}

static void begin(struct change *of, int fd, void (*make)(char *), char *at)
{
	struct pollfd look = {fd, POLLIN, 0};
	*of = (struct change){.make = make, .at = at};
	EQ(pthread_create(&of->thread, NULL, make_change, of), 0);
	EQ(poll(&look, 1, -1), 1);
	EQ(look.revents, POLLIN);
	EQ(of->returned, 0);
}

/* The next message is this event. */
static struct uffd_msg hears(int fd, int event)
{
	struct uffd_msg message;
	struct pollfd look = {fd, POLLIN, 0};
	EQ(poll(&look, 1, -1), 1);
	EQ(read(fd, &message, sizeof message), sizeof message);
	EQ(message.event, event);
	return message;
}

static void hears_range(int fd, int event, char *from, char *to)
{
	struct uffd_msg message = hears(fd, event);
	EQ(message.arg.remove.start, (unsigned long)from);
	EQ(message.arg.remove.end, (unsigned long)to);
}

static void end(struct change *of)
{
	EQ(pthread_join(of->thread, NULL), 0);
	EQ(of->returned, 1);
}

static int copy_page(int fd, char *to, int byte)
{
	char page[PAGE];
	memset(page, byte, PAGE);
	struct uffdio_copy copy = {(unsigned long)to, (unsigned long)page, PAGE, 0, 0};
	int done = ioctl(fd, UFFDIO_COPY, &copy);
	EQ(copy.copy, done ? -errno : (long)PAGE);
	return done;
}

static char *elsewhere;

static void unmaps(char *at)
{
	OK(munmap(at + PAGE, 2 * PAGE - 1));
}

static void maps_over(char *at)
{
	OK(mmap(at, 2 * PAGE, 3, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0));
}

static void shrinks(char *at)
{
	EQ(mremap(at, EVENT_PAGES * PAGE, (EVENT_PAGES - 1) * PAGE, 0), at);
}

static void moves(char *at)
{
	char *to = mremap(at + 3 * PAGE, 4 * PAGE, 4 * PAGE, 3, elsewhere);
	EQ(to, elsewhere);
}

static void removes(char *at)
{
	OK(madvise(at, 3 * PAGE, MADV_DONTNEED));
}

static char *registered(int fd)
{
	char *at = map(EVENT_PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE);
	register_at(fd, at, EVENT_PAGES, UFFDIO_REGISTER_MODE_MISSING);
	return at;
}

static void changes(void)
{
	struct change change;
	int fd = open_monitor(HEARS_ALL, O_NONBLOCK);
	char *at = registered(fd);
	/* The pages are there until the monitor has read of their removal, and it resolves none. */
	OK(copy_page(fd, at, 'a'));
	begin(&change, fd, removes, at);
	EQ(*(volatile char *)at, 'a');
	ERR(copy_page(fd, at + PAGE, 'b'), EAGAIN);
	struct uffdio_zeropage zeros = {{(unsigned long)at + PAGE, PAGE}, 0, 0};
	ERR(ioctl(fd, UFFDIO_ZEROPAGE, &zeros), EAGAIN);
	EQ(zeros.zeropage, -EAGAIN);
	handled = 0;
	EQ(pthread_kill(change.thread, SIGUSR1), 0);
	usleep(2000);
	EQ(change.returned + handled, 0); /* Only its end ends the waiting. */
	hears_range(fd, UFFD_EVENT_REMOVE, at, at + 3 * PAGE);
	end(&change);
	EQ(handled, 1);
	OK(copy_page(fd, at, 'c'));

	begin(&change, fd, shrinks, at);
	hears_range(fd, UFFD_EVENT_UNMAP, at + 7 * PAGE, at + 8 * PAGE);
	end(&change);
	begin(&change, fd, unmaps, at);
	ERR(copy_page(fd, at + PAGE, 'b'), EAGAIN);
	hears_range(fd, UFFD_EVENT_UNMAP, at + PAGE, at + 3 * PAGE);
	end(&change);
	ERR(copy_page(fd, at + PAGE, 'b'), ENOENT);
	begin(&change, fd, maps_over, at);
	hears_range(fd, UFFD_EVENT_UNMAP, at, at + 2 * PAGE);
	end(&change);
	at[0] = 'x'; /* The new map is not registered. */

	/* A move over registered memory: its target, the move, its source. */
	OK(copy_page(fd, at + 4 * PAGE, 'm'));
	elsewhere = registered(fd);
	begin(&change, fd, moves, at);
	hears_range(fd, UFFD_EVENT_UNMAP, elsewhere, elsewhere + 4 * PAGE);
	struct uffd_msg message = hears(fd, UFFD_EVENT_REMAP);
	EQ(change.returned, 0);
	EQ(message.arg.remap.from, (unsigned long)at + 3 * PAGE);
	EQ(message.arg.remap.to, (unsigned long)elsewhere);
	EQ(message.arg.remap.len, 4 * PAGE);
	hears_range(fd, UFFD_EVENT_UNMAP, at + 3 * PAGE, at + 7 * PAGE);
	end(&change);
	EQ(elsewhere[PAGE], 'm');
	OK(copy_page(fd, elsewhere, 'n'));
	EQ(elsewhere[0], 'n');

	/* Closing it lets the call go on. */
	begin(&change, fd, removes, elsewhere);
	OK(close(fd));
	end(&change);
	EQ(elsewhere[0], 0);
	OK(munmap(elsewhere, EVENT_PAGES * PAGE));
	OK(munmap(at, 2 * PAGE));
}

static pid_t forked;
static int expected;

static void use_and_end(char *at)
{
	if (forked == 0)
		_exit(*(volatile char *)(at + 2 * PAGE) != expected);
}

static void forks(char *at)
{
	forked = OK(fork());
	use_and_end(at);
}

/* The child has no descriptors of its own, which would keep the monitor. */
static void forks_with_files(char *at)
{
	forked = OK(syscall(SYS_clone, CLONE_FILES | SIGCHLD, 0, 0, 0, 0));
	use_and_end(at);
}

static void children(void)
{
	struct change change;
	int fd = open_monitor(HEARS_ALL, O_NONBLOCK);
	char *at = registered(fd);
	expected = 'k';
	begin(&change, fd, forks, at);
	ERR(copy_page(fd, at, 'b'), EAGAIN);
	struct uffd_msg message = hears(fd, UFFD_EVENT_FORK);
	int child = message.arg.fork.ufd;
	CHECK(child > fd);
	end(&change);
	message = hears(child, UFFD_EVENT_PAGEFAULT);
	EQ(message.arg.pagefault.address, (unsigned long)at + 2 * PAGE);
	/* Each has its own memory. */
	OK(copy_page(fd, at + 2 * PAGE, 'p'));
	OK(copy_page(child, at + 2 * PAGE, 'k'));
	exits_with(forked, 0);
	EQ(at[2 * PAGE], 'p');
	struct uffdio_zeropage zeros = {{(unsigned long)at, PAGE}, 0, 0};
	/* A CPU may still have its memory active. */
	while (ioctl(child, UFFDIO_ZEROPAGE, &zeros) == 0 || errno == EEXIST)
		sched_yield();
	EQ(errno, ESRCH);
	OK(close(child));

	/* The child of a monitor that is closed before it reads has ordinary memory. */
	expected = 'p';
	begin(&change, fd, forks_with_files, at);
	OK(close(fd));
	end(&change);
	exits_with(forked, 0);
	OK(munmap(at, EVENT_PAGES * PAGE));

	/* And that of a monitor that does not hear of forks. */
	fd = open_monitor(1 << 6, O_NONBLOCK);
	at = registered(fd);
	expected = 0;
	forks(at);
	exits_with(forked, 0);
	/* A call that nothing waits for: it was closed. */
	OK(close(fd));
	OK(munmap(at, EVENT_PAGES * PAGE));
}

/* A process is killed, or ends, while a call of its waits. */
static void ended(int how)
{
	pid_t child = OK(fork());
	if (child == 0) {
		struct change change;
		int fd = open_monitor(HEARS_ALL, O_NONBLOCK);
		char *at = registered(fd);
		begin(&change, fd, how & 1 ? forks : unmaps, at);
		if (how & 2)
			_exit(7);
		kill(getpid(), SIGKILL);
	}
	if (how & 2)
		exits_with(child, 7);
	else
		killed_by(child, SIGKILL);
}

int main(int argc, char **argv)
{
	struct sigaction action = {.sa_handler = on_signal};
	OK(sigaction(SIGUSR1, &action, NULL));
	long rounds = sized(argc, argv, 40);
	for (long i = 0; i < rounds; i++) {
		threads();
		minor();
		interrupted();
		killed();
		refused();
		changes();
		children();
		for (int how = 0; how < 4; how++)
			ended(how);
	}
	printf("monitors: %ld rounds\n", rounds);
	return 0;
}
