#pragma once

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/InferenceMode.h>

namespace at::remat {

// Settings outside an op's arguments that its kernel may look at: a replay
// must choose the same kernel and the same order of summation.
struct ExecutionFlags {
  int num_threads;
  bool grad_mode;
  bool inference_mode;
  bool deterministic;
  bool mkldnn;
  at::Float32MatmulPrecision matmul_precision;
  caffe2::TypeMeta default_dtype;
  bool cudnn;
  bool cudnn_benchmark;
  bool cudnn_deterministic;
  bool cudnn_tf32;
  bool cublas_reduces_fp16;
  bool cublas_reduces_bf16;

  static ExecutionFlags current() {
    const at::Context& context = at::globalContext();
    return {
        at::get_num_threads(),
        at::GradMode::is_enabled(),
        c10::InferenceMode::is_enabled(),
        context.deterministicAlgorithms(),
        context.userEnabledMkldnn(),
        context.float32MatmulPrecision(),
        c10::get_default_dtype(),
        context.userEnabledCuDNN(),
        context.benchmarkCuDNN(),
        context.deterministicCuDNN(),
        context.allowTF32CuDNN(),
        context.allowFP16ReductionCuBLAS(),
        context.allowBF16ReductionCuBLAS()};
  }
};

// Sets what differs for its lifetime.
class ExecutionFlagsGuard {
 public:
  explicit ExecutionFlagsGuard(const ExecutionFlags& wanted);
  ~ExecutionFlagsGuard();
  ExecutionFlagsGuard(const ExecutionFlagsGuard&) = delete;
  ExecutionFlagsGuard& operator=(const ExecutionFlagsGuard&) = delete;

 private:
  static void apply(const ExecutionFlags& from, const ExecutionFlags& to);

  ExecutionFlags wanted_;
  ExecutionFlags before_;
};

} // namespace at::remat
