/* A file for gcc -O2: a little of everything that an optimiser looks at. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct point {
    double x, y;
};

static int by_x(const void *a, const void *b)
{
    const struct point *p = a, *q = b;
    return (p->x > q->x) - (p->x < q->x);
}

int main(void)
{
    enum { N = 1000 };
    struct point *points = calloc(N, sizeof *points);
    if (!points)
        return 1;
    for (int i = 0; i < N; i++)
        points[i] = (struct point){ .x = (i * 7919) % N, .y = i };
    qsort(points, N, sizeof *points, by_x);
    char text[64];
    snprintf(text, sizeof text, "%g %g", points[0].x, points[N - 1].x);
    puts(strcmp(text, "0 999") ? "wrong" : "right");
    free(points);
    return 0;
}
