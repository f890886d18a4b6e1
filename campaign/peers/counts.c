/* A plugin of QEMU that counts the instructions of a machine, those of the kernel (upper half of
 * the addresses) and those of programs, between two marks of a program.
 *
 *   -plugin counts.so,out=FILE[,profile=FILE][,turn=INSTRUCTIONS]
 *
 * Where instructions count, QEMU runs one CPU after the other, each until the next timer is due.
 * `turn` makes their turns short, so that several CPUs go on side by side: a CPU that waits in the
 * kernel's idle loop gives up its turn.
 *
 * A mark is the instruction `nopl MARK + N`, which does nothing: see start.c. At each, FILE gets a
 * line of JSON with the counts so far. The profile has a line for each block of the kernel that ran
 * between the first mark and the last: its address, and how many instructions it ran.
 *
 * A block counts whole when it begins: one that a page fault cuts short counts a few instructions
 * too many. A repeated string instruction counts each turn. The declarations are those of version 1
 * of QEMU's interface, written from its documentation: Debian does not package the header. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))
#define UPPER_HALF (1ULL << 63)
enum { ADD_U64 = 0, NO_REGISTERS = 0, MARK_SIZE = 7, SLOTS = 1 << 20 };

struct qemu_plugin_tb;
struct qemu_plugin_insn;
typedef uint64_t id_t_;
void qemu_plugin_register_vcpu_tb_trans_cb(id_t_, void (*)(id_t_, struct qemu_plugin_tb *));
void qemu_plugin_register_vcpu_tb_exec_inline(struct qemu_plugin_tb *, int, void *, uint64_t);
void qemu_plugin_register_vcpu_tb_exec_cb(struct qemu_plugin_tb *, void (*)(unsigned, void *), int,
                                          void *);
void qemu_plugin_register_vcpu_insn_exec_cb(struct qemu_plugin_insn *,
                                            void (*)(unsigned, void *), int, void *);
size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *);
uint64_t qemu_plugin_tb_vaddr(const struct qemu_plugin_tb *);
struct qemu_plugin_insn *qemu_plugin_tb_get_insn(const struct qemu_plugin_tb *, size_t);
const void *qemu_plugin_insn_data(const struct qemu_plugin_insn *);
size_t qemu_plugin_insn_size(const struct qemu_plugin_insn *);

/* QEMU's own functions, which it exports for its modules. */
void *qemu_get_cpu(int);
void cpu_exit(void *);

EXPORT int qemu_plugin_version = 1;

/* A block of the kernel: the instructions that it ran, and those before the first mark. */
struct block {
	uint64_t address, count, before;
};

static uint64_t counts[2]; /* of programs, of the kernel */
static struct block blocks[SLOTS];
static FILE *out;
static const char *profile;
static int marks;
static long turn, left; /* of a CPU, in instructions */

/* The block of an address. Blocks beyond the room of the table share the last slot looked at. */
static struct block *block_of(uint64_t address)
{
	uint64_t at = (address * 0x9e3779b97f4a7c15ULL) >> 44;
	for (int i = 0; i < 64 && blocks[at].address && blocks[at].address != address; i++)
		at = (at + 1) % SLOTS;
	blocks[at].address = address;
	return &blocks[at];
}

static void write_profile(void)
{
	FILE *file = fopen(profile, "w");
	if (!file) {
		perror(profile);
		return;
	}
	for (int i = 0; i < SLOTS; i++)
		if (blocks[i].count > blocks[i].before)
			fprintf(file, "%" PRIx64 " %" PRIu64 "\n", blocks[i].address,
			        blocks[i].count - blocks[i].before);
	fclose(file);
}

static void marked(unsigned cpu, void *mark)
{
	(void)cpu;
	fprintf(out, "{\"mark\": %d, \"user\": %" PRIu64 ", \"kernel\": %" PRIu64 "}\n",
	        (int)(intptr_t)mark, counts[0], counts[1]);
	fflush(out);
	if (!profile)
		return;
	if (marks++)
		write_profile();
	else
		for (int i = 0; i < SLOTS; i++)
			blocks[i].before = blocks[i].count;
}

/* A block runs, of so many instructions. */
static void runs(unsigned cpu, void *length)
{
	left -= (intptr_t)length;
	if (left <= 0) {
		left = turn;
		cpu_exit(qemu_get_cpu(cpu));
	}
}

static void translated(id_t_ id, struct qemu_plugin_tb *tb)
{
	static const unsigned char mark[] = {0x0f, 0x1f, 0x80, 'M', 'A', 'R'};
	uint64_t address = qemu_plugin_tb_vaddr(tb);
	size_t length = qemu_plugin_tb_n_insns(tb);
	int kernel = address >= UPPER_HALF;
	(void)id;
	qemu_plugin_register_vcpu_tb_exec_inline(tb, ADD_U64, &counts[kernel], length);
	if (kernel && profile)
		qemu_plugin_register_vcpu_tb_exec_inline(tb, ADD_U64, &block_of(address)->count,
		                                         length);
	if (turn)
		qemu_plugin_register_vcpu_tb_exec_cb(tb, runs, NO_REGISTERS, (void *)(intptr_t)length);
	for (size_t i = 0; i < length && !kernel; i++) {
		struct qemu_plugin_insn *insn = qemu_plugin_tb_get_insn(tb, i);
		const unsigned char *bytes = qemu_plugin_insn_data(insn);
		if (qemu_plugin_insn_size(insn) == MARK_SIZE && !memcmp(bytes, mark, sizeof mark))
			qemu_plugin_register_vcpu_insn_exec_cb(insn, marked, NO_REGISTERS,
			                                       (void *)(intptr_t)bytes[6]);
	}
}

EXPORT int qemu_plugin_install(id_t_ id, const void *info, int argc, char **argv)
{
	(void)info;
	for (int i = 0; i < argc; i++) {
		if (!strncmp(argv[i], "out=", 4))
			out = fopen(argv[i] + 4, "w");
		else if (!strncmp(argv[i], "profile=", 8))
			profile = strdup(argv[i] + 8);
		else if (!strncmp(argv[i], "turn=", 5))
			turn = left = atol(argv[i] + 5);
	}
	if (!out) {
		fputs("counts: no file for counts: out=FILE names one that can be written\n", stderr);
		return 1;
	}
	qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
	return 0;
}
