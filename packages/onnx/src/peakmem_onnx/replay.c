/* Memory at planned places for runs that repeat: C11 or C++17.
 *
 * Every run of a model at one shape asks for the same sizes in the same order. So the i-th request of a run is given its planned
 * place in one block; there is a sequence of requests, with places in the same block, for every shape that was planned. Which
 * request of which sequence is made now is read off the sizes alone (the longest end of what was asked that begins a sequence, as in
 * the search for strings), so that a run of another shape, another session or a run broken off between them is followed until it is
 * over; peakmem_shape says it where two shapes begin alike. A place is given only while nothing that is in use overlaps it: threads,
 * other shapes and outputs that are kept never share a byte. What has no place, or not now, comes from the C library and is counted.
 */
#ifdef __cplusplus
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <new>
typedef std::mutex PeakmemLock;
#define PEAKMEM_INIT(mutex) (void)(mutex)
#define PEAKMEM_LOCK(mutex) (mutex).lock()
#define PEAKMEM_UNLOCK(mutex) (mutex).unlock()
#define PEAKMEM_TAKE(bytes) ::operator new(bytes, std::align_val_t(64), std::nothrow)
#define PEAKMEM_GIVE(block) ::operator delete(block, std::align_val_t(64))
#else
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
typedef pthread_mutex_t PeakmemLock;
#define PEAKMEM_INIT(mutex) pthread_mutex_init(&(mutex), NULL)
#define PEAKMEM_LOCK(mutex) pthread_mutex_lock(&(mutex))
#define PEAKMEM_UNLOCK(mutex) pthread_mutex_unlock(&(mutex))
#define PEAKMEM_TAKE(bytes) aligned_alloc(64, bytes)
#define PEAKMEM_GIVE(block) free(block)
#endif

#define PEAKMEM_OUTPUT ((size_t)-1) /* an offset: belongs to the caller, and has no place in the block */

typedef struct PeakmemPlan {
  const size_t *sizes;   /* of the requests of a run of each shape, one after the other; multiples of 64 */
  const size_t *offsets; /* in the block, or PEAKMEM_OUTPUT */
  const size_t *ends;    /* of each shape: where its requests end */
  size_t shapes;
  size_t bytes;    /* of the block */
  size_t *back;    /* for every request: how much of its shape is begun anew where the next request is another one */
  size_t *in_use;  /* requests that hold their places */
  size_t *begun;   /* of each shape: how many of its requests have been made */
  size_t shape;    /* whose places are given */
  char *block;     /* NULL until the first planned run */
  size_t holding;  /* entries of in_use */
  int armed;       /* places are given; not while a session is made, for it keeps what it takes */
  size_t hits;     /* requests that got their place */
  size_t outputs;  /* outputs that came from the C library as planned */
  size_t misses;   /* requests from the C library that the plan has not */
  size_t missed_bytes;
  size_t touched;  /* bytes of the block up to the highest place given */
  PeakmemLock lock;
} PeakmemPlan;

/* scratch: room for two numbers for each request and one for each shape. */
static void peakmem_init(PeakmemPlan *plan, const size_t *sizes, const size_t *offsets, const size_t *ends, size_t shapes,
                         size_t bytes, size_t *scratch) {
  size_t shape, first = 0;
  plan->sizes = sizes;
  plan->offsets = offsets;
  plan->ends = ends;
  plan->shapes = shapes;
  plan->bytes = bytes;
  plan->back = scratch;
  plan->in_use = scratch + ends[shapes - 1];
  plan->begun = plan->in_use + ends[shapes - 1];
  PEAKMEM_INIT(plan->lock);
  for (shape = 0; shape < shapes; first = ends[shape++]) {
    const size_t *own = sizes + first;
    size_t *back = plan->back + first, count = ends[shape] - first, i, k = 0;
    plan->begun[shape] = 0;
    for (i = 0; i < count; i++) {
      while (i && k && own[i] != own[k]) k = back[k - 1];
      if (i && own[i] == own[k]) k++;
      back[i] = k;
    }
  }
}

static void peakmem_anew(PeakmemPlan *plan) {
  size_t i;
  for (i = 0; i < plan->shapes; i++) plan->begun[i] = 0;
}

/* From here on places are given, or not; the counts begin at zero. */
static void peakmem_arm(PeakmemPlan *plan, int armed) {
  PEAKMEM_LOCK(plan->lock);
  plan->armed = armed;
  peakmem_anew(plan);
  plan->hits = plan->outputs = plan->misses = plan->missed_bytes = plan->touched = 0;
  PEAKMEM_UNLOCK(plan->lock);
}

/* The next run is one of this shape, by its number. Only needed where two shapes begin with the same requests. */
static inline void peakmem_shape(PeakmemPlan *plan, size_t shape) {
  PEAKMEM_LOCK(plan->lock);
  peakmem_anew(plan);
  plan->shape = shape;
  PEAKMEM_UNLOCK(plan->lock);
}

/* The request that is made now, of the shape whose beginning fits best, or the number of all requests. */
static size_t peakmem_next(PeakmemPlan *plan, size_t bytes) {
  size_t shape, first = 0, most = 0, best = 0, found = plan->ends[plan->shapes - 1];
  for (shape = 0; shape < plan->shapes; first = plan->ends[shape++]) {
    const size_t *own = plan->sizes + first;
    size_t count = plan->ends[shape] - first, begun = plan->begun[shape];
    if (!count) continue;
    while (begun && own[begun] != bytes) begun = plan->back[first + begun - 1];
    if (own[begun] == bytes) {
      begun++;
      if (begun > most || (begun == most && shape == plan->shape)) {
        most = begun;
        best = shape;
        found = first + begun - 1;
      }
    }
    plan->begun[shape] = begun == count ? 0 : begun;
  }
  if (most) {
    plan->shape = best;
    if (found + 1 == plan->ends[best]) peakmem_anew(plan); /* the run is over */
  }
  return found;
}

/* The place of the next request, or NULL. */
static char *peakmem_place(PeakmemPlan *plan, size_t bytes) {
  size_t begin, i, at = peakmem_next(plan, bytes);
  if (at < plan->ends[plan->shapes - 1]) {
    begin = plan->offsets[at];
    if (begin == PEAKMEM_OUTPUT) {
      plan->outputs++;
      return NULL;
    }
    for (i = 0; i < plan->holding; i++) {
      size_t other = plan->in_use[i];
      if (plan->offsets[other] < begin + bytes && begin < plan->offsets[other] + plan->sizes[other]) break;
    }
    if (i == plan->holding) {
      if (!plan->block) plan->block = (char *)PEAKMEM_TAKE(plan->bytes);
      if (plan->block) {
        plan->in_use[plan->holding++] = at;
        plan->hits++;
        if (begin + bytes > plan->touched) plan->touched = begin + bytes;
        return plan->block + begin;
      }
    }
  }
  plan->misses++;
  plan->missed_bytes += bytes;
  return NULL;
}

static void *peakmem_alloc(PeakmemPlan *plan, size_t size) {
  size_t bytes = (size + 63) & ~(size_t)63;
  char *place = NULL;
  if (!bytes) return NULL;
  if (plan->shapes) {
    PEAKMEM_LOCK(plan->lock);
    if (plan->armed) place = peakmem_place(plan, bytes);
    PEAKMEM_UNLOCK(plan->lock);
  }
  return place ? place : PEAKMEM_TAKE(bytes);
}

static void peakmem_free(PeakmemPlan *plan, void *given) {
  uintptr_t at = (uintptr_t)given;
  int ours = 0;
  PEAKMEM_LOCK(plan->lock);
  if (plan->block && at >= (uintptr_t)plan->block && at < (uintptr_t)plan->block + plan->bytes) {
    size_t i, offset = (size_t)(at - (uintptr_t)plan->block);
    ours = 1;
    for (i = 0; i < plan->holding; i++)
      if (plan->offsets[plan->in_use[i]] == offset) {
        plan->in_use[i] = plan->in_use[--plan->holding];
        break;
      }
  }
  PEAKMEM_UNLOCK(plan->lock);
  if (given && !ours) PEAKMEM_GIVE(given);
}
#ifdef PEAKMEM_MEASURED /* the same code, driven from Python to measure it, and to record what is asked for */
#include <string.h>

/* What ONNX Runtime calls an OrtAllocator, with the plan behind it; fields of later versions stay zero. */
typedef struct Measured {
  uint32_t version;
  void *(*alloc)(struct Measured *, size_t);
  void (*free)(struct Measured *, void *);
  const void *(*info)(const struct Measured *);
  void *later[8];
  const void *memory;
  PeakmemPlan plan;
  int64_t *trace; /* the size of a request, or -1 - the number of one that is given back */
  void **blocks;  /* by number, while they are in use */
  size_t room, length, requests;
} Measured;

static void measured_note(Measured *self, int64_t what) {
  if (self->length < self->room) self->trace[self->length] = what;
  self->length++;
}

static void *measured_alloc(Measured *self, size_t size) {
  void *block = peakmem_alloc(&self->plan, size);
  if (block && self->trace) {
    PEAKMEM_LOCK(self->plan.lock);
    if (self->trace && self->requests < self->room) {
      measured_note(self, (int64_t)((size + 63) & ~(size_t)63));
      self->blocks[self->requests++] = block;
    }
    PEAKMEM_UNLOCK(self->plan.lock);
  }
  return block;
}

static void measured_free(Measured *self, void *block) {
  if (block && self->trace) {
    size_t i;
    PEAKMEM_LOCK(self->plan.lock);
    for (i = self->trace ? self->requests : 0; i-- > 0;)
      if (self->blocks[i] == block) {
        self->blocks[i] = NULL;
        measured_note(self, -1 - (int64_t)i);
        break;
      }
    PEAKMEM_UNLOCK(self->plan.lock);
  }
  peakmem_free(&self->plan, block);
}

static const void *measured_info(const Measured *self) { return self->memory; }

void *measured_new(
    const void *memory, size_t shapes, const size_t *ends, const size_t *sizes, const size_t *offsets, size_t bytes) {
  Measured *self = calloc(1, sizeof *self);
  size_t count = ends[shapes - 1], *copy = calloc(4 * count + 2 * shapes, sizeof *copy);
  if (!self || !copy) return NULL;
  memcpy(copy, sizes, count * sizeof *copy);
  memcpy(copy + count, offsets, count * sizeof *copy);
  memcpy(copy + 2 * count, ends, shapes * sizeof *copy);
  self->version = 15;
  self->alloc = measured_alloc;
  self->free = measured_free;
  self->info = measured_info;
  self->memory = memory;
  peakmem_init(&self->plan, copy, copy + count, copy + 2 * count, shapes, bytes, copy + 2 * count + shapes);
  return self;
}

void measured_arm(Measured *self, int armed) { peakmem_arm(&self->plan, armed); }

/* Records into trace from here on; blocks has the same room. NULL ends it. Returns the length of what was recorded before. */
size_t measured_record(Measured *self, int64_t *trace, void **blocks, size_t room) {
  size_t length;
  PEAKMEM_LOCK(self->plan.lock);
  length = self->length;
  self->trace = trace;
  self->blocks = blocks;
  self->room = room;
  self->length = self->requests = 0;
  PEAKMEM_UNLOCK(self->plan.lock);
  return length;
}

/* out: hits, outputs, misses, bytes of these, bytes of the block that were touched, requests that hold places */
void measured_counts(Measured *self, size_t *out) {
  out[0] = self->plan.hits;
  out[1] = self->plan.outputs;
  out[2] = self->plan.misses;
  out[3] = self->plan.missed_bytes;
  out[4] = self->plan.touched;
  out[5] = self->plan.holding;
}
#endif
