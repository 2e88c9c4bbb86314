#include "Shapes.h"

#include "Substitutes.h"

#include <ATen/ATen.h>
#include <ATen/native/ConvUtils.h>

#include <unordered_map>

namespace emulated_cuda {

namespace {

using at::Tensor;
using torch::jit::Stack;

Tensor empty_as(const Tensor& tensor) {
  return at::empty_like(tensor, tensor.suggest_memory_format());
}

// Substitutes that compute nothing on the host give the right shapes.
template <Substitute substitute>
void shapes_of(Stack& stack) {
  substitute(stack, SeedAndOffset{0, 0});
}

void cudnn_convolution(Stack& stack) {
  const Tensor input = stack[0].toTensor(), weight = stack[1].toTensor();
  const auto padding = stack[2].toIntVector(), stride = stack[3].toIntVector(),
             dilation = stack[4].toIntVector();
  TORCH_CHECK(
      input.size(1) == weight.size(1) * stack[5].toInt(),
      "a convolution of ",
      input.size(1),
      " channels by weights of sizes ",
      weight.sizes());
  stack.clear();
  stack.emplace_back(at::empty(
      at::native::conv_output_size(
          input.sizes(), weight.sizes(), padding, stride, dilation),
      input.options().memory_format(
          at::native::cudnn_conv_suggest_memory_format(input, weight))));
}

void convolution_backward(Stack& stack) {
  const Tensor grad = stack[0].toTensor(), input = stack[1].toTensor(),
               weight = stack[2].toTensor();
  const auto wanted = stack[10].toBoolList();
  const auto format =
      at::native::cudnn_conv_suggest_memory_format(input, weight);
  stack.clear();
  stack.emplace_back(wanted[0] ? at::empty_like(input, format) : Tensor());
  stack.emplace_back(wanted[1] ? at::empty_like(weight, format) : Tensor());
  stack.emplace_back(
      wanted[2] ? at::empty({grad.size(1)}, grad.options()) : Tensor());
}

void cudnn_batch_norm(Stack& stack) {
  const Tensor input = stack[0].toTensor(), weight = stack[1].toTensor();
  const int64_t saved = stack[5].toBool() ? weight.numel() : 0;
  stack.clear();
  stack.emplace_back(empty_as(input));
  stack.emplace_back(at::empty({saved}, weight.options()));
  stack.emplace_back(at::empty({saved}, weight.options()));
  stack.emplace_back(at::empty({0}, input.options().dtype(at::kByte)));
}

void cudnn_batch_norm_backward(Stack& stack) {
  const Tensor input = stack[0].toTensor(), weight = stack[2].toTensor();
  stack.clear();
  stack.emplace_back(empty_as(input));
  stack.emplace_back(at::empty_like(weight));
  stack.emplace_back(at::empty_like(weight));
}

void cudnn_init_dropout_state(Stack& stack) {
  stack.clear();
  stack.emplace_back(
      at::empty({16}, at::TensorOptions(at::kMeta).dtype(at::kByte)));
}

// Values that cuDNN keeps for the backward pass, per hidden unit, layer,
// direction and element of the sequence: the gates, and the states.
int64_t values_kept(int64_t mode) {
  return mode == kLstm ? 6 : mode == kGru ? 5 : 2;
}

void cudnn_rnn(Stack& stack) {
  const Tensor input = stack[0].toTensor(), hidden = stack[4].toTensor(),
               cell = maybe(stack[5]), buffer = maybe(stack[3]);
  const int64_t mode = stack[6].toInt(), hidden_size = stack[7].toInt(),
                projected = stack[8].toInt(), layers = stack[9].toInt();
  const bool train = stack[12].toBool();
  const int64_t directions = stack[13].toBool() ? 2 : 1;
  const int64_t width = projected > 0 ? projected : hidden_size;
  std::vector<int64_t> sizes = input.sizes().vec(); // packed: two
  const int64_t elements = input.numel() / sizes.back();
  sizes.back() = width * directions;
  const int64_t reserve = train ? elements * layers * directions * hidden_size *
          values_kept(mode) * static_cast<int64_t>(input.element_size())
                                : 0;
  stack.clear();
  stack.emplace_back(at::empty(sizes, input.options()));
  stack.emplace_back(at::empty(hidden.sizes(), hidden.options()));
  stack.emplace_back(
      cell.defined() ? at::empty(cell.sizes(), cell.options())
                     : at::empty({0}, hidden.options()));
  stack.emplace_back(at::empty({reserve}, input.options().dtype(at::kByte)));
  stack.emplace_back(
      buffer.defined() ? buffer : at::empty({0}, input.options()));
}

void cudnn_rnn_backward(Stack& stack) {
  const Tensor input = stack[0].toTensor(), hidden = stack[4].toTensor(),
               cell = maybe(stack[5]);
  const auto weights = stack[1].toTensorVector();
  const auto wanted = stack[21].toBoolList();
  stack.clear();
  stack.emplace_back(wanted[0] ? at::empty_like(input) : Tensor());
  stack.emplace_back(wanted[1] ? at::empty_like(hidden) : Tensor());
  stack.emplace_back(
      wanted[2] && cell.defined() ? at::empty_like(cell) : Tensor());
  c10::List<Tensor> grads;
  if (wanted[3]) {
    for (const Tensor& weight : weights) {
      grads.push_back(at::empty_like(weight));
    }
  }
  stack.emplace_back(std::move(grads));
}

const std::unordered_map<std::string, ShapeRule>& table() {
  static const auto* rules = new std::unordered_map<std::string, ShapeRule>{
      {"aten::cudnn_convolution", &cudnn_convolution},
      {"aten::convolution_backward", &convolution_backward},
      {"aten::cudnn_batch_norm", &cudnn_batch_norm},
      {"aten::cudnn_batch_norm_backward", &cudnn_batch_norm_backward},
      {"aten::_use_cudnn_ctc_loss", &shapes_of<&use_cudnn_ctc_loss>},
      {"aten::_use_cudnn_ctc_loss.Tensor", &shapes_of<&use_cudnn_ctc_loss>},
      {"aten::_cudnn_init_dropout_state", &cudnn_init_dropout_state},
      {"aten::_cudnn_rnn", &cudnn_rnn},
      {"aten::_cudnn_rnn_backward", &cudnn_rnn_backward},
      {"aten::cudnn_convolution_transpose",
       &shapes_of<&cudnn_convolution_transpose>},
      {"aten::cudnn_convolution_relu", &shapes_of<&cudnn_convolution_relu>},
      {"aten::_conv_depthwise2d", &shapes_of<&conv_depthwise>},
      {"aten::conv_depthwise3d", &shapes_of<&conv_depthwise>},
      {"aten::_masked_scale", &shapes_of<&masked_scale>},
      {"aten::_fused_dropout", &shapes_of<&fused_dropout>},
      {"aten::native_dropout", &shapes_of<&native_dropout>},
      {"aten::_thnn_fused_lstm_cell", &shapes_of<&fused_lstm_cell>},
      {"aten::_thnn_fused_lstm_cell_backward_impl",
       &shapes_of<&fused_lstm_cell_backward>},
      {"aten::_thnn_fused_gru_cell", &shapes_of<&fused_gru_cell>},
      {"aten::_thnn_fused_gru_cell_backward",
       &shapes_of<&fused_gru_cell_backward>},
  };
  return *rules;
}

} // namespace

ShapeRule shape_rule_for(const std::string& name) {
  const auto it = table().find(name);
  return it == table().end() ? nullptr : it->second;
}

} // namespace emulated_cuda
