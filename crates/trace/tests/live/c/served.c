// Forty calls that each wait for a thread. That thread must make traced calls to serve them.
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { FAULTS = 40, PAGE = 4096 };
static int fd;

static void *serve(void *arg) {
    (void)arg;
    for (int i = 0; i < FAULTS; i++) {
        struct uffd_msg message;
        if (read(fd, &message, sizeof message) != sizeof message) _exit(9);
        // A private buffer of this thread.
        char *own = mmap(0, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        struct uffdio_zeropage zero = {
            .range = {message.arg.pagefault.address & -PAGE, PAGE}};
        if (own == MAP_FAILED || ioctl(fd, UFFDIO_ZEROPAGE, &zero)) _exit(8);
        munmap(own, PAGE);
    }
    return 0;
}

int main(void) {
    fd = syscall(SYS_userfaultfd, O_CLOEXEC);
    if (fd < 0) return 77;
    struct uffdio_api api = {.api = UFFD_API};
    if (ioctl(fd, UFFDIO_API, &api)) return 1;
    char *area =
        mmap(0, FAULTS * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct uffdio_register reg = {
        .range = {(unsigned long)area, FAULTS * PAGE}, .mode = UFFDIO_REGISTER_MODE_MISSING};
    if (ioctl(fd, UFFDIO_REGISTER, &reg)) return 2;
    pthread_t server;
    pthread_create(&server, 0, serve, 0);
    for (int i = 0; i < FAULTS; i++)
        if (madvise(area + i * PAGE, PAGE, MADV_POPULATE_READ)) return 3;
    pthread_join(server, 0);
    return 0;
}
