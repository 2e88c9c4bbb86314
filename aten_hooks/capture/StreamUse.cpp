#include "StreamUse.h"

#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <mutex>

namespace at::remat {

namespace {

// One for all storages: taken only where streams differ.
std::mutex& stream_use_mutex() {
  static auto* mutex = new std::mutex;
  return *mutex;
}

// What is launched on `waiter` from now on starts after what has been launched
// on `stream` until now.
void wait_for(const c10::Stream& waiter, const c10::Stream& stream) {
  c10::Event event(stream.device_type());
  event.record(stream);
  event.block(waiter);
}

} // namespace

std::optional<c10::Stream> current_stream(c10::Device device) {
  if (device.is_cpu()) {
    return std::nullopt;
  }
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

void StreamUse::made(
    const std::optional<c10::Stream>& stream,
    bool by_replay) {
  made_on_ = stream;
  by_replay_ = by_replay;
  others_.clear();
}

void StreamUse::add(const c10::Stream& stream) {
  if (std::find(others_.begin(), others_.end(), stream) == others_.end()) {
    others_.push_back(stream);
  }
}

void StreamUse::used_by_program(const c10::Stream& stream, bool writes) {
  if (made_on_ == stream && (others_.empty() || !writes)) {
    return;
  }
  const std::lock_guard<std::mutex> lock(stream_use_mutex());
  if (!made_on_) {
    made_on_ = stream;
    return;
  }
  if (*made_on_ != stream) {
    if (by_replay_ &&
        std::find(others_.begin(), others_.end(), stream) == others_.end()) {
      wait_for(stream, *made_on_);
    }
    add(stream);
  }
  if (writes) {
    for (const c10::Stream& other : others_) {
      if (other != stream) {
        wait_for(stream, other);
      }
    }
  }
}

void StreamUse::used_by_replay(const c10::Stream& stream) {
  if (made_on_ == stream && others_.empty()) {
    return;
  }
  const std::lock_guard<std::mutex> lock(stream_use_mutex());
  if (!made_on_) {
    made_on_ = stream;
    return;
  }
  // The last write may have been on any of them.
  if (*made_on_ != stream) {
    wait_for(stream, *made_on_);
    add(stream);
  }
  for (const c10::Stream& other : others_) {
    if (other != stream) {
      wait_for(stream, other);
    }
  }
}

void StreamUse::before_free(const at::DataPtr& bytes) {
  if (!made_on_ || bytes.get() == nullptr) {
    return;
  }
  const c10::impl::VirtualGuardImpl impl(made_on_->device_type());
  // The allocator ignores the stream that the block is of.
  if (!others_.empty()) {
    impl.recordDataPtrOnStream(bytes, *made_on_);
  }
  for (const c10::Stream& other : others_) {
    impl.recordDataPtrOnStream(bytes, other);
  }
  others_.clear();
}

void StreamUse::recorded_by_program(const c10::Stream& stream) {
  const std::lock_guard<std::mutex> lock(stream_use_mutex());
  if (made_on_ != stream) {
    add(stream);
  }
}

} // namespace at::remat
