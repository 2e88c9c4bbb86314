#include "MemoryPressure.h"

#include "../RematMode.h"
#include "OpCall.h"
#include "RunningOp.h"

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

std::string told(const RunningOp& op) {
  return std::string(op.is_replayed() ? "a replay of " : "") + op.name() +
      " (given " + readable(op.operand_bytes()) + ")";
}

} // namespace

std::string explain_memory(
    c10::Device device,
    Bytes nbytes,
    const c10::remat::MemoryBreakdown& memory) {
  const auto& census = memory.census;
  const Bytes managed = census.resident + census.held;
  std::ostringstream text;
  text << "remat: out of memory on " << device << ". Tried to "
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
  if (!device.is_cpu()) {
    text << "Largest hole: " << readable(census.largest_hole)
         << " of neighboring bytes are free or evictable. ";
  }
  if (const RunningOp* op = RunningOp::current()) {
    text << "This was for " << told(*op);
    for (; op->is_replayed() && op->outer() != nullptr; op = op->outer()) {
      text << ", for " << told(*op->outer());
    }
    text << "; what ops have allocated themselves is not managed yet. ";
  }
  if (memory.budget != c10::remat::Config::kUnlimited &&
      nbytes > memory.budget) {
    text << "This one allocation is above the budget: raise the budget. ";
  }
  text << "Nothing was lost: raise the budget (torch.cuda.remat.set_budget), "
          "use a smaller batch, or free tensors, and go on.";
  return text.str();
}

int64_t relief_ns_of_thread() {
  return relief_ns;
}

ReliefTimer::ReliefTimer(Engine& engine)
    : engine_(engine), start_(std::chrono::steady_clock::now()) {}

ReliefTimer::~ReliefTimer() {
  const int64_t ns = std::chrono::duration_cast<std::chrono::nanoseconds>(
                         std::chrono::steady_clock::now() - start_)
                         .count();
  relief_ns += ns;
  engine_.count_overhead(ns);
}

bool wait_for_other_ops(const Engine& engine, int& waits) {
  if (waits >= kMostWaits || engine.ops_in_flight() <= own_ops_on(engine)) {
    return false;
  }
  ++waits;
  std::this_thread::sleep_for(kWait);
  return true;
}

void throw_out_of_memory(Engine& engine, c10::Device device, size_t nbytes) {
  engine.count_out_of_memory();
  C10_THROW_ERROR(
      OutOfMemoryError, explain_memory(device, nbytes, engine.breakdown()));
}

void relieve_cpu_pressure(size_t nbytes, size_t shortage) {
  ManagedDevice* cpu = RematMode::get().active_on(c10::kCPU);
  if (cpu == nullptr) {
    return;
  }
  Engine& engine = cpu->engine();
  int64_t missing = static_cast<int64_t>(shortage);
  {
    const ReliefTimer timer(engine);
    int waits = 0;
    do {
      engine.relieve_pressure(missing);
      missing = c10::remat::cpu_memory_shortage();
    } while (missing > 0 && wait_for_other_ops(engine, waits));
  }
  if (missing > 0) {
    throw_out_of_memory(engine, c10::kCPU, nbytes);
  }
}

} // namespace at::remat
