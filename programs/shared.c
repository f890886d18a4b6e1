/* Checks System V shared memory: keys, attachments, removal, IPC_STAT; and rare calls on maps:
 * remap_file_pages and protection keys. */
#include "test.h"
#include <sys/ipc.h>
#include <sys/shm.h>

static struct shmid_ds stat_of(int id)
{
	struct shmid_ds status;
	OK(shmctl(id, IPC_STAT, &status));
	return status;
}

static void keys(void)
{
	key_t key = 0x53410000 | (getpid() & 0xffff);
	ERR(shmget(key, PAGE, 0600), ENOENT);
	int id = OK(shmget(key, 3 * PAGE + 1, IPC_CREAT | IPC_EXCL | 0640));
	EQ(shmget(key, 0, 0), id);
	EQ(shmget(key, PAGE, IPC_CREAT), id);
	ERR(shmget(key, PAGE, IPC_CREAT | IPC_EXCL), EEXIST);
	ERR(shmget(key, 4 * PAGE, 0), EINVAL);
	ERR(shmget(IPC_PRIVATE, 0, IPC_CREAT | 0600), EINVAL);
	struct shmid_ds status = stat_of(id);
	EQ(status.shm_segsz, 3 * PAGE + 1);
	EQ(status.shm_perm.mode & 0777, 0640);
	EQ(status.shm_perm.__key, key);
	EQ(status.shm_cpid, getpid());
	EQ(status.shm_nattch, 0);
	EQ(status.shm_atime, 0);
	status.shm_perm.mode = 0600;
	status.shm_perm.uid = 12;
	OK(shmctl(id, IPC_SET, &status));
	EQ(stat_of(id).shm_perm.mode & 0777, 0600);
	EQ(stat_of(id).shm_perm.uid, 12);
	OK(shmctl(id, IPC_RMID, NULL));
	ERR(shmctl(id, IPC_STAT, &status), EINVAL);
	ERR(shmget(key, 0, 0), ENOENT);
	ERR((long)shmat(id, NULL, 0), EINVAL);
	ERR(shmctl(-1, IPC_STAT, &status), EINVAL);
	ERR(shmctl(id, 77, &status), EINVAL);
}

static void attachments(void)
{
	int id = OK(shmget(IPC_PRIVATE, 4 * PAGE, IPC_CREAT | 0600));
	char *one = shmat(id, NULL, 0), *other = shmat(id, NULL, SHM_RDONLY);
	CHECK(one != (char *)-1 && other != (char *)-1 && one != other);
	strcpy(one + PAGE, "shared");
	EQ(strcmp(other + PAGE, "shared"), 0);
	EQ(mprotect(other, PAGE, PROT_READ | PROT_WRITE), -1);
	EQ(errno, EACCES);
	struct shmid_ds status = stat_of(id);
	EQ(status.shm_nattch, 2);
	EQ(status.shm_lpid, getpid());
	CHECK(status.shm_atime > 0);
	pid_t pid = OK(fork());
	if (pid == 0) {
		EQ(stat_of(id).shm_nattch, 4);
		strcpy(one + 2 * PAGE, "child");
		OK(shmdt(other));
		EQ(stat_of(id).shm_nattch, 3);
		_exit(0);
	}
	exits_with(pid, 0);
	EQ(strcmp(one + 2 * PAGE, "child"), 0);
	EQ(stat_of(id).shm_nattch, 2);
	OK(shmdt(other));
	ERR(shmdt(other), EINVAL);
	ERR(shmdt(one + 1), EINVAL);
	CHECK(stat_of(id).shm_dtime > 0);
	/* At an address. */
	EQ((long)shmat(id, other, 0), (long)other);
	ERR((long)shmat(id, other, 0), EINVAL);
	EQ((long)shmat(id, other + 5, SHM_RND | SHM_REMAP), (long)other);
	ERR((long)shmat(id, other + 5, 0), EINVAL);
	ERR((long)shmat(id, NULL, SHM_REMAP), EINVAL);
	OK(shmdt(other));
	/* A part is unmapped; the rest is detached. */
	OK(munmap(one + PAGE, PAGE));
	EQ(stat_of(id).shm_nattch, 2);
	/* Removed, and still there for those that have it. */
	OK(shmctl(id, IPC_RMID, NULL));
	CHECK(stat_of(id).shm_perm.mode & 01000 /* SHM_DEST */);
	other = shmat(id, NULL, 0);
	CHECK(other != (char *)-1);
	EQ(strcmp(other + 2 * PAGE, "child"), 0);
	OK(shmdt(other));
	OK(shmdt(one));
	ERR(shmctl(id, IPC_STAT, &status), EINVAL);
}

static void rare(void)
{
	int fd = OK(syscall(SYS_memfd_create, "rare", 0));
	OK(ftruncate(fd, 4 * PAGE));
	char *area = mmap(NULL, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	CHECK(area != MAP_FAILED);
	for (int i = 0; i < 4; i++)
		area[i * PAGE] = 'a' + i;
	OK(syscall(SYS_remap_file_pages, area, PAGE, 0, 3, 0));
	EQ(area[0], 'd');
	EQ(area[PAGE], 'b');
	ERR(syscall(SYS_remap_file_pages, area, PAGE, 1, 3, 0), EINVAL);
	ERR(syscall(SYS_remap_file_pages, area, 0, 0, 3, 0), EINVAL);
	ERR(syscall(SYS_remap_file_pages, area, PAGE, 0, -1L, 0), EINVAL);
	char *private = map(PAGE, PROT_READ, MAP_PRIVATE);
	ERR(syscall(SYS_remap_file_pages, private, PAGE, 0, 0, 0), EINVAL);
	/* A CPU may have no keys. */
	ERR(syscall(SYS_pkey_alloc, 1, 0), EINVAL);
	ERR(syscall(SYS_pkey_alloc, 0, 8), EINVAL);
	int key = syscall(SYS_pkey_alloc, 0, 0);
	CHECK(key > 0 || errno == ENOSPC || errno == EINVAL);
	ERR(syscall(SYS_pkey_free, 15), EINVAL);
	OK(syscall(SYS_pkey_mprotect, private, PAGE, PROT_READ | PROT_WRITE, -1));
	*private = 1;
	ERR(syscall(SYS_pkey_mprotect, private, PAGE, PROT_READ, 15), EINVAL);
	close(fd);
}

int main(void)
{
	keys();
	attachments();
	rare();
	printf("shared: segments, attachments and removal as they should be\n");
	return 0;
}
