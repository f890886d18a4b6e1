/* Checks that a program starts: arguments, environment, auxiliary vector, standard output. */
#include "test.h"
#include <sys/auxv.h>

static int initialised = 42;
static int zeroed[5000];
static __thread int local = 7;

int main(int argc, char **argv, char **environment)
{
	CHECK(argc >= 1 && argv[0] != NULL && argv[argc] == NULL);
	CHECK(environment != NULL);
	EQ(getauxval(AT_PAGESZ), PAGE);
	CHECK(getauxval(AT_PHDR) != 0 && getauxval(AT_ENTRY) != 0 && getauxval(AT_RANDOM) != 0);
	EQ(initialised, 42);
	EQ(local, 7);
	for (int i = 0; i < 5000; i++)
		EQ(zeroed[i], 0);
	/* The ABI asks for a stack that is aligned to 16 bytes. */
	_Alignas(16) char aligned[16];
	EQ((uintptr_t)aligned % 16, 0);
	char *copy = malloc(100000);
	CHECK(copy != NULL);
	memset(copy, 'x', 100000);
	EQ(copy[99999], 'x');
	free(copy);
	CHECK(getpid() > 0 && getppid() >= 0);
	printf("hello: %d arguments\n", argc);
	return 0;
}
