// Counts what the process holds from malloc and its relatives, exactly: every block,
// with what malloc rounds it up to. Preloaded into each training process, whatever the
// method, so that all are measured by the same counter. Python's own small objects
// are not seen (they lie in arenas that come from mmap).
#define _GNU_SOURCE
#include <errno.h>
#include <malloc.h>
#include <stdatomic.h>
#include <stddef.h>

extern void* __libc_malloc(size_t);
extern void* __libc_calloc(size_t, size_t);
extern void* __libc_realloc(void*, size_t);
extern void* __libc_memalign(size_t, size_t);
extern void __libc_free(void*);

static _Atomic long live_bytes;
static _Atomic long peak_bytes;

static void add(void* block) {
  if (!block) {
    return;
  }
  const long size = (long)malloc_usable_size(block);
  const long now =
      atomic_fetch_add_explicit(&live_bytes, size, memory_order_relaxed) + size;
  long peak = atomic_load_explicit(&peak_bytes, memory_order_relaxed);
  while (now > peak && !atomic_compare_exchange_weak(&peak_bytes, &peak, now)) {
  }
}

static void subtract(long size) {
  atomic_fetch_sub_explicit(&live_bytes, size, memory_order_relaxed);
}

void* malloc(size_t size) {
  void* block = __libc_malloc(size);
  add(block);
  return block;
}

void* calloc(size_t count, size_t size) {
  void* block = __libc_calloc(count, size);
  add(block);
  return block;
}

// A block that moves is there twice for a moment; that moment is not counted.
void* realloc(void* block, size_t size) {
  const long before = block ? (long)malloc_usable_size(block) : 0;
  void* moved = __libc_realloc(block, size);
  if (moved || size == 0) {
    subtract(before);
    add(moved);
  }
  return moved;
}

void free(void* block) {
  if (block) {
    subtract((long)malloc_usable_size(block));
  }
  __libc_free(block);
}

void* memalign(size_t alignment, size_t size) {
  void* block = __libc_memalign(alignment, size);
  add(block);
  return block;
}

void* aligned_alloc(size_t alignment, size_t size) {
  return memalign(alignment, size);
}

int posix_memalign(void** block, size_t alignment, size_t size) {
  void* found = __libc_memalign(alignment, size);
  if (!found && size) {
    return ENOMEM;
  }
  add(found);
  *block = found;
  return 0;
}

long meter_live_bytes(void) {
  return atomic_load(&live_bytes);
}

long meter_peak_bytes(void) {
  return atomic_load(&peak_bytes);
}

// The peak counts from here.
void meter_reset(void) {
  atomic_store(&peak_bytes, atomic_load(&live_bytes));
}
