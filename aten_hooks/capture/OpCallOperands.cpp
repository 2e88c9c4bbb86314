// What an op reads and writes: the part of OpCall that looks at the arguments.
#include "OpCall.h"
#include "RematKey.h"
#include "TensorKinds.h"

#include <ATen/NestedTensorImpl.h>
#include <ATen/SparseCsrTensorImpl.h>
#include <ATen/SparseTensorImpl.h>
#include <ATen/quantized/Quantizer.h>
#include <c10/util/hash.h>

#include <algorithm>

namespace at::remat {

namespace {

// The contents of unmanaged storages up to this size are kept in the record.
constexpr size_t kMostInline = 256;

// And up to this size if other code may write to them: indices and labels of a
// batch, as they come from numpy or from a worker process.
constexpr size_t kMostForeignInline = 16 * 1024;

const char* const kForeignMemory = "reads memory shared with other code";
const char* const kHostMemory = "copied from host memory";
const char* const kOtherDevice = "reads memory of another device";

} // namespace

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
    if (arg.kind == OpTraits::ArgKind::Nested) {
      decline("tensors in a nested argument");
      value.visit([&](const c10::IValue& part) {
        if (part.isTensor() && part.toTensor().defined()) {
          visit(part.toTensor(), arg);
        }
        return false;
      });
      continue;
    }
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
  if (operand.handle != nullptr &&
      RematMode::get().active_on(operand.handle->device) == nullptr) {
    operand.handle = nullptr; // resident for good; its engine is off
  }
  StorageRef ref;
  ref.nbytes = storage.nbytes();
  ref.device = storage.device();
  if (operand.handle != nullptr) {
    ref.source = StorageRef::Source::Input;
    if (operand.handle->aliases > 0) {
      decline(kForeignMemory);
    }
  } else if (ref.nbytes == 0) {
    ref.source = StorageRef::Source::Empty;
  } else if (storage._mutable_data_ptr_no_checks().get() == nullptr) {
    decline("storage without bytes");
  } else if (
      ref.device.is_cpu() &&
      (ref.nbytes <= kMostInline ||
       (ref.nbytes <= kMostForeignInline &&
        (device_.is_cpu() ? !is_from_allocator(storage) : !traits_.is_copy)))) {
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
  } else if (ref.device.is_cpu() && !device_.is_cpu()) {
    decline(kHostMemory);
  } else if (!is_from_allocator(storage)) {
    decline(kForeignMemory);
  } else if (ManagedDevice* managed = RematMode::get().active_on(ref.device)) {
    operand.handle = manage_leaf(storage, managed->engine());
    ref.source = StorageRef::Source::Input;
  } else {
    decline(kOtherDevice);
  }
  if (record_) {
    operand.ref = static_cast<uint32_t>(record_->storages.size());
    record_->storages.push_back(ref);
  }
  return operand;
}

void OpCall::read(Operand& operand) {
  if (is_guest(operand)) {
    guests_.add(*operand.handle, /*written=*/false);
    return;
  }
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
  if (is_guest(operand)) {
    guests_.add(*operand.handle, /*written=*/true);
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

bool OpCall::is_guest(const Operand& operand) const {
  return operand.handle != nullptr && operand.handle->engine != engine_;
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
  operand.is_written |= arg.written;
  const bool overwrites_all =
      arg.written && arg.write_only && covers_storage(tensor);
  const bool is_parameter = tensor.requires_grad() && tensor.is_leaf();
  if (is_parameter && operand.handle != nullptr &&
      !operand.handle->is_parameter) {
    operand.handle->is_parameter =
        operand.handle->engine->declare_parameter(operand.handle->version);
  }
  if (is_guest(operand)) {
    decline(operand.handle->device.is_cpu() ? kHostMemory : kOtherDevice);
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
  signature_ =
      c10::hash_combine(signature_, static_cast<size_t>(tensor.scalar_type()));
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
      tensor.has_storage() && !tensor.device().is_meta() &&
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

} // namespace at::remat
