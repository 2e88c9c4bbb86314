#include "DispatchReplayer.h"

#include "../capture/DeviceBytes.h"
#include "../capture/RematKey.h"
#include "../capture/RunningOp.h"
#include "GeneratorSwap.h"
#include "ReplayTimer.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/remat/DeviceMemory.h>

#include <cstring>

namespace at::remat {

namespace {

using c10::remat::ReplayRequest;
using c10::remat::StorageVersion;

// Everything above the backends but BackendSelect. Autograd would record the
// replay, autocast would cast again, and what the program's modes see must not
// depend on the budget.
c10::DispatchKeySet keys_above_backends() {
  return c10::autograd_dispatch_keyset | c10::autocast_dispatch_keyset |
      c10::DispatchKeySet(
             {c10::DispatchKey::ADInplaceOrView,
              c10::DispatchKey::Functionalize,
              c10::DispatchKey::Python,
              c10::DispatchKey::PythonTLSSnapshot,
              c10::DispatchKey::PythonDispatcher,
              c10::DispatchKey::PreDispatch,
              c10::DispatchKey::FuncTorchBatched,
              c10::DispatchKey::FuncTorchGradWrapper,
              c10::DispatchKey::FuncTorchDynamicLayerFrontMode,
              c10::DispatchKey::FuncTorchDynamicLayerBackMode,
              c10::DispatchKey::FuncTorchVmapMode});
}

class NoWarnings final : public c10::WarningHandler {
 public:
  void process(const c10::Warning&) override {}
};

c10::Storage make_storage(at::DataPtr data, size_t nbytes) {
  c10::Allocator* allocator = &allocator_of(data.device());
  return c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(),
      nbytes,
      std::move(data),
      allocator,
      /*resizable=*/true);
}

StorageHandle& holder_of(StorageVersion& version) {
  return *static_cast<StorageHandle*>(version.holder);
}

// Does the op write over the input's own bytes?
bool is_consumed(const ReplayRequest& request, size_t input) {
  const auto& overwrites = request.record->overwrites;
  for (size_t i = 0; i < overwrites.size(); ++i) {
    if (overwrites[i].input == input && !request.keep_input[i]) {
      return true;
    }
  }
  return false;
}

bool captures_graph(c10::Device device) {
  const auto* memory = c10::remat::cuda_memory(device.index());
  return memory != nullptr && memory->captures_graph();
}

// The bytes behind each StorageRef.
std::vector<c10::Storage> make_storages(
    const ReplayRequest& request,
    const OpCallRecord& call) {
  std::vector<c10::Storage> storages;
  for (const StorageRef& ref : call.storages) {
    const at::Device device = ref.device;
    switch (ref.source) {
    case StorageRef::Source::Input: {
      StorageHandle& holder = holder_of(*request.inputs[ref.index]);
      at::DataPtr data(holder.data.get(), device);
      const auto& overwrites = request.record->overwrites;
      for (size_t i = 0; i < overwrites.size(); ++i) {
        if (overwrites[i].input == ref.index) {
          data = request.keep_input[i] ? copy_bytes(holder.data, ref.nbytes)
                                       : std::move(holder.data);
        }
      }
      storages.push_back(make_storage(std::move(data), ref.nbytes));
      break;
    }
    case StorageRef::Source::Output:
      storages.push_back(
          make_storage(allocate_bytes(ref.nbytes, device), ref.nbytes));
      break;
    case StorageRef::Source::Constant: {
      at::DataPtr data = allocate_bytes(ref.nbytes, device);
      std::memcpy(
          data.mutable_get(), call.constants.data() + ref.index, ref.nbytes);
      storages.push_back(make_storage(std::move(data), ref.nbytes));
      break;
    }
    case StorageRef::Source::Scratch: {
      at::DataPtr data = allocate_bytes(ref.nbytes, device);
      fill_with_zeros(data, ref.nbytes);
      storages.push_back(make_storage(std::move(data), ref.nbytes));
      break;
    }
    case StorageRef::Source::Empty:
      storages.push_back(make_storage(allocate_bytes(0, device), ref.nbytes));
      break;
    }
  }
  return storages;
}

std::vector<at::Tensor> make_tensors(
    const OpCallRecord& call,
    const std::vector<c10::Storage>& storages) {
  std::vector<at::Tensor> tensors;
  for (const TensorRef& ref : call.tensors) {
    tensors.push_back(make_tensor(ref, storages[ref.storage]));
  }
  return tensors;
}

torch::jit::Stack make_stack(
    const OpCallRecord& call,
    const std::vector<at::Tensor>& tensors) {
  torch::jit::Stack stack(call.args.begin(), call.args.end());
  for (const OpCallRecord::TensorArg& arg : call.tensor_args) {
    const auto tensor_at = [&](int32_t index) {
      return index == OpCallRecord::kUndefined ? at::Tensor() : tensors[index];
    };
    if (!arg.is_list) {
      stack[arg.position] = tensor_at(arg.tensors[0]);
    } else if (arg.is_optional_list) {
      c10::List<std::optional<at::Tensor>> list;
      for (const int32_t index : arg.tensors) {
        list.push_back(
            index == OpCallRecord::kUndefined
                ? std::optional<at::Tensor>()
                : std::optional<at::Tensor>(tensors[index]));
      }
      stack[arg.position] = std::move(list);
    } else {
      c10::List<at::Tensor> list;
      for (const int32_t index : arg.tensors) {
        list.push_back(tensor_at(index));
      }
      stack[arg.position] = std::move(list);
    }
  }
  return stack;
}

at::DataPtr take_bytes(const c10::Storage& storage, size_t nbytes) {
  TORCH_INTERNAL_ASSERT(
      storage.nbytes() == nbytes,
      "remat: a replayed op made ",
      storage.nbytes(),
      " bytes where it had made ",
      nbytes);
  return std::move(
      storage.unsafeGetStorageImpl()->_mutable_data_ptr_no_checks());
}

} // namespace

at::Tensor make_tensor(const TensorRef& ref, const c10::Storage& storage) {
  auto impl = c10::make_intrusive<c10::TensorImpl>(
      c10::Storage(storage), ref.key_set, ref.dtype);
  impl->set_sizes_and_strides(
      ref.sizes_and_strides.sizes_arrayref(),
      ref.sizes_and_strides.strides_arrayref(),
      ref.storage_offset);
  if (ref.wrapped_number) {
    impl->set_wrapped_number(true);
  }
  if (ref.requires_grad) {
    impl->set_requires_grad(true);
  }
  return at::Tensor(std::move(impl));
}

std::vector<std::unique_ptr<c10::remat::Buffer>> DispatchReplayer::replay(
    const ReplayRequest& request) {
  const auto& call = static_cast<const OpCallRecord&>(*request.record->payload);
  const ReplayTimer timer;
  static const c10::DispatchKeySet above = keys_above_backends();
  NoWarnings no_warnings;
  const c10::WarningUtils::WarningHandlerGuard warning_guard(&no_warnings);
  const c10::InferenceMode inference_guard(call.flags.inference_mode);
  const ExecutionFlagsGuard flags_guard(call.flags);
  const c10::impl::ForceDispatchKeyGuard key_guard(
      c10::DispatchKeySet(c10::DispatchKey::BackendSelect) |
          (call.is_aten ? c10::DispatchKeySet()
                        : c10::DispatchKeySet(kRematKey)),
      call.is_aten ? above | c10::DispatchKeySet(kRematKey) : above);
  const RunningOp running(request);
  const c10::DeviceGuard device_guard(call.device);
  const c10::remat::PlacementGuard placement(c10::remat::Placement::Evictable);
  const auto stream = current_stream(call.device);
  // By input, for those that are consumed.
  c10::SmallVector<std::optional<c10::Stream>, 4> allocated_on;
  if (stream) {
    TORCH_CHECK(
        !captures_graph(call.device),
        "remat: a tensor that a CUDA graph is being captured with is evicted, "
        "and cannot be rematerialized during the capture (",
        request.record->name,
        " would have to run again); call torch.cuda.remat.pin() on what the "
        "graph reads before the capture");
    const auto lock = lock_stream_uses(call.device);
    for (size_t i = 0; i < request.inputs.size(); ++i) {
      StreamUse& use = holder_of(*request.inputs[i]).streams;
      use.used_by_replay(*stream, *call.stream, is_consumed(request, i));
      allocated_on.push_back(use.allocated_on());
    }
  }

  const auto storages = make_storages(request, call);
  // Outlives the call: boxed kernels with several `out` arguments return
  // references to them after they have dropped them from the stack.
  const auto tensors = make_tensors(call, storages);
  torch::jit::Stack stack = make_stack(call, tensors);
  {
    const GeneratorSwap generator_swap(call, stack);
    call.op.redispatchBoxed(call.key_set, &stack);
  }

  std::vector<std::unique_ptr<c10::remat::Buffer>> buffers;
  const size_t fresh = call.fresh_outputs.size();
  for (size_t i = 0; i < request.outputs.size(); ++i) {
    if (request.outputs[i] == nullptr) {
      buffers.push_back(nullptr);
      continue;
    }
    c10::Storage storage;
    auto buffer = std::make_unique<ReplayedBuffer>();
    buffer->allocated_on = buffer->written_on = stream;
    if (i < fresh) {
      const OpCallRecord::FreshOutput& output = call.fresh_outputs[i];
      const c10::IValue& result = stack[output.result];
      storage = output.element < 0
          ? result.toTensor().storage()
          : result.toListRef()[output.element].toTensor().storage();
    } else {
      for (size_t k = 0; k < call.storages.size(); ++k) {
        const StorageRef& ref = call.storages[k];
        const bool written_whole =
            ref.source == StorageRef::Source::Output && ref.index == i;
        bool written_over = false;
        for (const auto& overwrite : request.record->overwrites) {
          written_over |= ref.source == StorageRef::Source::Input &&
              overwrite.input == ref.index && overwrite.output == i;
        }
        if (stream && written_over && is_consumed(request, ref.index)) {
          buffer->allocated_on = allocated_on[ref.index];
        }
        if (written_whole || written_over) {
          storage = storages[k];
        }
      }
    }
    buffer->data = take_bytes(storage, request.outputs[i]->size);
    buffers.push_back(std::move(buffer));
  }
  return buffers;
}

std::unique_ptr<c10::remat::Buffer> DispatchReplayer::copy(
    const StorageVersion& version) {
  auto& holder = *static_cast<StorageHandle*>(version.holder);
  auto buffer = std::make_unique<ReplayedBuffer>();
  if (const auto stream = current_stream(holder.device)) {
    if (captures_graph(holder.device)) {
      return nullptr; // the copy would become part of the graph
    }
    // The program is about to write on this stream.
    const auto lock = lock_stream_uses(holder.device);
    holder.streams.used_by_replay(*stream, *stream, /*consumes=*/false);
    buffer->allocated_on = buffer->written_on = stream;
  }
  try {
    buffer->data = copy_bytes(holder.data, holder.nbytes);
    return buffer;
  } catch (const c10::OutOfMemoryError&) {
    return nullptr;
  }
}

} // namespace at::remat
