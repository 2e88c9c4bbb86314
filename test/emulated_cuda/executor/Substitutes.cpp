#include "Substitutes.h"

#include <ATen/ATen.h>

#include <tuple>
#include <unordered_map>

namespace emulated_cuda {

namespace {

using torch::jit::Stack;

// The arguments in order, taken off the stack.
class Taken {
 public:
  explicit Taken(Stack& stack) : values_(std::move(stack)) {
    stack.clear();
  }
  at::Tensor tensor() {
    return next().toTensor();
  }
  std::optional<at::Tensor> optional_tensor() {
    return next().toOptional<at::Tensor>();
  }
  std::vector<int64_t> ints() {
    return next().toIntVector();
  }
  int64_t integer() {
    return next().toInt();
  }
  double real() {
    return next().toDouble();
  }
  bool boolean() {
    return next().toBool();
  }
  c10::IValue& next() {
    return values_[position_++];
  }

 private:
  Stack values_;
  size_t position_ = 0;
};

void cudnn_convolution(Stack& stack, SeedAndOffset) {
  Taken args(stack);
  const at::Tensor input = args.tensor(), weight = args.tensor();
  const auto padding = args.ints(), stride = args.ints(),
             dilation = args.ints();
  stack.emplace_back(at::convolution(
      input,
      weight,
      {},
      stride,
      padding,
      dilation,
      /*transposed=*/false,
      std::vector<int64_t>(padding.size()),
      args.integer()));
}

void cudnn_batch_norm(Stack& stack, SeedAndOffset) {
  Taken args(stack);
  const at::Tensor input = args.tensor(), weight = args.tensor();
  const auto bias = args.optional_tensor(), mean = args.optional_tensor(),
             variance = args.optional_tensor();
  const bool training = args.boolean();
  const double momentum = args.real(), epsilon = args.real();
  auto [output, save_mean, save_invstd] = at::native_batch_norm(
      input, weight, bias, mean, variance, training, momentum, epsilon);
  stack.emplace_back(output);
  stack.emplace_back(save_mean);
  stack.emplace_back(save_invstd);
  stack.emplace_back(at::empty({0}, at::kByte)); // the reserve
}

void cudnn_batch_norm_backward(Stack& stack, SeedAndOffset) {
  Taken args(stack);
  const at::Tensor input = args.tensor(), grad = args.tensor(),
                   weight = args.tensor();
  const auto mean = args.optional_tensor(), variance = args.optional_tensor(),
             save_mean = args.optional_tensor(),
             save_invstd = args.optional_tensor();
  auto [grad_input, grad_weight, grad_bias] = at::native_batch_norm_backward(
      grad,
      input,
      weight,
      mean,
      variance,
      save_mean,
      save_invstd,
      /*train=*/true,
      args.real(),
      {true, true, true});
  stack.emplace_back(grad_input);
  stack.emplace_back(grad_weight);
  stack.emplace_back(grad_bias);
}

// The seed, and how often it was used; see advance() in Recurrent.cpp.
void cudnn_init_dropout_state(Stack& stack, SeedAndOffset) {
  const int64_t seed = stack[2].toInt();
  stack.clear();
  at::Tensor state = at::empty({16}, at::kByte);
  const auto words = state.view(at::kLong);
  words[0] = seed;
  words[1] = 0;
  stack.emplace_back(state);
}

// cuDNN's is bilinear, with zeros outside and aligned corners.
void cudnn_grid_sampler(Stack& stack, SeedAndOffset) {
  Taken args(stack);
  const at::Tensor input = args.tensor(), grid = args.tensor();
  stack.emplace_back(at::grid_sampler_2d(input, grid, 0, 0, true));
}

void cudnn_grid_sampler_backward(Stack& stack, SeedAndOffset) {
  Taken args(stack);
  const at::Tensor input = args.tensor(), grid = args.tensor(),
                   grad = args.tensor();
  auto [grad_input, grad_grid] =
      at::grid_sampler_2d_backward(grad, input, grid, 0, 0, true, {true, true});
  stack.emplace_back(grad_input);
  stack.emplace_back(grad_grid);
}

// cuDNN's grids have aligned corners.
void cudnn_affine_grid(Stack& stack, SeedAndOffset) {
  Taken args(stack);
  const at::Tensor theta = args.tensor();
  const int64_t n = args.integer(), c = args.integer(), h = args.integer(),
                w = args.integer();
  stack.emplace_back(at::affine_grid_generator(theta, {n, c, h, w}, true));
}

void cudnn_affine_grid_backward(Stack& stack, SeedAndOffset) {
  Taken args(stack);
  const at::Tensor grad = args.tensor();
  const int64_t n = args.integer(), c = args.integer(), h = args.integer(),
                w = args.integer();
  stack.emplace_back(
      at::affine_grid_generator_backward(grad, {n, c, h, w}, true));
}

const std::unordered_map<std::string, Substitute>& table() {
  static const auto* substitutes =
      new std::unordered_map<std::string, Substitute>{
          {"aten::cudnn_convolution", &cudnn_convolution},
          {"aten::cudnn_convolution_transpose", &cudnn_convolution_transpose},
          {"aten::cudnn_convolution_relu", &cudnn_convolution_relu},
          {"aten::_conv_depthwise2d", &conv_depthwise},
          {"aten::conv_depthwise3d", &conv_depthwise},
          {"aten::cudnn_batch_norm", &cudnn_batch_norm},
          {"aten::cudnn_batch_norm_backward", &cudnn_batch_norm_backward},
          {"aten::_use_cudnn_ctc_loss", &use_cudnn_ctc_loss},
          {"aten::_use_cudnn_ctc_loss.Tensor", &use_cudnn_ctc_loss},
          {"aten::_cudnn_init_dropout_state", &cudnn_init_dropout_state},
          {"aten::_fused_dropout", &fused_dropout},
          {"aten::_masked_scale", &masked_scale},
          {"aten::native_dropout", &native_dropout},
          {"aten::_scaled_dot_product_flash_attention", &flash_attention},
          {"aten::_scaled_dot_product_flash_attention_backward",
           &flash_attention_backward},
          {"aten::_scaled_dot_product_efficient_attention",
           &efficient_attention},
          {"aten::_scaled_dot_product_efficient_attention_backward",
           &efficient_attention_backward},
          {"aten::_scaled_dot_product_cudnn_attention", &cudnn_attention},
          {"aten::_scaled_dot_product_cudnn_attention_backward",
           &cudnn_attention_backward},
          {"aten::_cudnn_rnn", &cudnn_rnn},
          {"aten::_cudnn_rnn_backward", &cudnn_rnn_backward},
          {"aten::_thnn_fused_lstm_cell", &fused_lstm_cell},
          {"aten::_thnn_fused_lstm_cell_backward_impl",
           &fused_lstm_cell_backward},
          {"aten::_thnn_fused_gru_cell", &fused_gru_cell},
          {"aten::_thnn_fused_gru_cell_backward", &fused_gru_cell_backward},
          {"aten::batch_norm_stats", &batch_norm_stats},
          {"aten::batch_norm_elemt", &batch_norm_elemt},
          {"aten::batch_norm_gather_stats", &batch_norm_gather_stats},
          {"aten::batch_norm_gather_stats_with_counts",
           &batch_norm_gather_stats_with_counts},
          {"aten::batch_norm_backward_reduce", &batch_norm_backward_reduce},
          {"aten::batch_norm_backward_elemt", &batch_norm_backward_elemt},
          {"aten::cudnn_grid_sampler", &cudnn_grid_sampler},
          {"aten::cudnn_grid_sampler_backward", &cudnn_grid_sampler_backward},
          {"aten::cudnn_affine_grid_generator", &cudnn_affine_grid},
          {"aten::cudnn_affine_grid_generator_backward",
           &cudnn_affine_grid_backward},
      };
  return *substitutes;
}

} // namespace

void use_cudnn_ctc_loss(Stack& stack, SeedAndOffset) {
  stack.clear();
  stack.emplace_back(false);
}

void cudnn_convolution_transpose(Stack& stack, SeedAndOffset) {
  Taken args(stack);
  const at::Tensor input = args.tensor(), weight = args.tensor();
  const auto padding = args.ints(), output_padding = args.ints(),
             stride = args.ints(), dilation = args.ints();
  stack.emplace_back(at::convolution(
      input,
      weight,
      {},
      stride,
      padding,
      dilation,
      /*transposed=*/true,
      output_padding,
      args.integer()));
}

void cudnn_convolution_relu(Stack& stack, SeedAndOffset) {
  Taken args(stack);
  const at::Tensor input = args.tensor(), weight = args.tensor();
  const auto bias = args.optional_tensor();
  const auto stride = args.ints(), padding = args.ints(),
             dilation = args.ints();
  stack.emplace_back(at::relu(at::convolution(
      input,
      weight,
      bias,
      stride,
      padding,
      dilation,
      /*transposed=*/false,
      std::vector<int64_t>(padding.size()),
      args.integer())));
}

void conv_depthwise(Stack& stack, SeedAndOffset) {
  Taken args(stack);
  const at::Tensor input = args.tensor(), weight = args.tensor();
  (void)args.next(); // the kernel's size, which the weight has, too
  const auto bias = args.optional_tensor();
  const auto stride = args.ints(), padding = args.ints(),
             dilation = args.ints();
  stack.emplace_back(at::convolution(
      input,
      weight,
      bias,
      stride,
      padding,
      dilation,
      /*transposed=*/false,
      std::vector<int64_t>(padding.size()),
      input.size(1)));
}

// (kept and scaled, mask as bytes)
void fused_dropout(Stack& stack, SeedAndOffset random) {
  Taken args(stack);
  const at::Tensor input = args.tensor();
  const double keep = args.real();
  const at::Tensor mask =
      at::empty_like(input, input.options().dtype(at::kBool))
          .bernoulli_(keep, cpu_generator(random));
  stack.emplace_back(input * mask * (1.0 / keep));
  stack.emplace_back(mask.to(at::kByte));
}

void masked_scale(Stack& stack, SeedAndOffset) {
  Taken args(stack);
  const at::Tensor input = args.tensor(), mask = args.tensor();
  stack.emplace_back(input * mask * args.real());
}

void native_dropout(Stack& stack, SeedAndOffset random) {
  Taken args(stack);
  const at::Tensor input = args.tensor();
  const double p = args.real();
  const auto train = args.next().toOptional<bool>();
  if (!train.value_or(true) || p == 0) {
    stack.emplace_back(input.clone());
    stack.emplace_back(at::ones_like(input, input.options().dtype(at::kBool)));
    return;
  }
  const at::Tensor mask =
      at::empty_like(input, input.options().dtype(at::kBool))
          .bernoulli_(1 - p, cpu_generator(random));
  stack.emplace_back(input * mask * (p == 1 ? 0.0 : 1.0 / (1 - p)));
  stack.emplace_back(mask);
}

Substitute substitute_for(const std::string& name) {
  const auto it = table().find(name);
  return it == table().end() ? nullptr : it->second;
}

} // namespace emulated_cuda
