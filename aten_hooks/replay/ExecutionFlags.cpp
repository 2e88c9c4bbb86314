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
}

ExecutionFlagsGuard::ExecutionFlagsGuard(const ExecutionFlags& wanted)
    : wanted_(wanted), before_(ExecutionFlags::current()) {
  apply(before_, wanted_);
}

ExecutionFlagsGuard::~ExecutionFlagsGuard() {
  apply(wanted_, before_);
}

} // namespace at::remat
