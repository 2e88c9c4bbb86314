#pragma once

#include <c10/remat/Engine.h>

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <stdexcept>
#include <utility>
#include <vector>

namespace c10::remat {

struct SimOutOfMemory : std::runtime_error {
  using std::runtime_error::runtime_error;
};
struct SimOpFailed : std::runtime_error {
  using std::runtime_error::runtime_error;
};

inline uint64_t mix(uint64_t a, uint64_t b) {
  uint64_t z = a * 0x9e3779b97f4a7c15 + b + 0x632be59bd9b4e019;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

// The bytes of a storage, of which one number stands for all.
struct SimHolder {
  Bytes size = 0;
  std::optional<uint64_t> value; // none: evicted
  VersionId version = {};
};

// Every output of an op is a function of `tag`, of which output it is, and of
// the values that the op reads, in whatever order.
struct SimPayload : OpPayload {
  explicit SimPayload(uint64_t op_tag) : tag(op_tag) {}
  uint64_t tag;
};

inline uint64_t op_value(
    uint64_t tag,
    size_t output,
    const std::vector<uint64_t>& read) {
  uint64_t sum = 0;
  for (const uint64_t value : read) {
    sum += mix(value, 1);
  }
  return mix(mix(tag, output), sum);
}

// A device of `capacity` bytes whose storages hold a number each. All three
// ports; what a real device would corrupt or leak throws std::logic_error.
class SimDevice : public StoragePort, public DevicePort, public ReplayPort {
 public:
  explicit SimDevice(Bytes device_capacity) : capacity(device_capacity) {}
  ~SimDevice() override = default;

  // Asks `engine` for relief where memory is short.
  void allocate(Bytes size) {
    if (used + size > capacity && engine != nullptr) {
      ++relief_calls;
      engine->relieve_pressure(used + size - capacity);
    }
    if (used + size > capacity) {
      throw SimOutOfMemory("the device is full");
    }
    used += size;
    peak = std::max(peak, used);
  }

  SimHolder* make_holder(Bytes size, std::optional<uint64_t> value) {
    holders.push_back(std::make_unique<SimHolder>(SimHolder{size, value}));
    return holders.back().get();
  }

  static SimHolder& holder_of(const StorageVersion& version) {
    REMAT_ASSERT(version.holder != nullptr);
    return *static_cast<SimHolder*>(version.holder);
  }

  void release(StorageVersion& version) noexcept override {
    SimHolder& holder = holder_of(version);
    REMAT_ASSERT(holder.value);
    holder.value.reset();
    used -= holder.size;
  }
  void adopt(StorageVersion& version, std::unique_ptr<Buffer> buffer) noexcept
      override {
    auto& bytes = static_cast<SimBuffer&>(*buffer);
    if (version.holder == nullptr) {
      version.holder = make_holder(version.size, std::nullopt);
    }
    SimHolder& holder = holder_of(version);
    REMAT_ASSERT(!holder.value && bytes.size == version.size);
    holder.value = bytes.value;
    bytes.device = nullptr;
  }
  void set_version(void* holder, VersionId id) noexcept override {
    static_cast<SimHolder*>(holder)->version = id;
  }
  VersionId version_of(void* holder) const noexcept override {
    return static_cast<SimHolder*>(holder)->version;
  }
  void disown(StorageVersion&) noexcept override {}
  void forget(StorageVersion& version) noexcept override {
    if (version.holder == nullptr) {
      return;
    }
    for (auto& holder : holders) {
      if (holder.get() == version.holder) {
        REMAT_ASSERT(!holder->value);
        std::swap(holder, holders.back());
        holders.pop_back();
        return;
      }
    }
    REMAT_ASSERT(!"forgets what it was not given");
  }

  Bytes usage() const override {
    return used;
  }
  std::vector<SegmentView> segments(
      const MemoryRequest& request) const override {
    return list_segments ? list_segments(request) : std::vector<SegmentView>();
  }
  CostNs copy_cost(Bytes, Bytes) const override {
    return copy_ns;
  }
  bool move(
      StorageVersion& version,
      const void* block,
      const std::vector<AddressRange>& avoided,
      Placement placement) noexcept override {
    REMAT_ASSERT(holder_of(version).value);
    return move_bytes && move_bytes(block, avoided, placement);
  }
  bool slide(StorageVersion& version, const void* block) noexcept override {
    REMAT_ASSERT(holder_of(version).value);
    return slide_bytes && slide_bytes(block);
  }

  std::unique_ptr<Buffer> copy(const StorageVersion& version) override {
    const SimHolder& holder = holder_of(version);
    REMAT_ASSERT(version.pins > 0 && holder.value);
    try {
      allocate(holder.size);
    } catch (const SimOutOfMemory&) {
      return nullptr;
    }
    return std::make_unique<SimBuffer>(this, holder.size, *holder.value);
  }

  std::vector<std::unique_ptr<Buffer>> replay(
      const ReplayRequest& request) override {
    const OpRecord& record = *request.record;
    const auto& payload = static_cast<const SimPayload&>(*record.payload);
    std::vector<uint64_t> read;
    for (const StorageVersion* input : request.inputs) {
      REMAT_ASSERT(input->resident && input->pins > 0);
      read.push_back(holder_of(*input).value.value());
    }
    std::vector<std::unique_ptr<Buffer>> buffers(request.outputs.size());
    // Bytes that are written over; destroyed where they are not wanted.
    std::vector<std::unique_ptr<SimBuffer>> consumed(request.outputs.size());
    for (size_t i = 0; i < record.overwrites.size(); ++i) {
      if (!request.keep_input[i]) {
        const auto [input, output] = record.overwrites[i];
        SimHolder& holder = holder_of(*request.inputs[input]);
        consumed[output] =
            std::make_unique<SimBuffer>(this, holder.size, *holder.value);
        holder.value.reset();
      }
    }
    ++replays;
    if (const auto meanwhile = std::exchange(during_replay, nullptr)) {
      meanwhile();
    }
    if (fail_replay_in > 0 && --fail_replay_in == 0) {
      throw SimOpFailed("made to fail");
    }
    for (size_t i = 0; i < request.outputs.size(); ++i) {
      if (request.outputs[i] == nullptr) {
        continue;
      }
      const Bytes size = request.outputs[i]->size;
      if (!consumed[i]) {
        allocate(size);
        consumed[i] = std::make_unique<SimBuffer>(this, size, 0);
      }
      consumed[i]->value = op_value(payload.tag, i, read);
      buffers[i] = std::move(consumed[i]);
    }
    return buffers;
  }

  Bytes capacity;
  // None: storages have no neighbors.
  std::function<std::vector<SegmentView>(const MemoryRequest&)> list_segments;
  CostNs copy_ns = std::numeric_limits<CostNs>::max();
  std::function<bool(const void*, const std::vector<AddressRange>&, Placement)>
      move_bytes;
  std::function<bool(const void*)> slide_bytes;
  Engine* engine = nullptr;
  Bytes used = 0;
  Bytes peak = 0;
  uint64_t relief_calls = 0;
  uint64_t replays = 0;
  uint64_t fail_replay_in = 0; // 1: the next one throws
  std::function<void()> during_replay; // what another thread does, once
  std::vector<std::unique_ptr<SimHolder>> holders;

 private:
  struct SimBuffer : Buffer {
    SimBuffer(SimDevice* owner, Bytes bytes, uint64_t content)
        : device(owner), size(bytes), value(content) {}
    ~SimBuffer() override {
      if (device != nullptr) {
        device->used -= size;
      }
    }
    SimDevice* device; // null: a holder has the bytes now
    Bytes size;
    uint64_t value;
  };
};

} // namespace c10::remat
