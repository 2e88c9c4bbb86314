#pragma once

#include "../RematMode.h"
#include "../replay/OpCallRecord.h"
#include "Guests.h"
#include "OpStopwatch.h"
#include "OpTraits.h"

#include <c10/remat/DeviceMemory.h>
#include <c10/util/SmallVector.h>

#include <memory>

namespace at::remat {

// One op on its way through capture: what it reads and writes, the record
// being made, and the report to the engine.
class OpCall {
 public:
  // Looks at the arguments on top of `stack`; all must outlive the call.
  OpCall(
      const c10::OperatorHandle& op,
      const OpTraits& traits,
      c10::DispatchKeySet key_set,
      c10::Device device,
      torch::jit::Stack& stack);

  // Of what the kernel allocates. Gradients are leaves, but in the backward
  // pass they take the place of the activations that they are made from, size
  // for size, and are gone before memory is short again.
  c10::remat::Placement placement() const {
    return record_ || declined_ == kGradient ? c10::remat::Placement::Evictable
                                             : c10::remat::Placement::Leaf;
  }

  // Of that. Known once it has begun.
  const c10::remat::PlacementPlan& placement_plan() const {
    return placement_plan_;
  }

  const char* name() const;
  // Of the storages on the op's device that it was given.
  c10::remat::Bytes operand_bytes() const;

  // Exactly one `end` or `abort` follows a `begin` that returned.
  void begin();
  void end();
  void abort();

 private:
  static constexpr char kGradient[] = "gradient"; // a reason to decline

  // A storage among the arguments. Unmanaged ones have no handle.
  struct Operand {
    c10::StorageImpl* storage;
    StorageHandle* handle;
    int32_t input = -1; // index into read_ and inputs_
    int32_t write = -1; // index into writes_
    uint32_t ref = 0; // index into the record's storages
    bool is_written = false;
  };

  void scan_arguments(size_t first);
  void visit(const at::Tensor& tensor, const OpTraits::Arg& arg);
  void visit_opaque(const at::Tensor& tensor);
  bool is_guest(const Operand& operand) const;
  Operand& operand_of(c10::StorageImpl& storage);
  void read(Operand& operand);
  void write(Operand& operand, bool overwrites_all, bool side_effect);
  void add_tensor_ref(
      const at::Tensor& tensor,
      const OpTraits::Arg& arg,
      const Operand& operand);
  bool writes_now(const OpTraits::Arg& arg, size_t first) const;
  void decline(const char* reason);

  void collect_fresh_outputs();
  void note_result(const at::Tensor& tensor, uint32_t result, int32_t element);
  void drop_replaced();
  void name_overwritten_outputs();
  bool is_operand_of_outer_op(const c10::StorageImpl& storage) const;
  void keep_inputs_for_good();
  void begin_home();
  void end_home();
  void keep_for_graph();
  friend int own_ops_on(const Engine& engine);
  void note_streams();

  const c10::OperatorHandle& op_;
  const OpTraits& traits_;
  const c10::Device device_; // that the op runs on
  ManagedDevice* const home_; // null: that is not managed
  Engine* const engine_; // its engine
  torch::jit::Stack& stack_;
  std::shared_ptr<OpCallRecord> record_; // null: not replayable
  const char* declined_ = nullptr; // why
  const char* not_replayable_ = nullptr; // the same, if results become leaves
  OpCall* outer_ = nullptr; // the op whose kernel called this one
  bool is_nested_;
  bool is_captured_ = false; // into a CUDA graph
  c10::SmallVector<Operand, 4> operands_;
  c10::SmallVector<const c10::TensorImpl*, 4> seen_tensors_;
  c10::SmallVector<StorageHandle*, 4> read_;
  c10::SmallVector<StorageHandle*, 1> written_;
  c10::SmallVector<StorageHandle*, 1> fresh_;
  c10::remat::VersionIds inputs_; // of read_, from begin on
  c10::remat::Writes writes_;
  c10::remat::PlacementPlan placement_plan_;
  uint64_t signature_ = 0;
  Guests guests_;
  OpStopwatch stopwatch_;
};

// Ops that this thread is running and has told `engine` of.
int own_ops_on(const Engine& engine);

} // namespace at::remat
