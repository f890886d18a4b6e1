"""Imports much of the standard library, then a pool of processes that share memory."""
import ctypes, decimal, email, hashlib, json, mmap, sqlite3, ssl, xml.dom.minidom  # noqa: F401,E401
import multiprocessing
from multiprocessing import shared_memory


def work(n):
    return hashlib.sha256(bytes(n * 1000)).hexdigest()[:4], sum(range(n))


if __name__ == "__main__":
    multiprocessing.set_start_method("fork")
    with multiprocessing.Pool(4) as pool:
        results = pool.map(work, range(100))
    assert results[99][1] == 4851
    block = shared_memory.SharedMemory(create=True, size=1 << 20)
    block.buf[0] = 7
    child = multiprocessing.Process(target=lambda: exit(block.buf[0]))
    child.start()
    child.join()
    assert child.exitcode == 7
    block.close()
    block.unlink()
    with mmap.mmap(-1, 1 << 16, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as anonymous:
        anonymous.resize(1 << 18)
        anonymous[-1] = 1
