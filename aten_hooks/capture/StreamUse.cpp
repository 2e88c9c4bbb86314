#include "StreamUse.h"

#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <array>

namespace at::remat {

namespace {

template <class Streams>
bool contains(const Streams& streams, const c10::Stream& stream) {
  return std::find(streams.begin(), streams.end(), stream) != streams.end();
}

template <class Streams>
void add(Streams& streams, const c10::Stream& stream) {
  if (!contains(streams, stream)) {
    streams.push_back(stream);
  }
}

// What is launched on `waiter` from now on starts after what has been launched
// on `stream` until now.
void wait_for(const c10::Stream& waiter, const c10::Stream& stream) {
  if (waiter == stream) {
    return;
  }
  c10::Event event(stream.device_type());
  event.record(stream);
  event.block(waiter);
}

// The allocator keeps `bytes`, once free, until the work on `stream` is done.
void record(const at::DataPtr& bytes, const c10::Stream& stream) {
  c10::impl::VirtualGuardImpl(stream.device_type())
      .recordDataPtrOnStream(bytes, stream);
}

} // namespace

std::unique_lock<std::mutex> lock_stream_uses(c10::Device device) {
  static auto* mutexes = new std::array<std::mutex, 16>;
  return std::unique_lock<std::mutex>(
      (*mutexes)[static_cast<size_t>(device.index() + 1) % mutexes->size()]);
}

std::optional<c10::Stream> current_stream(c10::Device device) {
  if (device.is_cpu()) {
    return std::nullopt;
  }
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

void StreamUse::made_by_program(const std::optional<c10::Stream>& stream) {
  origin_ = stream;
  allocated_on_ = stream;
}

void StreamUse::made_by_replay(
    const std::optional<c10::Stream>& allocated_on,
    const std::optional<c10::Stream>& written_on) {
  allocated_on_ = allocated_on;
  written_on_ = written_on;
  is_remade_ = true;
  program_.clear();
  replays_.clear();
  if (written_on && written_on != allocated_on) {
    replays_.push_back(*written_on);
  }
}

bool StreamUse::is_ordered_after_making(const c10::Stream& stream) const {
  return written_on_ == stream || contains(program_, stream) ||
      contains(replays_, stream);
}

void StreamUse::used_by_program(const c10::Stream& stream, bool writes) {
  if (written_on_ && !is_ordered_after_making(stream)) {
    wait_for(stream, *written_on_);
  }
  if (!writes) {
    add(program_, stream);
    return;
  }
  for (const c10::Stream& replay : replays_) {
    wait_for(stream, replay);
  }
  // The program has ordered this after all that it did itself, and whoever
  // waits for it from now on waits for the rest, too.
  replays_.clear();
  program_.assign(1, stream);
  written_on_.reset();
}

void StreamUse::used_by_replay(
    const c10::Stream& stream,
    const c10::Stream& first_run,
    bool consumes) {
  if (!is_ordered_after_making(stream)) {
    // What the program wrote was there for the first run.
    wait_for(stream, written_on_ ? *written_on_ : first_run);
  }
  if (consumes) {
    for (const auto* streams : {&program_, &replays_}) {
      for (const c10::Stream& other : *streams) {
        wait_for(stream, other);
      }
    }
    if (origin_) {
      wait_for(stream, *origin_);
    }
  }
  add(replays_, stream);
}

void StreamUse::recorded_by_program(const c10::Stream& stream) {
  add(recorded_, stream);
}

void StreamUse::before_eviction(
    const at::DataPtr& bytes,
    bool is_capturing) noexcept {
  if (!allocated_on_ || bytes.get() == nullptr) {
    return;
  }
  try {
    for (const auto* streams : {&program_, &replays_, &recorded_}) {
      for (const c10::Stream& stream : *streams) {
        if (stream == *allocated_on_) {
          continue;
        }
        if (is_capturing) {
          record(bytes, stream); // which is put off until the capture ends
        } else {
          wait_for(*allocated_on_, stream);
        }
      }
    }
  } catch (...) {
    // The device is lost, as the program's next call will tell it.
  }
}

void StreamUse::before_death(const at::DataPtr& bytes) noexcept {
  if (bytes.get() == nullptr) {
    return;
  }
  try {
    for (const auto* streams : {&replays_, &recorded_}) {
      for (const c10::Stream& stream : *streams) {
        if (allocated_on_ != stream) {
          record(bytes, stream);
        }
      }
    }
    if (is_remade_ && origin_ && allocated_on_ != origin_) {
      record(bytes, *origin_);
    }
  } catch (...) {
    // As above.
  }
}

} // namespace at::remat
