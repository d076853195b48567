// A CPU allocator that counts: it asks the allocator it replaces for every block and remembers the sizes of its own.
// Blocks keep `get() == get_context()`, which c10 demands, so sizes live in a table beside them.
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <unordered_map>
#include <unordered_set>
#include <vector>

namespace {

struct Event {
  int64_t pointer;
  int64_t bytes;  // negative: freed
};

std::mutex lock;
struct Block {
  int64_t bytes;
  bool counted;  // by the inner count, which records one run
  bool watched;  // by the outer one, which sees whole steps
};

std::unordered_map<void*, Block> table;    // every block of ours that is alive
std::unordered_set<int64_t> foreign;       // threads whose requests do not count
std::vector<Event> events;
std::atomic<bool> counting{false};
std::atomic<bool> watching{false};
c10::Allocator* base = nullptr;
int64_t current = 0;
int64_t peak = 0;
int64_t watched_current = 0;
int64_t watched_peak = 0;
int poison = -1;

void release(void* pointer) {
  if (pointer == nullptr) return;
  {
    std::lock_guard<std::mutex> hold(lock);
    auto found = table.find(pointer);
    if (found != table.end()) {
      const Block& block = found->second;
      if (block.counted && counting) {
        current -= block.bytes;
        events.push_back({reinterpret_cast<int64_t>(pointer), -block.bytes});
      }
      if (block.watched && watching) watched_current -= block.bytes;
      table.erase(found);
    }
  }
  base->raw_deleter()(pointer);
}

struct Counting final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    c10::DataPtr block = base->allocate(bytes);
    void* pointer = block.get();
    if (pointer == nullptr) return {nullptr, nullptr, &release, c10::Device(c10::DeviceType::CPU)};
    block.release_context();
    std::lock_guard<std::mutex> hold(lock);
    bool counted = counting && foreign.find(syscall(SYS_gettid)) == foreign.end();
    if (counted) {
      if (poison >= 0) std::memset(pointer, poison, bytes);
      current += static_cast<int64_t>(bytes);
      peak = std::max(peak, current);
      events.push_back({reinterpret_cast<int64_t>(pointer), static_cast<int64_t>(bytes)});
    }
    bool watched = watching;
    if (watched) {
      watched_current += static_cast<int64_t>(bytes);
      watched_peak = std::max(watched_peak, watched_current);
    }
    table[pointer] = {static_cast<int64_t>(bytes), counted, watched};
    return {pointer, pointer, &release, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { default_copy_data(to, from, bytes); }
};

Counting counter;

bool install() {
  c10::Allocator* present = c10::GetCPUAllocator();
  if (present == &counter) return true;
  if (present->raw_deleter() == nullptr) return false;
  if (base != nullptr && base != present && !table.empty()) return false;
  base = present;
  c10::SetCPUAllocator(&counter, 255);
  return c10::GetCPUAllocator() == &counter;
}

void uninstall() {
  if (!counting && !watching) c10::SetCPUAllocator(base, 255);
}

}  // namespace

extern "C" {

// Start counting. Returns 0, or 1 when the present allocator cannot be wrapped.
int peakmem_begin(const int64_t* threads, int64_t count, int fill) {
  std::lock_guard<std::mutex> hold(lock);
  if (!install()) return 1;
  foreign.clear();
  foreign.insert(threads, threads + count);
  // Blocks of an earlier run that are still alive belong to somebody else now.
  for (auto& entry : table) entry.second.counted = false;
  events.clear();
  current = peak = 0;
  poison = fill;
  counting = true;
  return 0;
}

void peakmem_end() {
  std::lock_guard<std::mutex> hold(lock);
  counting = false;
  foreign.clear();
  uninstall();
}

// Watch all threads, whatever is counted meanwhile. Returns as peakmem_begin.
int peakmem_watch_begin() {
  std::lock_guard<std::mutex> hold(lock);
  if (!install()) return 1;
  for (auto& entry : table) entry.second.watched = false;
  watched_current = watched_peak = 0;
  watching = true;
  return 0;
}

void peakmem_watch_end() {
  std::lock_guard<std::mutex> hold(lock);
  watching = false;
  uninstall();
}

// As peakmem_mark, of the outer count.
void peakmem_watch_mark(int64_t outside, int64_t* result) {
  std::lock_guard<std::mutex> hold(lock);
  watched_current -= outside;
  result[0] = watched_peak;
  result[1] = watched_current;
  watched_peak = watched_current;
}

// Peak since the last mark, then current; the peak restarts from current. `outside` bytes were freed by others.
void peakmem_mark(int64_t outside, int64_t* result) {
  std::lock_guard<std::mutex> hold(lock);
  current -= outside;
  result[0] = peak;
  result[1] = current;
  result[2] = static_cast<int64_t>(events.size());
  peak = current;
}

void peakmem_events(int64_t* out, int64_t count) {
  std::lock_guard<std::mutex> hold(lock);
  count = std::min<int64_t>(count, static_cast<int64_t>(events.size()));
  std::memcpy(out, events.data(), sizeof(Event) * count);
  events.clear();
}
}
