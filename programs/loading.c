/* Checks execve of each kind of file: scripts, programs with an interpreter, and files that are
 * neither. Each file is written here. The small programs are ELF files of one segment, whose code
 * exits with a status. Linked dynamically, it also checks where its own interpreter is. */
#include "test.h"
#include <dirent.h>
#include <elf.h>
#include <sys/auxv.h>
#include <sys/stat.h>

static char self[4096], folder[] = "/tmp/loadingXXXXXX";
static char *const nothing[] = {NULL};

static char *path(const char *name)
{
	static char paths[8][64];
	static int next;
	char *path = paths[next++ % 8];
	snprintf(path, sizeof paths[0], "%s/%s", folder, name);
	return path;
}

static char *write_file(const char *name, const void *data, size_t length)
{
	char *at = path(name);
	unlink(at);
	int fd = OK(open(at, O_WRONLY | O_CREAT, 0755));
	EQ(write(fd, data, length), length);
	OK(close(fd));
	return at;
}

static char *script(const char *name, const char *format, ...)
{
	char text[8192];
	va_list list;
	va_start(list, format);
	int length = vsnprintf(text, sizeof text, format, list);
	va_end(list);
	return write_file(name, text, length);
}

/* The status of a child that executes the file, which fails with `error`. 0: it must succeed. */
static int execute(const char *path, char *const *arguments, int error)
{
	int status;
	pid_t pid = fork();
	if (pid == 0) {
		execve(path, arguments, nothing);
		int found = errno;
		if (found != error)
			differs(__FILE__, __LINE__, "execve of %s fails with %d, not %d", path, found,
				error);
		_exit(99);
	}
	EQ(waitpid(pid, &status, 0), pid);
	return status;
}

static void fails(const char *path, int error)
{
	EQ(execute(path, (char *[]){"x", NULL}, error), 99 << 8);
}

static void exits(const char *path, int expected)
{
	EQ(execute(path, (char *[]){"x", NULL}, 0), expected << 8);
}

/* In the child: the arguments that the script named, whose name is that of the thread. */
static int shown(int argc, char **argv)
{
	char name[32], link[4096];
	int fd = OK(open("/proc/self/comm", O_RDONLY));
	name[OK(read(fd, name, sizeof name - 1)) - 1] = 0;
	link[OK(readlink("/proc/self/exe", link, sizeof link - 1))] = 0;
	if (strcmp(link, self) || strcmp(argv[0], self))
		return 50;
	if (!strcmp(argv[1], ":one"))
		return argc == 3 && !strcmp(name, "one") ? 11 : 51;
	if (!strcmp(argv[1], ":two \t words"))
		return argc == 5 && !strcmp(strrchr(argv[2], '/'), "/two") && !strcmp(argv[3], "a")
				       && !strcmp(argv[4], "b c")
			       ? 12
			       : 52;
	if (!strcmp(argv[1], ":nested"))
		return argc == 7 && !strcmp(name, "nested4") ? 13 : 53;
	return 54;
}

static void scripts(void)
{
	char *const arguments[] = {"ignored", "a", "b c", NULL};
	exits(script("one", "#!%s :one\n", self), 11);
	exits(script("one", "#! \t%s \t:one \t\necho", self), 11);
	exits(script("one", "#!%s :one", self), 11);
	EQ(execute(script("two", "#!%s   :two \t words   \n", self), arguments, 0), 12 << 8);
	/* No argument 0 becomes one for the script. */
	EQ(execute(script("one", "#!%s :one\n", self), nothing, 0), 11 << 8);
	/* Scripts of scripts: five, and no more. */
	script("nested0", "#!%s :nested\n", self);
	for (int depth = 1; depth <= 5; depth++) {
		char name[] = "nested0", before[] = "nested0";
		name[6] += depth;
		before[6] += depth - 1;
		script(name, "#!%s\n", path(before));
	}
	exits(path("nested4"), 13);
	fails(path("nested5"), ELOOP);
	fails(script("circle", "#!%s\n", path("circle")), ELOOP);

	fails(script("none", "#!\n"), ENOEXEC);
	fails(script("none", "#! \t \n%s", self), ENOEXEC);
	fails(script("none", "#!"), EACCES);
	fails(script("none", "#"), ENOEXEC);
	fails(script("none", "%s", ""), ENOEXEC);
	fails(script("missing", "#!/nowhere/sh\n"), ENOENT);
	fails(script("return", "#!%s\r\n", self), ENOENT);
	fails(script("folder", "#!%s\n", folder), EACCES);
	fails(script("under", "#!%s/x\n", self), ENOTDIR);
	chmod(script("plain", "#!%s :one\n", self), 0644);
	fails(path("plain"), EACCES);
	fails(script("one", "#!%s\n", path("plain")), EACCES);
	fails(script("one", "#!%s\n", write_file("data", "data", 4)), ENOEXEC);
	/* A name that may go on behind the part that is read; an argument that does. */
	char long_name[400];
	memset(long_name, 'x', sizeof long_name - 1);
	long_name[sizeof long_name - 1] = 0;
	fails(script("long", "#!/%s\n", long_name), ENOEXEC);
	exits(script("long", "#!%s %s\n", self, long_name), 54);
	/* A script that is open for writing. */
	int fd = OK(open(script("one", "#!%s :one\n", self), O_WRONLY));
	fails(path("one"), ETXTBSY);
	close(fd);
	exits(path("one"), 11);
}

/* An ELF file with a segment for all of it, and a name of an interpreter. */
struct file {
	Elf64_Ehdr header;
	Elf64_Phdr segments[3];
	char name[128];
	unsigned char code[16];
};

/* A file whose code exits with the status. Without an interpreter, the last segment is none. */
static struct file elf(int type, int status, const char *interpreter)
{
	/* mov $status, %edi; mov $60, %eax; syscall */
	unsigned char code[] = {0xbf, status, 0, 0, 0, 0xb8, 60, 0, 0, 0, 0x0f, 0x05};
	unsigned long base = type == ET_EXEC ? 0x400000 : 0;
	struct file file = {
		.header = {.e_ident = {0x7f, 'E', 'L', 'F', ELFCLASS64, ELFDATA2LSB, EV_CURRENT},
			   .e_type = type, .e_machine = EM_X86_64, .e_version = EV_CURRENT,
			   .e_entry = base + offsetof(struct file, code),
			   .e_phoff = offsetof(struct file, segments), .e_ehsize = sizeof file.header,
			   .e_phentsize = sizeof(Elf64_Phdr), .e_phnum = 3},
		.segments = {{.p_type = PT_LOAD, .p_flags = PF_R | PF_X, .p_vaddr = base,
			      .p_filesz = sizeof file, .p_memsz = sizeof file, .p_align = PAGE}},
	};
	memcpy(file.code, code, sizeof code);
	if (interpreter) {
		snprintf(file.name, sizeof file.name, "%s", interpreter);
		file.segments[1] = (Elf64_Phdr){.p_type = PT_INTERP, .p_flags = PF_R,
			.p_offset = offsetof(struct file, name), .p_filesz = strlen(interpreter) + 1};
	}
	return file;
}

static char *write_elf(const char *name, struct file file)
{
	return write_file(name, &file, sizeof file);
}

/* Linux notices some contradictions only when the old program is gone, and kills the process. */
static void does_not_run(const char *name, struct file file)
{
	write_elf(name, file);
	int status = execute(path(name), (char *[]){"x", NULL}, ENOEXEC);
	if (status != 99 << 8 && !WIFSIGNALED(status))
		differs(__FILE__, __LINE__, "%s ends with status 0x%x", name, status);
}

static void killed(const char *name, struct file file, int signal)
{
	write_elf(name, file);
	EQ(execute(path(name), (char *[]){"x", NULL}, 0), signal);
}

static void interpreters(void)
{
	for (int type = ET_EXEC; type <= ET_DYN; type++) {
		exits(write_elf("program", elf(type, 21, NULL)), 21);
		char *linker = write_elf("linker", elf(ET_DYN, 22, NULL));
		exits(write_elf("program", elf(type, 21, linker)), 22);
		/* The interpreter of an interpreter is not looked for. */
		write_elf("linker", elf(ET_DYN, 23, "/nowhere/linker"));
		exits(path("program"), 23);
		write_elf("linker", elf(type == ET_DYN ? ET_EXEC : ET_DYN, 24, NULL));
		exits(path("program"), 24);
	}
	/* A script may name such a program. */
	exits(script("one", "#!%s\n", path("program")), 24);

	struct file bad = elf(ET_DYN, 22, NULL);
	char *linker = path("linker");
	unlink(linker);
	fails(path("program"), ENOENT);
	write_file("linker", "not a linker, and long enough for a header of an ELF file: 64 bytes", 67);
	fails(path("program"), ELIBBAD);
	write_file("linker", &bad, 63);
	fails(path("program"), EIO);
	write_file("linker", &bad, 100);
	fails(path("program"), ELIBBAD);
	bad.header.e_machine = EM_AARCH64;
	write_elf("linker", bad);
	fails(path("program"), ELIBBAD);
	script("linker", "#!%s\nfrom here on only to make this file longer than 64 bytes", self);
	fails(path("program"), ELIBBAD);
	write_elf("linker", elf(ET_DYN, 22, NULL));
	OK(chmod(linker, 0644));
	fails(path("program"), EACCES);
	OK(chmod(linker, 0755));
	int fd = OK(open(linker, O_WRONLY));
	fails(path("program"), ETXTBSY);
	OK(close(fd));
	exits(path("program"), 22);
	fails(write_elf("program", elf(ET_DYN, 21, folder)), EACCES);
	fails(write_elf("program", elf(ET_DYN, 21, "")), ENOEXEC);
	/* A relative path counts from the working directory. */
	write_elf("program", elf(ET_DYN, 21, "linker"));
	OK(chdir(folder));
	exits(path("program"), 22);
	OK(chdir("/"));
	fails(path("program"), ENOENT);
	bad = elf(ET_DYN, 21, linker);
	bad.segments[1].p_filesz--;
	fails(write_elf("program", bad), ENOEXEC);
	bad.segments[1].p_filesz = 4097;
	fails(write_elf("program", bad), ENOEXEC);
	bad.segments[1].p_filesz = ~0UL;
	fails(write_elf("program", bad), ENOEXEC);
	bad = elf(ET_DYN, 21, linker);
	bad.segments[1].p_offset = sizeof bad - 4;
	fails(write_elf("program", bad), EIO);
}

static void damaged(void)
{
	struct file good = elf(ET_EXEC, 21, NULL), bad;
	for (size_t length = 0; length < offsetof(struct file, name); length += 8) {
		write_file("program", &good, length);
		fails(path("program"), ENOEXEC);
	}
	bad = good;
	bad.header.e_machine = EM_AARCH64;
	fails(write_elf("program", bad), ENOEXEC);
	bad = good;
	bad.header.e_type = ET_REL;
	fails(write_elf("program", bad), ENOEXEC);
	bad = good;
	bad.header.e_phentsize = 57;
	fails(write_elf("program", bad), ENOEXEC);
	bad = good;
	bad.header.e_phnum = 0;
	fails(write_elf("program", bad), ENOEXEC);
	bad.header.e_phnum = 0xffff;
	fails(write_elf("program", bad), ENOEXEC);
	bad = good;
	bad.header.e_phoff = ~0UL - 64;
	fails(write_elf("program", bad), ENOEXEC);
	bad = good;
	/* Of segments that overlap, the later one counts: here one of zeros. */
	bad.segments[1] = bad.segments[0];
	exits(write_elf("program", bad), 21);
	bad.segments[1].p_filesz = 0;
	killed("program", bad, SIGSEGV);
	bad = good;
	bad.segments[0].p_vaddr = 0x7ffffffff000;
	does_not_run("program", bad);
	bad.segments[0].p_vaddr = 0xffff800000000000;
	does_not_run("program", bad);
	bad = good;
	bad.segments[0].p_memsz = ~0UL - PAGE;
	does_not_run("program", bad);
	bad = good;
	bad.segments[0].p_memsz = 1;
	does_not_run("program", bad);
	bad = good;
	bad.segments[0].p_offset = 1;
	does_not_run("program", bad);
	exits(write_elf("program", good), 21);
}

/* The mapping that contains an address: its path. */
static const char *mapped(unsigned long address)
{
	static char line[4096];
	FILE *maps = fopen("/proc/self/maps", "r");
	CHECK(maps);
	while (fgets(line, sizeof line, maps)) {
		unsigned long start, end;
		EQ(sscanf(line, "%lx-%lx", &start, &end), 2);
		if (start <= address && address < end) {
			fclose(maps);
			line[strcspn(line, "\n")] = 0;
			return strchr(line, '/') ? strchr(line, '/') : "";
		}
	}
	differs(__FILE__, __LINE__, "0x%lx is not mapped", address);
	return NULL;
}

static void own_interpreter(void)
{
	unsigned long base = getauxval(AT_BASE);
	EQ(strcmp(mapped(getauxval(AT_ENTRY)), self), 0);
	EQ(strcmp(mapped(getauxval(AT_PHDR)), self), 0);
	const Elf64_Phdr *segment = (void *)getauxval(AT_PHDR);
	int dynamic = 0;
	for (unsigned long i = 0; i < getauxval(AT_PHNUM); i++)
		dynamic |= segment[i].p_type == PT_INTERP;
	if (!dynamic) {
		EQ(base, 0);
		return;
	}
	EQ(memcmp((void *)base, ELFMAG, SELFMAG), 0);
	CHECK(strstr(mapped(base), "ld-") || strstr(mapped(base), "libc"));
	CHECK(strstr(mapped((unsigned long)getenv), "libc"));
	CHECK(base > getauxval(AT_ENTRY) && base < (unsigned long)&base);
}

static void clean(void)
{
	DIR *all = opendir(folder);
	CHECK(all);
	for (struct dirent *entry; (entry = readdir(all));)
		if (entry->d_name[0] != '.')
			OK(unlink(path(entry->d_name)));
	closedir(all);
	OK(rmdir(folder));
}

int main(int argc, char **argv)
{
	self[OK(readlink("/proc/self/exe", self, sizeof self - 1))] = 0;
	if (argc > 1 && argv[1][0] == ':')
		return shown(argc, argv);
	if (argc > 1 && argv[1][0] == 'x')
		return 54;
	CHECK(mkdtemp(folder));
	own_interpreter();
	scripts();
	interpreters();
	damaged();
	clean();
	printf("loading: scripts, interpreters and damaged files as they should be\n");
	return 0;
}
