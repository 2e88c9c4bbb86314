#include <ATen/remat/RematMode.h>
#include <ATen/remat/capture/EvictedAddress.h>
#include <c10/remat/BlockingSection.h>
#include <c10/remat/CpuMemory.h>
#include <c10/remat/DeviceMemory.h>
#include <c10/remat/Errors.h>
#include <c10/remat/policy/PolicyRegistry.h>

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/cuda/remat/AccessBindings.h>
#include <torch/csrc/cuda/remat/SimulationBindings.h>
#include <torch/csrc/utils/pybind.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace {

namespace py = pybind11;
using at::remat::RematMode;
using c10::remat::Bytes;
using c10::remat::Config;
using c10::remat::Engine;

// Runs `wait` without the interpreter lock if this thread has it: whoever is
// waited for may need it.
void wait_without_gil(void (*wait)(void*), void* argument) {
  if (Py_IsInitialized() != 0 && PyGILState_Check() != 0) {
    const py::gil_scoped_release no_gil;
    wait(argument);
  } else {
    wait(argument);
  }
}

// Wraps `function` so that it runs without the interpreter lock and its errors
// become Python's: UsageError is a ValueError, the rest what torch makes of it.
template <class Result, class... Args>
auto expose(Result (*function)(Args...)) {
  return torch::wrap_pybind_function_no_gil([function](Args... args) -> Result {
    try {
      return function(std::forward<Args>(args)...);
    } catch (const c10::remat::UsageError& error) {
      throw py::value_error(error.what());
    }
  });
}

c10::StorageImpl& impl_of(const c10::Storage& storage) {
  return *storage.unsafeGetStorageImpl();
}

// -1: the CPU, else the index of a CUDA device.
c10::Device device_at(int index) {
  return index < 0
      ? c10::Device(c10::kCPU)
      : c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(index));
}

Engine* engine_if_any(int device) {
  auto* managed = RematMode::get().device_if_any(device_at(device));
  return managed == nullptr ? nullptr : &managed->engine();
}

void enable(
    int device,
    std::optional<Bytes> budget,
    const std::string& policy,
    bool chaos,
    bool windows,
    std::optional<size_t> smallest_managed,
    std::optional<double> planner_share) {
  Config config;
  config.budget = budget.value_or(Config::kUnlimited);
  config.policy = policy;
  config.chaos = chaos;
  config.planner_share = planner_share.value_or(config.planner_share);
  config.windows = windows;
  RematMode::get().enable(
      device_at(device),
      config,
      smallest_managed.value_or(RematMode::kSmallestManaged));
}

void disable(int device, bool for_now) {
  RematMode::get().disable(device_at(device), for_now);
}

bool is_enabled(int device) {
  return RematMode::get().active_on(device_at(device)) != nullptr;
}

std::vector<int> enabled_devices() {
  std::vector<int> devices;
  RematMode::get().for_each_device([&](at::remat::ManagedDevice& managed) {
    if (managed.is_active()) {
      const auto device = managed.device();
      devices.push_back(device.is_cpu() ? -1 : device.index());
    }
  });
  return devices;
}

bool is_any_enabled() {
  return RematMode::get().is_active();
}

void set_budget(int device, std::optional<Bytes> budget) {
  RematMode::get().set_budget(
      device_at(device), budget.value_or(Config::kUnlimited));
}

std::string current_policy(int device) {
  auto* managed = RematMode::get().active_on(device_at(device));
  return managed == nullptr ? c10::remat::default_policy_name()
                            : managed->engine().config().policy;
}

std::optional<Bytes> current_budget(int device) {
  auto* managed = RematMode::get().active_on(device_at(device));
  const Bytes budget = managed == nullptr ? Config::kUnlimited
                                          : managed->engine().config().budget;
  return budget == Config::kUnlimited ? std::nullopt
                                      : std::optional<Bytes>(budget);
}

void reset_counters(int device) {
  if (auto* engine = engine_if_any(device)) {
    engine->reset_counters();
  }
}

void check_invariants() {
  RematMode::get().for_each_device([](at::remat::ManagedDevice& managed) {
    managed.engine().check_invariants();
  });
}

uint64_t evict_all() {
  uint64_t evicted = 0;
  RematMode::get().for_each_device([&](at::remat::ManagedDevice& managed) {
    evicted += managed.engine().evict_all();
  });
  return evicted;
}

bool evict(const c10::Storage& storage) {
  const auto* handle = at::remat::handle_of(impl_of(storage));
  return handle != nullptr && handle->engine->evict(handle->version);
}

bool is_managed(const c10::Storage& storage) {
  return at::remat::handle_of(impl_of(storage)) != nullptr;
}

bool is_resident(const c10::Storage& storage) {
  const auto* handle = at::remat::handle_of(impl_of(storage));
  return handle == nullptr || handle->engine->is_resident(handle->version);
}

void pin(const c10::Storage& storage) {
  if (!RematMode::get().is_active()) {
    throw c10::remat::UsageError(
        "remat is off; call torch.cuda.remat.enable() first");
  }
  RematMode::get().pin_by_user(impl_of(storage));
}

void unpin(const c10::Storage& storage) {
  RematMode::get().unpin_by_user(impl_of(storage));
}

std::unique_ptr<at::remat::ResidencyPin> begin_access(
    const c10::Storage& storage) {
  return RematMode::get().pin(impl_of(storage));
}

void escape(const c10::Storage& storage) {
  RematMode::get().escape(impl_of(storage));
}

void start_trace(int device, const std::string& path) {
  auto* managed = RematMode::get().active_on(device_at(device));
  if (managed == nullptr) {
    throw c10::remat::UsageError(
        "remat is off, there is nothing to trace; call "
        "torch.cuda.remat.enable() first");
  }
  managed->engine().start_trace(path);
}

void stop_trace(int device) {
  RematMode::get().device(device_at(device)).engine().stop_trace();
}

void add_alias(const c10::Storage& storage) {
  RematMode::get().add_alias(impl_of(storage));
}

void drop_alias(const c10::Storage& storage) {
  RematMode::get().drop_alias(impl_of(storage));
}

void unmanage(const c10::Storage& storage) {
  RematMode::get().unmanage(impl_of(storage));
}

py::dict counters(int device) {
  const auto counters = [&] {
    const py::gil_scoped_release no_gil;
    const auto* engine = engine_if_any(device);
    return engine == nullptr ? c10::remat::Counters{} : engine->counters();
  }();
  py::dict result;
  result["ops_captured"] = counters.ops_captured;
  result["evictions"] = counters.evictions;
  result["fragmentation_evictions"] = counters.fragmentation_evictions;
  result["moves"] = counters.moves;
  result["moved_bytes"] = counters.moved_bytes;
  result["fragmentation"] = counters.reserved_at_requests == 0
      ? 0.0
      : static_cast<double>(counters.unusable_at_requests) /
          static_cast<double>(counters.reserved_at_requests);
  result["replays"] = counters.replays;
  result["recompute_ns"] = counters.recompute_ns;
  result["overhead_ns"] = counters.overhead_ns;
  result["max_replay_depth"] = counters.deepest_replay;
  result["faults"] = counters.faults;
  result["ooms"] = counters.out_of_memory;
  result["not_replayable"] = counters.not_replayable;
  return result;
}

py::dict census(int device) {
  const auto census = [&] {
    const py::gil_scoped_release no_gil;
    const auto* engine = engine_if_any(device);
    return engine == nullptr ? c10::remat::Census{} : engine->census();
  }();
  py::dict result;
  result["storages"] = census.storages;
  result["op_records"] = census.op_records;
  result["resident_bytes"] = census.resident;
  result["evicted_bytes"] = census.evicted;
  result["evictable_bytes"] = census.evictable;
  result["pinned_bytes"] = census.pinned_by_ops + census.pinned_by_user;
  result["leaf_bytes"] = census.leaf;
  result["escaped_bytes"] = census.escaped;
  result["held_bytes"] = census.held;
  result["largest_hole_bytes"] = census.largest_hole;
  result["plan_in_use"] = census.plans.kind == 0
      ? py::none()
      : py::object(py::int_(census.plans.kind));
  result["iteration_kinds"] = census.plans.kinds;
  result["plan_search"] = census.plans.is_searching;
  result["plans_tried"] = census.plans.tried;
  result["plans_adopted"] = census.plans.adopted;
  result["planner_bytes"] = census.plans.memory;
  return result;
}

c10::remat::DeviceMemory& cuda_memory(int device) {
  auto* memory = c10::remat::cuda_memory(device);
  if (memory == nullptr) {
    throw c10::remat::UsageError(
        "the memory of cuda:" + std::to_string(device) +
        " is not that of PyTorch's own caching allocator, and is not counted");
  }
  return *memory;
}

// In use now, and at most since the last reset.
std::pair<int64_t, int64_t> memory(int device) {
  if (device < 0) {
    const auto usage = c10::remat::cpu_memory_usage();
    return {usage.live, usage.peak};
  }
  const auto& memory = cuda_memory(device);
  return {
      static_cast<int64_t>(memory.usage()),
      static_cast<int64_t>(memory.peak())};
}

void reset_memory_peak(int device) {
  if (device < 0) {
    c10::remat::reset_cpu_memory_peak();
  } else {
    cuda_memory(device).reset_peak();
  }
}

bool can_limit(int cuda_device) {
  return c10::remat::cuda_memory(cuda_device) != nullptr;
}

} // namespace

PYBIND11_MODULE(_C, m) {
  m.doc() = "Native side of torch.cuda.remat; see the package for contracts.";
  c10::remat::set_blocking_section(&wait_without_gil);
  m.def(
      "enable",
      expose(&enable),
      py::arg("device"),
      py::arg("budget"),
      py::arg("policy"),
      py::arg("chaos"),
      py::arg("windows"),
      py::arg("smallest_managed"),
      py::arg("planner_share"));
  m.def(
      "disable",
      expose(&disable),
      py::arg("device"),
      py::arg("for_now") = false);
  m.def("is_enabled", expose(&is_enabled));
  m.def("is_any_enabled", &is_any_enabled);
  m.def("enabled_devices", expose(&enabled_devices));
  m.def("set_budget", expose(&set_budget));
  m.def("current_policy", expose(&current_policy));
  m.def("current_budget", expose(&current_budget));
  m.def("reset_counters", expose(&reset_counters));
  m.def("check_invariants", expose(&check_invariants));
  m.def("evict", expose(&evict));
  m.def("evict_all", expose(&evict_all));
  m.def("is_managed", expose(&is_managed));
  m.def("is_resident", expose(&is_resident));
  m.def("pin", expose(&pin));
  m.def("unpin", expose(&unpin));
  py::class_<at::remat::ResidencyPin>(m, "ResidencyPin");
  m.def("begin_access", expose(&begin_access));
  m.def("escape", expose(&escape));
  m.def("add_alias", expose(&add_alias));
  m.def("drop_alias", expose(&drop_alias));
  m.def("unmanage", expose(&unmanage));
  m.def("start_trace", expose(&start_trace));
  m.def("stop_trace", expose(&stop_trace));
  m.def("counters", torch::wrap_pybind_function(&counters));
  m.def("census", torch::wrap_pybind_function(&census));
  m.def("evicted_address", [] {
    return reinterpret_cast<uintptr_t>(at::remat::evicted_address());
  });
  m.def("memory", expose(&memory));
  m.def("reset_memory_peak", expose(&reset_memory_peak));
  m.def("can_limit", &can_limit);
  m.def("policies", [] { return c10::remat::policy_names(); });
  m.def("default_policy", [] { return c10::remat::default_policy_name(); });
  bind_accesses(m);
  bind_simulation(m);
}
