// A call that blocks until another thread resolves its fault. That thread must map memory first.
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <pthread.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

static int fd;
static char *area;

static void *serve(void *arg) {
    (void)arg;
    struct uffd_msg message;
    if (read(fd, &message, sizeof message) != sizeof message) _exit(9);
    char *page = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    page[0] = 7;
    struct uffdio_copy copy = {
        .dst = (unsigned long)area, .src = (unsigned long)page, .len = 4096};
    if (ioctl(fd, UFFDIO_COPY, &copy)) _exit(8);
    return 0;
}

int main(void) {
    // Faults of the kernel itself must be reported, too. That needs privilege.
    fd = syscall(SYS_userfaultfd, O_CLOEXEC);
    if (fd < 0) return 77;
    struct uffdio_api api = {.api = UFFD_API};
    if (ioctl(fd, UFFDIO_API, &api)) return 1;
    area = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct uffdio_register reg = {
        .range = {(unsigned long)area, 4096}, .mode = UFFDIO_REGISTER_MODE_MISSING};
    if (ioctl(fd, UFFDIO_REGISTER, &reg)) return 2;
    pthread_t server;
    pthread_create(&server, 0, serve, 0);
    usleep(20000);
    if (mlock(area, 4096)) return 3;
    pthread_join(server, 0);
    return area[0] == 7 ? 0 : 4;
}
