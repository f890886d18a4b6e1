/* Shows that arguments, environment, both outputs and the exit code come through: prints its
 * arguments and its environment, a line of argv[2] bytes, and a line to standard error, and exits
 * with argv[1]. */
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv, char **environment)
{
	for (int i = 0; i < argc; i++)
		puts(argv[i]);
	for (; *environment; environment++)
		puts(*environment);
	for (long left = argc > 2 ? atol(argv[2]) : 0; left > 0; left--)
		putchar('x');
	putchar('\n');
	fputs("to standard error\n", stderr);
	return argc > 1 ? atoi(argv[1]) : 0;
}
