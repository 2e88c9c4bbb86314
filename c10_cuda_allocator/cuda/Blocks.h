#pragma once

#include <c10/remat/DeviceMemory.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

// The caching allocator's blocks, whose type only its own source file knows.
// Nothing here takes or needs a lock of its own.
namespace c10::remat {

template <class Block>
uintptr_t address_of(const Block& block) {
  return reinterpret_cast<uintptr_t>(block.ptr);
}

// Of an expandable segment, what is not mapped is free, too.
template <class Block>
bool is_free(const Block& block) {
  return !block.allocated && block.event_count == 0 &&
      block.stream_uses.empty();
}

// The smallest free block of `pool` that has `size` bytes for `stream` and no
// byte within `avoided`; null if there is none.
template <class Block, class Pool>
Block* find_free_block(
    const Pool& pool,
    const Block& like,
    size_t size,
    const std::vector<AddressRange>& avoided) {
  Block key(like.device, like.stream, size);
  for (auto it = pool.blocks.lower_bound(&key);
       it != pool.blocks.end() && (*it)->stream == like.stream;
       ++it) {
    const uintptr_t begin = address_of(**it);
    const uintptr_t end = begin + (*it)->size;
    const bool touches = std::any_of(
        avoided.begin(), avoided.end(), [&](const AddressRange& range) {
          return begin < range.end && range.begin < end;
        });
    if (!touches) {
      return *it;
    }
  }
  return nullptr;
}

// Takes a free block of `pool` out of it that has the bytes of `key`: the first
// by address, in the order of `less`; null if there is none.
template <class Block, class Pool, class Less>
Block* take_first(Pool& pool, Block& key, Less less) {
  auto first = pool.blocks.lower_bound(&key);
  for (auto it = first; it != pool.blocks.end() && (*it)->stream == key.stream;
       ++it) {
    first = less(address_of(**it), address_of(**first)) ? it : first;
  }
  if (first == pool.blocks.end() || (*first)->stream != key.stream) {
    return nullptr;
  }
  Block* const found = *first;
  pool.blocks.erase(first);
  return found;
}

template <class Block, class Pool>
Block* take_lowest(Pool& pool, Block& key) {
  return take_first(pool, key, std::less<uintptr_t>());
}

// Cuts the last `size` bytes off `block`, which is free and of an expandable
// segment: the allocator counts how others are split, and does so itself.
// Neither is in the pool's list then.
template <class Block>
Block* cut_end(Block* block, Bytes size) {
  block->size -= size;
  auto* const end = new Block(
      block->device,
      block->stream,
      size,
      block->pool,
      static_cast<char*>(block->ptr) + block->size);
  end->expandable_segment_ = block->expandable_segment_;
  end->prev = block;
  end->next = block->next;
  if (end->next != nullptr) {
    end->next->prev = end;
  }
  block->next = end;
  return end;
}

// Of the uppermost, only its upper end.
template <class Block, class Pool>
Block* take_uppermost(Pool& pool, Block& key) {
  Block* const found = take_first(pool, key, std::greater<uintptr_t>());
  if (found == nullptr || found->expandable_segment_ == nullptr ||
      found->size == key.size) {
    return found;
  }
  Block* const end = cut_end(found, key.size);
  pool.insert_into_blocks(found);
  return end;
}

// The pages that lie wholly within a block of an expandable segment.
struct WholePages {
  Bytes size = 0; // of all of them
  Bytes after = 0; // bytes of the block that lie behind them
};

template <class Block>
WholePages whole_pages(const Block& block, Bytes page) {
  const auto start =
      reinterpret_cast<uintptr_t>(block.expandable_segment_->ptr());
  const Bytes begin = address_of(block) - start;
  const Bytes end = begin + block.size;
  const Bytes first_page = (begin + page - 1) / page;
  const Bytes end_page = end / page;
  return end_page > first_page
      ? WholePages{(end_page - first_page) * page, end - end_page * page}
      : WholePages{};
}

// The lowest that is not mapped, while something above it is; null: none.
template <class Block, class Pool>
Block* first_hole(const Pool& pool) {
  for (Block* block : pool.unmapped) {
    if (block->next != nullptr) {
      return block;
    }
  }
  return nullptr;
}

// Of the segment of `block`, behind it.
template <class Block>
Block* last_mapped(Block* block) {
  Block* last = nullptr;
  for (; block != nullptr; block = block->next) {
    last = block->mapped ? block : last;
  }
  return last;
}

// How many bytes are mapped for `size` bytes that no free block of `pool`
// holds: whole pages, beside what is free where the allocator's
// find_expandable_block puts them.
template <class Pool, class Stream>
Bytes bytes_to_map(const Pool& pool, Stream stream, Bytes size, Bytes page) {
  const auto pages_for = [page](Bytes bytes) {
    return (bytes + page - 1) / page * page;
  };
  for (const auto* block : pool.unmapped) {
    if (block->stream != stream) {
      continue;
    }
    if (block->prev != nullptr && is_free(*block->prev)) {
      block = block->prev;
    }
    Bytes found = 0;
    Bytes mapped = 0;
    for (; found < size && block != nullptr && is_free(*block);
         block = block->next) {
      if (!block->mapped) {
        mapped += std::min<Bytes>(block->size, pages_for(size - found));
      }
      found += block->size;
    }
    if (found >= size) {
      return mapped;
    }
  }
  return pages_for(size);
}

// `block` and the free one before it change places. What follows that one is
// part of it if it is free, too.
template <class Block, class Pool, class Merge>
void swap_with_gap(Block* block, Pool& pool, Merge&& merge) {
  Block* const gap = block->prev;
  auto node = pool.blocks.extract(gap); // which is ordered by address
  block->ptr = gap->ptr;
  gap->ptr = static_cast<char*>(block->ptr) + block->size;
  Block* const before = gap->prev;
  Block* const after = block->next;
  block->prev = before;
  block->next = gap;
  gap->prev = block;
  gap->next = after;
  if (before != nullptr) {
    before->next = block;
  }
  if (after != nullptr) {
    after->prev = gap;
  }
  block->context_when_segment_allocated =
      std::move(gap->context_when_segment_allocated);
  merge(gap, after);
  pool.blocks.insert(std::move(node));
}

// The mapped blocks from `head` on. `owners`: by address of the block.
template <class Block, class Owners>
SegmentView view_of(const Block* head, const Owners& owners) {
  SegmentView segment;
  segment.address = address_of(*head);
  for (const Block* block = head; block != nullptr && block->mapped;
       block = block->next) {
    const auto owner = owners.find(block->ptr);
    segment.blocks.push_back(
        {block,
         block->size,
         block->allocated && owner != owners.end() ? owner->second : nullptr,
         is_free(*block),
         // Whoever uses it on another stream may not be waited for.
         block->expandable_segment_ != nullptr && block->stream_uses.empty()});
  }
  return segment;
}

} // namespace c10::remat
