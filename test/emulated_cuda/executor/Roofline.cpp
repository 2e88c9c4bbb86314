#include "Roofline.h"

#include <ATen/Context.h>

#include <algorithm>
#include <functional>
#include <unordered_map>
#include <unordered_set>

namespace emulated_cuda {

namespace {

using Values = c10::ArrayRef<c10::IValue>;
using Names = std::unordered_set<std::string>;

// An empty kernel keeps a stream busy for about that long.
constexpr double kKernelNs = 2000;

double bytes_of(const at::Tensor& tensor) {
  // Of an expanded tensor, what there is; of one with gaps, what is read.
  const double elements = static_cast<double>(tensor.nbytes());
  return std::min(elements, static_cast<double>(extent_of(tensor).size));
}

const at::Tensor& tensor(Values arguments, size_t i) {
  return arguments[i].toTensor();
}

double elements(const at::Tensor& tensor) {
  return static_cast<double>(tensor.numel());
}

bool starts_with(const std::string& text, const char* start) {
  return text.rfind(start, 0) == 0;
}

// "addmm" of "aten::addmm_" and of "aten::addmm.out"; whether it works in
// place.
struct Kind {
  std::string name;
  bool in_place;
};
Kind kind_of(const std::string& full) {
  std::string name = full.substr(6, full.find('.') - 6);
  const bool in_place = name.size() > 1 && name.back() == '_';
  if (in_place) {
    name.pop_back();
  }
  return {name, in_place};
}

// --- arithmetic

void multiply(Work& work, const at::Tensor& a, const at::Tensor& b) {
  const double columns =
      b.dim() >= 2 ? static_cast<double>(b.size(-1)) : double{1};
  work.flops = 2 * elements(a) * columns;
  work.dtype = a.scalar_type();
  work.may_use_tf32 = at::globalContext().allowTF32CuBLAS();
}

// One pass: outputs, or inputs if transposed, times the weights each meets.
double convolution_flops(
    const at::Tensor& input,
    const at::Tensor& weight,
    const at::Tensor& output,
    bool transposed) {
  const at::Tensor& places = transposed ? input : output;
  double positions = static_cast<double>(places.size(0));
  for (int64_t i = 2; i < places.dim(); ++i) {
    positions *= static_cast<double>(places.size(i));
  }
  return 2 * positions * elements(weight);
}

void convolve(Work& work, const at::Tensor& weight) {
  work.dtype = weight.scalar_type();
  work.may_use_tf32 = at::globalContext().allowTF32CuDNN();
}

// Multiplications of [queries, width] by [width, keys] and their like, of which
// `narrow` have the width of the keys and `wide` that of the values. All are
// [batch, heads, length, width], or with lengths before heads.
void attend(
    Work& work,
    const at::Tensor& query,
    const at::Tensor& key,
    const at::Tensor& value,
    int length_dim,
    bool is_causal,
    double narrow,
    double wide) {
  const double keys = static_cast<double>(key.size(length_dim));
  const double rows = elements(query) / static_cast<double>(query.size(-1));
  const double width = static_cast<double>(query.size(-1)),
               value_width = static_cast<double>(value.size(-1));
  work.flops = 2 * rows * keys * (narrow * width + wide * value_width);
  if (is_causal) {
    work.flops /= 2; // the kernels leave out what is masked
  }
  work.dtype = query.scalar_type();
  work.may_use_tf32 = at::globalContext().allowTF32CuBLAS();
}

// All steps of all layers. Each gate has a matrix for the input and one for the
// hidden state, so every weight meets every element of the sequence once.
void recur(Work& work, Values arguments, size_t settings, double passes) {
  const at::Tensor& input = tensor(arguments, 0);
  const auto batch_sizes = arguments[settings + 8].toIntVector();
  const bool batch_first = arguments[settings + 4].toBool();
  double weights = 0;
  for (const at::Tensor& weight : arguments[1].toTensorVector()) {
    weights += weight.dim() == 2 ? elements(weight) : 0;
  }
  const double items =
      elements(input) / static_cast<double>(input.size(input.dim() - 1));
  const auto steps = static_cast<double>(
      batch_sizes.empty() ? input.size(batch_first ? 1 : 0)
                          : static_cast<int64_t>(batch_sizes.size()));
  work.flops = 2 * passes * items * weights;
  work.kernels =
      passes * steps * static_cast<double>(arguments[settings + 3].toInt());
  work.dtype = input.scalar_type();
  work.may_use_tf32 = at::globalContext().allowTF32CuDNN();
}

using Count =
    std::function<void(Work&, Values, const std::vector<at::Tensor>&)>;

Count product(size_t first) {
  return [first](Work& work, Values arguments, const auto&) {
    multiply(work, tensor(arguments, first), tensor(arguments, first + 1));
  };
}

Count convolution(bool transposed) {
  return [transposed](Work& work, Values arguments, const auto& fresh) {
    const at::Tensor& weight = tensor(arguments, 1);
    convolve(work, weight);
    for (const at::Tensor& output : fresh) {
      work.flops =
          convolution_flops(tensor(arguments, 0), weight, output, transposed);
    }
  };
}

void convolution_backward(
    Work& work,
    Values arguments,
    const std::vector<at::Tensor>&) {
  const at::Tensor &grad = tensor(arguments, 0), &input = tensor(arguments, 1),
                   &weight = tensor(arguments, 2);
  const auto wanted = arguments[10].toBoolList();
  convolve(work, weight);
  work.kernels = (wanted[0] ? 1 : 0) + (wanted[1] ? 1 : 0);
  work.flops = work.kernels *
      convolution_flops(input, weight, grad, arguments[7].toBool());
  work.bytes += std::max(0.0, work.kernels - 1) * bytes_of(grad);
}

Count attention(size_t first, int length_dim, size_t causal) {
  return [=](Work& work, Values arguments, const auto&) {
    const bool is_causal = arguments[causal].isBool()
        ? arguments[causal].toBool()
        : arguments[causal].toInt() != 0; // the kind of a mask
    attend(
        work,
        tensor(arguments, first),
        tensor(arguments, first + 1),
        tensor(arguments, first + 2),
        length_dim,
        is_causal,
        1,
        1);
  };
}

// Computes the scores again; then two products for their gradient and the
// values', two for the queries' and the keys'.
Count attention_backward(int length_dim, size_t causal) {
  return [=](Work& work, Values arguments, const auto&) {
    const bool is_causal = arguments[causal].isBool()
        ? arguments[causal].toBool()
        : arguments[causal].toInt() != 0;
    attend(
        work,
        tensor(arguments, 1),
        tensor(arguments, 2),
        tensor(arguments, 3),
        length_dim,
        is_causal,
        3,
        2);
  };
}

// Statistics first: the input (and its gradient) is read once more.
Count two_passes(size_t read, size_t until) {
  return [=](Work& work, Values arguments, const auto&) {
    for (size_t i = read; i < until; ++i) {
      work.bytes += bytes_of(tensor(arguments, i));
    }
  };
}

const std::unordered_map<std::string, Count>& counts() {
  static const auto* table = new std::unordered_map<std::string, Count>{
      {"mm", product(0)},
      {"bmm", product(0)},
      {"mv", product(0)},
      {"dot", product(0)},
      {"vdot", product(0)},
      {"addmm", product(1)},
      {"_addmm_activation", product(1)},
      {"addmv", product(1)},
      {"addbmm", product(1)},
      {"baddbmm", product(1)},
      {"cudnn_convolution", convolution(false)},
      {"cudnn_convolution_relu", convolution(false)},
      {"_conv_depthwise2d", convolution(false)},
      {"conv_depthwise3d", convolution(false)},
      {"slow_conv3d_forward", convolution(false)},
      {"_slow_conv2d_forward", convolution(false)},
      {"slow_conv_dilated2d", convolution(false)},
      {"slow_conv_dilated3d", convolution(false)},
      {"cudnn_convolution_transpose", convolution(true)},
      {"slow_conv_transpose2d", convolution(true)},
      {"slow_conv_transpose3d", convolution(true)},
      {"convolution_backward", &convolution_backward},
      {"_scaled_dot_product_flash_attention", attention(0, 2, 4)},
      {"_scaled_dot_product_efficient_attention", attention(0, 2, 6)},
      {"_scaled_dot_product_cudnn_attention", attention(0, 2, 6)},
      {"_scaled_dot_product_flash_attention_backward",
       attention_backward(2, 11)},
      {"_scaled_dot_product_efficient_attention_backward",
       attention_backward(2, 11)},
      {"_scaled_dot_product_cudnn_attention_backward",
       attention_backward(2, 14)},
      {"_cudnn_rnn",
       [](Work& work, Values arguments, const auto&) {
         recur(work, arguments, 6, 1);
       }},
      {"_cudnn_rnn_backward",
       [](Work& work, Values arguments, const auto&) {
         recur(work, arguments, 10, 2);
       }},
      {"native_batch_norm", two_passes(0, 1)},
      {"cudnn_batch_norm", two_passes(0, 1)},
      {"native_batch_norm_backward", two_passes(0, 2)},
      {"cudnn_batch_norm_backward", two_passes(0, 2)},
  };
  return *table;
}

// --- bytes

const Names& write_only() {
  static const auto* names = new Names{
      "bernoulli",
      "cauchy",
      "copy",
      "exponential",
      "fill",
      "geometric",
      "log_normal",
      "normal",
      "random",
      "uniform",
      "zero"};
  return *names;
}

// Read of their first argument only what the indices say.
const Names& gathers() {
  static const auto* names = new Names{
      "_embedding_bag",
      "_embedding_bag_forward_only",
      "embedding",
      "gather",
      "index",
      "index_select",
      "take"};
  return *names;
}

// Write of their first argument only what the indices say, in place.
const Names& scatters() {
  static const auto* names = new Names{
      "_index_put_impl",
      "index_add",
      "index_copy",
      "index_fill",
      "index_put",
      "index_reduce",
      "put",
      "scatter",
      "scatter_add",
      "scatter_reduce"};
  return *names;
}

double bytes_moved(
    const c10::OperatorHandle& op,
    const OpInfo& info,
    const Kind& kind,
    Values arguments,
    const std::vector<at::Tensor>& fresh) {
  std::unordered_set<const void*> seen; // read once, if it is x * x
  double target = 0; // bytes read of the first argument
  double others = 0, written = 0;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const bool writes = info.writes[i];
    const bool reads = !op.schema().arguments()[i].is_out() &&
        !(writes && kind.in_place && write_only().count(kind.name) != 0);
    for_each_tensor(arguments[i], [&](const at::Tensor& tensor) {
      if (!tensor.is_cuda()) {
        return;
      }
      if (writes) {
        written += bytes_of(tensor);
      }
      if (reads && seen.insert(tensor.unsafeGetTensorImpl()).second) {
        (i == 0 ? target : others) += bytes_of(tensor);
      }
    });
  }
  double made = 0;
  for (const at::Tensor& result : fresh) {
    made += bytes_of(result);
  }
  if (gathers().count(kind.name) != 0) {
    target = std::min(target, made + written);
  }
  if (kind.in_place && scatters().count(kind.name) != 0) {
    target = std::min(target, others);
    written = std::min(written, others);
  }
  return target + others + written + made;
}

bool is_unknown(const std::string& name) {
  if (name == "linalg_vector_norm") {
    return false;
  }
  for (const char* start :
       {"_cdist",
        "_cholesky",
        "_convert_weight",
        "_efficient_attention",
        "_fft",
        "_flash_attention",
        "_int_mm",
        "_linalg",
        "_scaled_mm",
        "_weight_int",
        "cholesky",
        "geqrf",
        "linalg_",
        "lu_",
        "ormqr",
        "triangular_solve"}) {
    if (starts_with(name, start)) {
      return true;
    }
  }
  return false;
}

// --- rates

double flops_per_second(const Work& work, const EmulatedGpu& gpu) {
  switch (work.dtype) {
  case at::kHalf:
  case at::kBFloat16:
    return gpu.flops_fp16;
  case at::kDouble:
  case at::kComplexDouble:
    return gpu.flops_fp64;
  default:
    return work.may_use_tf32 ? gpu.flops_tf32 : gpu.flops_fp32;
  }
}

} // namespace

Work work_of(
    const c10::OperatorHandle& op,
    const OpInfo& info,
    Values arguments,
    const std::vector<at::Tensor>& fresh) {
  const Kind kind = kind_of(info.name);
  TORCH_CHECK_NOT_IMPLEMENTED(
      !is_unknown(kind.name), "its time is not modelled");
  Work work;
  work.bytes = bytes_moved(op, info, kind, arguments, fresh);
  if (const auto it = counts().find(kind.name); it != counts().end()) {
    it->second(work, arguments, fresh);
  }
  return work;
}

double duration_ns(const Work& work, const EmulatedGpu& gpu) {
  const double seconds = std::max(
      work.flops / flops_per_second(work, gpu), work.bytes / gpu.bandwidth);
  return std::max(seconds * 1e9, work.kernels * kKernelNs);
}

} // namespace emulated_cuda
