// vfork, clone that shares memory without being a thread, fork from a thread, and ptrace.
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

static int child(void *arg) {
    (void)arg;
    mmap(0, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return 0;
}

static void *forks(void *arg) {
    (void)arg;
    pid_t pid = fork();
    if (!pid) _exit(child(0));
    waitpid(pid, 0, 0);
    return 0;
}

int main(void) {
    pid_t pid = vfork();
    if (!pid) {
        execl("/bin/true", "true", (char *)0);
        _exit(9);
    }
    int status;
    waitpid(pid, &status, 0);
    if (status) return 1;
    char *stack = malloc(65536);
    pid = clone(child, stack + 65536, CLONE_VM | SIGCHLD, 0);
    waitpid(pid, &status, 0);
    if (status) return 2;
    pthread_t thread;
    pthread_create(&thread, 0, forks, 0);
    pthread_join(thread, 0);
    // A tracer is already attached.
    return ptrace(PTRACE_TRACEME, 0, 0, 0) == -1 ? 0 : 3;
}
