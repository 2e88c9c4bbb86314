#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/Stream.h>
#include <c10/util/SmallVector.h>

#include <mutex>
#include <optional>

namespace at::remat {

// Which streams have used the bytes of a storage. The program orders its own
// work; what it cannot order are replays and evictions, of which it knows
// nothing: see docs/design/streams.md, which has the rules. Nothing on a device
// without streams.
//
// All members need the lock that `lock_stream_uses` takes.
class StreamUse {
 public:
  // The program's own bytes, made by an op on `stream`, where it will think
  // that they are allocated as long as it has them.
  void made_by_program(const std::optional<c10::Stream>& stream);
  // Bytes that remat made: allocated on one stream, written on another or the
  // same by work that the program does not know of.
  void made_by_replay(
      const std::optional<c10::Stream>& allocated_on,
      const std::optional<c10::Stream>& written_on);

  // Before an op of the program on `stream`: makes it wait for what only remat
  // knows of.
  void used_by_program(const c10::Stream& stream, bool writes);
  // Before a replay on `stream` of an op that ran on `first_run`. If it
  // consumes the bytes it may overwrite them.
  void used_by_replay(
      const c10::Stream& stream,
      const c10::Stream& first_run,
      bool consumes);
  // Tensor.record_stream, which holds for later bytes of the storage, too.
  void recorded_by_program(const c10::Stream& stream);

  // Before the bytes go back to the allocator, which will use them again in the
  // order of the stream that they were allocated on. Evicted: at a time that
  // the program did not choose; else at the death of its storage.
  void before_eviction(const at::DataPtr& bytes, bool is_capturing) noexcept;
  void before_death(const at::DataPtr& bytes) noexcept;

  const std::optional<c10::Stream>& allocated_on() const {
    return allocated_on_;
  }

 private:
  using Streams = c10::SmallVector<c10::Stream, 1>;

  bool is_ordered_after_making(const c10::Stream& stream) const;

  std::optional<c10::Stream> origin_; // of the program's first bytes
  std::optional<c10::Stream> allocated_on_; // of the bytes now
  // By a replay, since when no op of the program has written.
  std::optional<c10::Stream> written_on_;
  bool is_remade_ = false; // the bytes are not those that the program made
  Streams program_; // that its ops used them on
  Streams replays_; // that replays used them on
  Streams recorded_; // by Tensor.record_stream
};

// One lock for the storages of a device: it is held for nanoseconds, and for
// longer only where streams differ. Comes after the engine's.
std::unique_lock<std::mutex> lock_stream_uses(c10::Device device);

// The current stream of `device`; none on the CPU.
std::optional<c10::Stream> current_stream(c10::Device device);

} // namespace at::remat
