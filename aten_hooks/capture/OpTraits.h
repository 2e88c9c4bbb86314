#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

namespace at::remat {

// What is known of an operator before it runs: from its schema, and from one
// table of what schemas do not say.
struct OpTraits {
  // Nested: tensors in lists of lists, dicts and the like.
  enum class ArgKind : uint8_t { Other, Tensor, TensorList, Nested };

  struct Arg {
    ArgKind kind = ArgKind::Other;
    bool written = false;
    // If written: no byte is read, so covering the storage replaces it.
    bool write_only = false;
    // If written: has no part in the other outputs. Replay gives it scratch
    // memory, so that the effect is not repeated.
    bool side_effect = false;
    // Written only while the op's `write_flag` is true.
    bool conditional = false;
  };

  std::string name;
  std::vector<Arg> args;
  // Takes metadata from its inputs only; never reads or writes bytes.
  bool is_view = false;
  // Its outputs hold whatever the memory held.
  bool is_uninitialized = false;
  bool draws_random_numbers = false;
  int generator_arg = -1;
  int device_arg = -1; // of the results
  int write_flag = -1; // position of a bool argument; see Arg::conditional
  // Other code may use its tensors after it returns.
  bool keeps_inputs = false;
  bool records_stream = false; // Tensor.record_stream
  bool is_copy = false; // of a tensor, perhaps to another device
  // Kernels of ATen touch their arguments only, so ops inside them need no
  // look.
  bool is_aten = false;
  // What takes the time of an op that is not bound by memory: a matrix product
  // of two arguments and its like. See CostEstimate.h.
  enum class Arithmetic : uint8_t {
    None,
    Product,
    Convolution,
    Attention,
    Recurrence
  };
  Arithmetic arithmetic = Arithmetic::None;
  size_t first_factor = 0; // position; the second one comes after it
  // Why it is never replayed; null if it may be.
  const char* not_replayable = nullptr;

  // Looked up by schema, kept for the process.
  static const OpTraits& of(const c10::OperatorHandle& op);
  // Of what is kept; no other is taken under it.
  static std::mutex& mutex();
};

} // namespace at::remat
