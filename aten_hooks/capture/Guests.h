#pragma once

#include "StorageHandle.h"

#include <vector>

namespace at::remat {

// The operands of an op that the engines of other devices keep. They are
// resident and pinned while it runs; it is not recorded there.
class Guests {
 public:
  // Once each: what is both read and written is written.
  void add(StorageHandle& handle, bool written);

  // Throws what Engine::begin_op throws, and then nothing has begun.
  void begin();
  void end(uint64_t signature, const char* name) noexcept;
  void abort() noexcept;

  // Has `engine` been told of the op?
  bool has(const Engine& engine) const;

 private:
  struct OfEngine {
    Engine* engine;
    c10::Device device;
    std::vector<StorageHandle*> read, written;
    c10::remat::VersionIds inputs; // from begin on
    c10::remat::Writes writes;
    bool has_begun = false;
  };

  std::vector<OfEngine> engines_;
};

} // namespace at::remat
