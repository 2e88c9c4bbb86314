#include "OpTraits.h"

#include <ATen/core/enum_tag.h>

#include <algorithm>
#include <array>
#include <memory>
#include <string_view>
#include <unordered_map>

namespace at::remat {

namespace {

// What schemas do not say about arguments that an op writes.
struct WriteRule {
  enum class Kind { SideEffect, WriteOnly, ReadAndWrite };
  std::string_view op;
  Kind kind;
  std::vector<std::string_view> args;
  std::string_view flag; // written only while it is true; empty: always
};

const std::vector<WriteRule>& write_rules() {
  constexpr auto kSideEffect = WriteRule::Kind::SideEffect;
  constexpr auto kWriteOnly = WriteRule::Kind::WriteOnly;
  constexpr auto kReadAndWrite = WriteRule::Kind::ReadAndWrite;
  const std::vector<std::string_view> running{"running_mean", "running_var"};
  static const std::vector<WriteRule> rules{
      {"aten::native_batch_norm", kSideEffect, running, "training"},
      {"aten::_native_batch_norm_legit", kSideEffect, running, "training"},
      {"aten::cudnn_batch_norm", kSideEffect, running, "training"},
      {"aten::miopen_batch_norm", kSideEffect, running, "training"},
      {"aten::batch_norm", kSideEffect, running, "training"},
      {"aten::_batch_norm_impl_index", kSideEffect, running, "training"},
      {"aten::_batch_norm_with_update", kSideEffect, running, ""},
      {"aten::instance_norm", kSideEffect, running, "use_input_stats"},
      {"aten::batch_norm_update_stats", kSideEffect, running, ""},
      {"aten::batch_norm_gather_stats", kSideEffect, running, ""},
      {"aten::batch_norm_gather_stats_with_counts", kSideEffect, running, ""},
      {"aten::rrelu_with_noise", kWriteOnly, {"noise"}, "training"},
      {"aten::rrelu_with_noise_", kWriteOnly, {"noise"}, "training"},
      {"aten::mkldnn_rnn_layer_backward", kReadAndWrite, {"workspace"}, ""},
      {"aten::_cudnn_rnn", kReadAndWrite, {"dropout_state"}, "train"},
      {"aten::_cudnn_rnn_backward", kReadAndWrite, {"reserve"}, ""},
  };
  return rules;
}

// In-place ops that do not read what they write over.
constexpr std::string_view kWriteOnly[] = {
    "aten::copy_",
    "aten::fill_",
    "aten::zero_",
    "aten::bernoulli_",
    "aten::uniform_",
    "aten::normal_",
    "aten::random_",
    "aten::exponential_",
    "aten::cauchy_",
    "aten::geometric_",
    "aten::log_normal_",
    "aten::_foreach_copy_",
    "aten::_foreach_zero_",
};

struct ArithmeticRule {
  std::string_view op;
  OpTraits::Arithmetic arithmetic;
  size_t first_factor;
};

constexpr ArithmeticRule kArithmeticRules[] = {
    {"aten::mm", OpTraits::Arithmetic::Product, 0},
    {"aten::bmm", OpTraits::Arithmetic::Product, 0},
    {"aten::mv", OpTraits::Arithmetic::Product, 0},
    {"aten::addmm", OpTraits::Arithmetic::Product, 1},
    {"aten::addmm_", OpTraits::Arithmetic::Product, 1},
    {"aten::_addmm_activation", OpTraits::Arithmetic::Product, 1},
    {"aten::addmv", OpTraits::Arithmetic::Product, 1},
    {"aten::addbmm", OpTraits::Arithmetic::Product, 1},
    {"aten::baddbmm", OpTraits::Arithmetic::Product, 1},
    {"aten::baddbmm_", OpTraits::Arithmetic::Product, 1},
    {"aten::convolution", OpTraits::Arithmetic::Convolution, 0},
    {"aten::_convolution", OpTraits::Arithmetic::Convolution, 0},
    {"aten::cudnn_convolution", OpTraits::Arithmetic::Convolution, 0},
    {"aten::_scaled_dot_product_flash_attention",
     OpTraits::Arithmetic::Attention,
     0},
    {"aten::_scaled_dot_product_efficient_attention",
     OpTraits::Arithmetic::Attention,
     0},
    {"aten::_scaled_dot_product_cudnn_attention",
     OpTraits::Arithmetic::Attention,
     0},
    {"aten::_cudnn_rnn", OpTraits::Arithmetic::Recurrence, 0},
};

// Never replayed, whatever their schema says.
const char* reason_by_name(std::string_view name) {
  const auto has_prefix = [&](std::string_view prefix) {
    return name.substr(0, prefix.size()) == prefix;
  };
  if (has_prefix("c10d::") || has_prefix("_c10d_functional") ||
      has_prefix("_dtensor::")) {
    return "collective";
  }
  if (has_prefix("profiler::") || has_prefix("rpc::")) {
    return "side effect";
  }
  if (has_prefix("quantized::") || has_prefix("mkldnn_prepacked::") ||
      has_prefix("prepacked::") || has_prefix("aten::fbgemm_")) {
    return "opaque argument";
  }
  return nullptr;
}

bool is_tensor_type(const c10::TypePtr& type) {
  if (type->kind() == c10::TypeKind::TensorType) {
    return true;
  }
  const auto optional = type->cast<c10::OptionalType>();
  return optional && is_tensor_type(optional->getElementType());
}

bool is_tensor_list_type(const c10::TypePtr& type) {
  if (const auto optional = type->cast<c10::OptionalType>()) {
    return is_tensor_list_type(optional->getElementType());
  }
  const auto list = type->cast<c10::ListType>();
  return list && is_tensor_type(list->getElementType());
}

bool may_hold_tensors(const c10::TypePtr& type) {
  const auto contained = type->containedTypes();
  return is_tensor_type(type) || type->kind() == c10::TypeKind::AnyType ||
      std::any_of(contained.begin(), contained.end(), &may_hold_tensors);
}

bool is_generator_type(const c10::TypePtr& type) {
  if (const auto optional = type->cast<c10::OptionalType>()) {
    return is_generator_type(optional->getElementType());
  }
  return type->kind() == c10::TypeKind::GeneratorType;
}

bool is_device_type(const c10::TypePtr& type) {
  if (const auto optional = type->cast<c10::OptionalType>()) {
    return is_device_type(optional->getElementType());
  }
  return type->kind() == c10::TypeKind::DeviceObjType;
}

std::unique_ptr<OpTraits> make_traits(const c10::OperatorHandle& op) {
  auto traits = std::make_unique<OpTraits>();
  const c10::FunctionSchema& schema = op.schema();
  traits->name = schema.name();
  traits->is_aten = traits->name.compare(0, 6, "aten::") == 0;
  traits->not_replayable = reason_by_name(traits->name);
  traits->is_copy =
      traits->name == "aten::_to_copy" || traits->name == "aten::copy_";
  traits->records_stream = traits->name == "aten::record_stream";
  traits->keeps_inputs = traits->not_replayable != nullptr &&
      std::string_view(traits->not_replayable) == "collective";
  const bool write_only =
      std::find(std::begin(kWriteOnly), std::end(kWriteOnly), traits->name) !=
      std::end(kWriteOnly);

  for (const ArithmeticRule& rule : kArithmeticRules) {
    if (rule.op == traits->name) {
      traits->arithmetic = rule.arithmetic;
      traits->first_factor = rule.first_factor;
    }
  }

  bool writes = false;
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    const c10::Argument& argument = schema.arguments()[i];
    OpTraits::Arg arg;
    if (is_tensor_type(argument.type())) {
      arg.kind = OpTraits::ArgKind::Tensor;
    } else if (is_tensor_list_type(argument.type())) {
      arg.kind = OpTraits::ArgKind::TensorList;
    } else if (is_generator_type(argument.type())) {
      traits->generator_arg = static_cast<int>(i);
    } else if (is_device_type(argument.type())) {
      traits->device_arg = static_cast<int>(i);
    } else if (may_hold_tensors(argument.type())) {
      arg.kind = OpTraits::ArgKind::Nested;
    }
    if (argument.alias_info() != nullptr && argument.alias_info()->isWrite()) {
      arg.written = true;
      arg.write_only = argument.is_out() || (write_only && i == 0);
      writes = true;
    }
    traits->args.push_back(arg);
  }

  for (const WriteRule& rule : write_rules()) {
    if (rule.op != traits->name) {
      continue;
    }
    for (size_t i = 0; i < schema.arguments().size(); ++i) {
      const std::string& name = schema.arguments()[i].name();
      if (std::find(rule.args.begin(), rule.args.end(), name) !=
          rule.args.end()) {
        OpTraits::Arg& arg = traits->args[i];
        arg.written = true;
        arg.side_effect = rule.kind == WriteRule::Kind::SideEffect;
        arg.write_only = rule.kind == WriteRule::Kind::WriteOnly;
        arg.conditional = !rule.flag.empty();
        writes = true;
      }
      if (!rule.flag.empty() && name == rule.flag) {
        traits->write_flag = static_cast<int>(i);
      }
    }
  }

  // Ops that change a tensor in place but no bytes (transpose_, set_). Only
  // resizing may look at the bytes: it moves them to a larger block.
  const bool changes_metadata_only = op.hasTag(at::Tag::inplace_view) ||
      traits->name == "aten::set_" || traits->name == "aten::resize_" ||
      traits->name == "aten::resize_as_";
  if (changes_metadata_only) {
    for (OpTraits::Arg& arg : traits->args) {
      arg.written = false;
    }
    traits->is_uninitialized = true;
  }

  const auto& returns = schema.returns();
  const bool all_alias = !returns.empty() &&
      std::all_of(returns.begin(), returns.end(), [](const auto& result) {
        return result.alias_info() != nullptr;
      });
  // Composite ops that return an alias may copy instead (contiguous, to).
  traits->is_view = all_alias && (!writes || changes_metadata_only) &&
      traits->name.rfind("aten::resize_", 0) != 0 &&
      !op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd);
  const std::string_view base(traits->name);
  traits->is_uninitialized = traits->is_uninitialized ||
      base.rfind("aten::empty", 0) == 0 ||
      base.rfind("aten::new_empty", 0) == 0 ||
      base.rfind("aten::_empty", 0) == 0;
  traits->draws_random_numbers =
      op.hasTag(at::Tag::nondeterministic_seeded) || traits->generator_arg >= 0;
  return traits;
}

} // namespace

std::mutex& OpTraits::mutex() {
  static std::mutex mutex;
  return mutex;
}

const OpTraits& OpTraits::of(const c10::OperatorHandle& op) {
  // A schema lives as long as its operator is registered. A library that is
  // unloaded may leave an entry for an address that another op gets later, so
  // the name is compared too.
  const c10::FunctionSchema& schema = op.schema();
  const auto is_for_op = [&](const OpTraits* traits) {
    return traits != nullptr && traits->name == schema.name() &&
        traits->args.size() == schema.arguments().size();
  };
  struct Recent {
    const void* schema = nullptr;
    const OpTraits* traits = nullptr;
  };
  constexpr size_t kRecent = 256;
  thread_local std::array<Recent, kRecent> recents;
  Recent& recent =
      recents[(reinterpret_cast<uintptr_t>(&schema) >> 6) % kRecent];
  if (recent.schema == &schema && is_for_op(recent.traits)) {
    return *recent.traits;
  }
  static auto* all = new std::unordered_map<const void*, const OpTraits*>;
  const std::lock_guard<std::mutex> lock(mutex());
  const OpTraits*& entry = (*all)[&schema];
  if (!is_for_op(entry)) {
    entry = make_traits(op).release(); // what was there may be in use
  }
  recent = {&schema, entry};
  return *entry;
}

} // namespace at::remat
