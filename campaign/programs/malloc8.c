/* Eight threads that allocate, grow and free blocks of 16 bytes to 4 MiB: arenas, thresholds,
 * trims and large maps of the C library all get work. */
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { THREADS = 8, SLOTS = 64, ROUNDS = 1500 };

static void *work(void *seed)
{
    uint64_t state = (uintptr_t)seed * 0x9e3779b97f4a7c15u + 1;
    char *slots[SLOTS] = { 0 };
    for (int i = 0; i < ROUNDS; i++) {
        state ^= state << 13, state ^= state >> 7, state ^= state << 17;
        int slot = state % SLOTS;
        size_t size = (size_t)16 << (state >> 8) % 19;
        if (state & 1 << 20) {
            free(slots[slot]);
            slots[slot] = NULL;
        } else {
            char *block = realloc(slots[slot], size);
            if (!block)
                return (void *)1;
            slots[slot] = block;
            memset(block, i, size < 8192 ? size : 8192);
            block[size - 1] = 1;
        }
    }
    for (int i = 0; i < SLOTS; i++)
        free(slots[i]);
    return NULL;
}

int main(void)
{
    pthread_t threads[THREADS];
    int failed = 0;
    for (uintptr_t i = 0; i < THREADS; i++)
        if (pthread_create(&threads[i], NULL, work, (void *)(i + 1)))
            return 2;
    for (int i = 0; i < THREADS; i++) {
        void *result;
        pthread_join(threads[i], &result);
        failed |= result != NULL;
    }
    return failed;
}
