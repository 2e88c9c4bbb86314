#include "Collective.h"

#include "EmulatedCuda.h"
#include "Reduction.h"

#include <cstring>
#include <tuple>

namespace emulated_cuda {

namespace {

using Kind = CollectiveCall::Kind;
using Buffer = std::vector<char>;

class DeviceGuard {
 public:
  explicit DeviceGuard(int device) {
    cudaGetDevice(&before_);
    cudaSetDevice(device);
  }
  ~DeviceGuard() {
    cudaSetDevice(before_);
  }
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  int before_ = 0;
};

class Collective {
 public:
  explicit Collective(const std::vector<CollectiveCall>& calls)
      : calls_(calls),
        kind_(calls[0].kind),
        root_(calls[0].root),
        chunk_(calls[0].count * size_of(calls[0].type)) {}

  std::string run() {
    for (const CollectiveCall& call : calls_) {
      if (!launch(call, {call.send, sent_by(call.comm->rank), 0})) {
        return report();
      }
    }
    if (!order_streams()) {
      return report();
    }
    for (const CollectiveCall& call : calls_) {
      if (!launch(call, {call.receive, received_by(call.comm->rank), 1})) {
        return report();
      }
      emulatedCudaElapse(call.stream, time_ns());
    }
    if (emulatedCudaIsTiming() == 0) {
      move_bytes();
    }
    return "";
  }

 private:
  size_t ranks() const {
    return calls_.size();
  }
  size_t sent_by(int rank) const {
    switch (kind_) {
    case Kind::Broadcast:
      return rank == root_ ? chunk_ : 0;
    case Kind::ReduceScatter:
      return ranks() * chunk_;
    default:
      return chunk_;
    }
  }
  size_t received_by(int rank) const {
    switch (kind_) {
    case Kind::Reduce:
      return rank == root_ ? chunk_ : 0;
    case Kind::AllGather:
      return ranks() * chunk_;
    default:
      return chunk_;
    }
  }

  static std::string report() {
    std::string text = emulatedCudaReport();
    (void)cudaGetLastError(); // told as NCCL's error
    return text.empty() ? "an error of the emulated CUDA runtime" : text;
  }

  // On the rank's own stream.
  static bool launch(const CollectiveCall& call, EmulatedAccess access) {
    const DeviceGuard guard(call.comm->device());
    return emulatedCudaLaunch(
               call.stream, call.name, &access, access.size == 0 ? 0 : 1) ==
        cudaSuccess;
  }

  bool order_streams() const {
    std::vector<cudaEvent_t> sent(ranks());
    bool good = true;
    for (const CollectiveCall& call : calls_) {
      const DeviceGuard guard(call.comm->device());
      cudaEvent_t& event = sent[call.comm->rank];
      good &= cudaEventCreateWithFlags(&event, cudaEventDisableTiming) ==
              cudaSuccess &&
          cudaEventRecord(event, call.stream) == cudaSuccess;
    }
    for (const CollectiveCall& call : calls_) {
      const DeviceGuard guard(call.comm->device());
      for (size_t from = 0; from < ranks(); ++from) {
        if (received_by(call.comm->rank) > 0 &&
            sent_by(static_cast<int>(from)) > 0) {
          good &=
              cudaStreamWaitEvent(call.stream, sent[from], 0) == cudaSuccess;
        }
      }
    }
    for (cudaEvent_t event : sent) {
      cudaEventDestroy(event);
    }
    return good;
  }

  // A ring over NVLink.
  double time_ns() const {
    const double n = static_cast<double>(ranks());
    const double bytes = static_cast<double>(chunk_);
    double moved = bytes; // over the busiest link
    if (kind_ == Kind::AllReduce) {
      moved = 2 * bytes * (n - 1) / n;
    } else if (kind_ == Kind::AllGather || kind_ == Kind::ReduceScatter) {
      moved = bytes * (n - 1);
    }
    const auto* gpu = emulatedCudaGpu(calls_[0].comm->device());
    return moved / gpu->peer_bandwidth * 1e9;
  }

  void move_bytes() const {
    // First all that is read: a rank may receive where it sends from.
    std::vector<Buffer> sent;
    for (const CollectiveCall& call : calls_) {
      const auto* bytes = static_cast<const char*>(call.send);
      sent.emplace_back(bytes, bytes + sent_by(call.comm->rank));
    }
    const Buffer result = kind_ == Kind::Broadcast ? sent[root_]
        : kind_ == Kind::AllGather                 ? gathered(sent)
                                                   : reduced(sent);
    for (const CollectiveCall& call : calls_) {
      const size_t size = received_by(call.comm->rank);
      const size_t offset =
          kind_ == Kind::ReduceScatter ? call.comm->rank * chunk_ : 0;
      if (size > 0) {
        std::memcpy(call.receive, result.data() + offset, size);
      }
    }
  }

  static Buffer gathered(const std::vector<Buffer>& sent) {
    Buffer result;
    for (const Buffer& part : sent) {
      result.insert(result.end(), part.begin(), part.end());
    }
    return result;
  }

  Buffer reduced(const std::vector<Buffer>& sent) const {
    const auto& [type, op] = std::tie(calls_[0].type, calls_[0].op);
    const size_t count = sent[0].size() / size_of(type);
    Buffer result = sent[0];
    for (size_t rank = 1; rank < ranks(); ++rank) {
      accumulate(result.data(), sent[rank].data(), count, type, op);
    }
    if (op == ncclAvg) {
      divide(result.data(), count, type, static_cast<int>(ranks()));
    }
    return result;
  }

  const std::vector<CollectiveCall>& calls_; // by rank
  const Kind kind_;
  const int root_;
  const size_t chunk_; // bytes that `count` means
};

} // namespace

std::string run_collective(const std::vector<CollectiveCall>& calls) {
  return Collective(calls).run();
}

} // namespace emulated_cuda
