#include "MemoryPressure.h"

#include "../RematMode.h"
#include "RematKey.h"

#include <c10/remat/CpuMemory.h>
#include <c10/util/Exception.h>

#include <chrono>
#include <sstream>
#include <thread>

namespace at::remat {

namespace {

using c10::remat::Bytes;

thread_local int64_t relief_ns = 0;

// Other threads' ops unpin when they end; how often and how long to wait for
// them before giving up.
constexpr int kMostWaits = 50;
constexpr auto kWait = std::chrono::milliseconds(2);

std::string readable(Bytes bytes) {
  static const char* const units[] = {"bytes", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < std::size(units)) {
    value /= 1024;
    ++unit;
  }
  std::ostringstream text;
  text.precision(unit == 0 ? 0 : 2);
  text << std::fixed << value << " " << units[unit];
  return text.str();
}

std::string explain(size_t nbytes, const c10::remat::MemoryBreakdown& memory) {
  const auto& census = memory.census;
  const Bytes managed = census.resident + census.held;
  std::ostringstream text;
  text << "remat: out of memory on cpu. Tried to "
       << (nbytes == 0 ? "replay ops whose inputs do not fit at once"
                       : "allocate " + readable(nbytes))
       << " with " << readable(memory.usage) << " in use; the budget is "
       << readable(memory.budget) << ". In use: " << readable(census.leaf)
       << " leaf (parameters, inputs, results that cannot be replayed), "
       << readable(census.pinned_by_ops) << " in use by ops, "
       << readable(census.pinned_by_user) << " pinned by pin(), "
       << readable(census.escaped) << " escaped (their address is known), "
       << readable(census.held) << " held for replay, "
       << readable(census.evictable) << " evictable, "
       << readable(memory.usage > managed ? memory.usage - managed : 0)
       << " not managed. " << readable(census.evicted)
       << " are evicted already. ";
  if (memory.budget != c10::remat::Config::kUnlimited &&
      nbytes > memory.budget) {
    text << "This one allocation is above the budget: raise the budget. ";
  }
  text << "Nothing was lost: raise the budget (torch.cuda.remat.set_budget), "
          "use a smaller batch, or free tensors, and go on.";
  return text.str();
}

} // namespace

int64_t relief_ns_of_thread() {
  return relief_ns;
}

void throw_out_of_memory(Engine& engine, size_t nbytes) {
  engine.count_out_of_memory();
  C10_THROW_ERROR(OutOfMemoryError, explain(nbytes, engine.breakdown()));
}

void relieve_cpu_pressure(size_t nbytes, size_t shortage) {
  Engine* engine = RematMode::get().active();
  if (engine == nullptr) {
    return;
  }
  const auto start = std::chrono::steady_clock::now();
  const auto count_time = [&] {
    const int64_t ns = std::chrono::duration_cast<std::chrono::nanoseconds>(
                           std::chrono::steady_clock::now() - start)
                           .count();
    relief_ns += ns;
    engine->count_overhead(ns);
  };
  engine->relieve_pressure(shortage);
  int64_t missing = c10::remat::cpu_memory_shortage();
  for (int waits = 0; missing > 0 && waits < kMostWaits &&
       engine->ops_in_flight() > op_depth();
       ++waits) {
    std::this_thread::sleep_for(kWait);
    missing = c10::remat::cpu_memory_shortage();
    if (missing > 0) {
      engine->relieve_pressure(missing);
      missing = c10::remat::cpu_memory_shortage();
    }
  }
  count_time();
  if (missing > 0) {
    throw_out_of_memory(*engine, nbytes);
  }
}

} // namespace at::remat
