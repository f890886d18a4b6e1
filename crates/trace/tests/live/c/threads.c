// Eight threads that map, protect and unmap at the same time. argv[1] chooses how the process ends.
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static volatile int rounds;

static void *work(void *arg) {
    (void)arg;
    for (int i = 0; i < rounds; i++) {
        char *p = mmap(0, 16384, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (p == MAP_FAILED) _exit(9);
        p[i % 16384] = 1;
        if (mprotect(p + 4096, 4096, PROT_READ)) _exit(8);
        if (munmap(p, 16384)) _exit(7);
    }
    return 0;
}

static void *become(void *arg) {
    (void)arg;
    usleep(20000);
    execl("/bin/true", "true", (char *)0);
    _exit(6);
}

int main(int argc, char **argv) {
    const char *end = argc > 1 ? argv[1] : "join";
    rounds = strcmp(end, "join") ? 1 << 30 : 50;
    pthread_t threads[8];
    for (int i = 0; i < 8; i++)
        if (pthread_create(&threads[i], 0, work, 0)) return 5;
    if (!strcmp(end, "exec")) {
        pthread_t other;
        pthread_create(&other, 0, become, 0);
        pause();
    }
    if (!strcmp(end, "exit")) {
        usleep(20000);
        exit(3);
    }
    if (!strcmp(end, "kill")) {
        usleep(20000);
        kill(getpid(), SIGKILL);
    }
    if (!strcmp(end, "leader")) {
        // The first thread exits. Another one ends the process later.
        rounds = 50;
        pthread_exit(0);
    }
    if (!strcmp(end, "stop")) {
        // A child stops and continues the whole process twenty times.
        pid_t parent = getpid();
        if (!fork()) {
            for (int i = 0; i < 20; i++) {
                kill(parent, SIGSTOP);
                usleep(2000);
                kill(parent, SIGCONT);
                usleep(2000);
            }
            kill(parent, SIGTERM);
            _exit(0);
        }
        pause();
    }
    for (int i = 0; i < 8; i++) pthread_join(threads[i], 0);
    return 0;
}
