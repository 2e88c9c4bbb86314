#include "CostEstimate.h"

#include <algorithm>

namespace at::remat {

namespace {

using Arithmetic = OpTraits::Arithmetic;

// Between an A100 and an H100.
constexpr double kBytesPerNs = 2000;
constexpr double kLaunchNs = 4000;

double flops_per_ns(size_t itemsize) {
  return itemsize >= 8 ? 15e3 : itemsize >= 4 ? 50e3 : 300e3;
}

double elements(c10::IntArrayRef sizes) {
  double result = 1;
  for (const int64_t size : sizes) {
    result *= static_cast<double>(size);
  }
  return result;
}

// Null if the argument at `position` is no tensor.
const TensorRef* tensor_at(const OpCallRecord& record, size_t position) {
  for (const OpCallRecord::TensorArg& arg : record.tensor_args) {
    if (arg.position == position && !arg.is_list && arg.tensors[0] >= 0) {
      return &record.tensors[arg.tensors[0]];
    }
  }
  return nullptr;
}

double size_from_end(c10::IntArrayRef sizes, size_t dim) {
  return sizes.size() >= dim
      ? static_cast<double>(std::max<int64_t>(sizes[sizes.size() - dim], 1))
      : 1;
}

double elements_of_list(const OpCallRecord& record, size_t position) {
  double result = 0;
  for (const OpCallRecord::TensorArg& arg : record.tensor_args) {
    if (arg.position == position) {
      for (const int32_t index : arg.tensors) {
        result += index < 0
            ? 0
            : elements(
                  record.tensors[index].sizes_and_strides.sizes_arrayref());
      }
    }
  }
  return result;
}

double flops_of(
    const OpTraits& traits,
    const OpCallRecord& record,
    c10::ArrayRef<c10::IValue> results) {
  const size_t first = traits.first_factor;
  const TensorRef* a = tensor_at(record, first);
  if (traits.arithmetic == Arithmetic::None || a == nullptr) {
    return 0;
  }
  const auto left = a->sizes_and_strides.sizes_arrayref();
  if (traits.arithmetic == Arithmetic::Recurrence) {
    // Each weight meets each element of the sequence once.
    return 2 * elements(left) / size_from_end(left, 1) *
        elements_of_list(record, first + 1);
  }
  const TensorRef* b = tensor_at(record, first + 1);
  if (b == nullptr) {
    return 0;
  }
  const auto right = b->sizes_and_strides.sizes_arrayref();
  switch (traits.arithmetic) {
  case Arithmetic::Product:
    return 2 * elements(left) *
        (right.size() >= 2 ? size_from_end(right, 1) : 1);
  case Arithmetic::Attention: // scores, then values
    return 4 * elements(left) * size_from_end(right, 2);
  case Arithmetic::Convolution: {
    // The larger of both has a position for each application of the weights, or
    // is said to where strides make that too many.
    double positions = elements(left) / size_from_end(left, left.size() - 1);
    if (!results.empty() && results[0].isTensor()) {
      const auto out = results[0].toTensor().sizes();
      positions = std::min(
          positions, elements(out) / size_from_end(out, out.size() - 1));
    }
    return 2 * positions * elements(right);
  }
  default:
    return 0;
  }
}

} // namespace

c10::remat::CostNs estimate_cost(
    const OpTraits& traits,
    const OpCallRecord& record,
    c10::ArrayRef<c10::IValue> results) {
  double bytes = 0;
  size_t itemsize = 0; // of the widest operand
  for (const TensorRef& ref : record.tensors) {
    const double nbytes =
        elements(ref.sizes_and_strides.sizes_arrayref()) * ref.dtype.itemsize();
    // Of an expanded tensor, what there is.
    bytes += std::min(
        nbytes, static_cast<double>(record.storages[ref.storage].nbytes));
    itemsize = std::max(itemsize, ref.dtype.itemsize());
  }
  for (const OpCallRecord::FreshOutput& output : record.fresh_outputs) {
    bytes += static_cast<double>(output.nbytes);
  }
  const double ns = std::max(
      bytes / kBytesPerNs,
      flops_of(traits, record, results) / flops_per_ns(itemsize));
  return static_cast<c10::remat::CostNs>(kLaunchNs + ns);
}

} // namespace at::remat
