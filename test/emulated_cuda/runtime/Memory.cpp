#include "Memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <sstream>
#include <utility>
#include <vector>

namespace emulated_cuda {

namespace {

// Addresses a device's arena has for each byte of its capacity.
constexpr size_t kAddressesPerByte = 64;
// And all of them, at most: half of what a process can have.
constexpr size_t kMostAddresses = size_t{64} << 40;
constexpr unsigned char kPoison = 0xFB; // a NaN in every floating-point type

uintptr_t address_of(const void* pointer) {
  return reinterpret_cast<uintptr_t>(pointer);
}

size_t rounded_up(size_t size) {
  return (size + Memory::kPage - 1) / Memory::kPage * Memory::kPage;
}

// Fresh bytes hold no zeros that a program could come to rely on.
void make_accessible(void* address, size_t size) {
  if (settings().timing) {
    return;
  }
  if (mprotect(address, size, PROT_READ | PROT_WRITE) != 0) {
    std::fprintf(
        stderr, "emulated CUDA: the host has no %zu bytes for it\n", size);
    std::_Exit(2);
  }
  std::memset(address, kPoison, size);
}

// The bytes are gone, and touching them is a segmentation fault.
void make_unreadable(void* address, size_t size) {
  mmap(
      address,
      size,
      PROT_NONE,
      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED,
      -1,
      0);
}

} // namespace

Memory::Memory() : devices_(settings().devices) {
  const size_t wanted = settings().capacity * settings().devices;
  arena_size_ =
      rounded_up(std::min(wanted * kAddressesPerByte, kMostAddresses) + kPage);
  void* arena = mmap(
      nullptr,
      arena_size_,
      PROT_NONE,
      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
      -1,
      0);
  if (arena == MAP_FAILED) {
    std::fprintf(
        stderr,
        "emulated CUDA: cannot reserve %zu bytes of addresses; use a smaller "
        "EMULATED_CUDA_CAPACITY\n",
        arena_size_);
    std::_Exit(2);
  }
  const uintptr_t aligned = rounded_up(address_of(arena));
  arena_size_ -= rounded_up(aligned - address_of(arena));
  arena_ = aligned;
}

bool Memory::is_device_address(const void* address) const {
  return address_of(address) - arena_ < arena_size_;
}

void* Memory::take_addresses(size_t size) {
  if (fresh_ + size <= arena_size_) {
    void* result = reinterpret_cast<void*>(arena_ + fresh_);
    fresh_ += size;
    return result;
  }
  for (auto it = returned_.begin(); it != returned_.end(); ++it) {
    if (it->second >= size) {
      const auto [begin, length] = *it;
      returned_.erase(it);
      if (length > size) {
        returned_.emplace(begin + size, length - size);
      }
      return reinterpret_cast<void*>(begin);
    }
  }
  return nullptr;
}

void Memory::return_addresses(void* address, size_t size) {
  auto it = returned_.emplace(address_of(address), size).first;
  const auto next = std::next(it);
  if (next != returned_.end() && it->first + it->second == next->first) {
    it->second += next->second;
    returned_.erase(next);
  }
  if (it != returned_.begin()) {
    const auto before = std::prev(it);
    if (before->first + before->second == it->first) {
      before->second += it->second;
      returned_.erase(it);
    }
  }
}

bool Memory::take(int device, size_t size) {
  Device& state = devices_[device];
  if (state.skip > 0) {
    --state.skip;
  } else if (state.failures > 0) {
    --state.failures;
    return false;
  }
  if (size > settings().capacity - state.allocated) {
    return false;
  }
  state.allocated += size;
  state.peak = std::max(state.peak, state.allocated);
  return true;
}

void Memory::give_back(int device, size_t size) {
  devices_[device].allocated -= size;
}

void* Memory::allocate(int device, size_t size) {
  const size_t pages = rounded_up(size);
  if (!take(device, pages)) {
    return nullptr;
  }
  void* address = take_addresses(pages);
  if (address == nullptr) {
    give_back(device, pages);
    return nullptr;
  }
  make_accessible(address, pages);
  ranges_.emplace(address_of(address), Range{pages, device, Kind::Device});
  return address;
}

bool Memory::free(void* address) {
  const auto it = ranges_.find(address_of(address));
  if (it == ranges_.end() || it->second.kind != Kind::Device) {
    return false;
  }
  const Range range = it->second;
  ranges_.erase(it);
  poisoned_.erase(address_of(address), address_of(address) + range.size);
  make_unreadable(address, range.size);
  return_addresses(address, range.size);
  give_back(range.device, range.size);
  return true;
}

void* Memory::allocate_host(size_t size) {
  void* address = nullptr;
  if (posix_memalign(&address, 4096, std::max<size_t>(size, 1)) != 0) {
    return nullptr;
  }
  ranges_.emplace(address_of(address), Range{size, -1, Kind::Host});
  return address;
}

bool Memory::free_host(void* address) {
  if (!unregister_host(address)) {
    return false;
  }
  std::free(address);
  return true;
}

bool Memory::register_host(void* address, size_t size) {
  if (find(address) != nullptr) {
    return false;
  }
  return ranges_.emplace(address_of(address), Range{size, -1, Kind::Host})
      .second;
}

bool Memory::unregister_host(void* address) {
  const auto it = ranges_.find(address_of(address));
  if (it == ranges_.end() || it->second.kind != Kind::Host) {
    return false;
  }
  ranges_.erase(it);
  return true;
}

void* Memory::reserve(size_t size) {
  void* address = take_addresses(rounded_up(size));
  if (address != nullptr) {
    reserved_.emplace(address_of(address), rounded_up(size));
  }
  return address;
}

bool Memory::unreserve(void* address, size_t size) {
  const auto it = reserved_.find(address_of(address));
  if (it == reserved_.end() || it->second != rounded_up(size) ||
      overlaps_range(address, size)) {
    return false;
  }
  reserved_.erase(it);
  return_addresses(address, rounded_up(size));
  return true;
}

uint64_t Memory::create(int device, size_t size) {
  if (size == 0 || size % kPage != 0 || !take(device, size)) {
    return 0;
  }
  physical_.emplace(++last_handle_, Physical{size, device, false, nullptr});
  return last_handle_;
}

bool Memory::release(uint64_t handle) {
  const auto it = physical_.find(handle);
  if (it == physical_.end() || it->second.released) {
    return false;
  }
  it->second.released = true;
  if (it->second.mapped_at == nullptr) {
    give_back(it->second.device, it->second.size);
    physical_.erase(it);
  }
  return true;
}

bool Memory::map(void* address, size_t size, uint64_t handle) {
  const auto it = physical_.find(handle);
  // One place at a time: the bytes are the process's own, not shared.
  if (it == physical_.end() || it->second.size != size ||
      it->second.mapped_at != nullptr || !is_reserved(address, size) ||
      overlaps_range(address, size)) {
    return false;
  }
  it->second.mapped_at = address;
  ranges_.emplace(
      address_of(address), Range{size, it->second.device, Kind::Virtual});
  return true;
}

bool Memory::unmap(void* address, size_t size) {
  // May cover several mappings, but only whole ones.
  const uintptr_t end = address_of(address) + size;
  for (uintptr_t at = address_of(address); at < end;) {
    const auto range = ranges_.find(at);
    if (range == ranges_.end() || range->second.kind != Kind::Virtual ||
        at + range->second.size > end) {
      return false;
    }
    at += range->second.size;
  }
  for (auto it = physical_.begin(); it != physical_.end();) {
    Physical& physical = it->second;
    const uintptr_t at = address_of(physical.mapped_at);
    if (physical.mapped_at == nullptr || at < address_of(address) ||
        at >= end) {
      ++it;
      continue;
    }
    ranges_.erase(at);
    physical.mapped_at = nullptr;
    if (physical.released) {
      give_back(physical.device, physical.size);
      it = physical_.erase(it);
    } else {
      ++it;
    }
  }
  poisoned_.erase(address_of(address), end);
  make_unreadable(address, size);
  return true;
}

bool Memory::allow_access(void* address, size_t size) {
  const uintptr_t end = address_of(address) + size;
  for (uintptr_t at = address_of(address); at < end;) {
    const auto range = ranges_.find(at);
    if (range == ranges_.end() || range->second.kind != Kind::Virtual) {
      return false;
    }
    at += range->second.size;
  }
  make_accessible(address, size);
  return true;
}

int Memory::mappings(const void* address, size_t size) const {
  const uintptr_t begin = address_of(address);
  return static_cast<int>(std::distance(
      ranges_.lower_bound(begin), ranges_.lower_bound(begin + size)));
}

const Memory::Range* Memory::find(const void* address, uintptr_t* begin) const {
  auto it = ranges_.upper_bound(address_of(address));
  if (it == ranges_.begin()) {
    return nullptr;
  }
  --it;
  if (address_of(address) - it->first >= it->second.size) {
    return nullptr;
  }
  if (begin != nullptr) {
    *begin = it->first;
  }
  return &it->second;
}

bool Memory::is_reserved(const void* address, size_t size) const {
  auto it = reserved_.upper_bound(address_of(address));
  return it != reserved_.begin() &&
      address_of(address) + size <= (--it)->first + it->second;
}

bool Memory::overlaps_range(const void* address, size_t size) const {
  const auto it = ranges_.lower_bound(address_of(address));
  return find(address) != nullptr ||
      (it != ranges_.end() && it->first < address_of(address) + size);
}

std::string Memory::check(const void* address, size_t size, bool is_replay)
    const {
  if (size == 0 || !is_device_address(address)) {
    return "";
  }
  std::ostringstream text;
  const uintptr_t end = address_of(address) + size;
  // Neighboring pages of a segment that grows are mapped one by one.
  for (uintptr_t at = address_of(address); at < end;) {
    uintptr_t begin = 0;
    const Range* range = find(reinterpret_cast<const void*>(at), &begin);
    if (range == nullptr) {
      text << size << " bytes at " << address << " are not allocated (freed?)";
      return text.str();
    }
    at = begin + range->size;
  }
  if (!is_replay && poisoned_.overlaps(address_of(address), end)) {
    text << "some of the " << size << " bytes at " << address
         << " belong to a block that was freed";
  }
  return text.str();
}

void Memory::mark_in_use(const void* address, size_t size) {
  const uintptr_t begin = address_of(address);
  poisoned_.erase(begin, begin + size);
  in_use_.assign(begin, begin + size, begin);
}

void Memory::mark_free(const void* address, size_t size) {
  if (!is_device_address(address) || find(address) == nullptr || size == 0) {
    return;
  }
  const uintptr_t begin = address_of(address);
  const uintptr_t end = begin + size;
  const auto poison = [&](uintptr_t first, uintptr_t last) {
    if (first == last) {
      return;
    }
    if (!settings().timing) {
      std::memset(reinterpret_cast<void*>(first), kPoison, last - first);
    }
    poisoned_.assign(first, last, true);
    in_use_.erase(first, last);
  };
  // A block that has slid is given out at its new place before it is taken back
  // from the old one: the bytes of both are those of the new one.
  uintptr_t at = begin;
  std::vector<std::pair<uintptr_t, uintptr_t>> freed;
  in_use_.for_each(
      begin, end, [&](uintptr_t first, uintptr_t last, uintptr_t block) {
        if (block != begin) {
          freed.emplace_back(at, first);
          at = last;
        }
        return true;
      });
  freed.emplace_back(at, end);
  for (const auto& [first, last] : freed) {
    poison(first, last);
  }
}

void Memory::fail_allocations(int device, int skip, int count) {
  devices_[device].skip = skip;
  devices_[device].failures = count;
}

} // namespace emulated_cuda
