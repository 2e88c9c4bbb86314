// libnccl: its functions. What is called in a group is done when the group
// ends.
#include "Collective.h"
#include "EmulatedCuda.h"
#include "Reduction.h"

#include <algorithm>
#include <cstdio>
#include <deque>
#include <set>

using namespace emulated_cuda;

namespace {

using Kind = CollectiveCall::Kind;

struct ThreadState {
  int groups = 0; // open
  std::vector<CollectiveCall> calls; // in them
  ncclResult_t failed = ncclSuccess; // one of them
  std::string report; // why the last call failed
  ncclResult_t reported = ncclSuccess;
};
thread_local ThreadState state;

ncclResult_t fail(ncclResult_t result, std::string report) {
  state.report = "emulated NCCL: " + std::move(report);
  state.reported = result;
  return result;
}

ncclResult_t unsupported(const char* what) {
  const std::string text = std::string(what) + " is not supported";
  std::fprintf(stderr, "emulated NCCL: %s\n", text.c_str());
  return fail(ncclInvalidUsage, text);
}

bool same_collective(const CollectiveCall& a, const CollectiveCall& b) {
  return a.kind == b.kind && a.count == b.count && a.type == b.type &&
      a.op == b.op && a.root == b.root;
}

// The calls of one communicator, in the order in which they were made.
ncclResult_t run_on(
    const std::vector<int>& devices,
    const std::vector<CollectiveCall>& calls) {
  std::vector<std::deque<const CollectiveCall*>> by_rank(devices.size());
  for (const CollectiveCall& call : calls) {
    by_rank[call.comm->rank].push_back(&call);
  }
  const size_t most =
      std::max_element(
          by_rank.begin(),
          by_rank.end(),
          [](const auto& a, const auto& b) { return a.size() < b.size(); })
          ->size();
  for (size_t i = 0; i < most; ++i) {
    std::vector<CollectiveCall> together;
    for (const auto& queue : by_rank) {
      if (i < queue.size()) {
        together.push_back(*queue[i]);
      }
    }
    const std::string name = together[0].name;
    if (together.size() < devices.size()) {
      return fail(
          ncclInvalidUsage,
          name + " was called for " + std::to_string(together.size()) + " of " +
              std::to_string(devices.size()) +
              " devices in one group, and would wait for the others forever");
    }
    for (const CollectiveCall& call : together) {
      if (!same_collective(call, together[0])) {
        return fail(
            ncclInvalidUsage,
            name + " of device " + std::to_string(together[0].comm->device()) +
                " meets another call of device " +
                std::to_string(call.comm->device()));
      }
    }
    const std::string wrong = run_collective(together);
    if (!wrong.empty()) {
      return fail(ncclUnhandledCudaError, name + ": " + wrong);
    }
  }
  return ncclSuccess;
}

ncclResult_t run_all(const std::vector<CollectiveCall>& calls) {
  std::vector<const std::vector<int>*> order; // of communicators
  for (const CollectiveCall& call : calls) {
    const auto* devices = call.comm->devices.get();
    if (std::find(order.begin(), order.end(), devices) == order.end()) {
      order.push_back(devices);
    }
  }
  for (const auto* devices : order) {
    std::vector<CollectiveCall> own;
    for (const CollectiveCall& call : calls) {
      if (call.comm->devices.get() == devices) {
        own.push_back(call);
      }
    }
    if (const ncclResult_t result = run_on(*devices, own)) {
      return result;
    }
  }
  return ncclSuccess;
}

ncclResult_t check(const CollectiveCall& call) {
  const std::string name = call.name;
  if (call.comm == nullptr) {
    return fail(ncclInvalidArgument, name + " without a communicator");
  }
  if (size_of(call.type) == 0) {
    return fail(ncclInvalidArgument, name + " of an unknown data type");
  }
  if (call.op >= ncclNumOps) {
    return fail(ncclInvalidArgument, name + " with an operation of its own");
  }
  if (call.root >= static_cast<int>(call.comm->devices->size())) {
    return fail(ncclInvalidArgument, name + " has no such root");
  }
  if (emulatedCudaIsCapturing(call.stream) != 0) {
    const std::string reason = name + " during a capture";
    emulatedCudaInvalidateCapture(call.stream, reason.c_str());
    return unsupported(reason.c_str());
  }
  return ncclSuccess;
}

ncclResult_t add(const CollectiveCall& call) {
  if (const ncclResult_t result = check(call)) {
    state.failed = state.groups > 0 ? result : ncclSuccess;
    return result;
  }
  if (state.groups > 0) {
    state.calls.push_back(call);
    return ncclSuccess;
  }
  return run_all({call});
}

ncclResult_t init(ncclComm_t* comms, std::vector<int> devices) {
  int count = 0;
  cudaGetDeviceCount(&count);
  if (std::set<int>(devices.begin(), devices.end()).size() != devices.size()) {
    return fail(ncclInvalidUsage, "a device twice in a communicator");
  }
  for (const int device : devices) {
    if (device < 0 || device >= count) {
      return fail(
          ncclInvalidArgument, "there is no device " + std::to_string(device));
    }
  }
  const auto shared = std::make_shared<const std::vector<int>>(devices);
  for (size_t rank = 0; rank < devices.size(); ++rank) {
    comms[rank] = new ncclComm{shared, static_cast<int>(rank)};
  }
  return ncclSuccess;
}

} // namespace

extern "C" {

ncclResult_t ncclGetVersion(int* version) {
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  *id = {};
  return ncclSuccess;
}

ncclResult_t ncclCommInitAll(ncclComm_t* comms, int count, const int* devices) {
  std::vector<int> list;
  for (int i = 0; i < count; ++i) {
    list.push_back(devices == nullptr ? i : devices[i]);
  }
  return init(comms, list);
}

ncclResult_t ncclCommInitRank(ncclComm_t* comm, int ranks, ncclUniqueId, int) {
  if (ranks != 1) {
    return unsupported(
        "ncclCommInitRank (a communicator of several processes)");
  }
  int device = 0;
  cudaGetDevice(&device);
  return init(comm, {device});
}

ncclResult_t ncclCommInitRankConfig(
    ncclComm_t* comm,
    int ranks,
    ncclUniqueId id,
    int rank,
    ncclConfig_t*) {
  return ncclCommInitRank(comm, ranks, id, rank);
}

ncclResult_t ncclCommFinalize(ncclComm_t) {
  return ncclSuccess;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  delete comm;
  return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  return ncclCommDestroy(comm);
}

ncclResult_t ncclCommCount(const ncclComm_t comm, int* count) {
  *count = static_cast<int>(comm->devices->size());
  return ncclSuccess;
}

ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int* device) {
  *device = comm->device();
  return ncclSuccess;
}

ncclResult_t ncclCommUserRank(const ncclComm_t comm, int* rank) {
  *rank = comm->rank;
  return ncclSuccess;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t, ncclResult_t* error) {
  *error = ncclSuccess; // calls are done when they return
  return ncclSuccess;
}

const char* ncclGetErrorString(ncclResult_t result) {
  if (result != ncclSuccess && result == state.reported) {
    return state.report.c_str();
  }
  switch (result) {
  case ncclSuccess:
    return "no error";
  case ncclUnhandledCudaError:
    return "unhandled cuda error";
  case ncclSystemError:
    return "unhandled system error";
  case ncclInvalidArgument:
    return "invalid argument";
  case ncclInvalidUsage:
    return "invalid usage";
  case ncclRemoteError:
    return "remote process exited or there was a network error";
  case ncclInProgress:
    return "NCCL operation in progress";
  default:
    return "internal error";
  }
}

const char* ncclGetLastError(ncclComm_t) {
  return state.report.c_str();
}

ncclResult_t ncclGroupStart() {
  ++state.groups;
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
  if (state.groups == 0) {
    return fail(ncclInvalidUsage, "ncclGroupEnd without ncclGroupStart");
  }
  if (--state.groups > 0) {
    return ncclSuccess;
  }
  const auto calls = std::move(state.calls);
  state.calls.clear();
  const ncclResult_t failed = state.failed;
  state.failed = ncclSuccess;
  return failed != ncclSuccess ? failed : run_all(calls);
}

ncclResult_t ncclAllReduce(
    const void* send,
    void* receive,
    size_t count,
    ncclDataType_t type,
    ncclRedOp_t op,
    ncclComm_t comm,
    cudaStream_t stream) {
  return add(
      {Kind::AllReduce,
       __func__,
       comm,
       send,
       receive,
       count,
       type,
       op,
       -1,
       stream});
}

ncclResult_t ncclBroadcast(
    const void* send,
    void* receive,
    size_t count,
    ncclDataType_t type,
    int root,
    ncclComm_t comm,
    cudaStream_t stream) {
  return add(
      {Kind::Broadcast,
       __func__,
       comm,
       send,
       receive,
       count,
       type,
       ncclSum,
       root,
       stream});
}

ncclResult_t ncclBcast(
    void* buffer,
    size_t count,
    ncclDataType_t type,
    int root,
    ncclComm_t comm,
    cudaStream_t stream) {
  return ncclBroadcast(buffer, buffer, count, type, root, comm, stream);
}

ncclResult_t ncclReduce(
    const void* send,
    void* receive,
    size_t count,
    ncclDataType_t type,
    ncclRedOp_t op,
    int root,
    ncclComm_t comm,
    cudaStream_t stream) {
  return add(
      {Kind::Reduce,
       __func__,
       comm,
       send,
       receive,
       count,
       type,
       op,
       root,
       stream});
}

ncclResult_t ncclAllGather(
    const void* send,
    void* receive,
    size_t count,
    ncclDataType_t type,
    ncclComm_t comm,
    cudaStream_t stream) {
  return add(
      {Kind::AllGather,
       __func__,
       comm,
       send,
       receive,
       count,
       type,
       ncclSum,
       -1,
       stream});
}

ncclResult_t ncclReduceScatter(
    const void* send,
    void* receive,
    size_t count,
    ncclDataType_t type,
    ncclRedOp_t op,
    ncclComm_t comm,
    cudaStream_t stream) {
  return add(
      {Kind::ReduceScatter,
       __func__,
       comm,
       send,
       receive,
       count,
       type,
       op,
       -1,
       stream});
}

} // extern "C"

// Declared by nccl.h with other arguments, which do not matter.
#define STRING(name) #name
#define UNSUPPORTED_CALL(name)                                    \
  extern "C" ncclResult_t refused_##name(void) asm(STRING(name)); \
  extern "C" ncclResult_t refused_##name(void) {                  \
    return unsupported(#name);                                    \
  }

UNSUPPORTED_CALL(ncclCommDeregister)
UNSUPPORTED_CALL(ncclCommRegister)
UNSUPPORTED_CALL(ncclCommSplit)
UNSUPPORTED_CALL(ncclMemAlloc)
UNSUPPORTED_CALL(ncclMemFree)
UNSUPPORTED_CALL(ncclRecv)
UNSUPPORTED_CALL(ncclRedOpCreatePreMulSum)
UNSUPPORTED_CALL(ncclRedOpDestroy)
UNSUPPORTED_CALL(ncclSend)
