// A 64-bit program that makes one harmless call and then one memory call through the 32-bit ABI.
#include <sys/mman.h>

static long call(long n) {
    long result;
    __asm__ volatile("int $0x80" : "=a"(result) : "a"(n), "b"(0L) : "memory", "r8", "r9", "r10", "r11");
    return result;
}

int main(void) {
    if (call(20) <= 0) return 1;
    mmap(0, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    call(45);
    mmap(0, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return 0;
}
