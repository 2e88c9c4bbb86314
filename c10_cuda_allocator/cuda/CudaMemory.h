#pragma once

#include <c10/remat/Config.h>
#include <c10/remat/DeviceMemory.h>

#include <c10/cuda/CUDAAllocatorConfig.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/util/flat_hash_map.h>

#include <algorithm>
#include <array>
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

  void register_as(int device) {
    device_ = device;
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
      bool device_is_full) {
    if (handler_ == nullptr) {
      // Since before the limit was taken away, evictable segments have room.
      return device_is_full && may_evict() && use_other_placement(params);
    }
    if (!may_evict()) {
      return false;
    }
    if (device_is_full && shrink(params) &&
        allocator_.alloc_block(params, true, context, lock)) {
      return true;
    }
    const Bytes growth = growth_of(params.alloc_size);
    bool relieved = false;
    while (may_evict()) {
      const Bytes shortage = shortage_of(growth);
      if (shortage == 0 && !device_is_full) {
        return false; // may grow
      }
      if (release_segments(device_is_full ? growth : shortage, context)) {
        if (!device_is_full) {
          return false;
        }
        if (allocator_.alloc_block(params, true, context, lock)) {
          return true;
        }
      }
      if (relieved && !allocator_.cuda_events.empty()) {
        // What was evicted may be free once other streams are done with it:
        // wait for that before more is evicted.
        relieved = false;
        allocator_.synchronize_and_free_events(context);
        if (use_free_block(params)) {
          return true;
        }
        continue;
      }
      if (params.size() > limit_) {
        return false; // whatever is evicted
      }
      MemoryRequest request;
      request.size = params.size();
      request.shortage = device_is_full ? growth : shortage;
      request.unused = unused();
      request.allocator_key = &params;
      PressureHandler* handler = handler_;
      lock.unlock();
      relieved = handler->relieve(request);
      lock.lock();
      if (handler_ == nullptr || !may_evict()) {
        return use_free_block(params);
      }
      allocator_.process_events(context);
      if (use_free_block(params)) {
        return true;
      }
      if (!relieved) {
        allocator_.synchronize_and_free_events(context);
        return use_free_block(params) || use_other_placement(params);
      }
    }
    return false;
  }

  // `growth` bytes more would be above the limit: sets `error`.
  bool refuses(size_t growth, cudaError_t& error) const {
    if (C10_LIKELY(handler_ == nullptr) ||
        shortage_of(growth_of(growth)) == 0) {
      return false;
    }
    error = cudaErrorMemoryAllocation;
    return true;
  }

  // The pool for `size` bytes in which only evictable bytes lie; null while
  // the allocator's own are to be used.
  template <class Pool>
  Pool* pool_for(bool is_small, Pool& small, Pool& large) const {
    return C10_UNLIKELY(handler_ != nullptr) &&
            placement() == Placement::Evictable
        ? (is_small ? &small : &large)
        : nullptr;
  }

  // How large to make a new segment in which `size` bytes are wanted: windows
  // are found where there are many neighbors. Expandable segments grow, and
  // with a largest size to split the rest of a large one could not be used.
  template <class Pool>
  size_t segment_size(const Pool& pool, size_t size) const {
    if (C10_LIKELY(handler_ == nullptr) ||
        &pool != &allocator_.remat_large_blocks ||
        limit_ == Config::kUnlimited || Config_::expandable_segments() ||
        Config_::max_split_size() != std::numeric_limits<size_t>::max()) {
      return size;
    }
    const Bytes usage = allocator_.total_allocated_memory;
    const Bytes left = usage < limit_ ? limit_ - usage : 0;
    const Bytes wanted = std::min(limit_ / kSegmentsPerBudget, left);
    return std::max<size_t>(size, wanted / kPage * kPage);
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
    if (pool == &allocator_.remat_small_blocks ||
        pool == &allocator_.remat_large_blocks) {
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
  void set_limit(Bytes limit, PressureHandler* handler) noexcept override {
    const Guard guard(allocator_.mutex);
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
      const MemoryRequest& request) const override {
    const Guard guard(allocator_.mutex);
    const auto* params = static_cast<const typename Allocator::remat_params*>(
        request.allocator_key);
    // Of an expandable segment, a mapped range counts as one.
    auto heads = allocator_.get_all_blocks();
    heads.erase(
        std::remove_if(
            heads.begin(),
            heads.end(),
            [](const auto* block) {
              return (block->prev != nullptr && block->prev->mapped) ||
                  block->pool->owner_PrivatePool != nullptr;
            }),
        heads.end());
    // So that of equally good choices always the same is made.
    std::sort(heads.begin(), heads.end(), [](const auto* a, const auto* b) {
      return std::less<void*>()(a->ptr, b->ptr);
    });
    std::vector<SegmentView> result;
    for (const auto* block : heads) {
      SegmentView segment;
      segment.serves_request = params != nullptr &&
          block->pool == params->pool && block->stream == params->stream();
      segment.releasable = block->expandable_segment_ == nullptr;
      for (; block != nullptr && block->mapped; block = block->next) {
        const auto owner = owners_.find(block->ptr);
        const bool is_free = !block->allocated && block->event_count == 0 &&
            block->stream_uses.empty();
        segment.blocks.push_back(
            {block->size,
             block->allocated && owner != owners_.end() ? owner->second
                                                        : nullptr,
             is_free});
      }
      result.push_back(std::move(segment));
    }
    return result;
  }

 private:
  using Guard = std::lock_guard<std::recursive_mutex>;
  using Config_ = cuda::CUDACachingAllocator::CUDAAllocatorConfig;

  static constexpr Bytes kSegmentsPerBudget = 8;
  static constexpr cuda::MempoolId_t kEvictablePool{0, ~uint64_t{0}};
  static constexpr Bytes kPage = Bytes{2} << 20;

  // Pages of expandable segments are mapped whole.
  static Bytes growth_of(size_t size) {
    if (!Config_::expandable_segments()) {
      return size;
    }
    const Bytes kLargePage = cuda::CUDACachingAllocator::kLargeBuffer;
    return size <= kPage ? size
                         : (size + kLargePage - 1) / kLargePage * kLargePage;
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

  // Gives back segments that are free, if they are enough.
  template <class Context>
  bool release_segments(Bytes wanted, const Context& context) {
    std::vector<typename Allocator::remat_block*> segments;
    Bytes bytes = 0;
    for (const auto* pool : pools()) {
      for (auto* block : pool->blocks) {
        if (bytes < wanted && block->prev == nullptr &&
            block->next == nullptr && block->expandable_segment_ == nullptr) {
          segments.push_back(block);
          bytes += block->size;
        }
      }
    }
    if (bytes < wanted) {
      return release_pages(wanted, context);
    }
    for (auto* segment : segments) {
      allocator_.release_block(segment, context);
    }
    return true;
  }

  // The same with pages of expandable segments.
  template <class Context>
  bool release_pages(Bytes wanted, const Context& context) {
    if (!Config_::expandable_segments()) {
      return false;
    }
    const Bytes before = allocator_.total_allocated_memory;
    for (const auto* pool : pools()) {
      std::vector<typename Allocator::remat_block*> blocks;
      for (auto* block : pool->blocks) {
        if (block->expandable_segment_ != nullptr) {
          blocks.push_back(block);
        }
      }
      for (auto* block : blocks) {
        if (before - allocator_.total_allocated_memory < wanted) {
          allocator_.unmap_block(block, context);
        }
      }
    }
    return before - allocator_.total_allocated_memory >= wanted;
  }

  // Evicting and what it needs (asking events, giving memory back) would end a
  // capture.
  bool may_evict() const {
    return allocator_.captures_underway.empty();
  }

  // Takes back what `segment_size` has added; returns whether it had.
  template <class Params>
  static bool shrink(Params& params) {
    const size_t smallest = Allocator::get_allocation_size(params.size());
    return params.alloc_size > smallest && (params.alloc_size = smallest, true);
  }

  template <class Params>
  bool use_free_block(Params& params) {
    if (!allocator_.get_free_block(params)) {
      return false;
    }
    params.err = cudaSuccess; // an earlier try to grow may have failed
    return true;
  }

  // Better a leaf among evictable bytes, or a small block among large ones,
  // than an error.
  template <class Params>
  bool use_other_placement(Params& params) {
    auto* const pool = params.pool;
    if (pool->owner_PrivatePool != nullptr) {
      return false;
    }
    for (auto* other :
         {&allocator_.small_blocks,
          &allocator_.remat_small_blocks,
          &allocator_.remat_large_blocks,
          &allocator_.large_blocks}) {
      // A large allocation fits into no block of the small pools.
      if (other != pool && (pool->is_small || !other->is_small)) {
        params.pool = other;
        if (use_free_block(params)) {
          // Counted where it will be when it is freed.
          params.stat_types = allocator_.get_stat_types_for_pool(*other);
          return true;
        }
      }
    }
    params.pool = pool;
    return false;
  }

  Allocator& allocator_;
  int device_ = -1;
  // The rest is guarded by the allocator's lock.
  Bytes limit_ = Config::kUnlimited;
  PressureHandler* handler_ = nullptr;
  ska::flat_hash_map<const void*, void*> owners_; // by address of the block
};

} // namespace c10::remat
