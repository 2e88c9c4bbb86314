#pragma once

#include <ATen/core/stack.h>

#include <string>

namespace emulated_cuda {

// Gives an op's results as meta tensors. Takes the op's arguments, with meta
// tensors in the place of device tensors, from the stack and puts the results
// there.
using ShapeRule = void (*)(torch::jit::Stack& stack);

// For ops whose meta kernel PyTorch lacks, or that says something else than
// CUDA's kernel does. Null if there is no rule for `name`.
ShapeRule shape_rule_for(const std::string& name);

} // namespace emulated_cuda
