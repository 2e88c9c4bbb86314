#pragma once

#include "../Engine.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <stdexcept>
#include <unordered_set>
#include <vector>

namespace c10::remat {

struct DeviceFull : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Replays have taken longer than they may.
struct Thrashing : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// It may not go on.
struct Interrupted : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Bytes of the simulated device.
struct Holder {
  Bytes size;
  VersionId version;
  bool has_bytes;
};

// The engine's ports on a device that only counts.
class SimPorts : public StoragePort, public DevicePort, public ReplayPort {
 public:
  explicit SimPorts(Bytes capacity) : capacity_(capacity) {}

  void allocate(Bytes size) {
    if (size > capacity_ - std::min(capacity_, used_)) {
      engine->relieve_pressure(used_ + size - capacity_);
      if (size > capacity_ - std::min(capacity_, used_)) {
        throw DeviceFull("the budget is too small");
      }
    }
    used_ += size;
    if (used_ > peak_) {
      peak_ = used_;
      peak_place_ = place;
    }
  }
  void free(Bytes size) noexcept {
    used_ -= size;
  }
  Bytes peak() const {
    return peak_;
  }
  uint32_t peak_place() const {
    return peak_place_;
  }

  static Holder& holder_of(const StorageVersion& version) {
    return *static_cast<Holder*>(version.holder);
  }
  Holder* make_holder(Bytes size, bool has_bytes) {
    auto holder =
        std::make_unique<Holder>(Holder{size, VersionId{}, has_bytes});
    holders_.insert(holder.get());
    return holder.release();
  }

  void release(StorageVersion& version) noexcept override {
    holder_of(version).has_bytes = false;
    free(version.size);
  }
  void adopt(StorageVersion& version, std::unique_ptr<Buffer> buffer) noexcept
      override {
    if (version.holder == nullptr) {
      version.holder = make_holder(version.size, false);
    }
    holder_of(version).has_bytes = true;
    static_cast<SimBuffer&>(*buffer).ports = nullptr;
  }
  void set_version(void* holder, VersionId id) noexcept override {
    static_cast<Holder*>(holder)->version = id;
  }
  VersionId version_of(void* holder) const noexcept override {
    return static_cast<Holder*>(holder)->version;
  }
  void disown(StorageVersion&) noexcept override {}
  void forget(StorageVersion& version) noexcept override {
    const auto found = holders_.find(static_cast<Holder*>(version.holder));
    if (found != holders_.end()) {
      delete *found;
      holders_.erase(found);
    }
  }
  Bytes usage() const override {
    return used_;
  }
  std::unique_ptr<Buffer> copy(const StorageVersion& version) override {
    try {
      allocate(version.size);
    } catch (const DeviceFull&) {
      return nullptr;
    }
    return std::make_unique<SimBuffer>(this, version.size);
  }
  std::vector<std::unique_ptr<Buffer>> replay(
      const ReplayRequest& request) override {
    const OpRecord& record = *request.record;
    check_interrupted();
    recompute_allowed -= record.cost;
    if (recompute_allowed < 0) {
      throw Thrashing("replays take too long");
    }
    std::vector<std::unique_ptr<Buffer>> buffers(request.outputs.size());
    std::vector<std::unique_ptr<Buffer>> consumed(request.outputs.size());
    for (size_t i = 0; i < record.overwrites.size(); ++i) {
      if (!request.keep_input[i]) {
        const auto [input, output] = record.overwrites[i];
        Holder& holder = holder_of(*request.inputs[input]);
        holder.has_bytes = false;
        consumed[output] = std::make_unique<SimBuffer>(this, holder.size);
      }
    }
    for (size_t i = 0; i < request.outputs.size(); ++i) {
      if (request.outputs[i] == nullptr) {
        continue;
      }
      if (consumed[i] == nullptr) {
        allocate(request.outputs[i]->size);
        consumed[i] =
            std::make_unique<SimBuffer>(this, request.outputs[i]->size);
      }
      buffers[i] = std::move(consumed[i]);
    }
    return buffers;
  }

  ~SimPorts() override {
    for (Holder* holder : holders_) {
      delete holder;
    }
  }
  SimPorts(const SimPorts&) = delete;
  SimPorts& operator=(const SimPorts&) = delete;

  // Asked for each op and each replay, of which one op may need thousands.
  void check_interrupted() const {
    if (may_go_on != nullptr && !(*may_go_on)()) {
      throw Interrupted("the simulation may not go on");
    }
  }

  Engine* engine = nullptr;
  uint32_t place = 0; // of the next op; see Future
  CostNs recompute_allowed = 0;
  const std::function<bool()>* may_go_on = nullptr; // null: it may

 private:
  struct SimBuffer : Buffer {
    SimBuffer(SimPorts* owner, Bytes bytes) : ports(owner), size(bytes) {}
    ~SimBuffer() override {
      if (ports != nullptr) {
        ports->free(size);
      }
    }
    SimBuffer(const SimBuffer&) = delete;
    SimBuffer& operator=(const SimBuffer&) = delete;
    SimPorts* ports; // null: a holder has the bytes now
    Bytes size;
  };

  const Bytes capacity_;
  Bytes used_ = 0;
  Bytes peak_ = 0;
  uint32_t peak_place_ = 0;
  std::unordered_set<Holder*> holders_; // owns them
};

} // namespace c10::remat
