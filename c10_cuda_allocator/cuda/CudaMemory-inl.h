#pragma once

#include <c10/cuda/remat/CudaMemory.h>

// The longer members of CudaMemory.
namespace c10::remat {

template <class Allocator>
template <class Params, class Lock, class Context>
bool CudaMemory<Allocator>::make_room(
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
  bool relieved = false;
  bool is_last_try = false;
  while (may_evict()) {
    const Bytes growth = growth_of(params);
    const Bytes shortage = shortage_of(growth);
    if (shortage == 0 && !device_is_full) {
      return false; // may grow
    }
    const Bytes missing = device_is_full ? growth : shortage;
    // Of small segments and pages the arena would get little, and soon give it
    // back.
    const bool takes_all = is_last_try || !is_arena(params.pool);
    if (release_segments(missing, takes_all, context) ||
        (takes_all && release_pages(missing, context))) {
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
    if (lends_leaf_block(params)) {
      return true;
    }
    if (params.size() > limit_) {
      return false; // whatever is evicted
    }
    MemoryRequest request;
    request.size = params.size();
    request.shortage = missing;
    request.unused = unused();
    request.reserved = allocator_.total_allocated_memory;
    request.stays = is_planned(params) && stays(params);
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
    if (!relieved && !takes_all) {
      is_last_try = true;
      continue;
    }
    if (!relieved) {
      allocator_.synchronize_and_free_events(context);
      return use_free_block(params) || use_other_placement(params);
    }
  }
  return false;
}

template <class Allocator>
void* CudaMemory<Allocator>::copy_to_free_block(
    const void* key,
    const std::vector<AddressRange>& avoided,
    Placement placement) noexcept {
  const auto* block = static_cast<const Block*>(key);
  const Guard guard(allocator_.mutex);
  if (!may_evict()) {
    return nullptr;
  }
  const PlacementGuard placement_guard(placement);
  const size_t size = Allocator::round_size(block->requested_size);
  auto* pool = &allocator_.get_pool(size, block->stream);
  const bool is_small = pool->is_small;
  auto* target = find_free_block(*pool, *block, size, avoided);
  if (target == nullptr && placement == Placement::Leaf && is_small) {
    pool = &allocator_.large_blocks; // see use_other_placement
    target = find_free_block(*pool, *block, size, avoided);
  }
  if (target == nullptr ||
      (size < Config_::max_split_size() &&
       target->size >= Config_::max_split_size())) {
    return nullptr;
  }
  // Not by malloc(), which may ask for relief: the engine's lock is held.
  typename Allocator::remat_params params(
      block->device, size, block->stream, pool, size, allocator_.stats);
  params.stat_types = allocator_.get_stat_types_for_pool(*pool);
  params.block = target;
  pool->blocks.erase(target);
  auto* const copy = allocator_.alloc_found_block(
      params,
      block->requested_size,
      block->context_when_allocated,
      // Of a large block, too, what a small one leaves is of use to the next.
      is_small ? target->size > size : allocator_.should_split(target, size));
  block_has_moved_(nullptr, copy);
  const cuda::CUDAGuard device_guard(static_cast<DeviceIndex>(device_));
  const cudaError_t error = cudaMemcpyAsync(
      copy->ptr,
      block->ptr,
      block->requested_size,
      cudaMemcpyDeviceToDevice,
      block->stream);
  if (error != cudaSuccess) {
    cuda::CUDACachingAllocator::raw_delete(copy->ptr);
    return nullptr;
  }
  return copy->ptr;
}

template <class Allocator>
bool CudaMemory<Allocator>::slide_down(
    const void* key,
    void*& address) noexcept {
  auto* const block = const_cast<Block*>(static_cast<const Block*>(key));
  const Guard guard(allocator_.mutex);
  address = block->ptr;
  if (!may_evict() || block->prev == nullptr || !block->prev->mapped ||
      !is_free(*block->prev)) {
    return true;
  }
  char* const from = static_cast<char*>(block->ptr);
  const size_t size = block->requested_size;
  const size_t distance = block->prev->size;
  swap_with_gap(block, *block->pool, [&](Block* gap, Block* after) {
    allocator_.try_merge_blocks(gap, after, *gap->pool);
  });
  char* const to = static_cast<char*>(block->ptr);
  address = to;
  owners_.erase(from);
  block_has_moved_(from, block);
  const auto trace = [&](const Block& of, auto action, const char* where) {
    allocator_.record_trace(
        action,
        reinterpret_cast<size_t>(where),
        size,
        of.stream,
        of.device,
        of.context_when_allocated);
  };
  using Trace = cuda::CUDACachingAllocator::TraceEntry;
  trace(*block, Trace::ALLOC, to);
  const cuda::CUDAGuard device_guard(static_cast<DeviceIndex>(device_));
  cudaError_t error = cudaSuccess;
  // In pieces that do not overlap, the lowest first: what becomes of
  // overlapping ones CUDA does not say.
  for (size_t done = 0; done < size && error == cudaSuccess; done += distance) {
    error = cudaMemcpyAsync(
        to + done,
        from + done,
        std::min(distance, size - done),
        cudaMemcpyDeviceToDevice,
        block->stream);
  }
  trace(*block, Trace::FREE_REQUESTED, from);
  trace(*block, Trace::FREE_COMPLETED, from);
  return error == cudaSuccess;
}

template <class Allocator>
std::vector<SegmentView> CudaMemory<Allocator>::segments(
    const MemoryRequest& request) const {
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
    SegmentView segment = view_of(block, owners_);
    segment.serves_request = params != nullptr && block->pool == params->pool &&
        block->stream == params->stream();
    segment.takes_moves = is_evictable(block->pool);
    segment.releasable = block->expandable_segment_ == nullptr;
    result.push_back(std::move(segment));
  }
  return result;
}

template <class Allocator>
template <class Context>
bool CudaMemory<Allocator>::release_segments(
    Bytes wanted,
    bool also_small,
    const Context& context) {
  std::vector<typename Allocator::remat_block*> segments;
  Bytes bytes = 0;
  for (const auto* pool : pools()) {
    for (auto* block : pool->blocks) {
      if (bytes < wanted && (also_small || !pool->is_small) &&
          block->prev == nullptr && block->next == nullptr &&
          block->expandable_segment_ == nullptr) {
        segments.push_back(block);
        bytes += block->size;
      }
    }
  }
  if (bytes < wanted) {
    return false;
  }
  for (auto* segment : segments) {
    allocator_.release_block(segment, context);
  }
  return true;
}

template <class Allocator>
template <class Context>
bool CudaMemory<Allocator>::release_pages(
    Bytes wanted,
    const Context& context) {
  std::vector<Block*> blocks;
  Bytes bytes = 0;
  for (auto* pool : pools()) {
    for (auto* block : pool->blocks) {
      if (bytes < wanted && block->expandable_segment_ != nullptr) {
        const Bytes pages = whole_pages(*block, page_of(pool)).size;
        if (pages > 0) {
          blocks.push_back(block);
          bytes += pages;
        }
      }
    }
  }
  if (bytes < wanted) {
    return false;
  }
  for (auto* block : blocks) {
    // Of the last one no more than it takes: mapping it again takes time.
    wanted -= std::min(wanted, unmap_end(block, wanted, context));
  }
  return true;
}

// The pages at the upper end of a free block, as many as `wanted` bytes take.
template <class Allocator>
template <class Context>
Bytes CudaMemory<Allocator>::unmap_end(
    Block* block,
    Bytes wanted,
    const Context& context) {
  auto* const pool = block->pool;
  const Bytes page = page_of(pool);
  const auto pages = whole_pages(*block, page);
  const Bytes size = (std::min(wanted, pages.size) + page - 1) / page * page;
  if (size < pages.size) {
    pool->blocks.erase(block);
    Block* const end = cut_end(block, size + pages.after);
    pool->insert_into_blocks(block);
    pool->insert_into_blocks(end);
    block = end;
  }
  allocator_.unmap_block(block, context);
  return size;
}

// Note [Holes]
// Other pools take pages of the arena wherever enough are free, and no window
// reaches over the holes. An iteration that has asked nothing of the driver
// shows that the pools have what they need. Then pages of the upper end, which
// is free when an iteration begins, fill the holes, once.
template <class Allocator>
void CudaMemory<Allocator>::close_holes() noexcept {
  const Guard guard(allocator_.mutex);
  const bool is_stable = count_driver_calls() == calls_before_;
  auto& pool = allocator_.remat_large_blocks;
  const decltype(Block::context_when_allocated) context;
  try {
    for (Block* hole = first_hole<Block>(pool);
         hole != nullptr && is_stable && may_evict();
         hole = first_hole<Block>(pool)) {
      Block* const last = last_mapped(hole);
      if (!is_free(*last) || whole_pages(*last, page_of(&pool)).size == 0) {
        break;
      }
      const Bytes size = unmap_end(last, hole->size, context);
      hole = first_hole<Block>(pool); // unless it has grown together with that
      if (hole == nullptr ||
          !allocator_.map_block(
              hole, std::min<Bytes>(size, hole->size), context)) {
        break;
      }
    }
  } catch (const std::exception&) {
    // The device is lost, as the program's next call will tell it.
  }
  calls_before_ = count_driver_calls();
}

template <class Allocator>
template <class Params>
bool CudaMemory<Allocator>::lends_leaf_block(Params& params) {
  auto* const pool = params.pool;
  if (!is_evictable(pool)) {
    return false;
  }
  params.pool =
      pool->is_small ? &allocator_.small_blocks : &allocator_.large_blocks;
  if (use_free_block(params)) {
    return true;
  }
  params.pool = pool;
  return false;
}

template <class Allocator>
template <class Params>
bool CudaMemory<Allocator>::use_other_placement(Params& params) {
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

} // namespace c10::remat
