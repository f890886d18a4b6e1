// Calls that a tracer could change: seccomp's modes and answers, and a clone with CLONE_UNTRACED.
// argv[1] chooses one. Exits with 0 if the result is the same as without a tracer (strict: as under
// a filter).
#define _GNU_SOURCE
#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static int install(unsigned call, unsigned answer) {
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, answer),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {4, filter};
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0);
}

static int child(void *arg) {
    (void)arg;
    char *p = mmap(0, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) return 4;
    p[0] = 1;
    return munmap(p, 8192) ? 5 : 0;
}

int main(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "";
    if (!strcmp(what, "strict"))
        return prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT) == -1 && errno == EINVAL ? 0 : 1;
    if (!strcmp(what, "trace")) {
        // A call that the tracer ignores, and one that it traces.
        if (install(SYS_getppid, SECCOMP_RET_TRACE | 7)) return 2;
        if (syscall(SYS_getppid) != -1 || errno != ENOSYS) return 3;
        if (install(SYS_mlock, SECCOMP_RET_TRACE | 1)) return 4;
        errno = 0;
        return syscall(SYS_mlock, &what, 8) == -1 && errno == ENOSYS ? child(0) : 5;
    }
    // Without shared memory, and with it.
    for (int shared = 0; shared < 2; shared++) {
        char *stack = malloc(65536);
        int flags = CLONE_UNTRACED | SIGCHLD | (shared ? CLONE_VM : 0), status;
        pid_t pid = clone(child, stack + 65536, flags, 0);
        if (pid < 0 || waitpid(pid, &status, 0) != pid) return 6;
        if (status) return WIFEXITED(status) ? WEXITSTATUS(status) : 7;
    }
    return 0;
}
