/* Counts what ONNX Runtime asks of the C library for its tensors and workspace.
 *
 * Its CPU allocator takes memory aligned to 64 bytes (aligned operator new, which calls aligned_alloc with the size
 * rounded up to the alignment, or posix_memalign in older builds); nothing else in the process does while the window
 * between peakmem_start and peakmem_stop is open. Blocks taken before the window (weights) are not counted, nor is their release.
 *
 * Loaded with LD_PRELOAD into a child process; driven from Python through ctypes.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#define SLOTS (1u << 20) /* open addressing; more live blocks than half of this are refused, never miscounted */
#define SMALLEST_ALIGNMENT 64

typedef int (*memalign_fn)(void **, size_t, size_t);
typedef void *(*aligned_fn)(size_t, size_t);
typedef void (*free_fn)(void *);

static memalign_fn real_memalign;
static aligned_fn real_aligned;
static free_fn real_free;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static volatile int window; /* 1 while allocations are counted */
static uintptr_t keys[SLOTS];
static size_t sizes[SLOTS];
static int64_t numbers[SLOTS]; /* which allocation of the window it is */
static size_t used;
static int overflow;
static int64_t now, peak, count;

static int64_t *trace; /* in order: the size of an allocation, or -1 - its number where it is freed; NULL when not asked for */
static int64_t trace_room, trace_length;

static void note(int64_t change) {
  if (trace != NULL && trace_length < trace_room) trace[trace_length] = change;
  trace_length++;
}

static size_t slot_of(uintptr_t key) {
  return (size_t)((key >> 6) * 0x9E3779B97F4A7C15ull >> 44) & (SLOTS - 1);
}

static void insert(void *block, size_t size) {
  uintptr_t key = (uintptr_t)block;
  if (used * 2 >= SLOTS) {
    overflow = 1;
    return;
  }
  size_t i = slot_of(key);
  while (keys[i] != 0) i = (i + 1) & (SLOTS - 1);
  keys[i] = key;
  sizes[i] = size;
  numbers[i] = count;
  used++;
  now += (int64_t)size;
  count++;
  note((int64_t)size);
  if (now > peak) peak = now;
}

static void erase(void *block) {
  uintptr_t key = (uintptr_t)block;
  size_t i = slot_of(key);
  while (keys[i] != key) {
    if (keys[i] == 0) return; /* not ours, or from before the window */
    i = (i + 1) & (SLOTS - 1);
  }
  now -= (int64_t)sizes[i];
  note(-1 - numbers[i]);
  used--;
  size_t hole = i, j = i;
  for (;;) { /* backward shift keeps probe sequences unbroken */
    j = (j + 1) & (SLOTS - 1);
    if (keys[j] == 0) break;
    size_t home = slot_of(keys[j]);
    int stays = hole <= j ? (hole < home && home <= j) : (hole < home || home <= j);
    if (!stays) {
      keys[hole] = keys[j];
      sizes[hole] = sizes[j];
      numbers[hole] = numbers[j];
      hole = j;
    }
  }
  keys[hole] = 0;
}

/* Charges are rounded up to the alignment, whichever function a build of the runtime calls. */
static void taken(void *block, size_t alignment, size_t size) {
  if (!window || block == NULL || alignment < SMALLEST_ALIGNMENT) return;
  pthread_mutex_lock(&lock);
  if (window) insert(block, (size + SMALLEST_ALIGNMENT - 1) & ~(size_t)(SMALLEST_ALIGNMENT - 1));
  pthread_mutex_unlock(&lock);
}

int posix_memalign(void **result, size_t alignment, size_t size) {
  if (real_memalign == NULL) real_memalign = (memalign_fn)dlsym(RTLD_NEXT, "posix_memalign");
  if (real_memalign == NULL) return ENOMEM;
  int error = real_memalign(result, alignment, size);
  if (error == 0) taken(*result, alignment, size);
  return error;
}

void *aligned_alloc(size_t alignment, size_t size) {
  if (real_aligned == NULL) real_aligned = (aligned_fn)dlsym(RTLD_NEXT, "aligned_alloc");
  if (real_aligned == NULL) return NULL;
  void *block = real_aligned(alignment, size);
  taken(block, alignment, size);
  return block;
}

void free(void *block) {
  if (real_free == NULL) real_free = (free_fn)dlsym(RTLD_NEXT, "free");
  if (block != NULL && used != 0) {
    pthread_mutex_lock(&lock);
    erase(block);
    pthread_mutex_unlock(&lock);
  }
  if (real_free != NULL) real_free(block);
}

/* Opens the window with all counters at zero. */
void peakmem_start(int64_t *trace_buffer, int64_t room) {
  pthread_mutex_lock(&lock);
  for (size_t i = 0; i < SLOTS; i++) keys[i] = 0;
  used = 0;
  overflow = 0;
  now = peak = count = 0;
  trace = trace_buffer;
  trace_room = room;
  trace_length = 0;
  window = 1;
  pthread_mutex_unlock(&lock);
}

/* How long the trace is by now. */
int64_t peakmem_length(void) {
  int64_t length;
  pthread_mutex_lock(&lock);
  length = trace_length;
  pthread_mutex_unlock(&lock);
  return length;
}

/* Closes it. out: peak, live now, number of allocations, overflow, length of the trace. */
void peakmem_stop(int64_t *out) {
  pthread_mutex_lock(&lock);
  window = 0;
  out[0] = peak;
  out[1] = now;
  out[2] = count;
  out[3] = overflow;
  out[4] = trace_length;
  trace = NULL;
  pthread_mutex_unlock(&lock);
}
