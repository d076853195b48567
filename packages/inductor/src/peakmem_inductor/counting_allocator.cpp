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
std::unordered_map<void*, int64_t> table;  // every block of ours that is alive; -1: not counted
std::unordered_set<int64_t> foreign;       // threads whose requests do not count
std::vector<Event> events;
std::atomic<bool> counting{false};
c10::Allocator* base = nullptr;
int64_t current = 0;
int64_t peak = 0;
int poison = -1;

void release(void* pointer) {
  if (pointer == nullptr) return;
  {
    std::lock_guard<std::mutex> hold(lock);
    auto found = table.find(pointer);
    if (found != table.end()) {
      if (found->second >= 0 && counting) {
        current -= found->second;
        events.push_back({reinterpret_cast<int64_t>(pointer), -found->second});
      }
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
    table[pointer] = counted ? static_cast<int64_t>(bytes) : -1;
    return {pointer, pointer, &release, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { default_copy_data(to, from, bytes); }
};

Counting counter;

}  // namespace

extern "C" {

// Start counting. Returns 0, or 1 when the present allocator cannot be wrapped.
int peakmem_begin(const int64_t* threads, int64_t count, int fill) {
  std::lock_guard<std::mutex> hold(lock);
  c10::Allocator* present = c10::GetCPUAllocator();
  if (present != &counter) {
    if (present->raw_deleter() == nullptr) return 1;
    if (base != nullptr && base != present && !table.empty()) return 1;
    base = present;
  }
  foreign.clear();
  foreign.insert(threads, threads + count);
  // Blocks of an earlier run that are still alive belong to somebody else now.
  for (auto& entry : table) entry.second = -1;
  events.clear();
  current = peak = 0;
  poison = fill;
  counting = true;
  if (present != &counter) c10::SetCPUAllocator(&counter, 255);
  return c10::GetCPUAllocator() == &counter ? 0 : 1;
}

void peakmem_end() {
  std::lock_guard<std::mutex> hold(lock);
  counting = false;
  foreign.clear();
  c10::SetCPUAllocator(base, 255);
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
