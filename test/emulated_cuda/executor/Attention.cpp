// Attention by its definition, for the fused kernels that only CUDA has.
#include "Substitutes.h"

#include <ATen/ATen.h>

#include <cmath>

namespace emulated_cuda {

namespace {

using torch::jit::Stack;

struct Problem {
  at::Tensor query, key, value; // float, [batch, heads, length, width]
  at::Tensor bias; // may be undefined
  double dropout = 0;
  bool is_causal = false;
  double scale = 1;
  SeedAndOffset random{};
};

at::Tensor wide(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kDouble ? tensor : tensor.to(at::kFloat);
}

double scale_of(const std::optional<double>& given, const at::Tensor& query) {
  return given.value_or(1 / std::sqrt(static_cast<double>(query.size(-1))));
}

at::Tensor scores_of(const Problem& problem) {
  at::Tensor scores =
      at::matmul(problem.query, problem.key.transpose(-2, -1)) * problem.scale;
  if (problem.bias.defined()) {
    scores = scores + problem.bias;
  }
  if (problem.is_causal) {
    const at::Tensor allowed =
        at::ones({scores.size(-2), scores.size(-1)}, at::kBool).tril();
    scores = scores.masked_fill(allowed.logical_not(), -INFINITY);
  }
  return scores;
}

// What the probabilities are multiplied with: 0, or 1 / (1 - dropout).
at::Tensor dropout_of(const Problem& problem, const at::Tensor& probabilities) {
  return at::empty_like(probabilities)
             .bernoulli_(1 - problem.dropout, cpu_generator(problem.random)) /
      (1 - problem.dropout);
}

struct Forward {
  at::Tensor output, logsumexp;
};

Forward attend(const Problem& problem) {
  const at::Tensor scores = scores_of(problem);
  at::Tensor probabilities = at::softmax(scores, -1);
  if (problem.dropout > 0) {
    probabilities = probabilities * dropout_of(problem, probabilities);
  }
  return {
      at::matmul(probabilities, problem.value), at::logsumexp(scores, {-1})};
}

struct Gradients {
  at::Tensor query, key, value, bias;
};

Gradients attend_backward(const Problem& problem, const at::Tensor& grad) {
  const at::Tensor probabilities = at::softmax(scores_of(problem), -1);
  at::Tensor grad_dropped = at::matmul(grad, problem.value.transpose(-2, -1));
  at::Tensor dropped = probabilities;
  if (problem.dropout > 0) {
    const at::Tensor factor = dropout_of(problem, probabilities);
    dropped = probabilities * factor;
    grad_dropped = grad_dropped * factor;
  }
  const at::Tensor grad_scores = probabilities *
      (grad_dropped - (grad_dropped * probabilities).sum({-1}, true));
  return {
      at::matmul(grad_scores, problem.key) * problem.scale,
      at::matmul(grad_scores.transpose(-2, -1), problem.query) * problem.scale,
      at::matmul(dropped.transpose(-2, -1), grad),
      grad_scores};
}

// The fused kernels lay their outputs out as [batch, length, heads, width].
at::Tensor laid_out(const at::Tensor& tensor, at::ScalarType type) {
  return tensor.to(type).transpose(1, 2).contiguous().transpose(1, 2);
}

at::Tensor scalar_tensor(uint64_t value) {
  return at::scalar_tensor(static_cast<int64_t>(value), at::kLong);
}

SeedAndOffset state_of(const at::Tensor& seed, const at::Tensor& offset) {
  return {
      static_cast<uint64_t>(seed.item<int64_t>()),
      static_cast<uint64_t>(offset.item<int64_t>())};
}

} // namespace

void flash_attention(Stack& stack, SeedAndOffset random) {
  const at::Tensor query = stack[0].toTensor();
  Problem problem;
  problem.query = wide(query);
  problem.key = wide(stack[1].toTensor());
  problem.value = wide(stack[2].toTensor());
  problem.dropout = stack[3].toDouble();
  problem.is_causal = stack[4].toBool();
  TORCH_CHECK_NOT_IMPLEMENTED(
      !stack[5].toBool(), "emulated CUDA: no debug mask of flash attention");
  problem.scale = scale_of(stack[6].toOptional<double>(), query);
  problem.random = random;
  const Forward result = attend(problem);
  const int64_t queries = query.size(2), keys = problem.key.size(2);
  stack.clear();
  stack.emplace_back(laid_out(result.output, query.scalar_type()));
  stack.emplace_back(result.logsumexp);
  stack.emplace_back(at::Tensor()); // cumulative lengths: all are the same
  stack.emplace_back(at::Tensor());
  stack.emplace_back(queries);
  stack.emplace_back(keys);
  stack.emplace_back(scalar_tensor(random.seed));
  stack.emplace_back(scalar_tensor(random.offset));
  stack.emplace_back(at::empty({0}, query.options()));
}

void flash_attention_backward(Stack& stack, SeedAndOffset) {
  const at::Tensor query = stack[1].toTensor();
  Problem problem;
  problem.query = wide(query);
  problem.key = wide(stack[2].toTensor());
  problem.value = wide(stack[3].toTensor());
  problem.dropout = stack[10].toDouble();
  problem.is_causal = stack[11].toBool();
  problem.random = state_of(stack[12].toTensor(), stack[13].toTensor());
  problem.scale = scale_of(stack[14].toOptional<double>(), query);
  const Gradients grads = attend_backward(problem, wide(stack[0].toTensor()));
  stack.clear();
  for (const at::Tensor& grad : {grads.query, grads.key, grads.value}) {
    stack.emplace_back(laid_out(grad, query.scalar_type()));
  }
}

void efficient_attention(Stack& stack, SeedAndOffset random) {
  const at::Tensor query = stack[0].toTensor();
  const auto bias = stack[3].toOptional<at::Tensor>();
  Problem problem;
  problem.query = wide(query);
  problem.key = wide(stack[1].toTensor());
  problem.value = wide(stack[2].toTensor());
  if (bias.has_value()) {
    problem.bias = wide(*bias);
  }
  const bool wants_logsumexp = stack[4].toBool();
  problem.dropout = stack[5].toDouble();
  problem.is_causal = stack[6].toBool();
  problem.scale = scale_of(stack[7].toOptional<double>(), query);
  problem.random = random;
  const Forward result = attend(problem);
  stack.clear();
  stack.emplace_back(laid_out(result.output, query.scalar_type()));
  stack.emplace_back(
      wants_logsumexp
          ? result.logsumexp
          : at::empty({query.size(0), query.size(1), 0}, at::kFloat));
  stack.emplace_back(scalar_tensor(random.seed));
  stack.emplace_back(scalar_tensor(random.offset));
}

void efficient_attention_backward(Stack& stack, SeedAndOffset) {
  const at::Tensor query = stack[1].toTensor();
  const at::Tensor bias = stack[4].toTensor();
  Problem problem;
  problem.query = wide(query);
  problem.key = wide(stack[2].toTensor());
  problem.value = wide(stack[3].toTensor());
  if (bias.defined()) {
    problem.bias = wide(bias);
  }
  problem.random = state_of(stack[7].toTensor(), stack[8].toTensor());
  problem.dropout = stack[9].toDouble();
  const auto wanted = stack[10].toBoolList();
  problem.is_causal = stack[11].toBool();
  problem.scale = scale_of(stack[12].toOptional<double>(), query);
  const Gradients grads = attend_backward(problem, wide(stack[0].toTensor()));
  const bool wants_bias = wanted[3] && bias.defined();
  stack.clear();
  for (const at::Tensor& grad : {grads.query, grads.key, grads.value}) {
    stack.emplace_back(laid_out(grad, query.scalar_type()));
  }
  stack.emplace_back(
      wants_bias ? at::sum_to(grads.bias, bias.sizes()).to(bias.scalar_type())
                 : at::Tensor());
}

void cudnn_attention(Stack& stack, SeedAndOffset random) {
  const at::Tensor query = stack[0].toTensor();
  const auto bias = stack[3].toOptional<at::Tensor>();
  Problem problem;
  problem.query = wide(query);
  problem.key = wide(stack[1].toTensor());
  problem.value = wide(stack[2].toTensor());
  if (bias.has_value()) {
    problem.bias = wide(*bias);
  }
  const bool wants_logsumexp = stack[4].toBool();
  problem.dropout = stack[5].toDouble();
  problem.is_causal = stack[6].toBool();
  TORCH_CHECK_NOT_IMPLEMENTED(
      !stack[7].toBool(), "emulated CUDA: no debug mask of cuDNN attention");
  problem.scale = scale_of(stack[8].toOptional<double>(), query);
  problem.random = random;
  const Forward result = attend(problem);
  const int64_t queries = query.size(2), keys = problem.key.size(2);
  stack.clear();
  stack.emplace_back(laid_out(result.output, query.scalar_type()));
  stack.emplace_back(
      wants_logsumexp ? result.logsumexp.unsqueeze(-1) : at::Tensor());
  stack.emplace_back(at::Tensor()); // cumulative lengths: all are the same
  stack.emplace_back(at::Tensor());
  stack.emplace_back(queries);
  stack.emplace_back(keys);
  stack.emplace_back(scalar_tensor(random.seed));
  stack.emplace_back(scalar_tensor(random.offset));
  stack.emplace_back(at::Tensor());
}

void cudnn_attention_backward(Stack& stack, SeedAndOffset) {
  const at::Tensor query = stack[1].toTensor();
  const at::Tensor bias = stack[8].toTensor();
  Problem problem;
  problem.query = wide(query);
  problem.key = wide(stack[2].toTensor());
  problem.value = wide(stack[3].toTensor());
  if (bias.defined()) {
    problem.bias = wide(bias);
  }
  problem.random = state_of(stack[6].toTensor(), stack[7].toTensor());
  problem.dropout = stack[13].toDouble();
  problem.is_causal = stack[14].toBool();
  problem.scale = scale_of(stack[15].toOptional<double>(), query);
  const Gradients grads = attend_backward(problem, wide(stack[0].toTensor()));
  stack.clear();
  for (const at::Tensor& grad : {grads.query, grads.key, grads.value}) {
    stack.emplace_back(laid_out(grad, query.scalar_type()));
  }
}

} // namespace emulated_cuda
