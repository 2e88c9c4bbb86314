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

// `bias` may be undefined.
Problem problem_of(
    const Stack& stack,
    size_t query,
    const at::Tensor& bias,
    double dropout,
    bool is_causal,
    const std::optional<double>& scale,
    SeedAndOffset random) {
  Problem problem;
  problem.query = wide(stack[query].toTensor());
  problem.key = wide(stack[query + 1].toTensor());
  problem.value = wide(stack[query + 2].toTensor());
  if (bias.defined()) {
    problem.bias = wide(bias);
  }
  problem.dropout = dropout;
  problem.is_causal = is_causal;
  problem.scale = scale_of(scale, problem.query);
  problem.random = random;
  return problem;
}

at::Tensor scalar_tensor(uint64_t value) {
  return at::scalar_tensor(static_cast<int64_t>(value), at::kLong);
}

SeedAndOffset state_of(const at::Tensor& seed, const at::Tensor& offset) {
  return {
      static_cast<uint64_t>(seed.item<int64_t>()),
      static_cast<uint64_t>(offset.item<int64_t>())};
}

void push_random(Stack& stack, SeedAndOffset random) {
  stack.emplace_back(scalar_tensor(random.seed));
  stack.emplace_back(scalar_tensor(random.offset));
}

// What flash and cuDNN attention return after the log-sum-exp, but for a mask.
void push_lengths_and_random(
    Stack& stack,
    const Problem& problem,
    SeedAndOffset random) {
  stack.emplace_back(at::Tensor()); // cumulative lengths: all are the same
  stack.emplace_back(at::Tensor());
  stack.emplace_back(problem.query.size(2));
  stack.emplace_back(problem.key.size(2));
  push_random(stack, random);
}

// Of the query, which the backward ops have at 1, of key and value; the
// output's gradient is at 0. Replaces the stack; returns that of the bias.
at::Tensor push_gradients(Stack& stack, const Problem& problem) {
  const at::ScalarType type = stack[1].toTensor().scalar_type();
  const Gradients grads = attend_backward(problem, wide(stack[0].toTensor()));
  stack.clear();
  for (const at::Tensor& grad : {grads.query, grads.key, grads.value}) {
    stack.emplace_back(laid_out(grad, type));
  }
  return grads.bias;
}

} // namespace

void flash_attention(Stack& stack, SeedAndOffset random) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      !stack[5].toBool(), "emulated CUDA: no debug mask of flash attention");
  const at::Tensor query = stack[0].toTensor();
  const Problem problem = problem_of(
      stack,
      0,
      /*bias=*/{},
      stack[3].toDouble(),
      stack[4].toBool(),
      stack[6].toOptional<double>(),
      random);
  const Forward result = attend(problem);
  stack.clear();
  stack.emplace_back(laid_out(result.output, query.scalar_type()));
  stack.emplace_back(result.logsumexp);
  push_lengths_and_random(stack, problem, random);
  stack.emplace_back(at::empty({0}, query.options()));
}

void flash_attention_backward(Stack& stack, SeedAndOffset) {
  push_gradients(
      stack,
      problem_of(
          stack,
          1,
          /*bias=*/{},
          stack[10].toDouble(),
          stack[11].toBool(),
          stack[14].toOptional<double>(),
          state_of(stack[12].toTensor(), stack[13].toTensor())));
}

void efficient_attention(Stack& stack, SeedAndOffset random) {
  const at::Tensor query = stack[0].toTensor();
  const bool wants_logsumexp = stack[4].toBool();
  const Forward result = attend(problem_of(
      stack,
      0,
      maybe(stack[3]),
      stack[5].toDouble(),
      stack[6].toBool(),
      stack[7].toOptional<double>(),
      random));
  stack.clear();
  stack.emplace_back(laid_out(result.output, query.scalar_type()));
  stack.emplace_back(
      wants_logsumexp
          ? result.logsumexp
          : at::empty({query.size(0), query.size(1), 0}, at::kFloat));
  push_random(stack, random);
}

void efficient_attention_backward(Stack& stack, SeedAndOffset) {
  const at::Tensor bias = stack[4].toTensor();
  const bool wants_bias = stack[10].toBoolList()[3] && bias.defined();
  const at::Tensor grad_bias = push_gradients(
      stack,
      problem_of(
          stack,
          1,
          bias,
          stack[9].toDouble(),
          stack[11].toBool(),
          stack[12].toOptional<double>(),
          state_of(stack[7].toTensor(), stack[8].toTensor())));
  stack.emplace_back(
      wants_bias ? at::sum_to(grad_bias, bias.sizes()).to(bias.scalar_type())
                 : at::Tensor());
}

void cudnn_attention(Stack& stack, SeedAndOffset random) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      !stack[7].toBool(), "emulated CUDA: no debug mask of cuDNN attention");
  const at::Tensor query = stack[0].toTensor();
  const bool wants_logsumexp = stack[4].toBool();
  const Problem problem = problem_of(
      stack,
      0,
      maybe(stack[3]),
      stack[5].toDouble(),
      stack[6].toBool(),
      stack[8].toOptional<double>(),
      random);
  const Forward result = attend(problem);
  stack.clear();
  stack.emplace_back(laid_out(result.output, query.scalar_type()));
  stack.emplace_back(
      wants_logsumexp ? result.logsumexp.unsqueeze(-1) : at::Tensor());
  push_lengths_and_random(stack, problem, random);
  stack.emplace_back(at::Tensor());
}

void cudnn_attention_backward(Stack& stack, SeedAndOffset) {
  push_gradients(
      stack,
      problem_of(
          stack,
          1,
          stack[8].toTensor(),
          stack[13].toDouble(),
          stack[14].toBool(),
          stack[15].toOptional<double>(),
          state_of(stack[6].toTensor(), stack[7].toTensor())));
}

} // namespace emulated_cuda
