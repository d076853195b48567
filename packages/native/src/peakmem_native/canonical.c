/* The search of peakmem.arena.canonical, compiled: the same nodes in the same order, so the same answer for the same budget.
 *
 * Read that first; it says what is done and why it is sound. Here an entry of a list is an item's place in its
 * part's preorder, shifted, with the item's number below it: comparing entries compares places. */

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(_WIN32)
#define API __declspec(dllexport)
#else
#define API __attribute__((visibility("default")))
#endif

typedef int64_t i64;
enum { REFUTED, FOUND, OPEN, NO_MEMORY };
enum { PULSE = 1 << 14 }; /* nodes between two questions whether to stop */

#define ITEM(entry) ((entry) & 0xffffffff)

typedef struct {
    const i64 *size, *begin, *end, *first_near, *near, *rank;
    i64 by_total, capacity, nodes;
    int (*stop)(void);
    i64 *least, *offsets;     /* of each item */
    i64 *floor, *total;       /* of each section; between two calls they hold nothing */
    i64 *weight;              /* of each item, while its part is sorted */
    i64 *raised, *before;     /* items whose least offset was raised, and what it was: undone on the way back */
    i64 trail;
    i64 *lists, top;          /* lists of all open nodes, one behind the other */
    char *placed;
} Search;

static int part(Search *s, i64 *list, i64 count, i64 offset);
static int node(Search *s, const i64 *list, i64 count, i64 offset, i64 last, i64 from, i64 to);

static int split(Search *s, i64 *list, i64 count, i64 offset, i64 last, i64 from, i64 to)
{
    i64 *open = s->total, *used = s->floor, *ranges = s->lists + s->top, parts = 0, crossing = 0, begun = -1;
    int answer = FOUND;
    if (!count)
        return FOUND;
    memset(open + from, 0, (size_t)(to - from) * sizeof *open);
    memset(used + from, 0, (size_t)(to - from) * sizeof *used);
    for (i64 k = 0; k < count; k++) {
        i64 u = ITEM(list[k]);
        open[s->begin[u]]++;
        open[s->end[u] - 1]--;
        used[s->begin[u]] = 1;
    }
    for (i64 t = from; t < to; t++) {
        crossing += open[t];
        if (begun < 0 && used[t])
            begun = t;
        if (begun >= 0 && !crossing) {
            ranges[2 * parts] = begun;
            ranges[2 * parts + 1] = t + 1;
            parts++;
            begun = -1;
        }
    }
    if (parts == 1)
        return node(s, list, count, offset, last, ranges[0], ranges[1]);
    s->top += 2 * parts;
    for (i64 p = 0; p < parts && answer == FOUND; p++) {
        i64 *members = s->lists + s->top, n = 0;
        for (i64 k = 0; k < count; k++) {
            i64 u = ITEM(list[k]);
            if (ranges[2 * p] <= s->begin[u] && s->begin[u] < ranges[2 * p + 1])
                members[n++] = u;
        }
        s->top += n;
        answer = part(s, members, n, offset);
        s->top -= n;
    }
    s->top -= 2 * parts;
    return answer;
}

static int part(Search *s, i64 *list, i64 count, i64 offset)
{
    i64 from = INT64_MAX, to = 0;
    for (i64 k = 0; k < count; k++) {
        i64 u = list[k];
        if (s->begin[u] < from)
            from = s->begin[u];
        if (s->end[u] > to)
            to = s->end[u];
    }
    memset(s->total + from, 0, (size_t)(to - from) * sizeof *s->total);
    for (i64 k = 0; k < count; k++)
        for (i64 t = s->begin[list[k]]; t < s->end[list[k]]; t++)
            s->total[t] += s->size[list[k]];
    for (i64 k = 0; k < count; k++) {
        i64 u = list[k], fullest = 0;
        for (i64 t = s->begin[u]; s->by_total && t < s->end[u]; t++)
            if (s->total[t] > fullest)
                fullest = s->total[t];
        s->weight[u] = fullest;
    }
    for (i64 k = 1; k < count; k++) { /* nearly sorted from the part above */
        i64 u = list[k], j = k;
        for (; j; j--) {
            i64 v = list[j - 1];
            if (s->weight[v] > s->weight[u] || (s->weight[v] == s->weight[u] && s->rank[v] < s->rank[u]))
                break;
            list[j] = v;
        }
        list[j] = u;
    }
    for (i64 k = 0; k < count; k++)
        list[k] |= k << 32;
    return node(s, list, count, offset, -1, from, to);
}

static int node(Search *s, const i64 *list, i64 count, i64 offset, i64 last, i64 from, i64 to)
{
    i64 *choices = s->lists + s->top, *rest, n = 0, chosen = 0, height = INT64_MAX;
    int answer = REFUTED;
    if (s->nodes <= 0 || (s->nodes % PULSE == 0 && s->stop()))
        return OPEN;
    s->nodes--;
    for (i64 t = from; t < to; t++) {
        s->floor[t] = INT64_MAX;
        s->total[t] = 0;
    }
    for (i64 k = 0; k < count; k++) {
        i64 u = ITEM(list[k]), low = s->least[u], size = s->size[u];
        if (low + size < height)
            height = low + size;
        if (low < offset || (low == offset && list[k] < last)) { /* passed over: rests on one that is still to come */
            i64 e = s->first_near[u], support;
            while (e < s->first_near[u + 1] && s->placed[s->near[e]])
                e++;
            if (e == s->first_near[u + 1])
                return REFUTED;
            support = offset + s->size[s->near[e]];
            if (support > low)
                low = support;
        } else {
            choices[n++] = list[k];
        }
        for (i64 t = s->begin[u]; t < s->end[u]; t++) {
            s->total[t] += size;
            if (low < s->floor[t])
                s->floor[t] = low;
        }
    }
    for (i64 t = from; t < to; t++)
        if (s->total[t] && s->floor[t] > s->capacity - s->total[t])
            return REFUTED;
    for (i64 k = 0; k < n; k++) { /* keep the undominated ones, lowest first, ties in preorder */
        i64 entry = choices[k], low = s->least[ITEM(entry)], j;
        if (low >= height)
            continue;
        for (j = chosen++; j && s->least[ITEM(choices[j - 1])] > low; j--)
            choices[j] = choices[j - 1];
        choices[j] = entry;
    }
    rest = choices + chosen;
    s->top += chosen + count - 1;
    for (i64 k = 0; k < chosen && answer == REFUTED; k++) {
        i64 x = ITEM(choices[k]), at = s->least[x], top = at + s->size[x], mark = s->trail, n_rest = 0;
        int hatless = 1;
        s->placed[x] = 1;
        for (i64 e = s->first_near[x]; e < s->first_near[x + 1]; e++) {
            i64 u = s->near[e];
            if (s->placed[u])
                continue;
            hatless = 0;
            if (s->least[u] < top) {
                s->raised[s->trail] = u;
                s->before[s->trail++] = s->least[u];
                s->least[u] = top;
            }
        }
        for (i64 q = 0; q < count; q++)
            if (list[q] != choices[k])
                rest[n_rest++] = list[q];
        answer = split(s, rest, n_rest, at, choices[k], from, to);
        while (s->trail > mark) {
            s->trail--;
            s->least[s->raised[s->trail]] = s->before[s->trail];
        }
        s->placed[x] = 0;
        if (answer == FOUND)
            s->offsets[x] = at;
        if (hatless)
            break;
    }
    s->top -= chosen + count - 1;
    return answer;
}

/* All items are one part. They are numbered from 0; `near` holds the neighbours of item i from first_near[i] to first_near[i + 1], smallest
 * first. `nodes` is the budget and, on return, what is left of it. `offsets` is written when the answer is FOUND. */
API int peakmem_canonical_search(i64 items, i64 sections, const i64 *size, const i64 *begin, const i64 *end,
                                 const i64 *first_near, const i64 *near, const i64 *rank, i64 by_total, i64 capacity,
                                 i64 *nodes, i64 *offsets, int (*stop)(void))
{
    size_t n = (size_t)items, m = (size_t)sections, pairs = (size_t)first_near[items];
    Search s = {size, begin, end, first_near, near, rank, by_total, capacity, *nodes, stop};
    /* One part's lists: each open node keeps its choices and its rest, each split its ranges and its parts. */
    size_t deep = n * (n + 1) + 2 * n * n + 4 * n + 2 * m + 1;
    i64 *block = malloc((4 * n + 2 * m + 2 * pairs + deep) * sizeof *block);
    int answer = NO_MEMORY;
    s.placed = calloc(n + 1, 1);
    if (block && s.placed) {
        s.offsets = offsets;
        s.least = block;
        s.weight = s.least + n;
        s.floor = s.weight + n;
        s.total = s.floor + m;
        s.raised = s.total + m;
        s.before = s.raised + pairs;
        s.lists = s.before + pairs;
        memset(s.least, 0, n * sizeof *s.least);
        for (i64 k = 0; k < items; k++)
            s.lists[k] = k;
        s.top = items;
        answer = part(&s, s.lists, items, 0);
        *nodes = s.nodes;
    }
    free(block);
    free(s.placed);
    return answer;
}
