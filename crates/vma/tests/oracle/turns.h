/* Processes and threads that carry out the steps of one program in turns: pages.c, continued. */

/* Process n waits for its turn at the pipe n. */
static int turns[PROCESSES][2], me, current, forks, ended, alive[PROCESSES] = { 1 };
static pid_t children[PROCESSES];
/* This process, if it ends after this turn. */
static pid_t leaving;
/* The threads of this process wait for their turn at `running`, which is the number of the one that
 * has it. They are no threads of libc: their stacks are not on the heap, and only one of them runs
 * at a time, so all of them use the first one's errno. */
static int running, started[THREADS] = { 1 };
static char stacks[THREADS][1 << 16] __attribute__((aligned(16)));
static char other_stacks[THREADS][1 << 16];

/* Where this thread handles signals. */
static void set_other_stack(int self)
{
    stack_t stack = { .ss_sp = other_stacks[self], .ss_size = sizeof other_stacks[self] };
    if (sigaltstack(&stack, NULL))
        fail("sigaltstack");
}

static void give_turn(int to)
{
    fflush(stdout);
    if (write(turns[to][1], &leaving, sizeof leaving) != sizeof leaving)
        fail("write");
}

#ifdef HUGE
/* Waits until a process that ends has no memory any more: Linux copies a part of a huge page only
 * as long as another process has it. */
static void await_end(pid_t process)
{
    char name[64], state;
    int threads;
    snprintf(name, sizeof name, "/proc/%d/stat", process);
    for (;; sched_yield()) {
        int stat = open(name, O_RDONLY | O_CLOEXEC);
        ssize_t len = stat < 0 ? 0 : read(stat, listing, sizeof listing - 1);
        if (stat >= 0)
            close(stat);
        if (len <= 0)
            return;
        listing[len] = 0;
        if (sscanf(listing, "%*d (%*[^)]) %c %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s "
                            "%*s %*s %*s %d", &state, &threads) != 2)
            fail(name);
        if (state == 'Z' && threads <= 1)
            return;
    }
}
#endif

static void await_turn(void)
{
    pid_t process;
    if (read(turns[me][0], &process, sizeof process) != sizeof process)
        fail("read");
#ifdef HUGE
    if (process)
        await_end(process);
#endif
}

static int is_alive(unsigned long process) { return process < PROCESSES && alive[process]; }

/* Skips the steps of other processes, up to the next turn of this one, or the end. All processes
 * have the text of the whole program in their buffers, and keep count of each other. */
static void skip(void)
{
    unsigned long to;
    while (current != me && fgets(line, sizeof line, stdin)) {
        if (!strncmp(line, "fork", 4) && forks + 1 < PROCESSES) {
            alive[++forks] = 1;
        } else if (sscanf(line, "switch %lx", &to) == 1 && is_alive(to)) {
            current = to;
        } else if (sscanf(line, "exit %lx", &to) == 1 && is_alive(to) && current &&
                   (int)to != current) {
            alive[current] = 0;
            current = to;
        } else if (!strncmp(line, "end", 3)) {
            if (me)
                _exit(0);
            ended = 1;
            break;
        }
    }
    await_turn();
}

static void run(int self);

static int thread(void *number)
{
    int self = (int)(intptr_t)number;
    set_other_stack(self);
    run(self);
    /* The end of the input. */
    exit(0);
}

/* futex(2) on `running`. Not by the C library: the threads share their errno, and one that begins to
 * wait may fail with EAGAIN while another one makes its call. */
static void futex(long operation, long value)
{
    long result = SYS_futex;
    register long timeout __asm__("r10") = 0;
    __asm__ volatile("syscall" : "+a"(result)
                     : "D"(&running), "S"(operation), "d"(value), "r"(timeout)
                     : "rcx", "r11", "memory");
}

/* Gives the turn to another thread of this process, and waits to get it back. */
static void give_thread(int self, int to)
{
    int now, flags = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD |
                     CLONE_SYSVSEM;
    if (to == self)
        return;
    __atomic_store_n(&running, to, __ATOMIC_SEQ_CST);
    if (started[to]) {
        futex(FUTEX_WAKE_PRIVATE, THREADS);
    } else {
        started[to] = 1;
        if (clone(thread, stacks[to] + sizeof stacks[to], flags, (void *)(intptr_t)to) < 0)
            fail("clone");
    }
    while ((now = __atomic_load_n(&running, __ATOMIC_SEQ_CST)) != self)
        futex(FUTEX_WAIT_PRIVATE, now);
}

static void fork_one(int self)
{
    if (forks + 1 == PROCESSES) {
        puts("none");
        return;
    }
    puts("ok");
    fflush(stdout);
    pid_t child = fork();
    if (child < 0)
        fail("fork");
    alive[++forks] = 1;
    children[forks] = me ? 0 : child;
    if (child)
        return;
    me = forks;
    /* The child has the thread that forked. */
    for (int number = 0; number < THREADS; number++)
        started[number] = number == self;
    open_pagemap();
    skip();
}

/* The end of a program: the first process is left. */
static void end_all(void)
{
    if (me) {
        give_turn(0);
        _exit(0);
    }
    for (; forks; forks--) {
        if (children[forks])
            waitpid(children[forks], NULL, 0);
        alive[forks] = 0;
    }
    current = ended = 0;
}
