#include "OpCall.h"

#include "../replay/GeneratorSwap.h"
#include "MemoryPressure.h"
#include "RematKey.h"

#include <ATen/NestedTensorImpl.h>
#include <ATen/SparseCsrTensorImpl.h>
#include <ATen/SparseTensorImpl.h>
#include <ATen/quantized/Quantizer.h>
#include <c10/core/CPUAllocator.h>
#include <c10/util/ParallelGuard.h>
#include <c10/util/hash.h>
#include <torch/csrc/autograd/function.h>

#include <algorithm>
#include <cstring>

namespace at::remat {

namespace {

// A tensor whose bytes are those of its storage, and all of it.
bool is_plain(const at::Tensor& tensor) {
  return tensor.has_storage() && tensor.layout() == at::kStrided &&
      !tensor.is_quantized() &&
      !tensor.unsafeGetTensorImpl()->key_set().has_any(
          c10::DispatchKeySet(c10::DispatchKey::NestedTensor) |
          c10::DispatchKeySet(c10::DispatchKey::ZeroTensor) |
          c10::DispatchKeySet(c10::DispatchKey::Python) |
          c10::DispatchKeySet(c10::DispatchKey::FuncTorchBatched) |
          c10::DispatchKeySet(c10::DispatchKey::FuncTorchGradWrapper) |
          c10::DispatchKeySet(c10::DispatchKey::Functionalize));
}

c10::StorageImpl& storage_of(const at::Tensor& tensor) {
  return *tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
}

bool covers_storage(const at::Tensor& tensor) {
  return tensor.storage_offset() == 0 &&
      tensor.is_non_overlapping_and_dense() &&
      static_cast<size_t>(tensor.numel()) * tensor.element_size() ==
      storage_of(tensor).nbytes();
}

// Memory of the device's own allocator, which only tensors write to.
bool is_from_allocator(const c10::StorageImpl& storage) {
  const at::DataPtr& data_ptr =
      const_cast<c10::StorageImpl&>(storage)._mutable_data_ptr_no_checks();
  return data_ptr.get_deleter() ==
      c10::GetAllocator(data_ptr.device().type())->raw_deleter();
}

bool is_sparse_compressed(at::Layout layout) {
  return layout == at::kSparseCsr || layout == at::kSparseCsc ||
      layout == at::kSparseBsr || layout == at::kSparseBsc;
}

// The contents of unmanaged storages up to this size are kept in the record.
constexpr size_t kMostInline = 256;

// And up to this size if other code may write to them: indices and labels of a
// batch, as they come from numpy or from a worker process.
constexpr size_t kMostForeignInline = 16 * 1024;

const char* const kForeignMemory = "reads memory shared with other code";

thread_local OpCall* current_call = nullptr;

// Which signatures this thread has measured as often as the engine's CostTable
// wants to know: looking at the clock is a good part of what capture costs.
// Some are forgotten, and measured in vain.
class TimedOps {
 public:
  bool wants(uint64_t signature) {
    const Entry& entry = entry_of(signature);
    return entry.signature != signature ||
        entry.samples < c10::remat::CostTable::kSamples;
  }
  void count(uint64_t signature) {
    Entry& entry = entry_of(signature);
    if (entry.signature != signature) {
      entry = {signature, 0};
    }
    ++entry.samples;
  }

 private:
  struct Entry {
    uint64_t signature;
    uint32_t samples;
  };
  static constexpr int kBits = 9;

  Entry& entry_of(uint64_t signature) {
    return entries_[(signature * 0x9e3779b97f4a7c15) >> (64 - kBits)];
  }

  Entry entries_[1 << kBits];
};

TimedOps& timed_ops() {
  thread_local TimedOps timed{};
  return timed;
}

// Note [Gradients are leaves]
// What a backward pass computes is used at once and then gone, with the
// activations that it was computed from: a gradient evicted now would need the
// whole forward pass, and backward up to here, a moment later. Only where the
// pass is itself differentiated (create_graph) are they activations like
// others.
bool makes_gradients() {
  return !at::GradMode::is_enabled() &&
      torch::autograd::get_current_node() != nullptr;
}

} // namespace

OpCall::OpCall(
    const c10::OperatorHandle& op,
    const OpTraits& traits,
    c10::DispatchKeySet key_set,
    Engine& engine,
    torch::jit::Stack& stack)
    : op_(op),
      traits_(traits),
      engine_(engine),
      stack_(stack),
      outer_(current_call),
      is_nested_(op_depth() > 0 || c10::ParallelGuard::is_enabled()) {
  if (!is_nested_ && !traits.is_uninitialized) {
    record_ = std::make_shared<OpCallRecord>(op);
    record_->key_set = key_set;
    record_->is_aten = traits.is_aten;
    if (traits.not_replayable != nullptr) {
      decline(traits.not_replayable);
    } else if (makes_gradients()) {
      decline("gradient");
    }
  }
  signature_ = reinterpret_cast<uintptr_t>(&op.schema());
  scan_arguments(stack.size() - traits.args.size());
}

void OpCall::decline(const char* reason) {
  if (record_) {
    declined_ = reason;
    record_ = nullptr;
  }
}

bool OpCall::writes_now(const OpTraits::Arg& arg, size_t first) const {
  return arg.written &&
      (!arg.conditional || traits_.write_flag < 0 ||
       stack_[first + traits_.write_flag].toBool());
}

void OpCall::scan_arguments(size_t first) {
  for (size_t i = 0; i < traits_.args.size(); ++i) {
    const c10::IValue& value = stack_[first + i];
    OpTraits::Arg arg = traits_.args[i];
    if (arg.kind == OpTraits::ArgKind::Other || value.isNone()) {
      if (value.isObject() || value.isCapsule() || value.isPyObject()) {
        decline("opaque argument");
      }
      if (record_) {
        record_->args.push_back(value);
      }
      continue;
    }
    arg.written = writes_now(arg, first);
    if (record_) {
      record_->args.emplace_back();
      record_->tensor_args.push_back(
          {static_cast<uint32_t>(i),
           value.isList(),
           value.isOptionalTensorList(),
           {}});
    }
    const auto visit_one = [&](const c10::IValue& element) {
      const size_t before = record_ ? record_->tensors.size() : 0;
      int32_t index = OpCallRecord::kUndefined;
      if (element.isTensor() && element.toTensor().defined()) {
        const at::Tensor& tensor = element.toTensor();
        const auto seen = std::find(
            seen_tensors_.begin(),
            seen_tensors_.end(),
            tensor.unsafeGetTensorImpl());
        visit(tensor, arg);
        if (record_) {
          index = record_->tensors.size() > before
              ? static_cast<int32_t>(before)
              : static_cast<int32_t>(seen - seen_tensors_.begin());
        }
      }
      if (record_) {
        record_->tensor_args.back().tensors.push_back(index);
      }
    };
    if (value.isTensor()) {
      visit_one(value);
    } else if (value.isList()) {
      for (const c10::IValue& element : value.toListRef()) {
        visit_one(element);
      }
    }
  }
}

OpCall::Operand& OpCall::operand_of(c10::StorageImpl& storage) {
  for (Operand& operand : operands_) {
    if (operand.storage == &storage) {
      return operand;
    }
  }
  operands_.push_back(Operand{&storage, handle_of(storage)});
  Operand& operand = operands_.back();
  StorageRef ref;
  ref.nbytes = storage.nbytes();
  ref.device = storage.device();
  if (operand.handle != nullptr) {
    ref.source = StorageRef::Source::Input;
    if (operand.handle->aliases > 0) {
      decline(kForeignMemory);
    }
  } else if (storage.device_type() != c10::kCPU) {
    decline("tensor on another device");
  } else if (ref.nbytes == 0) {
    ref.source = StorageRef::Source::Empty;
  } else if (storage._mutable_data_ptr_no_checks().get() == nullptr) {
    decline("storage without bytes");
  } else if (
      ref.nbytes <= kMostInline ||
      (ref.nbytes <= kMostForeignInline && !is_from_allocator(storage))) {
    ref.source = StorageRef::Source::Constant;
    if (record_) {
      auto& constants = record_->constants;
      ref.index = constants.size();
      const auto* bytes =
          static_cast<const char*>(storage._mutable_data_ptr_no_checks().get());
      constants.insert(constants.end(), bytes, bytes + ref.nbytes);
    }
  } else if (is_nested_) {
    // It may be an output of the outer op, which is still to be captured.
  } else if (is_from_allocator(storage)) {
    operand.handle = manage_leaf(storage, engine_);
    ref.source = StorageRef::Source::Input;
  } else {
    decline(kForeignMemory);
  }
  if (record_) {
    operand.ref = static_cast<uint32_t>(record_->storages.size());
    record_->storages.push_back(ref);
  }
  return operand;
}

void OpCall::read(Operand& operand) {
  if (operand.handle == nullptr || operand.input >= 0) {
    return;
  }
  operand.input = static_cast<int32_t>(read_.size());
  read_.push_back(operand.handle);
  if (record_) {
    StorageRef& ref = record_->storages[operand.ref];
    ref.source = StorageRef::Source::Input;
    ref.index = operand.input;
  }
}

void OpCall::write(Operand& operand, bool overwrites_all, bool side_effect) {
  // What an outer op declares it reports itself. In a replay, which has no
  // outer call, a write to anything but its operands is a side effect.
  if (operand.handle == nullptr ||
      (is_nested_ &&
       (outer_ == nullptr || is_operand_of_outer_op(*operand.storage)))) {
    read(operand);
    return;
  }
  if (operand.write < 0) {
    operand.write = static_cast<int32_t>(writes_.size());
    writes_.push_back({VersionId{}, overwrites_all, side_effect});
    written_.push_back(operand.handle);
  } else {
    writes_[operand.write].overwrites_all &= overwrites_all;
  }
}

bool OpCall::is_operand_of_outer_op(const c10::StorageImpl& storage) const {
  for (const OpCall* call = outer_; call != nullptr; call = call->outer_) {
    for (const Operand& operand : call->operands_) {
      if (operand.storage == &storage) {
        return true;
      }
    }
  }
  return false;
}

void OpCall::visit(const at::Tensor& tensor, const OpTraits::Arg& arg) {
  if (!is_plain(tensor)) {
    decline("sparse, quantized or nested tensor");
    visit_opaque(tensor);
    return;
  }
  if (tensor.device().is_meta()) {
    decline("meta tensor");
    return;
  }
  Operand& operand = operand_of(storage_of(tensor));
  const bool overwrites_all =
      arg.written && arg.write_only && covers_storage(tensor);
  const bool is_parameter = tensor.requires_grad() && tensor.is_leaf();
  if (is_parameter && operand.handle != nullptr &&
      !operand.handle->is_parameter) {
    operand.handle->is_parameter =
        engine_.declare_parameter(operand.handle->version);
  }
  if (arg.written) {
    write(operand, overwrites_all, arg.side_effect);
    if (is_parameter && operand.write >= 0) {
      writes_[operand.write].is_parameter = true;
    }
  }
  if (!overwrites_all && !(arg.written && arg.side_effect)) {
    read(operand);
  }
  if (record_) {
    const auto* impl = tensor.unsafeGetTensorImpl();
    if (std::find(seen_tensors_.begin(), seen_tensors_.end(), impl) ==
        seen_tensors_.end()) {
      seen_tensors_.push_back(impl);
      add_tensor_ref(tensor, arg, operand);
    }
  }
}

void OpCall::add_tensor_ref(
    const at::Tensor& tensor,
    const OpTraits::Arg& arg,
    const Operand& operand) {
  const auto* impl = tensor.unsafeGetTensorImpl();
  TensorRef ref;
  ref.storage = operand.ref;
  if (arg.written && arg.side_effect) {
    ref.storage = static_cast<uint32_t>(record_->storages.size());
    StorageRef scratch = record_->storages[operand.ref];
    scratch.source = StorageRef::Source::Scratch;
    record_->storages.push_back(scratch);
  }
  ref.requires_grad = tensor.requires_grad();
  ref.wrapped_number = impl->is_wrapped_number();
  ref.sizes_and_strides.set_sizes(tensor.sizes());
  std::copy(
      tensor.strides().begin(),
      tensor.strides().end(),
      ref.sizes_and_strides.strides_data());
  ref.storage_offset = tensor.storage_offset();
  ref.dtype = tensor.dtype();
  ref.key_set = impl->key_set();
  for (const int64_t size : tensor.sizes()) {
    signature_ = c10::hash_combine(signature_, size);
  }
  record_->tensors.push_back(ref);
}

// The tensors inside it must be resident; the op is not recorded.
void OpCall::visit_opaque(const at::Tensor& tensor) {
  OpTraits::Arg plain_read;
  plain_read.kind = OpTraits::ArgKind::Tensor;
  const auto visit_inner = [&](const at::Tensor& inner) {
    if (inner.defined()) {
      visit(inner, plain_read);
    }
  };
  if (tensor.layout() == at::kSparse) {
    const auto* impl =
        static_cast<at::SparseTensorImpl*>(tensor.unsafeGetTensorImpl());
    visit_inner(impl->indices());
    visit_inner(impl->values());
  } else if (is_sparse_compressed(tensor.layout())) {
    const auto* impl =
        static_cast<at::SparseCsrTensorImpl*>(tensor.unsafeGetTensorImpl());
    visit_inner(impl->compressed_indices());
    visit_inner(impl->plain_indices());
    visit_inner(impl->values());
  } else if (
      tensor.has_storage() && tensor.device().is_cpu() &&
      storage_of(tensor)._mutable_data_ptr_no_checks() != nullptr) {
    read(operand_of(storage_of(tensor)));
    if (tensor.is_quantized()) {
      const auto* quantizer = dynamic_cast<at::PerChannelAffineQuantizer*>(
          tensor.quantizer().get());
      if (quantizer != nullptr) {
        visit_inner(quantizer->scales());
        visit_inner(quantizer->zero_points());
      }
    }
    if (tensor.is_nested()) {
      const auto* impl = at::native::get_nested_tensor_impl(tensor);
      visit_inner(impl->get_nested_sizes());
      visit_inner(impl->get_nested_strides());
      visit_inner(impl->get_storage_offsets());
    }
  }
}

void OpCall::begin() {
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
    if (traits_.draws_random_numbers) {
      const size_t first = stack_.size() - traits_.args.size();
      std::optional<at::Generator> given;
      if (traits_.generator_arg >= 0) {
        given =
            stack_[first + traits_.generator_arg].toOptional<at::Generator>();
      }
      record_->generator_arg = traits_.generator_arg;
      record_->generator = snapshot_generator(given, c10::kCPU);
    }
  }
  c10::remat::Holders holders;
  for (StorageHandle* handle : read_) {
    holders.push_back(handle);
  }
  for (StorageHandle* handle : written_) {
    holders.push_back(handle);
  }
  with_memory_errors(
      engine_, [&] { engine_.begin_op(holders, inputs_, writes_); });
  current_call = this;
  is_timed_ = timed_ops().wants(signature_);
  if (is_timed_) {
    relief_before_ = relief_ns_of_thread();
    start_ = Clock::now();
  }
}

void OpCall::note_result(
    const at::Tensor& tensor,
    uint32_t result,
    int32_t element) {
  if (!tensor.defined() || !is_plain(tensor) || !tensor.device().is_cpu()) {
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
    if (declined_ != nullptr) {
      engine_.count_not_replayable(declined_);
      declined_ = nullptr;
    }
    return;
  }
  fresh_.push_back(manage(storage, engine_));
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
  c10::remat::OpCapture capture;
  if (is_timed_) {
    const int64_t elapsed =
        std::chrono::duration_cast<std::chrono::nanoseconds>(
            Clock::now() - start_)
            .count();
    capture.cost = std::max<int64_t>(
        elapsed - (relief_ns_of_thread() - relief_before_), 1);
    timed_ops().count(signature_);
  }
  current_call = outer_;
  drop_replaced();
  if (!is_nested_) {
    collect_fresh_outputs();
  }
  // Prepacked weights and the like, which may hold what was given.
  const bool returns_object = std::any_of(
      stack_.end() - static_cast<std::ptrdiff_t>(op_.schema().returns().size()),
      stack_.end(),
      [](const c10::IValue& value) {
        return value.isObject() || value.isCapsule();
      });
  capture.signature = signature_;
  capture.name = traits_.name.c_str();
  capture.inputs = std::move(inputs_);
  for (StorageHandle* handle : fresh_) {
    capture.fresh.push_back({handle->nbytes, handle});
  }
  capture.writes = writes_;
  name_overwritten_outputs();
  capture.payload = std::move(record_);
  engine_.end_op(std::move(capture));
  if (traits_.keeps_inputs || returns_object) {
    keep_inputs_for_good();
  }
}

void OpCall::keep_inputs_for_good() {
  for (const Operand& operand : operands_) {
    if (operand.handle != nullptr && operand.handle->storage != nullptr) {
      engine_.escape(operand.handle->version, /*for_good=*/true);
    }
  }
}

void OpCall::abort() {
  current_call = outer_;
  drop_replaced();
  engine_.abort_op(inputs_, writes_);
}

} // namespace at::remat
