// Batch norm in parts, as SyncBatchNorm puts it together from several devices.
// Statistics are float32 for half precision, as CUDA's.
#include "Substitutes.h"

#include <ATen/ATen.h>

namespace emulated_cuda {

namespace {

using torch::jit::Stack;

at::Tensor widened(const at::Tensor& tensor) {
  return at::isReducedFloatingType(tensor.scalar_type()) ? tensor.to(at::kFloat)
                                                         : tensor;
}

// All but the channels.
std::vector<int64_t> reduced_dims(const at::Tensor& input) {
  std::vector<int64_t> dims{0};
  for (int64_t i = 2; i < input.dim(); ++i) {
    dims.push_back(i);
  }
  return dims;
}

// A value a channel, to be combined with `input`.
at::Tensor by_channel(const at::Tensor& values, const at::Tensor& input) {
  std::vector<int64_t> sizes(input.dim(), 1);
  sizes[1] = -1;
  return widened(values).view(sizes);
}

// Of the parts' statistics, each of `counts` values; updates the running ones.
void gather(
    Stack& stack,
    const at::Tensor& mean,
    const at::Tensor& invstd,
    const at::Tensor& running_mean,
    const at::Tensor& running_var,
    double momentum,
    double epsilon,
    const at::Tensor& counts) {
  const at::Tensor weights = counts.to(mean.scalar_type()).view({-1, 1});
  const at::Tensor total = weights.sum();
  const at::Tensor whole = (mean * weights).sum(0) / total;
  const at::Tensor variances = invstd.pow(-2) - epsilon;
  const at::Tensor squares =
      ((variances + (mean - whole).square()) * weights).sum(0);
  if (running_mean.defined()) {
    running_mean.mul_(1 - momentum).add_(whole, momentum);
  }
  if (running_var.defined()) {
    running_var.mul_(1 - momentum).add_(squares / (total - 1), momentum);
  }
  stack.emplace_back(whole);
  stack.emplace_back((squares / total + epsilon).rsqrt());
}

} // namespace

void batch_norm_stats(Stack& stack, SeedAndOffset) {
  const at::Tensor input = widened(stack[0].toTensor());
  const double epsilon = stack[1].toDouble();
  stack.clear();
  const auto dims = reduced_dims(input);
  const at::Tensor variance = input.var(dims, /*unbiased=*/false);
  stack.emplace_back(input.mean(dims));
  stack.emplace_back((variance + epsilon).rsqrt());
}

void batch_norm_elemt(Stack& stack, SeedAndOffset) {
  const at::Tensor input = stack[0].toTensor();
  const at::Tensor weight = maybe(stack[1]), bias = maybe(stack[2]);
  at::Tensor result =
      (widened(input) - by_channel(stack[3].toTensor(), input)) *
      by_channel(stack[4].toTensor(), input);
  stack.clear();
  if (weight.defined()) {
    result = result * by_channel(weight, input);
  }
  if (bias.defined()) {
    result = result + by_channel(bias, input);
  }
  stack.emplace_back(result.to(input.scalar_type()));
}

void batch_norm_gather_stats(Stack& stack, SeedAndOffset) {
  const Stack args = std::move(stack);
  stack.clear();
  const at::Tensor mean = args[1].toTensor();
  gather(
      stack,
      mean,
      args[2].toTensor(),
      maybe(args[3]),
      maybe(args[4]),
      args[5].toDouble(),
      args[6].toDouble(),
      at::full({mean.size(0)}, args[7].toInt(), at::kDouble));
}

void batch_norm_gather_stats_with_counts(Stack& stack, SeedAndOffset) {
  const Stack args = std::move(stack);
  stack.clear();
  gather(
      stack,
      args[1].toTensor(),
      args[2].toTensor(),
      maybe(args[3]),
      maybe(args[4]),
      args[5].toDouble(),
      args[6].toDouble(),
      args[7].toTensor());
}

void batch_norm_backward_reduce(Stack& stack, SeedAndOffset) {
  const Stack args = std::move(stack);
  stack.clear();
  const at::Tensor grad = widened(args[0].toTensor());
  const at::Tensor input = args[1].toTensor();
  const at::Tensor centered =
      widened(input) - by_channel(args[2].toTensor(), input);
  const at::Tensor invstd = args[3].toTensor(), weight = maybe(args[4]);
  const auto dims = reduced_dims(input);
  const at::Tensor sum = grad.sum(dims);
  const at::Tensor sum_centered = (grad * centered).sum(dims);
  const auto as_weight = [&](const at::Tensor& gradient) {
    return weight.defined() ? gradient.to(weight.scalar_type()) : gradient;
  };
  const auto wanted = [&](size_t flag, const at::Tensor& result) {
    return args[flag].toBool() ? result : at::Tensor();
  };
  stack.emplace_back(wanted(5, sum));
  stack.emplace_back(wanted(5, sum_centered));
  stack.emplace_back(wanted(6, as_weight(sum_centered * invstd)));
  stack.emplace_back(wanted(7, as_weight(sum)));
}

void batch_norm_backward_elemt(Stack& stack, SeedAndOffset) {
  const Stack args = std::move(stack);
  stack.clear();
  const at::Tensor input = args[1].toTensor();
  const at::Tensor grad = widened(args[0].toTensor());
  const at::Tensor centered =
      widened(input) - by_channel(args[2].toTensor(), input);
  const at::Tensor invstd = by_channel(args[3].toTensor(), input);
  const at::Tensor weight = maybe(args[4]);
  const at::Tensor total = args[7].toTensor().sum().to(grad.scalar_type());
  at::Tensor result = (grad - by_channel(args[5].toTensor() / total, input) -
                       centered * invstd.square() *
                           by_channel(args[6].toTensor() / total, input)) *
      invstd;
  if (weight.defined()) {
    result = result * by_channel(weight, input);
  }
  stack.emplace_back(result.to(input.scalar_type()));
}

} // namespace emulated_cuda
