#pragma once

#include "Nccl.h"

#include <memory>
#include <string>
#include <vector>

// One device's end of a communicator.
struct ncclComm {
  std::shared_ptr<const std::vector<int>> devices; // by rank
  int rank;

  int device() const {
    return (*devices)[rank];
  }
};

namespace emulated_cuda {

// What one device was told to do.
struct CollectiveCall {
  enum class Kind { AllReduce, Broadcast, Reduce, AllGather, ReduceScatter };
  Kind kind;
  const char* name; // of the function that was called
  ncclComm_t comm;
  const void* send;
  void* receive;
  size_t count; // as the function counts
  ncclDataType_t type;
  ncclRedOp_t op;
  int root; // -1: there is none
  cudaStream_t stream;
};

// Runs calls that belong together, one of each rank, by rank. Each rank's
// stream reads what it sends; whoever receives then waits for those it receives
// from, and for nothing else. Returns what is wrong; empty: nothing is.
std::string run_collective(const std::vector<CollectiveCall>& calls);

} // namespace emulated_cuda
