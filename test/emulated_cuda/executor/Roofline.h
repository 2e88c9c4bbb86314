#pragma once

#include "Executor.h"

namespace emulated_cuda {

// What an op makes a GPU do.
struct Work {
  double flops = 0; // a multiplication and an addition count as two
  double bytes = 0; // to and from device memory
  // What the numbers are multiplied in.
  at::ScalarType dtype = at::kFloat;
  bool may_use_tf32 = false;
  double kernels = 1; // one after the other
};

// Of an op that has been run: `arguments` have their final sizes, `fresh` are
// the results that it allocated. Throws for ops that take a time which neither
// counts: factorizations, Fourier transforms and their like.
Work work_of(
    const c10::OperatorHandle& op,
    const OpInfo& info,
    c10::ArrayRef<c10::IValue> arguments,
    const std::vector<at::Tensor>& fresh);

// Note [Roofline]
// A kernel takes as long as its arithmetic at the peak rate, or as its bytes at
// the peak bandwidth, whichever is longer (Williams, Waterman, Patterson,
// "Roofline: an insightful visual performance model", 2009), and no less than
// kKernelNs. Real kernels reach a part of both; ratios of times are closer
// than times.
double duration_ns(const Work& work, const EmulatedGpu& gpu);

} // namespace emulated_cuda
