#include <torch/library.h>

namespace at::remat {

namespace {

// Note [Composite ops that read]
// Composite ops run above capture and are seen as the ops that they call. The
// few that read an argument's bytes themselves, through a pointer to const that
// no page fault covers, pass autograd and come to capture as one op; the ops
// inside still build the graph. Those that hold on to what they read but ask
// for a pointer to non-const (lstm, pad_packed_sequence) need nothing: the
// page fault makes those bytes stay.
TORCH_LIBRARY_IMPL(aten, AutogradCPU, m) {
  for (const char* name :
       {"choose_qparams_optimized",
        "ctc_loss.Tensor",
        "fbgemm_linear_fp16_weight",
        "fbgemm_linear_fp16_weight_fp32_activation",
        "fbgemm_linear_int8_weight",
        "fbgemm_linear_int8_weight_fp32_activation",
        "fbgemm_pack_quantized_matrix",
        "fbgemm_pack_quantized_matrix.KN",
        "nanmean.out",
        "tensor_split.tensor_indices_or_sections"}) {
    m.impl(name, torch::CppFunction::makeFallthrough());
  }
}

} // namespace

} // namespace at::remat
