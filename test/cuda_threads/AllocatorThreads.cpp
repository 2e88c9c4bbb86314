// Threads that make, read and drop storages on one device within a budget: the
// engine and the patched caching allocator as they are in the wheel, without
// the rest of torch. Started by ci/thread_sanitizer.sh, which builds all of it
// with ThreadSanitizer: a race, or locks taken in two orders, is an error.
//
//   allocator_threads [THREADS] [OPS OF EACH]
//
// Exit code 1: a value is not what it must be, or the budget was passed.

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAStream.h>
#include <c10/remat/DeviceMemory.h>
#include <c10/remat/Engine.h>
#include <c10/util/Exception.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <thread>
#include <vector>

// What libtorch_cuda would tell libc10_cuda.
namespace c10::cuda::_internal {
void setHasPrimaryContext(bool (*function)(DeviceIndex));
}

namespace c10::remat {
namespace {

constexpr Bytes kMiB = Bytes{1} << 20;
constexpr Bytes kBudget = 96 * kMiB;
constexpr Bytes kSmallerBudget = 72 * kMiB;

void require(bool holds, const char* what) {
  if (!holds) {
    std::fprintf(stderr, "wrong: %s\n", what);
    std::exit(1);
  }
}

// Bytes of the device, of which the first eight stand for all.
struct Holder {
  Bytes size;
  void* address; // null: evicted
  VersionId version = {};

  uint64_t& value() const {
    return *static_cast<uint64_t*>(address);
  }
};

// The output is a function of what is read and of `tag`.
struct Payload : OpPayload {
  explicit Payload(uint64_t op_tag) : tag(op_tag) {}
  uint64_t tag;
};

uint64_t output_of(uint64_t tag, uint64_t read) {
  return (tag * 0x9e3779b97f4a7c15) ^ (read + 1) * 0xbf58476d1ce4e5b9;
}

void* allocate(Bytes size, Placement placement) {
  const PlacementGuard guard(placement);
  return cuda::CUDACachingAllocator::raw_alloc(size);
}

void deallocate(void* address) {
  cuda::CUDACachingAllocator::raw_delete(address);
}

struct DeviceBuffer : Buffer {
  explicit DeviceBuffer(void* bytes) : address(bytes) {}
  ~DeviceBuffer() override {
    if (address != nullptr) {
      deallocate(address);
    }
  }
  void* address; // null: a holder has the bytes now
};

class Device : public StoragePort,
               public DevicePort,
               public ReplayPort,
               public PressureHandler {
 public:
  explicit Device(DeviceMemory& device_memory)
      : memory(device_memory), engine(config(), *this, *this, *this) {
    set_budget(kBudget);
  }

  void set_budget(Bytes budget) {
    engine.set_budget(budget);
    memory.set_limit(budget, this);
  }

  Holder* make_holder(Bytes size, void* address) {
    auto* holder = new Holder{size, address};
    memory.set_owner(address, holder);
    return holder;
  }

  void release(StorageVersion& version) noexcept override {
    auto* holder = static_cast<Holder*>(version.holder);
    deallocate(holder->address);
    holder->address = nullptr;
  }
  void adopt(StorageVersion& version, std::unique_ptr<Buffer> buffer) noexcept
      override {
    void*& bytes = static_cast<DeviceBuffer&>(*buffer).address;
    if (version.holder == nullptr) {
      version.holder = new Holder{version.size, nullptr};
    }
    auto* holder = static_cast<Holder*>(version.holder);
    holder->address = std::exchange(bytes, nullptr);
    memory.set_owner(holder->address, holder);
  }
  bool move(
      StorageVersion& version,
      const void* block,
      const std::vector<AddressRange>& avoided,
      Placement placement) noexcept override {
    auto* holder = static_cast<Holder*>(version.holder);
    void* const copy = memory.copy_to_free_block(block, avoided, placement);
    if (copy == nullptr) {
      return false;
    }
    deallocate(holder->address);
    holder->address = copy;
    memory.set_owner(copy, holder);
    return true;
  }
  bool slide(StorageVersion& version, const void* block) noexcept override {
    auto* holder = static_cast<Holder*>(version.holder);
    const bool copied = memory.slide_down(block, holder->address);
    memory.set_owner(holder->address, holder);
    return copied;
  }
  void set_version(void* holder, VersionId id) noexcept override {
    static_cast<Holder*>(holder)->version = id;
  }
  VersionId version_of(void* holder) const noexcept override {
    return static_cast<Holder*>(holder)->version;
  }
  void disown(StorageVersion&) noexcept override {}
  void forget(StorageVersion& version) noexcept override {
    delete static_cast<Holder*>(version.holder);
  }

  Bytes usage() const override {
    return memory.usage();
  }
  std::vector<SegmentView> segments(
      const MemoryRequest& request) const override {
    return memory.segments(request);
  }

  CostNs copy_cost(Bytes size, Bytes distance) const override {
    return memory.copy_cost(size, distance);
  }

  std::unique_ptr<Buffer> copy(const StorageVersion&) override {
    return nullptr; // nothing is written to here
  }
  std::vector<std::unique_ptr<Buffer>> replay(
      const ReplayRequest& request) override {
    const auto& payload = static_cast<const Payload&>(*request.record->payload);
    const auto& input = *static_cast<Holder*>(request.inputs[0]->holder);
    auto bytes = std::make_unique<DeviceBuffer>(
        allocate(request.outputs[0]->size, Placement::Evictable));
    *static_cast<uint64_t*>(bytes->address) =
        output_of(payload.tag, input.value());
    std::vector<std::unique_ptr<Buffer>> result;
    result.push_back(std::move(bytes));
    return result;
  }

  bool relieve(const MemoryRequest& request) noexcept override {
    for (int waits = 0; waits < 50; ++waits) {
      if (engine.relieve_request(request) > 0) {
        return true;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return false;
  }
  std::string explain_out_of_memory(Bytes) override {
    engine.count_out_of_memory();
    return "budget " + std::to_string(engine.breakdown().budget);
  }

  DeviceMemory& memory;
  Engine engine;

 private:
  static Config config() {
    Config result;
    result.policy = "dtr";
    return result;
  }
};

// What one thread does. Its storages are its own; the device is everyone's.
class Program {
 public:
  Program(Device& device, uint32_t seed) : device_(device), random_(seed) {
    void* address = allocate(kMiB, Placement::Leaf);
    Holder* holder = device_.make_holder(kMiB, address);
    holder->value() = seed;
    vars_.push_back({holder, device_.engine.add_leaf(kMiB, holder), seed});
  }

  void run(int steps) {
    for (int i = 0; i < steps; ++i) {
      try {
        step();
      } catch (const OutOfMemoryError&) {
        ++out_of_memory;
        drop_some();
      } catch (const WorkingSetTooLarge&) {
        ++out_of_memory;
        drop_some();
      }
    }
    while (vars_.size() > 1) {
      drop(vars_.size() - 1);
    }
    drop(0);
  }

  int out_of_memory = 0;

 private:
  struct Var {
    Holder* holder;
    VersionId id;
    uint64_t expected;
  };

  void step() {
    switch (random_() % 8) {
    case 0:
      read(random_() % vars_.size());
      break;
    case 1:
      if (vars_.size() > 1) {
        drop(1 + random_() % (vars_.size() - 1));
      }
      break;
    case 2:
      device_.engine.evict(vars_.back().id);
      break;
    default:
      op(random_() % vars_.size());
    }
  }

  void op(size_t input) {
    static constexpr Bytes kSizes[] = {
        4096, 300'000, 1'200'000, 3 * kMiB, 11 * kMiB};
    const Bytes size = kSizes[random_() % std::size(kSizes)];
    const uint64_t tag = random_();
    Holders holders;
    holders.push_back(vars_[input].holder);
    VersionIds inputs;
    Writes writes;
    Engine& engine = device_.engine;
    engine.begin_op(holders, inputs, writes);
    void* address = nullptr;
    try {
      address = allocate(size, Placement::Evictable);
    } catch (...) {
      engine.abort_op(inputs, writes);
      throw;
    }
    OpCapture capture;
    Holder* holder = device_.make_holder(size, address);
    holder->value() = output_of(tag, vars_[input].holder->value());
    capture.inputs = inputs;
    capture.fresh.push_back({size, holder});
    capture.cost = 100'000; // more than copying takes
    capture.signature = size;
    capture.payload = std::make_shared<Payload>(tag);
    const auto ids = engine.end_op(std::move(capture));
    vars_.push_back({holder, ids[0], output_of(tag, vars_[input].expected)});
  }

  void read(size_t index) {
    const Var var = vars_[index];
    device_.engine.ensure_resident(var.id);
    const bool same = var.holder->value() == var.expected;
    device_.engine.unpin(var.id);
    require(same, "a value");
  }

  void drop(size_t index) {
    const VersionId id = vars_[index].id;
    vars_.erase(vars_.begin() + static_cast<std::ptrdiff_t>(index));
    device_.engine.storage_died(id);
  }
  void drop_some() {
    while (vars_.size() > 2) {
      drop(vars_.size() - 1);
    }
  }

  Device& device_;
  std::mt19937 random_;
  std::vector<Var> vars_;
};

int run(int threads, int steps) {
  cuda::CUDACachingAllocator::init(1);
  DeviceMemory* memory = cuda_memory(0);
  require(memory != nullptr, "the allocator registers itself");
  auto& device = *new Device(*memory); // must outlive the limit
  std::atomic<bool> done{false};
  std::thread observer([&] {
    for (int i = 0; !done; ++i) {
      device.set_budget(i % 2 == 0 ? kSmallerBudget : kBudget);
      device.engine.check_invariants();
      (void)cuda::CUDACachingAllocator::snapshot();
      require(memory->peak() <= kBudget, "more is reserved than the budget");
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  });
  std::vector<std::unique_ptr<Program>> programs;
  std::vector<std::thread> workers;
  for (int i = 0; i < threads; ++i) {
    programs.push_back(std::make_unique<Program>(device, 100 + i));
    Program& program = *programs.back(); // the vector grows meanwhile
    workers.emplace_back([&program, steps] { program.run(steps); });
  }
  int out_of_memory = 0;
  for (int i = 0; i < threads; ++i) {
    workers[i].join();
    out_of_memory += programs[i]->out_of_memory;
  }
  done = true;
  observer.join();
  device.engine.check_invariants();
  const Counters counters = device.engine.counters();
  memory->release_free_memory();
  require(memory->usage() == 0, "something is left on the device");
  require(counters.evictions > 0 && counters.replays > 0, "no pressure");
  std::printf(
      "%d threads, %d steps each: %llu evictions, %llu moves, %llu replays, %d "
      "out of memory, peak %.0f of %.0f MiB\n",
      threads,
      steps,
      static_cast<unsigned long long>(counters.evictions),
      static_cast<unsigned long long>(counters.moves),
      static_cast<unsigned long long>(counters.replays),
      out_of_memory,
      static_cast<double>(memory->peak()) / kMiB,
      static_cast<double>(kBudget) / kMiB);
  memory->set_limit(Config::kUnlimited, nullptr);
  return 0;
}

} // namespace
} // namespace c10::remat

int main(int argc, char** argv) {
  const int threads = argc > 1 ? std::atoi(argv[1]) : 4;
  const int steps = argc > 2 ? std::atoi(argv[2]) : 400;
  c10::cuda::_internal::setHasPrimaryContext([](auto) { return true; });
  return c10::remat::run(threads, steps);
}
