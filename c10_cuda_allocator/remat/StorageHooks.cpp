#include "StorageHooks.h"

namespace c10::remat {

namespace {

// Written once, before the first managed storage exists.
StorageHooks hooks{};

} // namespace

void install_storage_hooks(const StorageHooks& new_hooks) {
  hooks = new_hooks;
}

bool fault_in(StorageImpl& storage) {
  return hooks.fault_in != nullptr && hooks.fault_in(storage);
}

void unmanage(StorageImpl& storage) {
  if (hooks.unmanage != nullptr) {
    hooks.unmanage(storage);
  }
}

void managed_deleter(void* context) {
  hooks.died(context);
}

} // namespace c10::remat
