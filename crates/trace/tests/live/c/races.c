// Twenty threads that map, touch and unmap neighbouring memory. The order of touches and calls
// decides which VMAs merge.
#define _GNU_SOURCE
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

enum { THREADS = 20, ROUNDS = 40, PAGES = 4 };

static void *work(void *arg) {
    unsigned seed = (unsigned)(long)arg;
    for (int i = 0; i < ROUNDS; i++) {
        seed = seed * 1103515245 + 12345;
        int pages = 1 + (seed >> 16) % PAGES;
        char *p = mmap(0, pages * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (p == MAP_FAILED) _exit(9);
        for (int j = 0; j < pages; j++) p[j * 4096] = 1;
        if (seed >> 30 && mprotect(p, 4096, PROT_READ)) _exit(8);
        if (munmap(p, pages * 4096)) _exit(7);
    }
    return 0;
}

int main(void) {
    pthread_t threads[THREADS];
    for (long i = 0; i < THREADS; i++)
        if (pthread_create(&threads[i], 0, work, (void *)(i + 1))) return 5;
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], 0);
    return 0;
}
