#pragma once

#include "Memory.h"
#include "Order.h"

#include <atomic>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

namespace emulated_cuda {

// Work that was captured instead of done.
struct GraphNode {
  GraphNode(
      void (*run)(void*, cudaStream_t),
      void (*destroy)(void*),
      void* closure)
      : run(run), destroy(destroy), closure(closure) {}
  ~GraphNode() {
    destroy(closure);
  }
  GraphNode(const GraphNode&) = delete;
  GraphNode& operator=(const GraphNode&) = delete;

  void (*run)(void*, cudaStream_t);
  void (*destroy)(void*);
  void* closure;
};

// A capture under way.
struct Capture {
  uint64_t id = 0;
  cudaStream_t origin = nullptr;
  cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
  std::thread::id thread; // that began it
  std::vector<std::shared_ptr<GraphNode>> nodes;
  std::string invalid; // why it cannot be ended; empty: it can
};

} // namespace emulated_cuda

// CUDA's opaque types.
struct CUstream_st {
  int device;
  int number; // of all streams of all devices
  int priority;
  unsigned flags;
  emulated_cuda::Clock clock; // what work on it knows
  double now_ns = 0; // when its last work ends
  int queries_left = 0; // that answer "not ready" before it is noticed
  std::shared_ptr<emulated_cuda::Capture> capture;

  bool is_blocking() const {
    return (flags & cudaStreamNonBlocking) == 0;
  }
};

struct CUevent_st {
  int device;
  unsigned flags;
  bool recorded = false;
  emulated_cuda::Clock clock;
  double at_ns = 0;
  int queries_left = 0;
  std::shared_ptr<emulated_cuda::Capture> capture;
};

struct CUgraph_st {
  std::vector<std::shared_ptr<emulated_cuda::GraphNode>> nodes;
};

struct CUgraphExec_st {
  std::vector<std::shared_ptr<emulated_cuda::GraphNode>> nodes;
};

namespace emulated_cuda {

// The emulated devices of this process.
//
// Work is done on the host, in the order in which it is launched, before the
// launch returns. That is one of the orders that the streams allow; whether
// the program relies on it without having said so is what the clocks find out.
class Machine {
 public:
  static Machine& get();

  std::mutex mutex; // guards everything below, and `memory`
  Memory memory;

  // The stream that `handle` means; null means the current device's default
  // stream. Null if there is no such stream.
  CUstream_st* stream(cudaStream_t handle);
  CUstream_st* default_stream(int device) {
    return default_streams_[device].get();
  }
  cudaError_t create_stream(unsigned flags, int priority, cudaStream_t* out);
  cudaError_t destroy_stream(cudaStream_t stream);

  // Work by the name of `name` starts on `stream`; see emulatedCudaLaunch.
  cudaError_t launch(
      CUstream_st& stream,
      const std::string& name,
      const EmulatedAccess* accesses,
      size_t count);
  void elapse(CUstream_st& stream, double ns);
  // Who used these bytes does not matter any more.
  void forget(const void* address, size_t size) {
    const auto begin = reinterpret_cast<uintptr_t>(address);
    history_.forget(begin, begin + size);
  }

  void record(CUevent_st& event, CUstream_st& stream);
  cudaError_t wait(CUstream_st& stream, const CUevent_st& event);
  cudaError_t query(CUevent_st& event);
  cudaError_t query(CUstream_st& stream);
  cudaError_t synchronize(const CUevent_st& event);
  void synchronize(CUstream_st& stream);
  void synchronize_device(int device);

  cudaError_t begin_capture(CUstream_st& stream, cudaStreamCaptureMode mode);
  cudaError_t end_capture(CUstream_st& stream, cudaGraph_t* graph);
  // While this thread captures, or another in global mode, `function` is
  // unsafe: invalidates the capture and returns an error.
  cudaError_t forbid_in_capture(const char* function);

  double host_ns();
  // The host is busy for so long, in timing mode.
  void busy_host(double ns) {
    host_ns_ += ns;
  }

 private:
  Machine();
  // Takes part in the rules of the legacy default stream, before and after
  // something is enqueued on `stream`.
  void order_with_default(CUstream_st& stream);
  // Of what a capture cannot have.
  cudaError_t begin_launch(CUstream_st& stream, const char* what);
  void begin_work(CUstream_st& stream);
  void leave_capture(const std::shared_ptr<Capture>& capture);

  std::vector<std::unique_ptr<CUstream_st>> default_streams_; // by device
  std::set<CUstream_st*> streams_;
  // What destroyed streams had been given to do, by device.
  struct Ended {
    Clock clock;
    double at_ns = 0;
  };
  std::vector<Ended> ended_;
  int streams_made_ = 0;
  AccessHistory history_;
  Clock host_; // what the host has waited for
  double host_ns_ = 0; // in timing mode
  uint64_t captures_made_ = 0;
  std::vector<std::shared_ptr<Capture>> captures_;
};

// This thread's state.
struct ThreadState {
  int device = 0;
  cudaError_t last_error = cudaSuccess;
  cudaStreamCaptureMode capture_mode = cudaStreamCaptureModeGlobal;
  bool is_replaying = false; // within cudaGraphLaunch
  // What was wrong when the call that returned `reported` failed.
  std::string report;
  cudaError_t reported = cudaSuccess;
};
ThreadState& this_thread();

// Remembers `error` as CUDA does, for cudaGetLastError, and returns it.
// The report says what CUDA's own text for the error does not.
cudaError_t fail(cudaError_t error, std::string report = "");
// `function` is not emulated: says so once on stderr.
cudaError_t unsupported(const char* function);

} // namespace emulated_cuda
