#pragma once

#include <c10/cuda/remat/Blocks.h>
#include <c10/cuda/remat/DeviceTraits.h>
#include <c10/remat/Config.h>
#include <c10/remat/DeviceMemory.h>

#include <c10/cuda/CUDAAllocatorConfig.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/util/flat_hash_map.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <functional>
#include <limits>
#include <mutex>
#include <string>
#include <vector>

namespace c10::remat {

// The caching allocator of one CUDA device as the engine sees it, and what the
// patched allocator calls. `Allocator` is DeviceCachingAllocator, a class that
// only its own source file knows, which makes this its friend.
//
// Note [Asking for relief]
// Evicting gives blocks back through the allocator while the engine's lock is
// held, so the engine's lock comes before the allocator's. malloc() therefore
// asks with its lock dropped and looks at everything again when it has it back.
//
// Note [Two kinds of segments]
// What can be evicted is allocated from two more pools, so that windows are not
// cut in pieces by parameters and other bytes that stay. The allocator's own
// pools serve everything else, and everything while remat is off.
//
// Note [The arena]
// The large one of the two pools is one expandable segment per stream, whether
// or not the program asked for those, where the driver can map pages: windows
// need many neighbors. Its pages stay mapped, as mapping and unmapping waits
// for the device; they are taken from it only for other pools, or for a request
// that nothing else serves.
template <class Allocator>
class CudaMemory final : public DeviceMemory {
 public:
  explicit CudaMemory(Allocator& allocator) : allocator_(allocator) {}
  ~CudaMemory() override {
    if (device_ >= 0) {
      register_cuda_memory(device_, nullptr);
    }
  }
  CudaMemory(const CudaMemory&) = delete;
  CudaMemory& operator=(const CudaMemory&) = delete;

  // `block_has_moved(from, block)` tells the allocator of all devices.
  template <class BlockHasMoved>
  void register_as(int device, BlockHasMoved block_has_moved) {
    device_ = device;
    block_has_moved_ = std::move(block_has_moved);
    register_cuda_memory(device, this);
  }

  // --- what the allocator calls, with its lock held ---

  // No free block serves `params`. Makes room for it if it would not fit in the
  // limit, or, if `device_is_full`, whatever the limit. Returns whether
  // `params` has a block now. Drops `lock` meanwhile.
  template <class Params, class Lock, class Context>
  bool make_room(
      Params& params,
      Lock& lock,
      const Context& context,
      bool device_is_full);

  // A segment for `params` would take usage above the limit: sets `error`.
  template <class Params>
  bool refuses(const Params& params, cudaError_t& error) const {
    if (C10_LIKELY(handler_ == nullptr) ||
        shortage_of(growth_of(params)) == 0) {
      return false;
    }
    error = cudaErrorMemoryAllocation;
    return true;
  }

  // The pool for `size` bytes in which only evictable bytes lie; null while
  // the allocator's own are to be used.
  template <class Pool>
  Pool* pool_for(bool is_small, Pool& small, Pool& large) const {
    if (C10_LIKELY(handler_ == nullptr) || !uses_windows_ ||
        placement() != Placement::Evictable) {
      return nullptr;
    }
    return is_small ? &small : &large;
  }

  // See Note [The arena].
  template <class Pool>
  bool is_arena(const Pool* pool) const {
    return C10_UNLIKELY(arena_page_ != 0) &&
        pool == &allocator_.remat_large_blocks;
  }
  // Of what is mapped for it.
  template <class Pool>
  size_t page_of(const Pool* pool) const {
    return pool->is_small ? kPage : is_arena(pool) ? arena_page_ : kLargePage;
  }

  // Does a plan say at which end the block for `params` lies? See Note [Two
  // ends].
  template <class Params>
  bool is_planned(const Params& params) const {
    return C10_UNLIKELY(placement_plan() != nullptr) && is_arena(params.pool);
  }
  // Takes a free block there, if there is one.
  template <class Params>
  bool take_planned(Params& params) {
    params.block = stays(params)
        ? take_uppermost(*params.pool, params.search_key)
        : take_lowest(*params.pool, params.search_key);
    return params.block != nullptr;
  }

  void freed(const void* address) {
    if (C10_UNLIKELY(!owners_.empty())) {
      owners_.erase(address);
    }
  }

  template <class Blocks>
  void append_free_blocks(Blocks& blocks) const {
    for (const auto* pool :
         {&allocator_.remat_large_blocks, &allocator_.remat_small_blocks}) {
      blocks.insert(blocks.end(), pool->blocks.begin(), pool->blocks.end());
    }
  }

  // Segments in which evictable bytes lie are told in a snapshot by this pool.
  template <class Pool, class Segment>
  void mark(const Pool* pool, Segment& segment) const {
    if (is_evictable(pool)) {
      segment.owner_private_pool_id = kEvictablePool;
    }
  }

  // With no lock held.
  std::string explain(size_t size) {
    PressureHandler* handler = nullptr;
    {
      const Guard guard(allocator_.mutex);
      handler = handler_;
    }
    return handler == nullptr ? "" : " " + handler->explain_out_of_memory(size);
  }

  // --- DeviceMemory ---

  Bytes usage() const noexcept override {
    const Guard guard(allocator_.mutex);
    return allocator_.total_allocated_memory;
  }
  Bytes peak() const noexcept override {
    const Guard guard(allocator_.mutex);
    return static_cast<Bytes>(allocator_.stats.reserved_bytes[0].peak);
  }
  void reset_peak() noexcept override {
    const Guard guard(allocator_.mutex);
    allocator_.stats.reserved_bytes[0].reset_peak();
  }
  int64_t driver_calls() const noexcept override {
    const Guard guard(allocator_.mutex);
    return count_driver_calls();
  }
  void set_limit(Bytes limit, PressureHandler* handler) noexcept override {
    const bool uses_windows = handler != nullptr && handler->uses_windows();
    // With a largest size to split most of a long segment would go unused.
    const bool maps_pages = uses_windows &&
        Config_::max_split_size() == std::numeric_limits<size_t>::max() &&
        can_map_pages(device_, kPage);
    const double bytes_per_ns = memory_bytes_per_ns(device_);
    const Guard guard(allocator_.mutex);
    uses_windows_ = uses_windows;
    bytes_per_ns_ = bytes_per_ns;
    // Where there is an arena, it keeps the size of its pages.
    if (allocator_.remat_large_blocks.unmapped.empty()) {
      const Bytes page = limit / kPagesOfBudget / kPage * kPage;
      arena_page_ = maps_pages ? std::clamp(page, kPage, kLargePage) : 0;
    }
    limit_ = limit;
    handler_ = handler;
  }
  void set_owner(const void* address, void* owner) noexcept override {
    const Guard guard(allocator_.mutex);
    if (owner == nullptr) {
      owners_.erase(address);
    } else {
      owners_[address] = owner;
    }
  }
  void* copy_to_free_block(
      const void* key,
      const std::vector<AddressRange>& avoided,
      Placement placement) noexcept override;
  bool slide_down(const void* key, void*& address) noexcept override;
  void close_holes() noexcept override;
  CostNs copy_cost(Bytes size, Bytes distance) const noexcept override {
    // GB/s are bytes per ns; each byte is read and written.
    const auto launches = static_cast<CostNs>((size + distance - 1) / distance);
    return launches * kLaunchNs +
        static_cast<CostNs>(2 * static_cast<double>(size) / bytes_per_ns_);
  }
  void release_free_memory() override {
    allocator_.emptyCache();
  }
  bool is_capturing() const noexcept override {
    const Guard guard(allocator_.mutex);
    return !allocator_.captures_underway.empty();
  }
  bool captures_graph() const noexcept override {
    if (!is_capturing()) { // the device's answer takes longer
      return false;
    }
    const auto stream = cuda::getCurrentCUDAStream(device_);
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    return cudaStreamIsCapturing(stream, &status) == cudaSuccess &&
        status != cudaStreamCaptureStatusNone;
  }
  bool is_private(const void* address) const noexcept override {
    const Guard guard(allocator_.mutex);
    return !allocator_.graph_pools.empty() &&
        std::any_of(
            allocator_.active_blocks.begin(),
            allocator_.active_blocks.end(),
            [&](const auto* block) {
              return block->ptr == address &&
                  block->pool->owner_PrivatePool != nullptr;
            });
  }
  std::vector<SegmentView> segments(
      const MemoryRequest& request) const override;

 private:
  using Block = typename Allocator::remat_block;
  using Guard = std::lock_guard<std::recursive_mutex>;
  using Config_ = cuda::CUDACachingAllocator::CUDAAllocatorConfig;

  static constexpr cuda::MempoolId_t kEvictablePool{0, ~uint64_t{0}};
  static constexpr Bytes kPage = Bytes{2} << 20;
  static constexpr Bytes kLargePage = cuda::CUDACachingAllocator::kLargeBuffer;
  // Mapping takes as long for each page, whatever its size, and of small pages
  // more can be given back.
  static constexpr Bytes kPagesOfBudget = 512;
  static constexpr CostNs kLaunchNs = 5000;

  int64_t count_driver_calls() const {
    return allocator_.stats.num_device_alloc + allocator_.stats.num_device_free;
  }

  // Evictable bytes lie there; see Note [Two kinds of segments].
  template <class Pool>
  bool is_evictable(const Pool* pool) const {
    return pool == &allocator_.remat_small_blocks ||
        pool == &allocator_.remat_large_blocks;
  }

  // By how much usage grows if `params` gets memory that is new. Pages are
  // mapped whole, beside what is free and mapped already.
  template <class Params>
  Bytes growth_of(const Params& params) const {
    const auto* pool = params.pool;
    if (!Config_::expandable_segments() && !is_arena(pool)) {
      return params.alloc_size;
    }
    return bytes_to_map(*pool, params.stream(), params.size(), page_of(pool));
  }

  Bytes shortage_of(Bytes growth) const {
    const Bytes usage = allocator_.total_allocated_memory;
    return limit_ != Config::kUnlimited && usage + growth > limit_
        ? usage + growth - limit_
        : 0;
  }

  Bytes unused() const {
    const auto& stats = allocator_.stats;
    return static_cast<Bytes>(
        stats.reserved_bytes[0].current - stats.active_bytes[0].current);
  }

  // All but private ones, those with the largest segments first.
  auto pools() const {
    return std::array{
        &allocator_.large_blocks,
        &allocator_.remat_large_blocks,
        &allocator_.small_blocks,
        &allocator_.remat_small_blocks};
  }

  // By the plan, of which there is one.
  template <class Params>
  bool stays(const Params& params) const {
    const auto& sizes = placement_plan()->staying;
    return std::any_of(sizes.begin(), sizes.end(), [&](Bytes size) {
      return Allocator::round_size(size) == params.size();
    });
  }

  // Gives back segments that are free, if they are enough.
  template <class Context>
  bool release_segments(Bytes wanted, bool also_small, const Context& context);

  // The same with pages of expandable segments.
  template <class Context>
  bool release_pages(Bytes wanted, const Context& context);
  // Returns the bytes.
  template <class Context>
  Bytes unmap_end(Block* block, Bytes wanted, const Context& context);

  // Evicting and what it needs (asking events, giving memory back) would end a
  // capture.
  bool may_evict() const {
    return allocator_.captures_underway.empty();
  }

  template <class Params>
  bool use_free_block(Params& params) {
    if (!allocator_.get_free_block(params)) {
      return false;
    }
    params.err = cudaSuccess; // an earlier try to grow may have failed
    return true;
  }

  // What is free among leaves is better used than added to by evicting: what
  // lies there can be evicted when leaves need it. The other way round, leaves
  // would stay among evictable bytes and cut windows in two.
  template <class Params>
  bool lends_leaf_block(Params& params);

  // Better a leaf among evictable bytes, or a small block among large ones,
  // than an error.
  template <class Params>
  bool use_other_placement(Params& params);

  Allocator& allocator_;
  int device_ = -1;
  std::function<void(void*, Block*)> block_has_moved_;
  std::atomic<double> bytes_per_ns_{1};
  // The rest is guarded by the allocator's lock.
  Bytes limit_ = Config::kUnlimited;
  PressureHandler* handler_ = nullptr;
  bool uses_windows_ = false;
  size_t arena_page_ = 0; // 0: there is no arena
  int64_t calls_before_ = 0; // of the driver, when an iteration last began
  ska::flat_hash_map<const void*, void*> owners_; // by address of the block
};

} // namespace c10::remat

#include <c10/cuda/remat/CudaMemory-inl.h>
