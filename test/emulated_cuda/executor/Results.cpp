#include "Results.h"

#include <ATen/ops/empty_strided.h>

#include <cstring>

namespace emulated_cuda {

c10::IValue Results::to_cuda(const c10::IValue& value) {
  if (value.isTensor()) {
    return to_cuda(value.toTensor());
  }
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& tensor : value.toTensorVector()) {
      list.push_back(to_cuda(tensor));
    }
    return list;
  }
  return value;
}

at::Tensor Results::to_cuda(const at::Tensor& result) {
  if (!result.defined() || result.device().type() != aliases_.device()) {
    return result;
  }
  if (at::Tensor original = aliases_.original_of(result); original.defined()) {
    return original;
  }
  if (at::Tensor view = aliases_.view_for(result); view.defined()) {
    return view;
  }
  for (size_t i = 0; i < sources_.size(); ++i) {
    if (sources_[i].is_same(result)) {
      return fresh_[i];
    }
  }
  at::Tensor fresh = at::empty_strided(
      result.sizes(),
      result.strides(),
      result.options().device(c10::kCUDA, device_));
  fresh._set_conj(result.is_conj());
  fresh._set_neg(result.is_neg());
  fresh_.push_back(fresh);
  sources_.push_back(result);
  return fresh;
}

void Results::copy_bytes() const {
  for (size_t i = 0; i < fresh_.size(); ++i) {
    const Extent to = extent_of(fresh_[i]);
    if (to.size > 0) {
      std::memcpy(to.begin, extent_of(sources_[i]).begin, to.size);
    }
  }
}

} // namespace emulated_cuda
