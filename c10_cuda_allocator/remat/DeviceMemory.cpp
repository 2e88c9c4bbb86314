#include "DeviceMemory.h"

#include <mutex>

namespace c10::remat {

namespace {

std::mutex registry_mutex;

std::vector<DeviceMemory*>& registry() {
  // Never destroyed: allocators are used during static destruction.
  static auto* memories = new std::vector<DeviceMemory*>;
  return *memories;
}

thread_local Placement current_placement = Placement::Leaf;
thread_local const PlacementPlan* current_plan = nullptr;

} // namespace

DeviceMemory* cuda_memory(int device) noexcept {
  const std::lock_guard<std::mutex> lock(registry_mutex);
  const auto& memories = registry();
  return device >= 0 && static_cast<size_t>(device) < memories.size()
      ? memories[device]
      : nullptr;
}

void register_cuda_memory(int device, DeviceMemory* memory) {
  REMAT_ASSERT(device >= 0);
  const std::lock_guard<std::mutex> lock(registry_mutex);
  auto& memories = registry();
  if (static_cast<size_t>(device) >= memories.size()) {
    memories.resize(device + 1);
  }
  memories[device] = memory;
}

Placement placement() noexcept {
  return current_placement;
}

const PlacementPlan* placement_plan() noexcept {
  return current_plan;
}

PlacementGuard::PlacementGuard(
    Placement placement,
    const PlacementPlan* plan) noexcept
    : before_(current_placement), plan_before_(current_plan) {
  current_placement = placement;
  current_plan = plan != nullptr && plan->exists ? plan : nullptr;
}

PlacementGuard::~PlacementGuard() {
  current_placement = before_;
  current_plan = plan_before_;
}

} // namespace c10::remat
