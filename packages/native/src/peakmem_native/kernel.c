/* The inner loops of peakmem's order search, for core to call through ctypes.
 *
 * peakmem.ordering.problem, .beam, .walk and .cuts are the specification (of canonical.c beside it: peakmem.arena.canonical): for
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

#define ABI 4

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
} State;

static void state_free(State *s)
{
    free(s->born);
    free(s->remaining);
    free(s->missing);
    free(s->path);
    free(s->ready);
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
    s->ready[v >> 6] &= ~((uint64_t)1 << (v & 63));
    s->ready_count--;
    for (int32_t i = p->succs_at[v]; i < p->succs_at[v + 1]; i++) {
        int32_t w = p->succs[i];
        if (!--s->missing[w]) {
            s->ready[w >> 6] |= (uint64_t)1 << (w & 63);
            s->ready_count++;
        }
    }
    s->path[s->length++] = v;
}

static void state_pop(State *s)
{
    const Problem *p = s->problem;
    int32_t v = s->path[--s->length];
    for (int32_t i = p->succs_at[v]; i < p->succs_at[v + 1]; i++) {
        int32_t w = p->succs[i];
        if (!s->missing[w]++) {
            s->ready[w >> 6] &= ~((uint64_t)1 << (w & 63));
            s->ready_count--;
        }
    }
    s->ready[v >> 6] |= (uint64_t)1 << (v & 63);
    s->ready_count++;
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
