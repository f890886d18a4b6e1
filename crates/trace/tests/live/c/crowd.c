// Children make memory calls without end, while their parent goes on to fork.
#define _GNU_SOURCE
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

int main(void) {
    int all = 0, status;
    // The tracer's own child is reported before all others. So the parent is a child of it.
    if (fork() != 0)
        return wait(&status) < 0 || status != 0;
    volatile int *done =
        mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    for (int i = 0; i < 20; i++) {
        pid_t pid = fork();
        if (pid != 0)
            continue;
        for (int n = 0; n < 300 && !*done; n++)
            mprotect((void *)done, 4096, PROT_READ | PROT_WRITE);
        _exit(0);
    }
    *done = 1;
    while (wait(&status) > 0)
        all += status;
    return all != 0;
}
