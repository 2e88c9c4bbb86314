#include "Machine.h"

#include <algorithm>
#include <chrono>
#include <cstdio>

namespace emulated_cuda {

ThreadState& this_thread() {
  thread_local ThreadState state;
  return state;
}

cudaError_t fail(cudaError_t error, std::string report) {
  this_thread().report = std::move(report);
  this_thread().reported = error;
  this_thread().last_error = error;
  return error;
}

cudaError_t unsupported(const char* function) {
  static std::mutex mutex;
  static std::set<std::string> said;
  const std::lock_guard<std::mutex> lock(mutex);
  if (said.insert(function).second) {
    std::fprintf(stderr, "emulated CUDA: %s is not supported\n", function);
  }
  return fail(
      cudaErrorNotSupported, std::string(function) + " is not supported");
}

Machine& Machine::get() {
  // Never destroyed: CUDA is used during static destruction.
  static auto* machine = new Machine;
  return *machine;
}

Machine::Machine() {
  for (int device = 0; device < settings().devices; ++device) {
    default_streams_.push_back(std::make_unique<CUstream_st>(
        CUstream_st{device, streams_made_++, 0, cudaStreamDefault}));
  }
  ended_.resize(settings().devices);
}

double Machine::host_ns() {
  if (settings().timing) {
    return host_ns_;
  }
  return std::chrono::duration<double, std::nano>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

CUstream_st* Machine::stream(cudaStream_t handle) {
  if (handle == nullptr || handle == cudaStreamLegacy) {
    return default_streams_.empty() ? nullptr
                                    : default_stream(this_thread().device);
  }
  for (const auto& stream : default_streams_) {
    if (stream.get() == handle) {
      return handle;
    }
  }
  return streams_.count(handle) != 0 ? handle : nullptr;
}

cudaError_t Machine::create_stream(
    unsigned flags,
    int priority,
    cudaStream_t* out) {
  *out =
      new CUstream_st{this_thread().device, streams_made_++, priority, flags};
  streams_.insert(*out);
  return cudaSuccess;
}

cudaError_t Machine::destroy_stream(cudaStream_t stream) {
  if (streams_.erase(stream) == 0) {
    return fail(cudaErrorInvalidResourceHandle);
  }
  // Its work goes on.
  Ended& ended = ended_[stream->device];
  ended.clock.learn(stream->clock);
  ended.at_ns = std::max(ended.at_ns, stream->now_ns);
  delete stream;
  return cudaSuccess;
}

// Note [The legacy default stream]
// Work on a device's default stream waits for all that was launched on the
// device's blocking streams before, and their later work waits for it. Streams
// made with cudaStreamNonBlocking take no part, as all of PyTorch's do not.
void Machine::order_with_default(CUstream_st& stream) {
  CUstream_st& legacy = *default_stream(stream.device);
  if (&stream != &legacy) {
    if (stream.is_blocking()) {
      stream.clock.learn(legacy.clock);
      stream.now_ns = std::max(stream.now_ns, legacy.now_ns);
    }
    return;
  }
  for (const CUstream_st* other : streams_) {
    if (other->device == stream.device && other->is_blocking()) {
      stream.clock.learn(other->clock);
      stream.now_ns = std::max(stream.now_ns, other->now_ns);
    }
  }
}

cudaError_t Machine::begin_launch(CUstream_st& stream, const char* what) {
  if (stream.capture != nullptr) {
    stream.capture->invalid = std::string(what) + " cannot be captured";
    return fail(cudaErrorStreamCaptureUnsupported, stream.capture->invalid);
  }
  begin_work(stream);
  return cudaSuccess;
}

void Machine::begin_work(CUstream_st& stream) {
  order_with_default(stream);
  stream.clock.learn(host_);
  stream.clock.advance(stream.number);
  stream.queries_left = settings().event_lag;
  if (settings().timing) {
    stream.now_ns = std::max(stream.now_ns, host_ns_);
    host_ns_ += settings().launch_ns;
  } else {
    stream.now_ns = host_ns();
  }
}

cudaError_t Machine::launch(
    CUstream_st& stream,
    const std::string& name,
    const EmulatedAccess* accesses,
    size_t count) {
  if (const auto error = begin_launch(stream, name.c_str())) {
    return error;
  }
  for (size_t i = 0; i < count; ++i) {
    const EmulatedAccess& access = accesses[i];
    const std::string problem =
        memory.check(access.address, access.size, this_thread().is_replaying);
    if (!problem.empty()) {
      return fail(
          cudaErrorIllegalAddress,
          name + (access.is_write != 0 ? " writes: " : " reads: ") + problem);
    }
    const Memory::Range* range = memory.find(access.address);
    if (range == nullptr || access.size == 0 ||
        settings().races == Races::Ignore) {
      continue;
    }
    const auto begin = reinterpret_cast<uintptr_t>(access.address);
    const std::string race = history_.record(
        begin,
        begin + access.size,
        access.is_write != 0,
        stream.number,
        stream.clock,
        name);
    if (race.empty()) {
      continue;
    }
    if (settings().races == Races::Error) {
      return fail(cudaErrorIllegalState, "data race: " + race);
    }
    std::fprintf(stderr, "emulated CUDA: data race: %s\n", race.c_str());
  }
  return cudaSuccess;
}

void Machine::elapse(CUstream_st& stream, double ns) {
  stream.now_ns = settings().timing ? stream.now_ns + ns : host_ns();
}

void Machine::record(CUevent_st& event, CUstream_st& stream) {
  event.recorded = true;
  event.capture = stream.capture;
  if (stream.capture) {
    return;
  }
  begin_work(stream);
  event.clock = stream.clock;
  event.at_ns = stream.now_ns;
  event.queries_left = settings().event_lag;
}

cudaError_t Machine::wait(CUstream_st& stream, const CUevent_st& event) {
  if (!event.recorded) {
    return cudaSuccess;
  }
  const bool event_is_captured = event.capture != nullptr &&
      std::find(captures_.begin(), captures_.end(), event.capture) !=
          captures_.end();
  if (event_is_captured) {
    if (stream.capture != nullptr && stream.capture != event.capture) {
      return fail(cudaErrorStreamCaptureMerge);
    }
    stream.capture = event.capture; // joins the capture
    return cudaSuccess;
  }
  if (event.capture != nullptr) {
    return fail(cudaErrorCapturedEvent);
  }
  if (stream.capture != nullptr) {
    stream.capture->invalid = "waits for an event from outside the capture";
    return fail(cudaErrorStreamCaptureIsolation, stream.capture->invalid);
  }
  order_with_default(stream);
  stream.clock.learn(event.clock);
  stream.now_ns = std::max(stream.now_ns, event.at_ns);
  return cudaSuccess;
}

cudaError_t Machine::query(CUevent_st& event) {
  if (event.capture != nullptr) {
    return fail(cudaErrorCapturedEvent);
  }
  if (!event.recorded || host_.knows(event.clock)) {
    return cudaSuccess;
  }
  if (settings().timing) {
    if (event.at_ns > host_ns_) {
      host_ns_ += settings().launch_ns;
      return cudaErrorNotReady; // not an error that is remembered
    }
  } else if (event.queries_left > 0) {
    --event.queries_left;
    return cudaErrorNotReady;
  }
  host_.learn(event.clock);
  return cudaSuccess;
}

cudaError_t Machine::query(CUstream_st& stream) {
  if (host_.knows(stream.clock)) {
    return cudaSuccess;
  }
  if (settings().timing) {
    if (stream.now_ns > host_ns_) {
      host_ns_ += settings().launch_ns;
      return cudaErrorNotReady;
    }
  } else if (stream.queries_left > 0) {
    --stream.queries_left;
    return cudaErrorNotReady;
  }
  host_.learn(stream.clock);
  return cudaSuccess;
}

cudaError_t Machine::synchronize(const CUevent_st& event) {
  if (event.capture != nullptr) {
    return fail(cudaErrorCapturedEvent);
  }
  host_.learn(event.clock);
  host_ns_ = std::max(host_ns_, event.at_ns);
  return cudaSuccess;
}

void Machine::synchronize(CUstream_st& stream) {
  order_with_default(stream);
  host_.learn(stream.clock);
  host_ns_ = std::max(host_ns_, stream.now_ns);
}

void Machine::synchronize_device(int device) {
  synchronize(*default_stream(device));
  for (CUstream_st* stream : streams_) {
    if (stream->device == device) {
      synchronize(*stream);
    }
  }
  host_.learn(ended_[device].clock);
  host_ns_ = std::max(host_ns_, ended_[device].at_ns);
}

cudaError_t Machine::begin_capture(
    CUstream_st& stream,
    cudaStreamCaptureMode mode) {
  if (&stream == default_stream(stream.device)) {
    return fail(cudaErrorStreamCaptureUnsupported);
  }
  if (stream.capture != nullptr) {
    return fail(cudaErrorIllegalState);
  }
  auto capture = std::make_shared<Capture>();
  capture->id = ++captures_made_;
  capture->origin = &stream;
  capture->mode = mode;
  capture->thread = std::this_thread::get_id();
  stream.capture = capture;
  captures_.push_back(capture);
  return cudaSuccess;
}

void Machine::leave_capture(const std::shared_ptr<Capture>& capture) {
  for (CUstream_st* stream : streams_) {
    if (stream->capture == capture) {
      stream->capture = nullptr;
    }
  }
  captures_.erase(std::find(captures_.begin(), captures_.end(), capture));
}

cudaError_t Machine::end_capture(CUstream_st& stream, cudaGraph_t* graph) {
  *graph = nullptr;
  const std::shared_ptr<Capture> capture = stream.capture;
  if (capture == nullptr) {
    return fail(cudaErrorIllegalState);
  }
  if (capture->origin != &stream) {
    capture->invalid = "ended on another stream than it was begun on";
    return fail(cudaErrorStreamCaptureUnmatched, capture->invalid);
  }
  leave_capture(capture);
  // PyTorch writes a graph's seeds on the stream that it captures, and again on
  // the stream that it launches on, relying on the time in between.
  host_.learn(stream.clock);
  if (!capture->invalid.empty()) {
    return fail(cudaErrorStreamCaptureInvalidated, capture->invalid);
  }
  *graph = new CUgraph_st{std::move(capture->nodes)};
  return cudaSuccess;
}

cudaError_t Machine::forbid_in_capture(const char* function) {
  if (this_thread().capture_mode == cudaStreamCaptureModeRelaxed) {
    return cudaSuccess;
  }
  for (const auto& capture : captures_) {
    const bool is_own = capture->thread == std::this_thread::get_id();
    const bool counts = is_own ? capture->mode != cudaStreamCaptureModeRelaxed
                               : capture->mode == cudaStreamCaptureModeGlobal &&
            this_thread().capture_mode == cudaStreamCaptureModeGlobal;
    if (counts) {
      capture->invalid =
          std::string(function) + " is not allowed while a stream is captured";
      return fail(cudaErrorStreamCaptureUnsupported, capture->invalid);
    }
  }
  return cudaSuccess;
}

} // namespace emulated_cuda
