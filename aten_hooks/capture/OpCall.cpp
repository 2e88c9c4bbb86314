#include "OpCall.h"

#include "../replay/GeneratorSwap.h"
#include "CostEstimate.h"
#include "MemoryPressure.h"
#include "RematKey.h"
#include "RunningOp.h"
#include "TensorKinds.h"

#include <c10/util/ParallelGuard.h>
#include <torch/csrc/autograd/function.h>

#include <algorithm>

namespace at::remat {

namespace {

thread_local OpCall* current_call = nullptr;

// Note [Gradients are leaves]
// What a backward pass computes is used at once and then gone, with the
// activations that it was computed from: a gradient evicted now would need the
// whole forward pass, and backward up to here, a moment later. Only where the
// pass is itself differentiated (create_graph) are they activations like
// others. On a GPU they are managed from the start, so that they can be moved:
// an address that is handed out is seen.
bool makes_gradients() {
  return !at::GradMode::is_enabled() &&
      torch::autograd::get_current_node() != nullptr;
}

} // namespace

int own_ops_on(const Engine& engine) {
  int ops = 0;
  for (const OpCall* call = current_call; call != nullptr;
       call = call->outer_) {
    ops += call->engine_ == &engine || call->guests_.has(engine) ? 1 : 0;
  }
  return ops;
}

OpCall::OpCall(
    const c10::OperatorHandle& op,
    const OpTraits& traits,
    c10::DispatchKeySet key_set,
    c10::Device device,
    torch::jit::Stack& stack)
    : op_(op),
      traits_(traits),
      device_(device),
      home_(RematMode::get().active_on(device)),
      engine_(home_ == nullptr ? nullptr : &home_->engine()),
      stack_(stack),
      outer_(current_call),
      is_nested_(
          RunningOp::current() != nullptr || c10::ParallelGuard::is_enabled()) {
  if (home_ != nullptr && !is_nested_ && !traits.is_uninitialized) {
    if (!traits.is_aten) {
      RematMode::get().expect_far_reaching_ops();
    }
    if (traits.not_replayable != nullptr) {
      declined_ = traits.not_replayable;
    } else if (makes_gradients()) {
      declined_ = kGradient;
    } else {
      record_ = std::make_shared<OpCallRecord>(op);
      record_->key_set = key_set;
      record_->device = device;
      record_->is_aten = traits.is_aten;
    }
  }
  if (home_ != nullptr && home_->captures_graph()) {
    is_captured_ = true;
    decline("CUDA graph capture");
  }
  // Costs differ between devices.
  signature_ = reinterpret_cast<uintptr_t>(&op.schema()) + device.index() + 1;
  scan_arguments(stack.size() - traits.args.size());
}

const char* OpCall::name() const {
  return traits_.name.c_str();
}

c10::remat::Bytes OpCall::operand_bytes() const {
  c10::remat::Bytes bytes = 0;
  for (const Operand& operand : operands_) {
    if (operand.storage->device() == device_) {
      bytes += operand.storage->sym_nbytes().maybe_as_int().value_or(0);
    }
  }
  return bytes;
}

void OpCall::begin() {
  if (is_captured_) {
    keep_for_graph();
    return;
  }
  guests_.begin();
  if (engine_ != nullptr) {
    try {
      begin_home();
    } catch (...) {
      guests_.abort();
      throw;
    }
  }
  current_call = this;
  try {
    note_streams();
    if (home_ != nullptr && !is_nested_) {
      stopwatch_.start(*home_, signature_);
    }
  } catch (...) {
    abort();
    throw;
  }
}

void OpCall::begin_home() {
  for (Operand& operand : operands_) {
    if (operand.write < 0) {
      continue;
    }
    c10::remat::Write& write = writes_[operand.write];
    if (operand.input >= 0) {
      // Another argument reads what this one would replace.
      write.overwrites_all = false;
    } else if (record_ && write.overwrites_all) {
      record_->storages[operand.ref].source = StorageRef::Source::Output;
    }
  }
  if (record_) {
    record_->flags = ExecutionFlags::current();
    record_->stream = current_stream(device_);
    if (traits_.draws_random_numbers) {
      const size_t first = stack_.size() - traits_.args.size();
      std::optional<at::Generator> given;
      if (traits_.generator_arg >= 0) {
        given =
            stack_[first + traits_.generator_arg].toOptional<at::Generator>();
      }
      record_->generator_arg = traits_.generator_arg;
      record_->generator = snapshot_generator(given, device_);
    }
  }
  const c10::remat::Holders holders = holders_of(read_, written_);
  with_memory_errors(*engine_, device_, [&] {
    engine_->begin_op(holders, inputs_, writes_, &placement_plan_);
  });
}

// Note [What a graph has captured]
// Each launch of a graph uses the addresses that it was captured with, unseen.
// So what a captured op reads stays where it is, as if pinned by the program;
// what it writes counts as written by other code from then on, and what is
// computed from that is never replayed. An operand that is evicted is an error:
// its replay would become part of the graph.
void OpCall::keep_for_graph() {
  RematMode& mode = RematMode::get();
  for (const Operand& operand : operands_) {
    if (operand.handle == nullptr) {
      continue;
    }
    if (operand.is_written) {
      mode.add_alias(*operand.storage);
    } else {
      mode.pin_by_user(*operand.storage);
    }
  }
}

void OpCall::note_streams() {
  for (const Operand& operand : operands_) {
    if (operand.handle == nullptr || operand.handle->device.is_cpu()) {
      continue;
    }
    const auto stream = current_stream(operand.handle->device);
    const auto lock = lock_stream_uses(operand.handle->device);
    operand.handle->streams.used_by_program(*stream, operand.is_written);
  }
}

void OpCall::note_result(
    const at::Tensor& tensor,
    uint32_t result,
    int32_t element) {
  if (!tensor.defined() || !is_plain(tensor) || tensor.device() != device_) {
    return;
  }
  c10::StorageImpl& storage = storage_of(tensor);
  const bool is_argument = std::any_of(
      operands_.begin(), operands_.end(), [&](const Operand& operand) {
        return operand.storage == &storage;
      });
  if (is_argument || handle_of(storage) != nullptr || storage.nbytes() == 0 ||
      storage.nbytes() < RematMode::get().smallest_managed() ||
      !is_from_allocator(storage)) {
    return;
  }
  if (!record_) {
    not_replayable_ = declined_;
    if (device_.is_cpu() || !makes_gradients()) {
      return;
    }
  }
  StorageHandle* handle = manage(storage, *engine_);
  handle->streams.made_by_program(current_stream(device_));
  if (!record_) {
    engine_->add_leaf(handle->nbytes, handle, /*is_gradient=*/true);
    return;
  }
  fresh_.push_back(handle);
  record_->fresh_outputs.push_back({result, element, storage.nbytes()});
}

void OpCall::collect_fresh_outputs() {
  const size_t results = op_.schema().returns().size();
  const size_t first = stack_.size() - results;
  for (size_t i = 0; i < results; ++i) {
    const c10::IValue& value = stack_[first + i];
    if (value.isTensor()) {
      note_result(value.toTensor(), i, -1);
    } else if (value.isTensorList()) {
      const auto list = value.toListRef();
      for (size_t k = 0; k < list.size(); ++k) {
        note_result(list[k].toTensor(), i, static_cast<int32_t>(k));
      }
    }
  }
}

// An `out` argument that was too small got another block; what it held is
// gone, and with it the handle once the engine lets go of it.
void OpCall::drop_replaced() {
  for (StorageHandle*& handle : written_) {
    if (handle->storage == nullptr) {
      handle = nullptr;
      record_ = nullptr;
    }
  }
}

// Now that the number of fresh outputs is known.
void OpCall::name_overwritten_outputs() {
  if (!record_) {
    return;
  }
  size_t output = fresh_.size();
  for (size_t i = 0; i < writes_.size(); ++i) {
    if (writes_[i].side_effect) {
      continue;
    }
    for (const Operand& operand : operands_) {
      if (operand.write == static_cast<int32_t>(i) && operand.input < 0) {
        record_->storages[operand.ref].index = output;
      }
    }
    ++output;
  }
}

void OpCall::end() {
  if (is_captured_) {
    if (!is_nested_) {
      engine_->count_not_replayable("CUDA graph capture");
    }
    return;
  }
  // Prepacked weights and the like, which may hold what was given.
  const bool returns_object = std::any_of(
      stack_.end() - static_cast<std::ptrdiff_t>(op_.schema().returns().size()),
      stack_.end(),
      [](const c10::IValue& value) {
        return value.isObject() || value.isCapsule();
      });
  std::vector<std::unique_ptr<ResidencyPin>> kept;
  if (traits_.keeps_inputs || returns_object) {
    // What uses them may be at it already, so they stay where they are.
    for (const Operand& operand : operands_) {
      if (operand.handle != nullptr && operand.handle->storage != nullptr) {
        kept.push_back(std::make_unique<ResidencyPin>(*operand.handle));
      }
    }
  }
  current_call = outer_;
  guests_.end(signature_, traits_.name.c_str());
  if (engine_ != nullptr) {
    end_home();
  }
  if (!kept.empty()) {
    keep_inputs_for_good();
  }
}

void OpCall::end_home() {
  c10::remat::OpCapture capture;
  capture.cost = stopwatch_.stop();
  drop_replaced();
  if (!is_nested_) {
    collect_fresh_outputs();
  }
  capture.signature = signature_;
  capture.name = traits_.name.c_str();
  capture.not_replayable = not_replayable_;
  capture.inputs = std::move(inputs_);
  for (StorageHandle* handle : fresh_) {
    capture.fresh.push_back({handle->nbytes, handle});
  }
  capture.writes = writes_;
  if (record_ && stopwatch_.is_known_later()) {
    capture.estimate = estimate_cost(
        traits_,
        *record_,
        at::ArrayRef(stack_).slice(
            stack_.size() - op_.schema().returns().size()));
  }
  name_overwritten_outputs();
  capture.payload = std::move(record_);
  engine_->end_op(std::move(capture));
}

void OpCall::keep_inputs_for_good() {
  for (const Operand& operand : operands_) {
    if (operand.handle != nullptr && operand.handle->storage != nullptr) {
      operand.handle->engine->escape(operand.handle, /*for_good=*/true);
    }
  }
}

void OpCall::abort() {
  if (is_captured_) {
    return;
  }
  current_call = outer_;
  guests_.abort();
  drop_replaced();
  if (engine_ != nullptr) {
    engine_->abort_op(inputs_, writes_);
  }
}

} // namespace at::remat
