#pragma once

#include "OpCallRecord.h"

#include <mutex>

namespace at::remat {

// Lets a replayed op draw the random numbers that it drew first. An op that
// takes a generator gets a copy of the one saved; for one that can only use the
// default generator, that one is set back for the lifetime of this object and
// then put where it was: the program's own stream never moves.
class GeneratorSwap {
 public:
  GeneratorSwap(const OpCallRecord& call, torch::jit::Stack& stack);
  ~GeneratorSwap();
  GeneratorSwap(const GeneratorSwap&) = delete;
  GeneratorSwap& operator=(const GeneratorSwap&) = delete;

 private:
  at::Generator default_; // defined while it is set back
  c10::intrusive_ptr<c10::TensorImpl> state_;
};

// A copy of the generator that `op` would draw from: `given`, or the default
// one of the device.
at::Generator snapshot_generator(
    const std::optional<at::Generator>& given,
    c10::Device device);

} // namespace at::remat
