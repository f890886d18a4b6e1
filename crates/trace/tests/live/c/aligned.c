// Maps of one file, argv[1], with many lengths and offsets. Their addresses depend on its file
// system.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

int main(int argc, char **argv) {
    int fd = argc > 1 ? open(argv[1], O_RDWR | O_CREAT, 0600) : memfd_create("aligned", 0);
    const long page = 4096, huge = 2 << 20;
    if (fd < 0 || ftruncate(fd, 16 << 20)) return 1;
    long lengths[] = {page, huge - page, huge, huge + page, 2 * huge, 3 * huge - page};
    long offsets[] = {0, page, huge / 2, huge - page, huge, huge + page};
    for (int i = 0; i < 6; i++)
        for (int j = 0; j < 6; j++) {
            int flags = (i + j) % 3 ? MAP_SHARED : MAP_PRIVATE;
            // A map in between moves the next one.
            mmap(0, page * (1 + j), PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            char *p = mmap(0, lengths[i], PROT_READ | PROT_WRITE, flags, fd, offsets[j]);
            if (p == MAP_FAILED) return 2;
            if (mmap(p + lengths[i], lengths[i], PROT_READ, flags, fd, offsets[j]) == MAP_FAILED)
                return 3;
            mmap(0, lengths[i], PROT_READ, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
            if (i % 2) munmap(p, lengths[i]);
        }
    if (argc > 1) unlink(argv[1]);
    return 0;
}
