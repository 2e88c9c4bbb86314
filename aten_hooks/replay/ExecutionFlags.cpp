#include "ExecutionFlags.h"

namespace at::remat {

void ExecutionFlagsGuard::apply(
    const ExecutionFlags& from,
    const ExecutionFlags& to) {
  at::Context& context = at::globalContext();
  if (from.num_threads != to.num_threads) {
    at::set_num_threads(to.num_threads);
  }
  if (from.grad_mode != to.grad_mode) {
    at::GradMode::set_enabled(to.grad_mode);
  }
  if (from.deterministic != to.deterministic) {
    context.setDeterministicAlgorithms(
        to.deterministic, context.deterministicAlgorithmsWarnOnly());
  }
  if (from.mkldnn != to.mkldnn) {
    context.setUserEnabledMkldnn(to.mkldnn);
  }
  if (from.matmul_precision != to.matmul_precision) {
    context.setFloat32MatmulPrecision(to.matmul_precision);
  }
  if (from.default_dtype != to.default_dtype) {
    c10::set_default_dtype(to.default_dtype);
  }
  if (from.cudnn != to.cudnn) {
    context.setUserEnabledCuDNN(to.cudnn);
  }
  if (from.cudnn_benchmark != to.cudnn_benchmark) {
    context.setBenchmarkCuDNN(to.cudnn_benchmark);
  }
  if (from.cudnn_deterministic != to.cudnn_deterministic) {
    context.setDeterministicCuDNN(to.cudnn_deterministic);
  }
  if (from.cudnn_tf32 != to.cudnn_tf32) {
    context.setAllowTF32CuDNN(to.cudnn_tf32);
  }
  if (from.cublas_reduces_fp16 != to.cublas_reduces_fp16) {
    context.setAllowFP16ReductionCuBLAS(to.cublas_reduces_fp16);
  }
  if (from.cublas_reduces_bf16 != to.cublas_reduces_bf16) {
    context.setAllowBF16ReductionCuBLAS(to.cublas_reduces_bf16);
  }
}

ExecutionFlagsGuard::ExecutionFlagsGuard(const ExecutionFlags& wanted)
    : wanted_(wanted), before_(ExecutionFlags::current()) {
  apply(before_, wanted_);
}

ExecutionFlagsGuard::~ExecutionFlagsGuard() {
  apply(wanted_, before_);
}

} // namespace at::remat
