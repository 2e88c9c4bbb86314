#pragma once

namespace emulated_cuda {

// How long the host spends in calls of the driver that change what is mapped,
// in timing mode, in nanoseconds. Each for one physical allocation, whatever
// its size: docs/emulated_cuda.md says where the figures come from.
constexpr double kCreateNs = 29e3;
constexpr double kMapNs = 2e3;
constexpr double kAllowAccessNs = 38e3;
constexpr double kUnmapNs = 34e3;
constexpr double kReleaseNs = 23e3;
// No figures of their own: what they do amounts to the same.
constexpr double kMallocNs = kCreateNs + kMapNs + kAllowAccessNs;
constexpr double kFreeNs = kUnmapNs + kReleaseNs;

} // namespace emulated_cuda
