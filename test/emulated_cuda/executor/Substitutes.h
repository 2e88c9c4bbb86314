#pragma once

#include "Random.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>

#include <string>

namespace emulated_cuda {

// What runs on the CPU in place of an op that only CUDA has, or that the CPU
// has in another form. Takes the op's arguments, as CPU tensors over device
// memory, from the stack and puts CPU results there.
using Substitute = void (*)(torch::jit::Stack& stack, SeedAndOffset random);

// Null if there is none for `name`, with its overload ("aten::add_.Tensor").
Substitute substitute_for(const std::string& name);

// As at::native's RNN.cpp numbers recurrent layers for cuDNN.
enum RecurrentMode { kRelu = 0, kTanh = 1, kLstm = 2, kGru = 3 };

// Undefined where an optional tensor is not given.
inline at::Tensor maybe(const c10::IValue& value) {
  return value.isNone() ? at::Tensor() : value.toTensor();
}

// Each is named for its op. Some serve timing mode, too, for shapes.
void cudnn_convolution_transpose(
    torch::jit::Stack& stack,
    SeedAndOffset random);
void use_cudnn_ctc_loss(torch::jit::Stack& stack, SeedAndOffset random);
void cudnn_convolution_relu(torch::jit::Stack& stack, SeedAndOffset random);
void conv_depthwise(torch::jit::Stack& stack, SeedAndOffset random);
void fused_dropout(torch::jit::Stack& stack, SeedAndOffset random);
void masked_scale(torch::jit::Stack& stack, SeedAndOffset random);
void native_dropout(torch::jit::Stack& stack, SeedAndOffset random);
void flash_attention(torch::jit::Stack& stack, SeedAndOffset random);
void flash_attention_backward(torch::jit::Stack& stack, SeedAndOffset random);
void efficient_attention(torch::jit::Stack& stack, SeedAndOffset random);
void efficient_attention_backward(
    torch::jit::Stack& stack,
    SeedAndOffset random);
void cudnn_attention(torch::jit::Stack& stack, SeedAndOffset random);
void cudnn_attention_backward(torch::jit::Stack& stack, SeedAndOffset random);
void cudnn_rnn(torch::jit::Stack& stack, SeedAndOffset random);
void cudnn_rnn_backward(torch::jit::Stack& stack, SeedAndOffset random);
void fused_lstm_cell(torch::jit::Stack& stack, SeedAndOffset random);
void fused_lstm_cell_backward(torch::jit::Stack& stack, SeedAndOffset random);
void fused_gru_cell(torch::jit::Stack& stack, SeedAndOffset random);
void fused_gru_cell_backward(torch::jit::Stack& stack, SeedAndOffset random);
void batch_norm_stats(torch::jit::Stack& stack, SeedAndOffset random);
void batch_norm_elemt(torch::jit::Stack& stack, SeedAndOffset random);
void batch_norm_gather_stats(torch::jit::Stack& stack, SeedAndOffset random);
void batch_norm_gather_stats_with_counts(
    torch::jit::Stack& stack,
    SeedAndOffset random);
void batch_norm_backward_reduce(torch::jit::Stack& stack, SeedAndOffset random);
void batch_norm_backward_elemt(torch::jit::Stack& stack, SeedAndOffset random);

} // namespace emulated_cuda
