// at::lstm and its like on CUDA: PyTorch calls cuDNN's library for them before
// it comes to an op. These call the op alone.
#include "Executor.h"

#include <ATen/ATen.h>
#include <ATen/cuda/CUDAGeneratorImpl.h>
#include <ATen/native/RNN.h>

#include <map>
#include <mutex>

namespace emulated_cuda {

namespace {

using at::Tensor;
using at::TensorList;

// As at::native::_cudnn_impl does it: one generator a device, in a tensor, that
// starts anew after the default one was seeded.
Tensor dropout_state(const Tensor& input, double dropout, bool train) {
  if (!train || dropout == 0) {
    return {};
  }
  static std::mutex mutex;
  static auto* states = new std::map<c10::DeviceIndex, Tensor>;
  const std::lock_guard<std::mutex> lock(mutex);
  Tensor& state = (*states)[input.device().index()];
  const auto& generator =
      at::cuda::detail::getDefaultCUDAGenerator(input.device().index());
  if (generator.get<at::CUDAGeneratorImpl>()->reset_rnn_state() ||
      !state.defined()) {
    const int64_t seed = at::empty({}, input.options().dtype(at::kLong))
                             .random_(generator)
                             .item<int64_t>();
    state = at::_cudnn_init_dropout_state(
        dropout, train, seed, input.options().dtype(at::kByte));
  }
  return state;
}

// Output, last hidden state, last cell state.
std::tuple<Tensor, Tensor, Tensor> run(
    RecurrentMode mode,
    const Tensor& input,
    const Tensor& hidden,
    const Tensor& cell,
    TensorList weights,
    bool has_biases,
    int64_t layers,
    double dropout,
    bool train,
    bool bidirectional,
    bool batch_first,
    at::IntArrayRef batch_sizes) {
  const int64_t hidden_size = cell.defined() ? cell.size(2) : hidden.size(2);
  const int64_t projected =
      mode == kLstm && hidden.size(2) != hidden_size ? hidden.size(2) : 0;
  const int64_t stride = (has_biases ? 4 : 2) + (projected > 0);
  auto [output, hy, cy, reserve, buffer] = at::_cudnn_rnn(
      input,
      weights,
      stride,
      Tensor(),
      hidden.contiguous(),
      cell.defined() ? cell.contiguous() : cell,
      mode,
      hidden_size,
      projected,
      layers,
      batch_first,
      dropout,
      train,
      bidirectional,
      batch_sizes,
      dropout_state(input, dropout, train));
  return {output, hy, cy};
}

void lstm(
    Tensor& output,
    Tensor& hy,
    Tensor& cy,
    const Tensor& input,
    TensorList hidden,
    TensorList weights,
    bool has_biases,
    int64_t layers,
    double dropout,
    bool train,
    bool bidirectional,
    bool batch_first) {
  std::tie(output, hy, cy) =
      run(kLstm,
          input,
          hidden[0],
          hidden[1],
          weights,
          has_biases,
          layers,
          dropout,
          train,
          bidirectional,
          batch_first,
          {});
}

void lstm_packed(
    Tensor& output,
    Tensor& hy,
    Tensor& cy,
    const Tensor& input,
    const Tensor& batch_sizes,
    TensorList hidden,
    TensorList weights,
    bool has_biases,
    int64_t layers,
    double dropout,
    bool train,
    bool bidirectional) {
  const at::IntArrayRef sizes(
      batch_sizes.const_data_ptr<int64_t>(), batch_sizes.numel());
  std::tie(output, hy, cy) =
      run(kLstm,
          input,
          hidden[0],
          hidden[1],
          weights,
          has_biases,
          layers,
          dropout,
          train,
          bidirectional,
          false,
          sizes);
}

template <RecurrentMode mode>
void rnn(
    Tensor& output,
    Tensor& hy,
    const Tensor& input,
    const Tensor& hidden,
    TensorList weights,
    bool has_biases,
    int64_t layers,
    double dropout,
    bool train,
    bool bidirectional,
    bool batch_first) {
  std::tie(output, hy, std::ignore) =
      run(mode,
          input,
          hidden,
          {},
          weights,
          has_biases,
          layers,
          dropout,
          train,
          bidirectional,
          batch_first,
          {});
}

template <RecurrentMode mode>
void rnn_packed(
    Tensor& output,
    Tensor& hy,
    const Tensor& input,
    const Tensor& batch_sizes,
    const Tensor& hidden,
    TensorList weights,
    bool has_biases,
    int64_t layers,
    double dropout,
    bool train,
    bool bidirectional) {
  const at::IntArrayRef sizes(
      batch_sizes.const_data_ptr<int64_t>(), batch_sizes.numel());
  std::tie(output, hy, std::ignore) =
      run(mode,
          input,
          hidden,
          {},
          weights,
          has_biases,
          layers,
          dropout,
          train,
          bidirectional,
          false,
          sizes);
}

} // namespace

void override_recurrent_layers() {
  at::native::lstm_cudnn_stub.set_cuda_dispatch_ptr(&lstm);
  at::native::lstm_packed_cudnn_stub.set_cuda_dispatch_ptr(&lstm_packed);
  at::native::gru_cudnn_stub.set_cuda_dispatch_ptr(&rnn<kGru>);
  at::native::gru_packed_cudnn_stub.set_cuda_dispatch_ptr(&rnn_packed<kGru>);
  at::native::rnn_tanh_cudnn_stub.set_cuda_dispatch_ptr(&rnn<kTanh>);
  at::native::rnn_tanh_packed_cudnn_stub.set_cuda_dispatch_ptr(
      &rnn_packed<kTanh>);
  at::native::rnn_relu_cudnn_stub.set_cuda_dispatch_ptr(&rnn<kRelu>);
  at::native::rnn_relu_packed_cudnn_stub.set_cuda_dispatch_ptr(
      &rnn_packed<kRelu>);
}

} // namespace emulated_cuda
