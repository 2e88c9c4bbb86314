#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/Stream.h>

#include <optional>
#include <vector>

namespace at::remat {

// Which streams have used the bytes of a storage, so that replays, which the
// program knows nothing of, are ordered with the program's own work; see
// docs/design/streams.md. Nothing on a device without streams.
//
// Needs the lock of `stream_use_mutex` where more than one stream is in play;
// see StreamUse.cpp.
class StreamUse {
 public:
  // `bytes` were made on `stream`; by a replay, or by the program.
  void made(const std::optional<c10::Stream>& stream, bool by_replay);
  // An op of the program on `stream` is about to read, or to write, them.
  void used_by_program(const c10::Stream& stream, bool writes);
  // A replay on `stream` is about to read them.
  void used_by_replay(const c10::Stream& stream);
  // Before `bytes` go back to the allocator, which knows of one stream.
  void before_free(const at::DataPtr& bytes);
  // The program says so itself (Tensor.record_stream).
  void recorded_by_program(const c10::Stream& stream);

 private:
  void add(const c10::Stream& stream);

  std::optional<c10::Stream> made_on_;
  bool by_replay_ = false;
  std::vector<c10::Stream> others_; // beside made_on_
};

// The current stream of `device`; none on the CPU.
std::optional<c10::Stream> current_stream(c10::Device device);

} // namespace at::remat
