// cudart: streams, events, captures and graphs.
#include "Machine.h"

#include <algorithm>
#include <mutex>

using namespace emulated_cuda;

namespace {

using Lock = std::lock_guard<std::mutex>;

constexpr int kGreatestPriority = -5;

// Calls `function(machine, stream)` under the lock.
template <class Function>
cudaError_t on_stream(cudaStream_t handle, Function&& function) {
  Machine& machine = Machine::get();
  const Lock lock(machine.mutex);
  CUstream_st* stream = machine.stream(handle);
  return stream == nullptr ? fail(cudaErrorInvalidResourceHandle)
                           : function(machine, *stream);
}

// The same for what the host may not do while `stream` is captured.
template <class Function>
cudaError_t on_stream_of_host(
    const char* name,
    cudaStream_t handle,
    Function&& function) {
  return on_stream(handle, [&](Machine& machine, CUstream_st& stream) {
    if (stream.capture != nullptr) {
      stream.capture->invalid =
          std::string(name) + " of a stream that is captured";
      return fail(cudaErrorStreamCaptureUnsupported, stream.capture->invalid);
    }
    const cudaError_t error = machine.forbid_in_capture(name);
    return error != cudaSuccess ? error : function(machine, stream);
  });
}

// The nodes of a graph run; they may throw.
class Replay {
 public:
  Replay() : error_before_(this_thread().last_error) {
    this_thread().is_replaying = true;
    this_thread().last_error = cudaSuccess;
  }
  ~Replay() {
    this_thread().is_replaying = false;
    if (this_thread().last_error == cudaSuccess) {
      this_thread().last_error = error_before_;
    }
  }
  Replay(const Replay&) = delete;
  Replay& operator=(const Replay&) = delete;

 private:
  cudaError_t error_before_;
};

} // namespace

extern "C" {

// --- streams

cudaError_t cudaStreamCreateWithPriority(
    cudaStream_t* stream,
    unsigned flags,
    int priority) {
  const Lock lock(Machine::get().mutex);
  priority = std::min(std::max(priority, kGreatestPriority), 0);
  return Machine::get().create_stream(flags, priority, stream);
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  return cudaStreamCreateWithPriority(stream, flags, 0);
}

cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  return cudaStreamCreateWithPriority(stream, cudaStreamDefault, 0);
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  const Lock lock(Machine::get().mutex);
  return Machine::get().destroy_stream(stream);
}

cudaError_t cudaStreamGetPriority(cudaStream_t handle, int* priority) {
  return on_stream(handle, [&](Machine&, CUstream_st& stream) {
    *priority = stream.priority;
    return cudaSuccess;
  });
}

cudaError_t cudaStreamGetFlags(cudaStream_t handle, unsigned* flags) {
  return on_stream(handle, [&](Machine&, CUstream_st& stream) {
    *flags = stream.flags;
    return cudaSuccess;
  });
}

cudaError_t cudaStreamQuery(cudaStream_t handle) {
  return on_stream_of_host(
      "cudaStreamQuery", handle, [](Machine& machine, CUstream_st& stream) {
        return machine.query(stream);
      });
}

cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
  return on_stream_of_host(
      "cudaStreamSynchronize",
      handle,
      [](Machine& machine, CUstream_st& stream) {
        machine.synchronize(stream);
        return cudaSuccess;
      });
}

cudaError_t cudaDeviceSynchronize(void) {
  return on_stream_of_host(
      "cudaDeviceSynchronize", nullptr, [](Machine& machine, CUstream_st&) {
        machine.synchronize_device(this_thread().device);
        return cudaSuccess;
      });
}

// The work of a stream is done when it is launched, so the host's turn has
// come.
cudaError_t cudaLaunchHostFunc(
    cudaStream_t handle,
    cudaHostFn_t function,
    void* argument) {
  const cudaError_t error =
      on_stream(handle, [](Machine& machine, CUstream_st& stream) {
        return machine.launch(stream, "a host function", nullptr, 0);
      });
  if (error == cudaSuccess) {
    function(argument);
  }
  return error;
}

cudaError_t cudaStreamAddCallback(
    cudaStream_t stream,
    cudaStreamCallback_t callback,
    void* argument,
    unsigned) {
  const cudaError_t error = cudaLaunchHostFunc(
      stream, [](void*) {}, nullptr);
  if (error == cudaSuccess) {
    callback(stream, cudaSuccess, argument);
  }
  return error;
}

// --- events

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  *event = new CUevent_st{this_thread().device, flags};
  return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t* event) {
  return cudaEventCreateWithFlags(event, cudaEventDefault);
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t handle) {
  return on_stream(handle, [&](Machine& machine, CUstream_st& stream) {
    if (event->device != stream.device) {
      return fail(
          cudaErrorInvalidResourceHandle,
          "an event is recorded on a stream of another device");
    }
    machine.record(*event, stream);
    return cudaSuccess;
  });
}

cudaError_t cudaEventRecordWithFlags(
    cudaEvent_t event,
    cudaStream_t stream,
    unsigned) {
  return cudaEventRecord(event, stream);
}

cudaError_t cudaStreamWaitEvent(
    cudaStream_t handle,
    cudaEvent_t event,
    unsigned) {
  return on_stream(handle, [&](Machine& machine, CUstream_st& stream) {
    return machine.wait(stream, *event);
  });
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  Machine& machine = Machine::get();
  const Lock lock(machine.mutex);
  const cudaError_t error = machine.forbid_in_capture("cudaEventQuery");
  return error != cudaSuccess ? error : machine.query(*event);
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  Machine& machine = Machine::get();
  const Lock lock(machine.mutex);
  if (const auto error = machine.forbid_in_capture("cudaEventSynchronize")) {
    return error;
  }
  return machine.synchronize(*event);
}

cudaError_t cudaEventElapsedTime(
    float* ms,
    cudaEvent_t start,
    cudaEvent_t end) {
  Machine& machine = Machine::get();
  const Lock lock(machine.mutex);
  if (!start->recorded || !end->recorded ||
      ((start->flags | end->flags) & cudaEventDisableTiming) != 0) {
    return fail(cudaErrorInvalidResourceHandle);
  }
  for (cudaEvent_t event : {start, end}) {
    if (const auto error = machine.query(*event)) {
      return error;
    }
  }
  *ms = static_cast<float>((end->at_ns - start->at_ns) / 1e6);
  return cudaSuccess;
}

// --- what the executor calls

cudaError_t emulatedCudaLaunch(
    cudaStream_t handle,
    const char* name,
    const EmulatedAccess* accesses,
    size_t count) {
  return on_stream(handle, [&](Machine& machine, CUstream_st& stream) {
    return machine.launch(stream, name, accesses, count);
  });
}

void emulatedCudaElapse(cudaStream_t handle, double ns) {
  on_stream(handle, [&](Machine& machine, CUstream_st& stream) {
    machine.elapse(stream, ns);
    return cudaSuccess;
  });
}

int emulatedCudaIsCapturing(cudaStream_t handle) {
  bool result = false;
  on_stream(handle, [&](Machine&, CUstream_st& stream) {
    result = stream.capture != nullptr;
    return cudaSuccess;
  });
  return result ? 1 : 0;
}

cudaError_t emulatedCudaCapture(
    cudaStream_t handle,
    void (*run)(void*, cudaStream_t),
    void (*destroy)(void*),
    void* closure) {
  return on_stream(handle, [&](Machine&, CUstream_st& stream) {
    if (stream.capture == nullptr) {
      return fail(cudaErrorIllegalState);
    }
    stream.capture->nodes.push_back(
        std::make_shared<GraphNode>(run, destroy, closure));
    return cudaSuccess;
  });
}

void emulatedCudaInvalidateCapture(cudaStream_t handle, const char* reason) {
  on_stream(handle, [&](Machine&, CUstream_st& stream) {
    if (stream.capture != nullptr) {
      stream.capture->invalid = reason;
    }
    return cudaSuccess;
  });
}

// --- captures and graphs

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  std::swap(*mode, this_thread().capture_mode);
  return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(
    cudaStream_t handle,
    cudaStreamCaptureMode mode) {
  return on_stream(handle, [&](Machine& machine, CUstream_st& stream) {
    return machine.begin_capture(stream, mode);
  });
}

cudaError_t cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t* graph) {
  return on_stream(handle, [&](Machine& machine, CUstream_st& stream) {
    return machine.end_capture(stream, graph);
  });
}

cudaError_t cudaStreamIsCapturing(
    cudaStream_t handle,
    cudaStreamCaptureStatus* status) {
  return on_stream(handle, [&](Machine&, CUstream_st& stream) {
    *status = stream.capture == nullptr   ? cudaStreamCaptureStatusNone
        : stream.capture->invalid.empty() ? cudaStreamCaptureStatusActive
                                          : cudaStreamCaptureStatusInvalidated;
    return cudaSuccess;
  });
}

cudaError_t cudaStreamGetCaptureInfo_v2(
    cudaStream_t handle,
    cudaStreamCaptureStatus* status,
    unsigned long long* id,
    cudaGraph_t* graph,
    const cudaGraphNode_t** dependencies,
    size_t* count) {
  if (graph != nullptr || dependencies != nullptr || count != nullptr) {
    return unsupported("cudaStreamGetCaptureInfo (of the graph's nodes)");
  }
  return on_stream(handle, [&](Machine&, CUstream_st& stream) {
    *status = stream.capture == nullptr   ? cudaStreamCaptureStatusNone
        : stream.capture->invalid.empty() ? cudaStreamCaptureStatusActive
                                          : cudaStreamCaptureStatusInvalidated;
    if (id != nullptr && stream.capture != nullptr) {
      *id = stream.capture->id;
    }
    return cudaSuccess;
  });
}

cudaError_t cudaGraphInstantiateWithFlags(
    cudaGraphExec_t* exec,
    cudaGraph_t graph,
    unsigned long long) {
  *exec = new CUgraphExec_st{graph->nodes};
  return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(
    cudaGraphExec_t* exec,
    cudaGraph_t graph,
    unsigned long long flags) {
  return cudaGraphInstantiateWithFlags(exec, graph, flags);
}

cudaError_t cudaGraphGetNodes(
    cudaGraph_t graph,
    cudaGraphNode_t* nodes,
    size_t* count) {
  if (nodes != nullptr) {
    return unsupported("cudaGraphGetNodes (other than their number)");
  }
  *count = graph->nodes.size();
  return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t handle) {
  const cudaError_t error =
      on_stream(handle, [](Machine& machine, CUstream_st& stream) {
        return machine.launch(stream, "a graph", nullptr, 0);
      });
  if (error != cudaSuccess) {
    return error;
  }
  // Nodes report as launches do; an earlier error is not theirs.
  const Replay replay;
  for (const auto& node : exec->nodes) {
    node->run(node->closure, handle);
    if (this_thread().last_error != cudaSuccess) {
      return this_thread().last_error;
    }
  }
  return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  delete exec;
  return cudaSuccess;
}

} // extern "C"
