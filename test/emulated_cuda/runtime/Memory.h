#pragma once

#include "IntervalMap.h"
#include "Settings.h"

#include <map>
#include <string>
#include <vector>

namespace emulated_cuda {

// What the address space of the emulated devices holds. Device memory is memory
// of this process, behind a capacity; in timing mode it is addresses only. What
// is freed becomes unreadable, and its addresses are used again only when a
// device has run out of fresh ones. Guarded by the machine's mutex.
class Memory {
 public:
  static constexpr size_t kPage = size_t{2}
      << 20; // what a device gives at once

  enum class Kind { Device, Virtual, Host };
  struct Range {
    size_t size;
    int device; // -1: host
    Kind kind;
  };

  Memory();

  // Null if there is no room for it.
  void* allocate(int device, size_t size);
  // False if nothing was allocated there.
  bool free(void* address);

  void* allocate_host(size_t size);
  bool free_host(void* address);
  bool register_host(void* address, size_t size);
  bool unregister_host(void* address);

  void* reserve(size_t size);
  bool unreserve(void* address, size_t size);
  // 0 if there is no room for it.
  uint64_t create(int device, size_t size);
  bool release(uint64_t handle);
  bool map(void* address, size_t size, uint64_t handle);
  bool unmap(void* address, size_t size);
  bool allow_access(void* address, size_t size);
  // How many physical allocations are mapped from there on.
  int mappings(const void* address, size_t size) const;

  // Whether it is, was or will be device memory.
  bool is_device_address(const void* address) const;
  // The allocation that holds `address`; null if there is none.
  const Range* find(const void* address, uintptr_t* begin = nullptr) const;
  // Says what is wrong with [address, address + size) where it touches device
  // memory; empty: nothing is. The replay of a graph may touch blocks that are
  // free: its private pool keeps them for it.
  std::string check(const void* address, size_t size, bool is_replay) const;

  void mark_in_use(const void* address, size_t size);
  void mark_free(const void* address, size_t size);

  void fail_allocations(int device, int skip, int count);
  size_t allocated(int device) const {
    return devices_[device].allocated;
  }
  size_t peak(int device) const {
    return devices_[device].peak;
  }

 private:
  struct Device {
    size_t allocated = 0;
    size_t peak = 0;
    int skip = 0; // allocations until the next failures
    int failures = 0;
  };
  struct Physical {
    size_t size;
    int device;
    bool released; // lives until it is unmapped
    void* mapped_at;
  };

  bool take(int device, size_t size);
  void give_back(int device, size_t size);
  void* take_addresses(size_t size);
  void return_addresses(void* address, size_t size);
  bool is_reserved(const void* address, size_t size) const;
  bool overlaps_range(const void* address, size_t size) const;

  uintptr_t arena_ = 0; // addresses of device memory
  size_t arena_size_ = 0;
  size_t fresh_ = 0; // offset of the first that was never used
  std::map<uintptr_t, size_t> returned_;
  std::map<uintptr_t, size_t> reserved_;
  std::map<uintptr_t, Range> ranges_;
  std::map<uint64_t, Physical> physical_;
  uint64_t last_handle_ = 0;
  std::vector<Device> devices_;
  IntervalMap<bool> poisoned_;
  IntervalMap<uintptr_t>
      in_use_; // where the block begins that the bytes are of
};

} // namespace emulated_cuda
