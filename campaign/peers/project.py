"""Writes a C project of so many files, each a few hundred lines with headers, and its Makefile.

The files are the same each time. Each has structures, tables, loops, branches and calls into its
two neighbours, and includes headers of libc, a common one and those of its neighbours. The program
prints one number, which depends on all files.
"""

FUNCTIONS = 6

COMMON = """#ifndef COMMON_H
#define COMMON_H
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

struct item {
\tuint32_t key, weight;
\tchar name[16];
\tstruct item *next;
};

static inline uint32_t mix(uint32_t a, uint32_t b)
{
\ta ^= b + 0x9e3779b9u + (a << 6) + (a >> 2);
\treturn a * 2654435761u;
}
#endif
"""

FUNCTION = """
static int compare_{f}(const void *a, const void *b)
{{
\tconst struct item *x = a, *y = b;
\tif (x->weight != y->weight)
\t\treturn x->weight < y->weight ? -1 : 1;
\treturn strcmp(x->name, y->name);
}}

uint32_t unit{n}_part{f}(uint32_t seed, int depth)
{{
\tstruct item items[{size}], *head = NULL;
\tuint32_t sum = seed;
\tfor (int i = 0; i < {size}; i++) {{
\t\titems[i].key = mix(seed, table_{f}[i % {length}]);
\t\titems[i].weight = items[i].key % {modulus};
\t\tsnprintf(items[i].name, sizeof items[i].name, "u{n}f{f}i%d", i);
\t\titems[i].next = head;
\t\thead = &items[i];
\t}}
\tqsort(items, {size}, sizeof *items, compare_{f});
\tfor (struct item *at = items; at < items + {size}; at++) {{
\t\tswitch (at->weight % 5) {{
\t\tcase 0:
\t\t\tsum = mix(sum, at->key);
\t\t\tbreak;
\t\tcase 1:
\t\t\tsum += at->key >> {shift};
\t\t\tbreak;
\t\tcase 2:
\t\t\tsum ^= (uint32_t)strlen(at->name) << {shift};
\t\t\tbreak;
\t\tdefault:
\t\t\tsum -= table_{f}[at->weight % {length}];
\t\t}}
\t}}
\tif (depth > 0)
\t\tsum = mix(sum, unit{other}_part{callee}(sum, depth - 1));
\treturn sum;
}}
"""

MAKEFILE = """CC = gcc
CFLAGS = -O1 -Wall -MMD
OBJECTS = {objects}

all: program
\t@set -e; ./program > result; cat result

program: $(OBJECTS)
\t@echo "  LD $@"
\t@set -e; $(CC) -o $@ $(OBJECTS)

%.o: %.c
\t@echo "  CC $@"
\t@set -e; $(CC) $(CFLAGS) -c -o $@ $<; test -s $@

-include $(OBJECTS:.o=.d)
"""


def write(folder, files=50):
    folder.mkdir(parents=True)
    (folder / "common.h").write_text(COMMON)
    for n in range(files):
        (folder / f"unit{n}.h").write_text(header(n))
        (folder / f"unit{n}.c").write_text(source(n, files))
    calls = "".join(f"\tsum = mix(sum, unit{n}_part0(sum, 20));\n" for n in range(files))
    includes = "".join(f'#include "unit{n}.h"\n' for n in range(files))
    (folder / "main.c").write_text(
        f'#include "common.h"\n{includes}\nint main(void)\n{{\n\tuint32_t sum = 1;\n{calls}'
        '\tprintf("%08x\\n", sum);\n\treturn 0;\n}\n')
    objects = " ".join(["main.o"] + [f"unit{n}.o" for n in range(files)])
    (folder / "Makefile").write_text(MAKEFILE.format(objects=objects))


def header(n):
    parts = "".join(f"uint32_t unit{n}_part{f}(uint32_t seed, int depth);\n"
                    for f in range(FUNCTIONS))
    return f'#ifndef UNIT{n}_H\n#define UNIT{n}_H\n#include "common.h"\n{parts}#endif\n'


def source(n, files):
    neighbours = [(n + 1) % files, (n + 7) % files]
    text = "".join(f'#include "unit{m}.h"\n' for m in [n, *neighbours])
    for f in range(FUNCTIONS):
        length = 8 + (n * 5 + f * 3) % 24
        values = [(n * 2654435761 + f * 40503 + i * 9176) % (1 << 32) for i in range(length)]
        rows = [", ".join(f"{value:#010x}" for value in values[i:i + 4]) + ","
                for i in range(0, length, 4)]
        body = "\n\t".join(rows)
        text += f"\nstatic const uint32_t table_{f}[] = {{\n\t{body}\n}};\n"
        text += FUNCTION.format(n=n, f=f, size=16 + (n + f) % 17, length=length,
                                modulus=97 + 2 * f, shift=1 + (n + f) % 13,
                                other=neighbours[f % 2], callee=(f * 5 + 1) % FUNCTIONS)
    return text
