#pragma once

#include "OpCallRecord.h"

namespace at::remat {

// Lets a replayed op draw the random numbers that it drew first. An op that
// takes a generator gets one in the state saved; for one that can only use the
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
  c10::intrusive_ptr<c10::TensorImpl> state_; // on the CPU
  c10::intrusive_ptr<c10::GeneratorImpl> own_; // on CUDA
};

} // namespace at::remat
