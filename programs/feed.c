/* Runs programs of a file by the interpreter of the pages oracle: `feed FILE INTERPRETER`. Gives
 * it one program at a time, and prints each step with the answer. programs/check compares the
 * output with that of the Linux that runs it. */
#include "test.h"

/* A program is shorter than a pipe holds, so a write never waits for the answers. */
static char text[1 << 15], line[1 << 15];

int main(int argc, char **argv)
{
	int steps[2], answers[2];
	long programs = 0, count = 0;
	if (argc != 3)
		differs(__FILE__, __LINE__, "feed FILE INTERPRETER");
	FILE *file = fopen(argv[1], "r");
	CHECK(file);
	OK(pipe(steps));
	OK(pipe(answers));
	pid_t pid = OK(fork());
	if (pid == 0) {
		OK(dup2(steps[0], 0));
		OK(dup2(answers[1], 1));
		for (int i = 0; i < 2; i++)
			close(steps[i]), close(answers[i]);
		execl(argv[2], argv[2], NULL);
		_exit(127);
	}
	close(steps[0]), close(answers[1]);
	FILE *from = fdopen(answers[0], "r");
	size_t length = 0;
	while (fgets(text + length, sizeof text - length, file)) {
		int is_end = !strcmp(text + length, "end\n");
		length += strlen(text + length);
		CHECK(length < sizeof text - 200);
		if (!is_end)
			continue;
		EQ(write(steps[1], text, length), length);
		for (char *step = text; strcmp(step, "end\n"); step = strchr(step, '\n') + 1) {
			if (!fgets(line, sizeof line, from))
				differs(__FILE__, __LINE__, "program %ld: no answer to %.*s", programs,
					(int)strcspn(step, "\n"), step);
			printf("%ld: %.*s: %s", programs, (int)strcspn(step, "\n"), step, line);
			count++;
		}
		programs++;
		length = 0;
		memset(text, 0, sizeof text);
	}
	close(steps[1]);
	exits_with(pid, 0);
	printf("feed: %ld steps\n", count);
	return 0;
}
