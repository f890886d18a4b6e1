// One call of each kind whose record needs more than its arguments.
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <linux/userfaultfd.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

static int deep(int n) {
    volatile char frame[4096];
    memset((char *)frame, n, sizeof frame);
    return n ? deep(n - 1) + frame[7] : frame[9];
}

int main(int argc, char **argv) {
    if (argc < 2) return 1;
    const int rw = PROT_READ | PROT_WRITE;
    // Two opens and a dup of one file: two descriptions.
    int a = open(argv[1], O_RDWR | O_CREAT, 0600), b = open(argv[1], O_RDONLY);
    if (a < 0 || b < 0 || ftruncate(a, 65536)) return 2;
    int c = dup(a);
    char *m = mmap(0, 4096, rw, MAP_SHARED, a, 0);
    mmap(0, 4096, PROT_READ, MAP_PRIVATE, b, 0);
    mmap(0, 4096, rw, MAP_SHARED, c, 8192);
    if (mmap(0, 4096, rw, MAP_SHARED, b, 0) != MAP_FAILED) return 3;
    m[0] = 1;
    // A new name, then none.
    char other[256];
    snprintf(other, sizeof other, "%s.new", argv[1]);
    if (rename(argv[1], other)) return 4;
    mmap(0, 4096, rw, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (unlink(other)) return 5;
    mmap(0, 4096, rw, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    // Anonymous files: the kernel's own, a memfd, and /dev/zero shared and private.
    mmap(0, 8192, rw, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    int memfd = memfd_create("kinds", 0);
    if (ftruncate(memfd, 8192)) return 6;
    mmap(0, 8192, rw, MAP_SHARED, memfd, 0);
    int zero = open("/dev/zero", O_RDWR);
    mmap(0, 4096, rw, MAP_SHARED, zero, 0);
    mmap(0, 4096, rw, MAP_PRIVATE, zero, 0);
    int id = shmget(IPC_PRIVATE, 8192, IPC_CREAT | 0600);
    void *shm = shmat(id, 0, 0);
    if (shm == (void *)-1) return 7;
    shmctl(id, IPC_RMID, 0);
    shmdt(shm);
    aio_context_t ring = 0;
    if (syscall(SYS_io_setup, 8, &ring) == 0) syscall(SYS_io_destroy, ring);
    // The stack grows by half a megabyte before a call.
    int grown = deep(128);
    unsigned long mask = 1;
    char *n = mmap(0, 65536, rw, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    syscall(SYS_mbind, n, 8192, 2, &mask, 8, 0);
    struct iovec ranges[2] = {{n + 16384, 4096}, {n + 32768, 8192}};
    int self = syscall(SYS_pidfd_open, getpid(), 0);
    syscall(SYS_process_madvise, self, ranges, 2, MADV_COLD, 0);
    // Two pages are registered with a userfaultfd, which is then closed.
    int fd = syscall(SYS_userfaultfd, O_CLOEXEC | UFFD_USER_MODE_ONLY);
    if (fd >= 0) {
        struct uffdio_api api = {.api = UFFD_API};
        ioctl(fd, UFFDIO_API, &api);
        struct uffdio_register reg = {
            .range = {(unsigned long)n + 8192, 8192}, .mode = UFFDIO_REGISTER_MODE_MISSING};
        if (ioctl(fd, UFFDIO_REGISTER, &reg)) return 8;
        close(fd);
    }
    munmap(n, 65536);
    return grown < 0;
}
