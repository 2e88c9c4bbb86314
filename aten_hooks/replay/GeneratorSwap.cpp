#include "GeneratorSwap.h"

#include <ATen/Context.h>

#include <mutex>

namespace at::remat {

// Note [CUDA's default generator is swapped by pointer]
// Seeding it would also tell cuDNN's recurrent layers to start their dropout
// state anew, and a graph that registered the state would not know. So its
// state object is exchanged for another, and put back untouched.
GeneratorSwap::GeneratorSwap(
    const OpCallRecord& call,
    torch::jit::Stack& stack) {
  if (!call.generator.defined()) {
    return;
  }
  const at::Generator saved = make_generator(call.generator);
  if (call.generator_arg >= 0) {
    stack[call.generator_arg] = saved;
    return;
  }
  default_ = at::globalContext().defaultGenerator(saved.device());
  const std::lock_guard<std::mutex> lock(default_.mutex());
  const auto& impl = default_.getIntrusivePtr();
  if (saved.device().is_cpu()) {
    state_ = impl->get_state();
    impl->set_state(*saved.getIntrusivePtr()->get_state());
  } else {
    own_ = impl->graphsafe_get_state();
    impl->graphsafe_set_state(saved.getIntrusivePtr());
  }
}

GeneratorSwap::~GeneratorSwap() {
  if (!default_.defined()) {
    return;
  }
  const std::lock_guard<std::mutex> lock(default_.mutex());
  if (own_ != nullptr) {
    default_.getIntrusivePtr()->graphsafe_set_state(own_);
  } else {
    default_.getIntrusivePtr()->set_state(*state_);
  }
}

} // namespace at::remat
