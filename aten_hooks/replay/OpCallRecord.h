#pragma once

#include "ExecutionFlags.h"
#include "GeneratorSnapshot.h"

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/SizesAndStrides.h>
#include <c10/remat/graph/OpRecord.h>
#include <c10/util/SmallVector.h>

#include <optional>
#include <vector>

namespace at::remat {

// Where a replay finds the bytes behind a tensor argument.
struct StorageRef {
  enum class Source : uint8_t {
    Input, // index into OpRecord::inputs
    Output, // index into OpRecord::outputs: written over whole
    Constant, // offset into OpCallRecord::constants
    Scratch, // a side effect goes here and is dropped
    Empty, // no bytes
  };
  Source source = Source::Empty;
  size_t index = 0;
  size_t nbytes = 0;
  c10::Device device = c10::kCPU;
};

// A tensor argument, less its bytes.
struct TensorRef {
  uint32_t storage; // index into OpCallRecord::storages
  bool requires_grad;
  bool wrapped_number;
  c10::impl::SizesAndStrides sizes_and_strides;
  int64_t storage_offset;
  caffe2::TypeMeta dtype;
  c10::DispatchKeySet key_set;
};

// Makes the tensor that `ref` describes on `storage`.
at::Tensor make_tensor(const TensorRef& ref, const c10::Storage& storage);

// An executed call of an operator: what replay needs to make it again. Holds no
// managed tensor, so the reference counts that PyTorch looks at (stealing
// gradients, accumulating in place) are those of a run without remat.
struct OpCallRecord final : c10::remat::OpPayload {
  static constexpr int32_t kUndefined = -1;

  // A tensor argument, or a list of them, taken out of `args`.
  struct TensorArg {
    uint32_t position;
    bool is_list;
    bool is_optional_list;
    c10::SmallVector<int32_t, 1> tensors; // indices into `tensors`
  };
  // Where among the returned values a fresh output is; element -1: no list.
  struct FreshOutput {
    uint32_t result;
    int32_t element;
    size_t nbytes;
  };

  explicit OpCallRecord(const c10::OperatorHandle& op) : op(op) {}

  c10::OperatorHandle op;
  c10::DispatchKeySet key_set;
  c10::Device device = c10::kCPU; // that it ran on
  std::optional<c10::Stream> stream; // likewise; none on the CPU
  ExecutionFlags flags{};
  bool is_aten = true;
  int generator_arg = -1;
  GeneratorSnapshot generator; // as it was before the op drew from it
  c10::SmallVector<c10::IValue, 6> args; // None where a tensor was
  c10::SmallVector<TensorArg, 3> tensor_args;
  c10::SmallVector<TensorRef, 3> tensors;
  c10::SmallVector<StorageRef, 3> storages;
  std::vector<char> constants;
  // The first of OpRecord::outputs, in order; the others are overwritten.
  c10::SmallVector<FreshOutput, 1> fresh_outputs;
};

} // namespace at::remat
