#pragma once

#include "../capture/StorageHandle.h"
#include "OpCallRecord.h"

namespace at::remat {

// Runs op records again through the dispatcher, below autograd and autocast
// and out of sight of the program's dispatch modes and profilers.
class DispatchReplayer final : public c10::remat::ReplayPort {
 public:
  std::vector<std::unique_ptr<c10::remat::Buffer>> replay(
      const c10::remat::ReplayRequest& request) override;
  std::unique_ptr<c10::remat::Buffer> copy(
      const c10::remat::StorageVersion& version) override;
};

} // namespace at::remat
