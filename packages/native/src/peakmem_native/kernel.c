/* The inner loops of peakmem's order search, for core to call through ctypes.
 *
 * peakmem.ordering.problem, .beam, .walk, .bounds and .cuts are the specification (of canonical.c beside it: peakmem.arena.canonical): for
 * the same input every function here gives
 * the same order and counts the same units of work, statement by statement. Integers only, no clock, no threads,
 * no state outside the handles; two handles may be used from two threads.
 */

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(_MSC_VER)
#include <intrin.h>
#define API __declspec(dllexport)
static int lowest(uint64_t x)
{
    unsigned long i;
    _BitScanForward64(&i, x);
    return (int)i;
}
#else
#if defined(_WIN32)
#define API __declspec(dllexport)
#else
#define API __attribute__((visibility("default")))
#endif
static int lowest(uint64_t x)
{
    return __builtin_ctzll(x);
}
#endif

#define ABI 5

enum { PAUSED, FOUND, NONE, NO_MEMORY };

API int32_t peakmem_abi(void)
{
    return ABI;
}

/* -- problems --------------------------------------------------------------------------------------------------- */

/* Rows in one array: row i of `x` is x[x_at[i]] to x[x_at[i + 1] - 1]. The arrays belong to the caller, who keeps them
 * as long as the problem is used. */
typedef struct {
    int32_t n, m;
    const int32_t *preds_at, *preds;
    const int32_t *succs_at, *succs;
    const int32_t *touched_at, *touched;
    const int32_t *touchers_at, *touchers;
    const int64_t *size;
    const uint8_t *entry, *pinned;
    const int64_t *workspace;
    const int32_t *gains_at, *gain_of;
    const int64_t *gain;
    int32_t mirrored;
    int64_t entry_bytes;
} Problem;

/* -- states ----------------------------------------------------------------------------------------------------- */

typedef struct {
    const Problem *problem;
    int32_t *born, *remaining, *missing, *path;
    uint64_t *ready; /* a set of statements, so that they are met in ascending order */
    int32_t length, ready_count, words;
    int64_t rest;
    /* Only where the order in which statements became ready is wanted: a ring of them, whose first is next[n]. */
    int32_t *next, *previous;
} State;

static void state_free(State *s)
{
    free(s->born);
    free(s->remaining);
    free(s->missing);
    free(s->path);
    free(s->ready);
    free(s->next);
    free(s->previous);
}

/* What is not allocated is left NULL; room for one at least, since malloc(0) may be NULL. */
static void *array(size_t count, size_t size)
{
    return calloc(count ? count : 1, size);
}

static int state_init(State *s, const Problem *p)
{
    s->problem = p;
    s->words = (p->n + 63) / 64;
    s->born = array(p->m, sizeof *s->born);
    s->remaining = array(p->m, sizeof *s->remaining);
    s->missing = array(p->n, sizeof *s->missing);
    s->path = array(p->n, sizeof *s->path);
    s->ready = array(s->words, sizeof *s->ready);
    s->length = s->ready_count = 0;
    s->rest = p->entry_bytes;
    s->next = s->previous = NULL;
    if (!s->born || !s->remaining || !s->missing || !s->path || !s->ready)
        return 0;
    for (int32_t b = 0; b < p->m; b++) {
        s->born[b] = p->entry[b];
        s->remaining[b] = p->touchers_at[b + 1] - p->touchers_at[b] + p->pinned[b];
    }
    for (int32_t v = 0; v < p->n; v++) {
        s->missing[v] = p->preds_at[v + 1] - p->preds_at[v];
        if (!s->missing[v]) {
            s->ready[v >> 6] |= (uint64_t)1 << (v & 63);
            s->ready_count++;
        }
    }
    return 1;
}

static int state_has(const State *s, int32_t v)
{
    return (int)(s->ready[v >> 6] >> (v & 63) & 1);
}

static void ready_add(State *s, int32_t v)
{
    s->ready[v >> 6] |= (uint64_t)1 << (v & 63);
    s->ready_count++;
    if (s->next) {
        int32_t end = s->problem->n, last = s->previous[end];
        s->next[last] = s->previous[end] = v;
        s->previous[v] = last;
        s->next[v] = end;
    }
}

static void ready_drop(State *s, int32_t v)
{
    s->ready[v >> 6] &= ~((uint64_t)1 << (v & 63));
    s->ready_count--;
    if (s->next) {
        s->next[s->previous[v]] = s->next[v];
        s->previous[s->next[v]] = s->previous[v];
    }
}

static void state_step(const State *s, int32_t v, int64_t *mem, int64_t *change)
{
    const Problem *p = s->problem;
    int64_t fresh = 0, gone = 0, saved = 0;
    for (int32_t i = p->touched_at[v]; i < p->touched_at[v + 1]; i++) {
        int32_t b = p->touched[i];
        if (!s->born[b])
            fresh += p->size[b];
        if (s->remaining[b] == 1)
            gone += p->size[b];
    }
    for (int32_t i = p->gains_at[v]; i < p->gains_at[v + 1]; i++) {
        int32_t a = p->gain_of[i];
        if ((p->mirrored ? s->born[a] == 0 : s->remaining[a] == 1) && p->gain[i] > saved)
            saved = p->gain[i];
    }
    *mem = s->rest + p->workspace[v] + fresh - saved;
    *change = fresh - gone;
}

static void state_push(State *s, int32_t v)
{
    const Problem *p = s->problem;
    for (int32_t i = p->touched_at[v]; i < p->touched_at[v + 1]; i++) {
        int32_t b = p->touched[i];
        if (!s->born[b]++)
            s->rest += p->size[b];
        if (!--s->remaining[b])
            s->rest -= p->size[b];
    }
    ready_drop(s, v);
    for (int32_t i = p->succs_at[v]; i < p->succs_at[v + 1]; i++)
        if (!--s->missing[p->succs[i]])
            ready_add(s, p->succs[i]);
    s->path[s->length++] = v;
}

static void state_pop(State *s)
{
    const Problem *p = s->problem;
    int32_t v = s->path[--s->length];
    for (int32_t i = p->succs_at[v]; i < p->succs_at[v + 1]; i++)
        if (!s->missing[p->succs[i]]++)
            ready_drop(s, p->succs[i]);
    ready_add(s, v);
    for (int32_t i = p->touched_at[v]; i < p->touched_at[v + 1]; i++) {
        int32_t b = p->touched[i];
        if (!s->remaining[b]++)
            s->rest += p->size[b];
        if (!--s->born[b])
            s->rest -= p->size[b];
    }
}

typedef struct {
    int64_t change, mem;
    int32_t v;
} Child;

/* The ready statements, ascending; returns how many. */
static int32_t ready_children(const State *s, Child *children)
{
    int32_t count = 0;
    for (int32_t i = 0; i < s->words; i++)
        for (uint64_t left = s->ready[i]; left; left &= left - 1)
            children[count++].v = i * 64 + lowest(left);
    return count;
}

/* -- beam ------------------------------------------------------------------------------------------------------- */

typedef struct {
    int64_t rest;
    uint64_t key;
    int32_t parent, v; /* a node, and the statement run after it; -1, -1 at the start */
} Candidate;

typedef struct {
    Candidate *all;
    int32_t *slots; /* open addressing by key: index into `all` plus 1 */
    size_t count, room, mask;
} Layer;

typedef struct {
    int32_t parent, v, length;
} Node;

typedef struct {
    State state;
    Layer *layers;
    Node *nodes;
    int32_t *here; /* nodes along the state's path */
    size_t node_count, node_room;
    uint64_t *mark;
    Child *children; /* of the state that is expanded */
    int64_t ceiling;
    int32_t width;
    int32_t at;        /* the layer that is expanded */
    size_t next;       /* the candidate that comes next there */
    int selected;      /* whether the last that is kept there is known: */
    int64_t last_rest;
    uint64_t last_key;
} Beam;

static int layer_add(Layer *layer, Candidate c)
{
    if (layer->count * 2 >= layer->mask) { /* also when it has no slots yet */
        size_t size = layer->slots ? (layer->mask + 1) * 2 : 64;
        int32_t *slots = size > (size_t)1 << 31 ? NULL : calloc(size, sizeof *slots);
        if (!slots)
            return 0;
        free(layer->slots);
        layer->slots = slots;
        layer->mask = size - 1;
        for (size_t i = 0; i < layer->count; i++) {
            size_t slot = layer->all[i].key & layer->mask;
            while (slots[slot])
                slot = (slot + 1) & layer->mask;
            slots[slot] = (int32_t)i + 1;
        }
    }
    size_t slot = c.key & layer->mask;
    for (; layer->slots[slot]; slot = (slot + 1) & layer->mask)
        if (layer->all[layer->slots[slot] - 1].key == c.key)
            return 1;
    if (layer->count == layer->room) {
        size_t room = layer->room ? layer->room * 2 : 32;
        Candidate *all = realloc(layer->all, room * sizeof *all);
        if (!all)
            return 0;
        layer->all = all;
        layer->room = room;
    }
    layer->all[layer->count] = c;
    layer->slots[slot] = (int32_t)++layer->count;
    return 1;
}

static void layer_clear(Layer *layer)
{
    free(layer->all);
    free(layer->slots);
    memset(layer, 0, sizeof *layer);
}

typedef struct {
    int64_t rest;
    uint64_t key;
} Rank;

static int before(Rank a, Rank b)
{
    return a.rest < b.rest || (a.rest == b.rest && a.key < b.key);
}

/* The k-th smallest (from 0) of n different ranks, which change places. */
static Rank select_rank(Rank *a, size_t n, size_t k)
{
    size_t low = 0, high = n - 1;
    while (low < high) {
        Rank pivot = a[low + (high - low) / 2];
        size_t i = low, j = high;
        for (;;) {
            while (before(a[i], pivot))
                i++;
            while (before(pivot, a[j]))
                j--;
            if (i >= j)
                break;
            Rank swapped = a[i];
            a[i++] = a[j];
            a[j--] = swapped;
        }
        /* Here a[low..j] do not exceed the pivot, a[i..high] are not below it, and the pivot is a[i] where i == j. */
        if (i == j) {
            if (k == i)
                return a[i];
            if (k < i)
                high = i - 1;
            else
                low = i + 1;
        } else if (k <= j) {
            high = j;
        } else {
            low = i;
        }
    }
    return a[low];
}

static int beam_select(Beam *beam)
{
    Layer *layer = &beam->layers[beam->at];
    beam->selected = 1;
    beam->next = 0;
    beam->last_rest = INT64_MAX;
    beam->last_key = UINT64_MAX;
    if (layer->count <= (size_t)beam->width)
        return 1;
    Rank *ranks = malloc(layer->count * sizeof *ranks);
    if (!ranks)
        return 0;
    for (size_t i = 0; i < layer->count; i++) {
        ranks[i].rest = layer->all[i].rest;
        ranks[i].key = layer->all[i].key;
    }
    Rank last = select_rank(ranks, layer->count, (size_t)beam->width - 1);
    beam->last_rest = last.rest;
    beam->last_key = last.key;
    free(ranks);
    return 1;
}

/* The state runs v, and a new node stands for that; -1 without memory. */
static int32_t beam_run(Beam *beam, int32_t parent, int32_t v)
{
    if (beam->node_count == beam->node_room) {
        size_t room = beam->node_room ? beam->node_room * 2 : 1024;
        Node *nodes = room > INT32_MAX ? NULL : realloc(beam->nodes, room * sizeof *nodes);
        if (!nodes)
            return -1;
        beam->nodes = nodes;
        beam->node_room = room;
    }
    int32_t node = (int32_t)beam->node_count++;
    beam->here[beam->state.length] = node;
    state_push(&beam->state, v);
    beam->nodes[node].parent = parent;
    beam->nodes[node].v = v;
    beam->nodes[node].length = beam->state.length;
    return node;
}

/* Move the state along the tree to a node. */
static void beam_go(Beam *beam, int32_t node)
{
    State *s = &beam->state;
    int32_t target = node < 0 ? 0 : beam->nodes[node].length;
    int32_t q = node, common = target;
    while (q >= 0 && !(common <= s->length && beam->here[common - 1] == q)) {
        q = beam->nodes[q].parent;
        common--;
    }
    while (s->length > common)
        state_pop(s);
    /* Write the branch down from its tip, then run it from its root. */
    for (q = node; target > common; q = beam->nodes[q].parent)
        beam->here[--target] = q;
    target = node < 0 ? 0 : beam->nodes[node].length;
    while (s->length < target)
        state_push(s, beam->nodes[beam->here[s->length]].v);
}

API void peakmem_beam_free(Beam *beam)
{
    if (!beam)
        return;
    if (beam->layers)
        for (int32_t i = 0; i <= beam->state.problem->n; i++)
            layer_clear(&beam->layers[i]);
    state_free(&beam->state);
    free(beam->layers);
    free(beam->nodes);
    free(beam->here);
    free(beam->mark);
    free(beam->children);
    free(beam);
}

/* A beam search of `peakmem.ordering.beam.beam`; NULL without memory. `mark` is copied, the problem is not. */
API Beam *peakmem_beam_new(const Problem *p, int32_t width, int64_t ceiling, const uint64_t *mark)
{
    Beam *beam = calloc(1, sizeof *beam);
    if (!beam)
        return NULL;
    beam->width = width;
    beam->ceiling = ceiling;
    Candidate start = {p->entry_bytes, 0, -1, -1};
    if (!state_init(&beam->state, p) || !(beam->layers = array((size_t)p->n + 1, sizeof *beam->layers))
        || !(beam->here = array(p->n, sizeof *beam->here)) || !(beam->mark = array(p->n, sizeof *beam->mark))
        || !(beam->children = array(p->n, sizeof *beam->children)) || !layer_add(&beam->layers[0], start)) {
        peakmem_beam_free(beam);
        return NULL;
    }
    memcpy(beam->mark, mark, (size_t)p->n * sizeof *mark);
    return beam;
}

static int beam_expand(Beam *beam, const Candidate *c, int64_t *spent)
{
    State *s = &beam->state;
    Child *children = beam->children;
    uint64_t key = c->key;
    int32_t node = c->parent, count;
    int moved;
    beam_go(beam, node);
    if (c->v >= 0 && (node = beam_run(beam, node, c->v)) < 0)
        return NO_MEMORY;
    do { /* safe moves; what they make ready is met in the next pass */
        moved = 0;
        count = 0;
        *spent += 1 + s->ready_count;
        int32_t all = ready_children(s, children);
        for (int32_t i = 0; i < all; i++) {
            Child child = {0, 0, children[i].v};
            state_step(s, child.v, &child.mem, &child.change);
            if (child.mem > beam->ceiling)
                continue;
            if (child.change <= 0) {
                if ((node = beam_run(beam, node, child.v)) < 0)
                    return NO_MEMORY;
                key += beam->mark[child.v];
                moved = 1;
            } else {
                children[count++] = child;
            }
        }
    } while (moved);
    if (s->length == s->problem->n)
        return FOUND;
    for (int32_t i = 0; i < count; i++) {
        int32_t v = children[i].v;
        Candidate then = {s->rest + children[i].change, key + beam->mark[v], node, v};
        if (!layer_add(&beam->layers[s->length + 1], then))
            return NO_MEMORY;
    }
    return PAUSED;
}

/* Go on until the order is found, there is none, or `units` of work are done; `spent` is what was done. */
API int32_t peakmem_beam_run(Beam *beam, int64_t units, int64_t *spent)
{
    const int32_t n = beam->state.problem->n;
    *spent = 0;
    for (; beam->at <= n; beam->at++, beam->selected = 0) {
        Layer *layer = &beam->layers[beam->at];
        if (!beam->selected && !beam_select(beam))
            return NO_MEMORY;
        for (; beam->next < layer->count; beam->next++) {
            const Candidate *c = &layer->all[beam->next];
            if (c->rest > beam->last_rest || (c->rest == beam->last_rest && c->key > beam->last_key))
                continue;
            if (*spent >= units)
                return PAUSED;
            int what = beam_expand(beam, c, spent);
            if (what != PAUSED)
                return what;
        }
        layer_clear(layer);
    }
    return NONE;
}

/* The order, when one was found. */
API void peakmem_beam_order(const Beam *beam, int32_t *order)
{
    memcpy(order, beam->state.path, (size_t)beam->state.length * sizeof *order);
}

/* -- depth-first search ----------------------------------------------------------------------------------------- */

/* What ends a call of `peakmem_search_run`, besides PAUSED, FOUND and NO_MEMORY. LEAST and TRAP are questions to the caller. */
enum { EXHAUSTED = 4, GAVE_UP, LEAST, TRAP };

typedef struct {
    int32_t depth;
    size_t todo; /* where its children lie; those of the last frame end the array */
    int64_t opened;
} Frame;

typedef struct {
    uint64_t hash;
    size_t at; /* of its words; one more, so that 0 is an empty slot */
    int32_t words;
} Seen;

typedef struct {
    State state;
    /* One search: see `peakmem_search_start`. */
    int64_t budget, rest, blocked, limit, most_work, patience;
    int32_t origin, safe_moves, memo;
    int64_t nodes, work, told;
    int asked; /* LEAST or TRAP when that was the last answer, -1 at the start, else 0 */
    /* The set of statements run since the origin, with a bit for each in the order in which they are first met. */
    int32_t *bit, *met; /* bit of each statement plus 1; statements by bit */
    int32_t bits;
    uint64_t *mask, hash;
    uint64_t *kept; /* words of the sets seen */
    size_t kept_count, kept_room;
    Seen *seen;
    size_t seen_count, seen_size; /* a power of two, or 0 */
    Frame *frames;
    size_t frame_count, frame_room;
    int32_t *todo;
    size_t todo_count, todo_room;
    Child *children;
    int32_t looked; /* how many of them tell memory and change at the state as it is; -1 where they do not */
} Search;

API void peakmem_search_free(Search *x)
{
    if (!x)
        return;
    state_free(&x->state);
    free(x->bit);
    free(x->met);
    free(x->mask);
    free(x->kept);
    free(x->seen);
    free(x->frames);
    free(x->todo);
    free(x->children);
    free(x);
}

/* For the searches of one walk through a problem, at the empty state; NULL without memory. */
API Search *peakmem_search_new(const Problem *p)
{
    Search *x = calloc(1, sizeof *x);
    if (!x)
        return NULL;
    x->bit = array(p->n, sizeof *x->bit);
    x->met = array(p->n, sizeof *x->met);
    x->mask = array((size_t)p->n / 64 + 1, sizeof *x->mask);
    x->children = array(p->n, sizeof *x->children);
    if (!state_init(&x->state, p) || !x->bit || !x->met || !x->mask || !x->children) {
        peakmem_search_free(x);
        return NULL;
    }
    return x;
}

/* Run `count` statements, and begin a search where they lead. */
API void peakmem_search_start(Search *x, const int32_t *steps, int32_t count, int64_t budget, int64_t rest, int64_t limit,
                              int64_t most_work, int64_t patience, int32_t safe_moves, int32_t memo)
{
    for (int32_t i = 0; i < count; i++)
        state_push(&x->state, steps[i]);
    x->origin = x->state.length;
    x->budget = budget;
    x->rest = rest;
    x->blocked = (int64_t)1 << 62;
    x->limit = limit;
    x->most_work = most_work;
    x->patience = patience;
    x->safe_moves = safe_moves;
    x->memo = memo;
    x->nodes = x->work = x->told = 0;
    x->asked = -1;
    memset(x->mask, 0, ((size_t)x->bits / 64 + 1) * sizeof *x->mask);
    while (x->bits)
        x->bit[x->met[--x->bits]] = 0;
    x->hash = 0;
    x->kept_count = x->seen_count = x->frame_count = x->todo_count = 0;
    if (x->seen_size > 1024) { /* made for a long search; clearing it each time would cost more than the short ones do */
        free(x->seen);
        x->seen = NULL;
        x->seen_size = 0;
    } else if (x->seen_size) {
        memset(x->seen, 0, x->seen_size * sizeof *x->seen);
    }
}

static uint64_t mixed(uint64_t x) /* splitmix64 */
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

static void search_flip(Search *x, int32_t v)
{
    if (!x->bit[v]) {
        x->met[x->bits] = v;
        x->bit[v] = ++x->bits;
    }
    int32_t b = x->bit[v] - 1;
    x->mask[b >> 6] ^= (uint64_t)1 << (b & 63);
    x->hash ^= mixed((uint64_t)b);
}

static void search_take(Search *x, int32_t v)
{
    state_push(&x->state, v);
    search_flip(x, v);
}

static void search_unwind(Search *x, int32_t depth)
{
    while (x->state.length > depth) {
        search_flip(x, x->state.path[x->state.length - 1]);
        state_pop(&x->state);
    }
}

/* Room for one more of `count`; 0 without memory. */
static int grow(void **all, size_t *room, size_t count, size_t size)
{
    if (count <= *room)
        return 1;
    size_t larger = *room * 2 > count ? *room * 2 : count + 64;
    void *moved = realloc(*all, larger * size);
    if (!moved)
        return 0;
    *all = moved;
    *room = larger;
    return 1;
}

/* Whether the set was seen before (1) or not (0, and from now on it was); -1 without memory. */
static int search_seen(Search *x)
{
    if (x->seen_count * 2 >= x->seen_size) {
        size_t size = x->seen_size ? x->seen_size * 2 : 256;
        Seen *larger = calloc(size, sizeof *larger);
        if (!larger)
            return -1;
        for (size_t i = 0; i < x->seen_size; i++)
            if (x->seen[i].at) {
                size_t slot = x->seen[i].hash & (size - 1);
                while (larger[slot].at)
                    slot = (slot + 1) & (size - 1);
                larger[slot] = x->seen[i];
            }
        free(x->seen);
        x->seen = larger;
        x->seen_size = size;
    }
    int32_t words = (x->bits + 63) / 64;
    while (words && !x->mask[words - 1])
        words--;
    size_t slot = x->hash & (x->seen_size - 1), bytes = (size_t)words * sizeof *x->mask;
    for (; x->seen[slot].at; slot = (slot + 1) & (x->seen_size - 1))
        if (x->seen[slot].hash == x->hash && x->seen[slot].words == words
            && (!words || !memcmp(x->kept + x->seen[slot].at - 1, x->mask, bytes)))
            return 1;
    if (!grow((void **)&x->kept, &x->kept_room, x->kept_count + words, sizeof *x->kept))
        return -1;
    if (words)
        memcpy(x->kept + x->kept_count, x->mask, bytes);
    x->seen[slot].hash = x->hash;
    x->seen[slot].at = x->kept_count + 1;
    x->seen[slot].words = words;
    x->kept_count += words;
    x->seen_count++;
    return 0;
}

static int dearest_first(const void *left, const void *right)
{
    const Child *a = left, *b = right;
    if (a->change != b->change)
        return a->change < b->change ? 1 : -1;
    if (a->mem != b->mem)
        return a->mem < b->mem ? 1 : -1;
    return a->v < b->v ? 1 : -1;
}

static void search_safe_moves(Search *x)
{
    State *s = &x->state;
    x->looked = -1;
    for (int moved = x->safe_moves; moved && (s->rest > x->rest || s->length == x->origin);) {
        int32_t count = ready_children(s, x->children);
        moved = 0;
        for (int32_t i = 0; i < count; i++) {
            Child *child = &x->children[i];
            state_step(s, child->v, &child->mem, &child->change);
            if (child->mem <= x->budget && child->change <= 0) {
                search_take(x, child->v);
                moved = 1;
                if (s->rest <= x->rest)
                    break;
            }
        }
        x->looked = moved ? -1 : count;
    }
}

/* Open the state if it is new: PAUSED to go on, GAVE_UP or NO_MEMORY. */
static int search_open(Search *x)
{
    State *s = &x->state;
    int seen = x->memo ? search_seen(x) : 0;
    if (seen)
        return seen < 0 ? NO_MEMORY : PAUSED;
    x->nodes++;
    x->work += s->ready_count;
    if (x->nodes >= x->limit || x->work > x->most_work) {
        search_unwind(x, x->origin);
        return GAVE_UP;
    }
    int known = x->looked >= 0;
    int32_t count = known ? x->looked : ready_children(s, x->children), within = 0;
    for (int32_t i = 0; i < count; i++) {
        Child child = x->children[i];
        if (!known)
            state_step(s, child.v, &child.mem, &child.change);
        if (child.mem <= x->budget)
            x->children[within++] = child;
        else if (child.mem < x->blocked)
            x->blocked = child.mem;
    }
    qsort(x->children, within, sizeof *x->children, dearest_first);
    if (!grow((void **)&x->todo, &x->todo_room, x->todo_count + within, sizeof *x->todo)
        || !grow((void **)&x->frames, &x->frame_room, x->frame_count + 1, sizeof *x->frames))
        return NO_MEMORY;
    Frame *frame = &x->frames[x->frame_count++];
    frame->depth = s->length;
    frame->todo = x->todo_count;
    frame->opened = x->nodes;
    for (int32_t i = 0; i < within; i++)
        x->todo[x->todo_count++] = x->children[i].v;
    return PAUSED;
}

/* Go on until the search ends, has a question, or `units` of work are done since the last call, which is looked at every 64
 * nodes. `answer` to LEAST is ignored (if the state is the least one, the caller is done); to TRAP it is the price of its
 * exits, or -1. After FOUND and LEAST the state stands at its end, after TRAP at the frame's; `count` tells nodes, work,
 * work at the last look, the least memory that the budget could not afford, and the rest where the state stands. */
API int32_t peakmem_search_run(Search *x, int64_t units, int64_t answer, int64_t *count)
{
    State *s = &x->state;
    int what = PAUSED;
    int64_t before = x->told;
    int asked = x->asked;
    x->asked = 0;
    if (asked == TRAP && answer >= 0) {
        if (answer < x->blocked)
            x->blocked = answer;
        x->todo_count = x->frames[x->frame_count - 1].todo;
    }
    int open = asked == LEAST; /* where to go on: open the state, or (after TRAP and PAUSED) choose what comes next */
    int dive = asked == -1;
    for (;;) {
        if (dive) {
            search_safe_moves(x);
            if (s->length == s->problem->n) {
                what = FOUND;
                break;
            }
            if (s->length > x->origin && s->rest <= x->rest) {
                what = x->asked = LEAST;
                break;
            }
            open = 1;
        }
        if (open) {
            int64_t nodes = x->nodes;
            what = search_open(x);
            if (what != PAUSED)
                break;
            open = 0;
            if (x->nodes > nodes && !(x->nodes & 63)) {
                x->told = x->work;
                if (x->told - before >= units)
                    break;
            }
        }
        dive = 0;
        while (x->frame_count && !dive) {
            Frame *frame = &x->frames[x->frame_count - 1];
            search_unwind(x, frame->depth);
            if (x->todo_count > frame->todo && x->nodes - frame->opened > x->patience) {
                frame->opened = (int64_t)1 << 60;
                what = x->asked = TRAP;
                break;
            }
            if (x->todo_count > frame->todo) {
                search_take(x, x->todo[--x->todo_count]);
                dive = 1;
            } else {
                x->frame_count--;
            }
        }
        if (what == TRAP)
            break;
        if (!dive) {
            search_unwind(x, x->origin);
            what = EXHAUSTED;
            break;
        }
    }
    count[0] = x->nodes;
    count[1] = x->work;
    count[2] = x->told;
    count[3] = x->blocked;
    count[4] = s->rest;
    return what;
}

/* What has been run since the origin, in order; returns how many. */
API int32_t peakmem_search_steps(const Search *x, int32_t *steps)
{
    memcpy(steps, x->state.path + x->origin, (size_t)(x->state.length - x->origin) * sizeof *steps);
    return x->state.length - x->origin;
}

/* -- networks of minimum cuts ----------------------------------------------------------------------------------- */

enum { SOURCE, SINK };

/* The network of `peakmem.ordering.cuts._cut`, without overlays: its arcs in the same order.
 *
 * `buffers` are those that undecided statements touch, ascending, with `born` and `remaining` of each below; `births` are rows
 * by buffer, or NULL where the first toucher is the only one. `node` is n zeros, and is again when this returns.
 * `told`: what adds to the constant, what enters from the source, whether an arc leads to the sink; without either of these two
 * the arcs of dependences are left out, since nothing can flow.
 * Returns the number of arcs; beyond `room` they are counted only. */
API int64_t peakmem_network(const Problem *p, const int32_t *undecided, int32_t count, const int32_t *buffers, const int32_t *born,
                            const int32_t *remaining, int32_t buffer_count, const int32_t *births_at, const int32_t *births,
                            int32_t *node, int32_t *tails, int32_t *heads, int64_t *capacities, int64_t room, int64_t *told)
{
    int64_t arcs = 0, constant = 0, entered = 0, infinity = 1, sink = 0;
    int32_t next = count + 2;
#define ARC(tail, head, capacity)                                                                                              \
    do {                                                                                                                       \
        if (arcs < room) {                                                                                                     \
            tails[arcs] = (tail);                                                                                              \
            heads[arcs] = (head);                                                                                              \
            capacities[arcs] = (capacity);                                                                                     \
        }                                                                                                                      \
        arcs++;                                                                                                                \
    } while (0)
    for (int32_t i = 0; i < count; i++)
        node[undecided[i]] = i + 2;
    for (int32_t i = 0; i < buffer_count; i++)
        infinity += p->size[buffers[i]];
    for (int32_t i = 0; i < buffer_count; i++) {
        const int32_t b = buffers[i], *touchers = p->touchers + p->touchers_at[b];
        const int32_t touchers_count = p->touchers_at[b + 1] - p->touchers_at[b];
        const int64_t size = p->size[b];
        int32_t inside = 0, first = -1, here;
        for (int32_t k = 0; k < touchers_count; k++)
            if (node[touchers[k]]) {
                if (!inside++)
                    first = touchers[k];
            }
        int kept = remaining[i] > inside;
        if (born[i]) {
            constant -= size;
            if (kept) {
                constant += size;
                continue;
            }
            here = next++;
            ARC(SOURCE, here, size);
            entered += size;
        } else {
            const int32_t *row = births_at ? births + births_at[b] : &first;
            const int32_t all = births_at ? births_at[b + 1] - births_at[b] : inside > 0;
            int32_t sources = 0;
            for (int32_t k = 0; k < all; k++)
                sources += node[row[k]] > 0;
            if (!sources)
                continue;
            here = next++;
            if (all == 1) {
                ARC(node[row[0]], here, size);
            } else {
                int32_t joint = next++;
                for (int32_t k = 0; k < all; k++)
                    if (node[row[k]])
                        ARC(node[row[k]], joint, infinity);
                ARC(joint, here, size);
            }
        }
        if (kept) {
            ARC(here, SINK, infinity);
            sink = 1;
        } else {
            for (int32_t k = 0; k < touchers_count; k++)
                if (node[touchers[k]])
                    ARC(here, node[touchers[k]], infinity);
        }
    }
    told[0] = constant;
    told[1] = entered;
    told[2] = sink;
    if (entered && sink)
        for (int32_t i = 0; i < count; i++) {
            int32_t u = undecided[i];
            for (int32_t k = p->preds_at[u]; k < p->preds_at[u + 1]; k++)
                if (node[p->preds[k]])
                    ARC(i + 2, node[p->preds[k]], infinity);
        }
    for (int32_t i = 0; i < count; i++)
        node[undecided[i]] = 0;
    return arcs;
#undef ARC
}

/* -- traps ------------------------------------------------------------------------------------------------------ */

/* What ends a call of `peakmem_trap_run` or `_price`, besides PAUSED and NO_MEMORY. CUT is a question to the caller: solve the
 * network. CLOSED: nothing is left to swallow; LARGE: more were swallowed than the limit; SPENT: no work is left. */
enum { CUT = 8, PRICED, CLOSED, LARGE, SPENT };

typedef struct {
    int64_t old;
    int32_t v;
} Exit;

/* `peakmem.ordering.bounds.Pricer` and the growth of one trap after another, on a problem without overlays. */
typedef struct {
    const Problem *problem;
    const int32_t *births_at, *births; /* rows by buffer, or NULL; the caller keeps them */
    State top, walker;                 /* the trap as it grows, and the state from which an exit is priced */
    uint8_t *inside, *walked, *own;    /* statements run in each; buffers of the statement that is priced */
    int32_t *stamp, now;               /* a set of statements: those whose stamp is `now` */
    int32_t *list, *later, *stack;     /* room for statements */
    int64_t *old, *fresh;              /* prices; -1 where there is no old one, `era` says which fresh ones hold */
    int32_t *era, this_era;
    Exit *exits;
    int32_t exit_count, exit_at;
    /* One growth: see `peakmem_trap_start`. */
    int32_t origin, limit, raising, absorption, stale, followers, running;
    int64_t level, spent, cuts;
    /* One price. */
    int32_t priced, done_count, undecided_count, chosen_count;
    int64_t enough, value, constant;
    int32_t *done, *undecided, *chosen; /* what leads from the start to the cheapest state: run, to be decided, chosen */
    /* The network of the cut. */
    int32_t *buffers, *born, *remaining, *node, *tails, *heads;
    int64_t *capacities;
    size_t arc_room;
    int64_t arc_count;
    /* The last trap that closed. */
    int32_t *best, *best_exits, best_count, best_exit_count;
    int64_t best_level, best_cuts;
} Trap;

static int state_order(State *s)
{
    s->next = array((size_t)s->problem->n + 1, sizeof *s->next);
    s->previous = array((size_t)s->problem->n + 1, sizeof *s->previous);
    return s->next && s->previous;
}

/* Statements become ready in ascending order, whatever happened before. */
static void state_settle(State *s)
{
    int32_t end = s->problem->n, last = end;
    for (int32_t i = 0; i < s->words; i++)
        for (uint64_t left = s->ready[i]; left; left &= left - 1) {
            int32_t v = i * 64 + lowest(left);
            s->next[last] = v;
            s->previous[v] = last;
            last = v;
        }
    s->next[last] = end;
    s->previous[end] = last;
}

API void peakmem_trap_free(Trap *x)
{
    if (!x)
        return;
    state_free(&x->top);
    state_free(&x->walker);
    void *all[] = {x->inside, x->walked, x->own, x->stamp, x->era, x->list, x->later, x->stack, x->old, x->fresh, x->exits, x->done,
                   x->undecided, x->chosen, x->buffers, x->born, x->remaining, x->node, x->tails, x->heads, x->capacities,
                   x->best, x->best_exits};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
    free(x);
}

/* At the empty state; NULL without memory. */
API Trap *peakmem_trap_new(const Problem *p, const int32_t *births_at, const int32_t *births)
{
    Trap *x = calloc(1, sizeof *x);
    if (!x)
        return NULL;
    x->problem = p;
    x->births_at = births_at;
    x->births = births;
    const size_t n = (size_t)p->n;
    int fine = state_init(&x->top, p) & state_init(&x->walker, p);
    fine = fine && state_order(&x->top) && state_order(&x->walker);
    int32_t **rows[] = {&x->stamp, &x->era, &x->list, &x->later, &x->stack, &x->done, &x->undecided, &x->chosen, &x->node, &x->best,
                        &x->best_exits};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        fine = (*rows[i] = array(n, sizeof **rows[i])) && fine;
    int32_t **wide[] = {&x->buffers, &x->born, &x->remaining};
    for (size_t i = 0; i < sizeof wide / sizeof *wide; i++)
        fine = (*wide[i] = array(p->m, sizeof **wide[i])) && fine;
    fine = (x->inside = array(n, 1)) && fine;
    fine = (x->walked = array(n, 1)) && fine;
    fine = (x->own = array(p->m, 1)) && fine;
    fine = (x->old = array(n, sizeof *x->old)) && fine;
    fine = (x->fresh = array(n, sizeof *x->fresh)) && fine;
    fine = (x->exits = array(n, sizeof *x->exits)) && fine;
    if (!fine) {
        peakmem_trap_free(x);
        return NULL;
    }
    return x;
}

static void trap_walk(Trap *x, int32_t v)
{
    state_push(&x->walker, v);
    x->walked[v] = 1;
}

static void trap_unwalk(Trap *x, int32_t depth)
{
    while (x->walker.length > depth) {
        x->walked[x->walker.path[x->walker.length - 1]] = 0;
        state_pop(&x->walker);
    }
}

/* The walker to the state that `path` leads to. */
API void peakmem_trap_move(Trap *x, const int32_t *path, int32_t count)
{
    int32_t common = 0;
    while (common < count && common < x->walker.length && x->walker.path[common] == path[common])
        common++;
    trap_unwalk(x, common);
    while (common < count)
        trap_walk(x, path[common++]);
    state_settle(&x->walker);
    x->origin = count;
}

/* A set of statements is emptied by a number that no member has. */
static int32_t emptied(int32_t *number, int32_t now, int32_t n)
{
    if (now < INT32_MAX)
        return now + 1;
    memset(number, 0, (size_t)n * sizeof *number);
    return 1;
}

/* No price holds any more. */
static void trap_stale(Trap *x)
{
    x->this_era = emptied(x->era, x->this_era, x->problem->n);
}

static void trap_swallow(Trap *x, int32_t v)
{
    state_push(&x->top, v);
    x->inside[v] = 1;
    trap_stale(x);
    x->old[v] = -1;
}

static int64_t state_mem(const State *s, int32_t v)
{
    int64_t mem, change;
    state_step(s, v, &mem, &change);
    return mem;
}

static int32_t state_ordered(const State *s, int32_t *list)
{
    int32_t count = 0, end = s->problem->n;
    for (int32_t v = s->next[end]; v != end; v = s->next[v])
        list[count++] = v;
    return count;
}

static int trap_large(const Trap *x)
{
    return x->limit >= 0 && x->top.length - x->origin > x->limit;
}

static void trap_swallow_cheap(Trap *x)
{
    int moved = 1;
    while (moved) {
        int32_t count = state_ordered(&x->top, x->list);
        if (!count)
            return;
        moved = 0;
        for (int32_t i = 0; i < count; i++) {
            int32_t v = x->list[i];
            if (state_has(&x->top, v) && ((x->old[v] >= 0 && x->old[v] <= x->level) || state_mem(&x->top, v) <= x->level)) {
                trap_swallow(x, v);
                moved = 1;
                if (trap_large(x))
                    return;
            }
        }
        x->spent += count;
    }
}

/* Walk on from the state that serves v. */
static void trap_follow(Trap *x, int32_t v)
{
    const Problem *p = x->problem;
    State *walker = &x->walker;
    int32_t count = 0;
    for (int32_t i = 0; i < x->done_count; i++)
        trap_walk(x, x->done[i]);
    for (int32_t i = 0; i < x->chosen_count; i++)
        trap_walk(x, x->chosen[i]);
    trap_walk(x, v);
    for (int32_t i = p->succs_at[v]; i < p->succs_at[v + 1]; i++)
        if (state_has(walker, p->succs[i]))
            x->list[count++] = p->succs[i];
    while (count) {
        int32_t u = x->list[--count];
        int64_t mem, change;
        state_step(walker, u, &mem, &change);
        if (mem > x->level)
            continue;
        if (state_has(&x->top, u))
            trap_swallow(x, u);
        if (change <= 0 && x->inside[u]) {
            trap_walk(x, u);
            for (int32_t i = p->succs_at[u]; i < p->succs_at[u + 1]; i++)
                if (state_has(walker, p->succs[i]))
                    x->list[count++] = p->succs[i];
        }
    }
    trap_unwalk(x, x->origin);
}

static int ascending(const void *left, const void *right)
{
    int32_t a = *(const int32_t *)left, b = *(const int32_t *)right;
    return (a > b) - (a < b);
}

/* Strict ancestors of v beyond the start, ascending; returns how many. */
static int32_t trap_ancestors(Trap *x, int32_t v)
{
    const Problem *p = x->problem;
    int32_t count = 0, waiting = 0;
    x->now = emptied(x->stamp, x->now, p->n);
    for (int32_t at = v;;) {
        for (int32_t i = p->preds_at[at]; i < p->preds_at[at + 1]; i++) {
            int32_t u = p->preds[i];
            if (!x->walked[u] && x->stamp[u] != x->now) {
                x->stamp[u] = x->now;
                x->list[count++] = x->stack[waiting++] = u;
            }
        }
        if (!waiting)
            break;
        at = x->stack[--waiting];
    }
    qsort(x->list, (size_t)count, sizeof *x->list, ascending);
    return count;
}

static int64_t trap_here(const Trap *x, int32_t v)
{
    const Problem *p = x->problem;
    const State *s = &x->walker;
    int64_t total = s->rest + p->workspace[v];
    for (int32_t i = p->touched_at[v]; i < p->touched_at[v + 1]; i++) {
        int32_t b = p->touched[i];
        if (!(s->born[b] && s->remaining[b]))
            total += p->size[b];
    }
    return total;
}

static void trap_absorb(Trap *x, const uint8_t *within)
{
    const Problem *p = x->problem;
    State *s = &x->walker;
    int32_t end = p->n, count = 0;
    for (int32_t v = s->next[end]; v != end; v = s->next[v])
        if (within[v])
            x->list[count++] = v;
    while (count) {
        int32_t left = 0;
        int moved = 0;
        for (int32_t k = 0; k < count; k++) {
            int32_t u = x->list[k];
            int64_t change = 0;
            for (int32_t i = p->touched_at[u]; i < p->touched_at[u + 1]; i++) {
                int32_t b = p->touched[i];
                if (!x->own[b])
                    change += (s->born[b] ? 0 : p->size[b]) - (s->remaining[b] == 1 ? p->size[b] : 0);
            }
            if (change > 0) {
                x->later[left++] = u;
                continue;
            }
            trap_walk(x, u);
            moved = 1;
            for (int32_t i = p->succs_at[u]; i < p->succs_at[u + 1]; i++) {
                int32_t w = p->succs[i];
                if (within[w] && state_has(s, w))
                    x->later[left++] = w;
            }
        }
        count = moved ? left : 0;
        int32_t *swapped = x->list;
        x->list = x->later;
        x->later = swapped;
    }
}

/* The network of the cut into tails, heads and capacities: CUT, or PRICED where nothing can flow. */
static int trap_network(Trap *x, int32_t v)
{
    const Problem *p = x->problem;
    const State *s = &x->walker;
    int32_t count = 0;
    int64_t told[3], arcs;
    x->constant = trap_here(x, v);
    for (int32_t i = 0; i < x->undecided_count; i++) {
        int32_t u = x->undecided[i];
        for (int32_t k = p->touched_at[u]; k < p->touched_at[u + 1]; k++) {
            int32_t b = p->touched[k];
            if (!x->own[b]) {
                x->own[b] = 2;
                if (p->size[b])
                    x->buffers[count++] = b;
            }
        }
    }
    for (int32_t i = 0; i < x->undecided_count; i++)
        for (int32_t k = p->touched_at[x->undecided[i]]; k < p->touched_at[x->undecided[i] + 1]; k++)
            x->own[p->touched[k]] &= 1;
    qsort(x->buffers, (size_t)count, sizeof *x->buffers, ascending);
    for (int32_t i = 0; i < count; i++) {
        x->born[i] = s->born[x->buffers[i]];
        x->remaining[i] = s->remaining[x->buffers[i]];
    }
    for (;;) {
        arcs = peakmem_network(p, x->undecided, x->undecided_count, x->buffers, x->born, x->remaining, count, x->births_at,
                               x->births, x->node, x->tails, x->heads, x->capacities, (int64_t)x->arc_room, told);
        if (arcs <= (int64_t)x->arc_room)
            break;
        size_t room = (size_t)arcs * 2;
        free(x->tails);
        free(x->heads);
        free(x->capacities);
        x->tails = malloc(room * sizeof *x->tails);
        x->heads = malloc(room * sizeof *x->heads);
        x->capacities = malloc(room * sizeof *x->capacities);
        x->arc_room = x->tails && x->heads && x->capacities ? room : 0;
        if (!x->arc_room)
            return NO_MEMORY;
    }
    x->constant += told[0];
    if (told[1] && told[2]) {
        x->arc_count = arcs;
        return CUT;
    }
    x->value = x->constant;
    x->chosen_count = told[1] ? x->undecided_count : 0;
    memcpy(x->chosen, x->undecided, (size_t)x->chosen_count * sizeof *x->chosen);
    return PRICED;
}

static void trap_leave(Trap *x)
{
    const Problem *p = x->problem;
    for (int32_t i = p->touched_at[x->priced]; i < p->touched_at[x->priced + 1]; i++)
        x->own[p->touched[i]] = 0;
    trap_unwalk(x, x->origin);
}

/* The price of v between the start and a trap: PRICED with `value`, CUT or NO_MEMORY. `members` are those of the trap beyond the
 * start, in any order. */
static int trap_price(Trap *x, int32_t v, const uint8_t *within, const int32_t *members, int32_t count)
{
    const Problem *p = x->problem;
    State *s = &x->walker;
    int what = PRICED;
    int32_t before = trap_ancestors(x, v);
    x->spent += 1 + before;
    for (int32_t i = 0; i < before; i++)
        trap_walk(x, x->list[i]);
    x->priced = v;
    x->chosen_count = x->undecided_count = 0;
    for (int32_t i = p->touched_at[v]; i < p->touched_at[v + 1]; i++)
        x->own[p->touched[i]] = 1;
    x->value = trap_here(x, v);
    if (x->value > x->enough && x->absorption) {
        trap_absorb(x, within);
        x->value = trap_here(x, v);
    }
    x->done_count = s->length - x->origin;
    memcpy(x->done, s->path + x->origin, (size_t)x->done_count * sizeof *x->done);
    if (x->value > x->enough) {
        for (int32_t i = 0; i < count; i++)
            if (!x->walked[members[i]])
                x->undecided[x->undecided_count++] = members[i];
        if (x->undecided_count) {
            qsort(x->undecided, (size_t)x->undecided_count, sizeof *x->undecided, ascending);
            x->cuts++;
            x->spent += x->undecided_count;
            what = trap_network(x, v);
        }
    }
    if (what != CUT)
        trap_leave(x);
    return what;
}

/* The answer to CUT: the flow, and the nodes on the side of the source in any order. */
static void trap_answer(Trap *x, int64_t flow, const int32_t *side, int32_t count)
{
    x->value = x->constant + flow;
    x->chosen_count = 0;
    for (int32_t i = 0; i < count; i++)
        if (side[i] >= 2 && side[i] < x->undecided_count + 2)
            x->chosen[x->chosen_count++] = x->undecided[side[i] - 2];
    qsort(x->chosen, (size_t)x->chosen_count, sizeof *x->chosen, ascending);
    trap_leave(x);
}

/* What the caller is told: value or level, cuts, work since the last call, and how many arcs, members and exits there are. */
static void trap_tell(Trap *x, int what, int64_t *told)
{
    told[0] = what == PRICED ? x->value : x->level;
    told[1] = x->cuts;
    told[2] = x->spent;
    told[3] = x->arc_count;
    told[4] = x->best_count;
    told[5] = x->best_exit_count;
    told[6] = x->best_level;
    told[7] = x->best_cuts;
    x->spent = 0;
}

/* `Pricer.price`; the walker stands at the start. The answer to CUT is given to `peakmem_trap_priced`. */
API int32_t peakmem_trap_price(Trap *x, int32_t v, const uint8_t *within, const int32_t *members, int32_t count, int64_t enough,
                               int32_t absorption, int64_t *told)
{
    x->enough = enough;
    x->absorption = absorption;
    x->cuts = x->spent = 0;
    int what = trap_price(x, v, within, members, count);
    trap_tell(x, what, told);
    return what;
}

API void peakmem_trap_priced(Trap *x, int64_t flow, const int32_t *side, int32_t count, int64_t *told)
{
    trap_answer(x, flow, side, count);
    trap_tell(x, PRICED, told);
}

/* Begin a trap at the walker's state. `order` (or NULL) is `count` statements that may be swallowed where they cost no more than the
 * level; `limit` is -1 where there is none. */
API void peakmem_trap_start(Trap *x, int64_t level, int32_t limit, int32_t raising, int32_t absorption, int32_t stale,
                            int32_t followers, const int32_t *order, int32_t count)
{
    State *top = &x->top, *walker = &x->walker;
    int32_t common = 0;
    while (common < x->origin && common < top->length && top->path[common] == walker->path[common])
        common++;
    while (top->length > common) {
        x->inside[top->path[top->length - 1]] = 0;
        state_pop(top);
    }
    for (; common < x->origin; common++) {
        x->inside[walker->path[common]] = 1;
        state_push(top, walker->path[common]);
    }
    state_settle(top);
    memset(x->old, 0xff, (size_t)x->problem->n * sizeof *x->old);
    trap_stale(x);
    x->level = level;
    x->limit = limit;
    x->raising = raising;
    x->absorption = absorption;
    x->stale = stale;
    x->followers = followers;
    x->cuts = x->spent = 0;
    x->best_count = x->best_exit_count = 0;
    x->best_level = -1;
    x->running = 0;
    for (int32_t i = 0; i < count; i++)
        if (state_has(walker, order[i]) && state_mem(walker, order[i]) <= level) {
            trap_walk(x, order[i]);
            trap_swallow(x, order[i]);
        }
    trap_unwalk(x, x->origin);
    x->spent += count;
}

static int least_old_first(const void *left, const void *right)
{
    const Exit *a = left, *b = right;
    if (a->old != b->old)
        return a->old < b->old ? -1 : 1;
    return (a->v > b->v) - (a->v < b->v);
}

/* Go on until the trap is done (CLOSED, LARGE or SPENT), a cut is wanted, or about `pause` units of work were done since the last
 * call. `left` units may still be done; `flow` and `side` answer CUT. */
API int32_t peakmem_trap_run(Trap *x, int64_t left, int64_t pause, int64_t flow, const int32_t *side, int32_t count, int64_t *told)
{
    State *top = &x->top;
    int what = PAUSED, priced = 0;
    if (x->running == CUT) {
        trap_answer(x, flow, side, count);
        priced = 1;
    }
    while (what == PAUSED) {
        if (!priced && x->running != PRICED) {
            trap_swallow_cheap(x);
            if (!top->ready_count) {
                what = CLOSED;
                break;
            }
            if (trap_large(x)) {
                what = LARGE;
                break;
            }
            x->exit_count = x->exit_at = 0;
            for (int32_t i = 0; i < top->words; i++)
                for (uint64_t some = top->ready[i]; some; some &= some - 1) {
                    int32_t v = i * 64 + lowest(some);
                    x->exits[x->exit_count].old = x->old[v] < 0 ? 0 : x->old[v];
                    x->exits[x->exit_count++].v = v;
                }
            qsort(x->exits, (size_t)x->exit_count, sizeof *x->exits, least_old_first);
            x->running = PRICED;
        }
        int32_t served = -1;
        while (served < 0) {
            if (!priced) {
                while (x->exit_at < x->exit_count && x->era[x->exits[x->exit_at].v] == x->this_era)
                    x->exit_at++;
                if (x->exit_at == x->exit_count)
                    break;
                if (x->spent >= left) {
                    what = SPENT;
                    break;
                }
                if (x->spent >= pause)
                    goto end; /* to come back here */
                x->enough = x->level;
                what = trap_price(x, x->exits[x->exit_at].v, x->inside, top->path + x->origin, top->length - x->origin);
                if (what != PRICED) {
                    x->running = what;
                    break;
                }
                what = PAUSED;
            }
            priced = 0;
            x->running = PRICED;
            int32_t v = x->exits[x->exit_at].v;
            if (x->stale && (x->old[v] < 0 || x->value < x->old[v]))
                x->old[v] = x->value;
            if (x->value <= x->level)
                served = v;
            x->fresh[v] = x->value;
            x->era[v] = x->this_era;
        }
        if (what != PAUSED)
            break;
        x->running = 0;
        if (served >= 0) {
            trap_swallow(x, served);
            if (x->followers)
                trap_follow(x, served);
            continue;
        }
        int64_t price = INT64_MAX;
        for (int32_t i = 0; i < x->exit_count; i++)
            if (x->fresh[x->exits[i].v] < price)
                price = x->fresh[x->exits[i].v];
        x->best_count = top->length;
        memcpy(x->best, top->path, (size_t)top->length * sizeof *x->best);
        qsort(x->best, (size_t)top->length, sizeof *x->best, ascending);
        x->best_exit_count = x->exit_count;
        for (int32_t i = 0; i < x->exit_count; i++)
            x->best_exits[i] = x->exits[i].v;
        qsort(x->best_exits, (size_t)x->exit_count, sizeof *x->best_exits, ascending);
        x->best_level = price;
        x->best_cuts = x->cuts;
        if (!x->raising)
            what = CLOSED;
        x->level = price;
        trap_stale(x);
    }
end:
    trap_tell(x, what, told);
    return what;
}

/* The arcs of the cut that is asked for, as solvers take them. */
API void peakmem_trap_arcs(const Trap *x, int64_t count, int32_t *tails, int32_t *heads, int64_t *capacities)
{
    memcpy(tails, x->tails, (size_t)count * sizeof *tails);
    memcpy(heads, x->heads, (size_t)count * sizeof *heads);
    memcpy(capacities, x->capacities, (size_t)count * sizeof *capacities);
}

/* What leads from the start to the cheapest state of the last price. */
API int32_t peakmem_trap_witness(const Trap *x, int32_t *steps)
{
    memcpy(steps, x->done, (size_t)x->done_count * sizeof *steps);
    memcpy(steps + x->done_count, x->chosen, (size_t)x->chosen_count * sizeof *steps);
    return x->done_count + x->chosen_count;
}

/* Members and exits of the last trap that closed, ascending. */
API void peakmem_trap_best(const Trap *x, int32_t *members, int32_t *exits)
{
    memcpy(members, x->best, (size_t)x->best_count * sizeof *members);
    memcpy(exits, x->best_exits, (size_t)x->best_exit_count * sizeof *exits);
}
