// Recurrent layers and cells, by the CPU's layers and by their definitions.
#include "Substitutes.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/autograd.h>

namespace emulated_cuda {

namespace {

using torch::jit::Stack;

struct Layer {
  at::Tensor input, hidden, cell; // cell: LSTM only
  std::vector<at::Tensor> weights;
  bool has_biases = false;
  int64_t mode = kLstm;
  int64_t layers = 1;
  bool batch_first = false;
  double dropout = 0;
  bool train = false;
  bool bidirectional = false;
  std::vector<int64_t> batch_sizes; // empty: not packed
};

// Two forms of each layer: of padded and of packed sequences.
#define RUN(function, hidden)                                     \
  (layer.batch_sizes.empty() ? at::function(                      \
                                   layer.input,                   \
                                   hidden,                        \
                                   layer.weights,                 \
                                   layer.has_biases,              \
                                   layer.layers,                  \
                                   layer.dropout,                 \
                                   layer.train,                   \
                                   layer.bidirectional,           \
                                   layer.batch_first)             \
                             : at::function(                      \
                                   layer.input,                   \
                                   at::tensor(layer.batch_sizes), \
                                   hidden,                        \
                                   layer.weights,                 \
                                   layer.has_biases,              \
                                   layer.layers,                  \
                                   layer.dropout,                 \
                                   layer.train,                   \
                                   layer.bidirectional))

// Output, last hidden state, last cell state.
std::vector<at::Tensor> run(const Layer& layer) {
  if (layer.mode == kLstm) {
    const std::vector<at::Tensor> hidden{layer.hidden, layer.cell};
    auto [output, hy, cy] = RUN(lstm, hidden);
    return {output, hy, cy};
  }
  if (layer.mode == kGru) {
    auto [output, hy] = RUN(gru, layer.hidden);
    return {output, hy, at::empty({0}, layer.input.options())};
  }
  if (layer.mode == kTanh) {
    auto [output, hy] = RUN(rnn_tanh, layer.hidden);
    return {output, hy, at::empty({0}, layer.input.options())};
  }
  auto [output, hy] = RUN(rnn_relu, layer.hidden);
  return {output, hy, at::empty({0}, layer.input.options())};
}

#undef RUN

bool has_biases(int64_t weights_per_layer) {
  return weights_per_layer >= 4; // a fifth, or third, is a projection
}

// cuDNN's generator lives in a tensor that each use changes.
SeedAndOffset advance(const std::optional<at::Tensor>& state) {
  if (!state.has_value() || !state->defined()) {
    return {0, 0};
  }
  const at::Tensor words = state->view(at::kLong);
  const auto word = [&](int64_t i) { return words[i].item<int64_t>(); };
  const int64_t uses = word(1);
  words[1] = uses + 1;
  return {static_cast<uint64_t>(word(0)), static_cast<uint64_t>(uses)};
}

at::Tensor saved(SeedAndOffset random) {
  const at::Tensor reserve = at::empty({16}, at::kByte);
  const at::Tensor words = reserve.view(at::kLong);
  words[0] = static_cast<int64_t>(random.seed);
  words[1] = static_cast<int64_t>(random.offset);
  return reserve;
}

SeedAndOffset restored(const at::Tensor& reserve) {
  const at::Tensor words = reserve.view(at::kLong);
  return {
      static_cast<uint64_t>(words[0].item<int64_t>()),
      static_cast<uint64_t>(words[1].item<int64_t>())};
}

// Reads what both directions have in common from `stack[first]` on.
void read_settings(const Stack& stack, size_t first, Layer& layer) {
  layer.mode = stack[first].toInt();
  layer.layers = stack[first + 3].toInt();
  layer.batch_first = stack[first + 4].toBool();
  layer.dropout = stack[first + 5].toDouble();
  layer.train = stack[first + 6].toBool();
  layer.bidirectional = stack[first + 7].toBool();
  layer.batch_sizes = stack[first + 8].toIntVector();
}

} // namespace

void cudnn_rnn(Stack& stack, SeedAndOffset) {
  Layer layer;
  layer.input = stack[0].toTensor();
  layer.weights = stack[1].toTensorVector();
  layer.has_biases = has_biases(stack[2].toInt());
  layer.hidden = stack[4].toTensor();
  layer.cell = maybe(stack[5]);
  read_settings(stack, 6, layer);
  const SeedAndOffset random = layer.train && layer.dropout > 0
      ? advance(stack[15].toOptional<at::Tensor>())
      : SeedAndOffset{0, 0};
  const at::Tensor weight_buffer = maybe(stack[3]);
  const DefaultGeneratorSwap swap(random);
  std::vector<at::Tensor> results = run(layer);
  stack.clear();
  for (at::Tensor& result : results) {
    stack.emplace_back(std::move(result));
  }
  stack.emplace_back(saved(random));
  stack.emplace_back(
      weight_buffer.defined() ? weight_buffer
                              : at::empty({0}, layer.input.options()));
}

// Runs the layer again, with the same dropout, and differentiates that.
void cudnn_rnn_backward(Stack& stack, SeedAndOffset) {
  Layer layer;
  layer.input = stack[0].toTensor();
  layer.weights = stack[1].toTensorVector();
  layer.has_biases = has_biases(stack[2].toInt());
  layer.hidden = stack[4].toTensor();
  layer.cell = maybe(stack[5]);
  const std::vector<at::Tensor> given{
      maybe(stack[7]), maybe(stack[8]), maybe(stack[9])};
  read_settings(stack, 10, layer);
  const SeedAndOffset random = restored(stack[20].toTensor());
  stack.clear();

  const c10::impl::ForceDispatchKeyGuard plain{
      c10::default_included_set, c10::default_excluded_set};
  const c10::AutoGradMode with_grad(true);
  const DefaultGeneratorSwap swap(random);
  std::vector<at::Tensor> inputs;
  const auto variable = [&](at::Tensor& tensor) {
    if (tensor.defined()) {
      tensor = tensor.detach().clone().requires_grad_();
      inputs.push_back(tensor);
    }
  };
  variable(layer.input);
  variable(layer.hidden);
  variable(layer.cell);
  for (at::Tensor& weight : layer.weights) {
    variable(weight);
  }
  const std::vector<at::Tensor> results = run(layer);
  std::vector<at::Tensor> outputs, grads;
  for (size_t i = 0; i < given.size(); ++i) {
    if (given[i].defined() && results[i].requires_grad()) {
      outputs.push_back(results[i]);
      grads.push_back(given[i]);
    }
  }
  std::vector<at::Tensor> found = torch::autograd::grad(
      outputs, inputs, grads, std::nullopt, false, /*allow_unused=*/true);
  size_t next = 0;
  const auto grad_of = [&](const at::Tensor& tensor) {
    return tensor.defined() ? found[next++] : at::Tensor();
  };
  stack.emplace_back(grad_of(layer.input));
  stack.emplace_back(grad_of(layer.hidden));
  stack.emplace_back(grad_of(layer.cell));
  c10::List<at::Tensor> weight_grads;
  for (const at::Tensor& weight : layer.weights) {
    at::Tensor grad = grad_of(weight);
    weight_grads.push_back(grad.defined() ? grad : at::zeros_like(weight));
  }
  stack.emplace_back(std::move(weight_grads));
}

void fused_lstm_cell(Stack& stack, SeedAndOffset) {
  at::Tensor gates = stack[0].toTensor() + stack[1].toTensor();
  const at::Tensor cell = stack[2].toTensor();
  for (const size_t bias : {3, 4}) {
    if (maybe(stack[bias]).defined()) {
      gates = gates + stack[bias].toTensor();
    }
  }
  auto parts = gates.chunk(4, 1);
  const at::Tensor in = parts[0].sigmoid(), forget = parts[1].sigmoid(),
                   candidate = parts[2].tanh(), out = parts[3].sigmoid();
  const at::Tensor next = forget * cell + in * candidate;
  stack.clear();
  stack.emplace_back(out * next.tanh());
  stack.emplace_back(next);
  stack.emplace_back(at::cat({in, forget, candidate, out}, 1));
}

void fused_lstm_cell_backward(Stack& stack, SeedAndOffset) {
  const at::Tensor cell = stack[2].toTensor(), next = stack[3].toTensor(),
                   workspace = stack[4].toTensor();
  const at::Tensor grad_hidden = maybe(stack[0]), grad_next = maybe(stack[1]);
  const bool has_bias = stack[5].toBool();
  const auto parts = workspace.chunk(4, 1);
  const at::Tensor in = parts[0], forget = parts[1], candidate = parts[2],
                   out = parts[3];
  const at::Tensor squashed = next.tanh();
  const at::Tensor from_hidden =
      grad_hidden.defined() ? grad_hidden : at::zeros_like(next);
  at::Tensor grad = from_hidden * out * (1 - squashed * squashed);
  if (grad_next.defined()) {
    grad = grad + grad_next;
  }
  const at::Tensor grad_gates = at::cat(
      {grad * candidate * in * (1 - in),
       grad * cell * forget * (1 - forget),
       grad * in * (1 - candidate * candidate),
       from_hidden * squashed * out * (1 - out)},
      1);
  stack.clear();
  stack.emplace_back(grad_gates);
  stack.emplace_back(grad * forget);
  stack.emplace_back(has_bias ? grad_gates.sum(0) : at::Tensor());
}

void fused_gru_cell(Stack& stack, SeedAndOffset) {
  at::Tensor input = stack[0].toTensor(), hidden = stack[1].toTensor();
  const at::Tensor state = stack[2].toTensor();
  if (maybe(stack[3]).defined()) {
    input = input + stack[3].toTensor();
    hidden = hidden + stack[4].toTensor();
  }
  const auto in = input.chunk(3, 1), old = hidden.chunk(3, 1);
  const at::Tensor reset = (in[0] + old[0]).sigmoid(),
                   update = (in[1] + old[1]).sigmoid(),
                   candidate = (in[2] + reset * old[2]).tanh();
  stack.clear();
  stack.emplace_back(candidate + update * (state - candidate));
  stack.emplace_back(at::cat({reset, update, candidate, state, old[2]}, 1));
}

void fused_gru_cell_backward(Stack& stack, SeedAndOffset) {
  const at::Tensor grad = stack[0].toTensor();
  const auto parts = stack[1].toTensor().chunk(5, 1);
  const bool has_bias = stack[2].toBool();
  const at::Tensor reset = parts[0], update = parts[1], candidate = parts[2],
                   state = parts[3], old = parts[4];
  const at::Tensor grad_update =
      grad * (state - candidate) * update * (1 - update);
  const at::Tensor grad_candidate =
      grad * (1 - update) * (1 - candidate * candidate);
  const at::Tensor grad_reset = grad_candidate * old * reset * (1 - reset);
  const at::Tensor grad_input =
      at::cat({grad_reset, grad_update, grad_candidate}, 1);
  const at::Tensor grad_hidden =
      at::cat({grad_reset, grad_update, grad_candidate * reset}, 1);
  stack.clear();
  stack.emplace_back(grad_input);
  stack.emplace_back(grad_hidden);
  stack.emplace_back(grad * update);
  stack.emplace_back(has_bias ? grad_input.sum(0) : at::Tensor());
  stack.emplace_back(has_bias ? grad_hidden.sum(0) : at::Tensor());
}

} // namespace emulated_cuda
