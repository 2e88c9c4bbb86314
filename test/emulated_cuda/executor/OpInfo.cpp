#include "Executor.h"

#include <algorithm>
#include <mutex>
#include <unordered_map>
#include <unordered_set>

namespace emulated_cuda {

namespace {

// Arguments that are written although the schema does not say so.
const std::unordered_map<std::string, std::unordered_set<std::string>>&
hidden_writes() {
  static const auto* writes =
      new std::unordered_map<std::string, std::unordered_set<std::string>>{
          {"aten::native_batch_norm", {"running_mean", "running_var"}},
          {"aten::cudnn_batch_norm", {"running_mean", "running_var"}},
          {"aten::batch_norm_update_stats", {"running_mean", "running_var"}},
          {"aten::batch_norm_gather_stats", {"running_mean", "running_var"}},
          {"aten::batch_norm_gather_stats_with_counts",
           {"running_mean", "running_var"}},
          {"aten::_cudnn_rnn", {"dropout_state"}},
      };
  return *writes;
}

const std::unordered_set<std::string>& takes_host_tensors() {
  static const auto* names = new std::unordered_set<std::string>{
      "aten::copy_",
      "aten::index.Tensor",
      "aten::index.Tensor_out",
      "aten::_index_put_impl_",
      "aten::_amp_update_scale_",
      "aten::_cudnn_rnn",
      "aten::_cudnn_rnn_backward",
      "aten::_use_cudnn_ctc_loss",
      "aten::_use_cudnn_ctc_loss.Tensor",
      "aten::repeat_interleave.Tensor",
  };
  return *names;
}

OpInfo make(const c10::OperatorHandle& op) {
  OpInfo info;
  const auto& schema = op.schema();
  info.name = schema.operator_name().name +
      (schema.overload_name().empty() ? "" : "." + schema.overload_name());
  info.substitute = substitute_for(info.name);
  info.takes_host_tensors = takes_host_tensors().count(info.name) != 0;
  const auto hidden = hidden_writes().find(info.name);
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    const auto& argument = schema.arguments()[i];
    const auto* alias = argument.alias_info();
    const bool writes = (alias != nullptr && alias->isWrite()) ||
        (hidden != hidden_writes().end() &&
         hidden->second.count(argument.name()) != 0);
    info.writes.push_back(writes);
    info.writes_any |= writes;
    if (argument.type()->str().find("Generator") != std::string::npos) {
      info.generator_arg = static_cast<int>(i);
    }
  }
  const auto& tags = op.getTags();
  const auto has = [&](at::Tag tag) {
    return std::find(tags.begin(), tags.end(), tag) != tags.end();
  };
  info.is_random = info.generator_arg >= 0 ||
      has(at::Tag::nondeterministic_seeded) ||
      info.name == "aten::_fused_dropout" ||
      info.name == "aten::_scaled_dot_product_cudnn_attention" ||
      info.name == "aten::_scaled_dot_product_efficient_attention" ||
      info.name == "aten::_scaled_dot_product_flash_attention";
  info.waits =
      has(at::Tag::dynamic_output_shape) || has(at::Tag::data_dependent_output);
  for (const auto& result : schema.returns()) {
    const std::string type = result.type()->str();
    info.waits |= type == "bool" || type == "Scalar" || type == "float";
  }
  return info;
}

} // namespace

const OpInfo& OpInfo::of(const c10::OperatorHandle& op) {
  static std::mutex mutex;
  static auto* infos = new std::unordered_map<const void*, OpInfo>;
  const std::lock_guard<std::mutex> lock(mutex);
  const void* key = &op.schema();
  const auto it = infos->find(key);
  return it != infos->end() ? it->second
                            : infos->emplace(key, make(op)).first->second;
}

at::PhiloxCudaState take_random_state(
    const OpInfo& info,
    const torch::jit::Stack& stack,
    size_t first,
    c10::DeviceIndex device) {
  if (!info.is_random) {
    return {};
  }
  std::optional<at::Generator> given;
  if (info.generator_arg >= 0) {
    given = stack[first + info.generator_arg].toOptional<at::Generator>();
  }
  return take_random_state(given, device);
}

} // namespace emulated_cuda
