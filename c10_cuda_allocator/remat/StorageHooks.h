#pragma once

#include "Export.h"

namespace c10 {
struct StorageImpl;
}

namespace c10::remat {

// What c10 calls when it meets a managed storage. One implementation
// (aten_hooks/capture/StorageHandle) installs itself when it is loaded; until
// then no storage is managed and none of these is reached.
struct StorageHooks {
  // Returns false if `storage` is not managed. Otherwise makes its bytes
  // resident and, unless an op holds them, treats the access as a pointer
  // handed out. May throw (out of memory while replaying).
  bool (*fault_in)(StorageImpl& storage);
  // Gives a managed storage its plain DataPtr back, for good. May throw.
  void (*unmanage)(StorageImpl& storage);
  // The DataPtr whose context is `context` is gone.
  void (*died)(void* context);
};

REMAT_API void install_storage_hooks(const StorageHooks& hooks);

// The deleter of every managed DataPtr; its context is the storage's handle,
// which is how the metadata is reached from a TensorImpl without a map.
REMAT_API void managed_deleter(void* context);

inline bool is_managed(void (*deleter)(void*)) {
  return deleter == &managed_deleter;
}

// For `materialize_cow_storage`: true if `storage` was ours and has been
// served.
REMAT_API bool fault_in(StorageImpl& storage);

// For `lazy_clone_storage`, which needs the storage's own DataPtr.
REMAT_API void unmanage(StorageImpl& storage);

} // namespace c10::remat
