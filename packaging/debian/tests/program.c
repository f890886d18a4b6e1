/* Finds free space in a map, and reads it. The argument is the version that pkg-config knows. */
#include <samara_range.h>
#include <stdio.h>
#include <string.h>

int main(int argc, char **argv)
{
    static char text[] = "text", data[] = "data", stack[] = "stack";
    struct samara_tree *tree;
    struct samara_range range;
    uint64_t first;

    if (argc != 2 || strcmp(argv[1], samara_version()) != 0) {
        fprintf(stderr, "the library is of version %s\n", samara_version());
        return 1;
    }
    if (samara_tree_new(NULL, &tree) != 0)
        return 1;
    if (samara_tree_store(tree, 0x1000, 0x4fff, text) != 0)
        return 1;
    if (samara_tree_store(tree, 0x2000, 0x2fff, data) != 0) /* splits the first range */
        return 1;
    if (samara_tree_alloc_rev(tree, 0, 0xffff, 0x4000, 0x1000, stack, &first) != 0)
        return 1;
    printf("stack at %#llx\n", (unsigned long long)first);
    if (samara_read_lock() != 0 || samara_tree_lookup(tree, 0x3000, &range) != 0)
        return 1;
    printf("%#llx-%#llx %s\n", (unsigned long long)range.first, (unsigned long long)range.last,
           (const char *)range.entry);
    if (samara_read_unlock() != 0)
        return 1;
    return samara_tree_destroy(tree) == 0 ? 0 : 1;
}
