#include "GeneratorSwap.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>

namespace at::remat {

namespace {

at::Generator copy_of(at::Generator generator) {
  const std::lock_guard<std::mutex> lock(generator.mutex());
  return generator.clone();
}

} // namespace

at::Generator snapshot_generator(
    const std::optional<at::Generator>& given,
    c10::Device device) {
  return copy_of(
      given.has_value() && given->defined()
          ? *given
          : at::globalContext().defaultGenerator(device));
}

GeneratorSwap::GeneratorSwap(
    const OpCallRecord& call,
    torch::jit::Stack& stack) {
  if (!call.generator.defined()) {
    return;
  }
  if (call.generator_arg >= 0) {
    stack[call.generator_arg] = copy_of(call.generator);
    return;
  }
  default_ = at::globalContext().defaultGenerator(call.generator.device());
  const std::lock_guard<std::mutex> lock(default_.mutex());
  state_ = default_.getIntrusivePtr()->get_state();
  default_.getIntrusivePtr()->set_state(
      *call.generator.getIntrusivePtr()->get_state());
}

GeneratorSwap::~GeneratorSwap() {
  if (default_.defined()) {
    const std::lock_guard<std::mutex> lock(default_.mutex());
    default_.getIntrusivePtr()->set_state(*state_);
  }
}

} // namespace at::remat
