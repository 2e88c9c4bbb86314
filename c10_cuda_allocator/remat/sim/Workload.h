#pragma once

#include "../Export.h"
#include "../Ids.h"

#include <cstdint>
#include <string>
#include <vector>

namespace c10::remat {

// A program to simulate: what allocates, computes, reads and lets go, in
// order. Tensors name storages; several may share one.
struct REMAT_API Workload {
  using Tensor = uint32_t;
  using Storage = uint32_t;

  struct Overwrite {
    uint32_t input;
    uint32_t output;
  };

  struct Step {
    enum class Kind {
      Constant, // tensor: comes from outside, nothing can make it again
      Op, // name, cost, inputs, outputs, overwrites
      Retain, // tensor: the program has one more reference to it
      Release, // tensor: one less; with the last one its storage dies
      Access, // tensor: read outside any op
      LeafWrite, // tensor: its bytes are about to change
      ParameterWrite, // the same, by the optimizer
    };
    Kind kind = Kind::Op;
    Tensor tensor = 0;
    std::string name;
    CostNs cost = 0;
    std::vector<Tensor> inputs;
    std::vector<Tensor> outputs; // of which the program has a reference each
    // The output takes the input's bytes, and the input's last reference goes.
    std::vector<Overwrite> overwrites;
    bool is_recorded = true; // it can be replayed
  };

  std::string name;
  std::vector<Storage> storage_of; // by tensor
  std::vector<Bytes> size_of; // by storage
  std::vector<Step> steps;
  // What the program still holds at the end must be resident then.
  bool ends_resident = false;

  Storage add_storage(Bytes size);
  Tensor add_tensor(Storage storage);

  // Recompute cost of all ops.
  CostNs cost() const;
  // Most bytes at a time if nothing is evicted and all that dies is freed.
  Bytes peak() const;
};

// The same so many times over. At the end of each, what it made and still holds
// is read if it has to be resident then, and let go; what comes from outside
// stays until the end, and is updated as parameters are.
REMAT_API Workload repeated(const Workload& workload, size_t times);

// Reads a trace of either format; see Trace.h and SimrdLog.h. Throws
// UsageError if there is no such file, TraceError if it is not a trace.
REMAT_API Workload read_workload(const std::string& path);

} // namespace c10::remat
