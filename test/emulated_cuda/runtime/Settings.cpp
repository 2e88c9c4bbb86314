#include "Settings.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <set>
#include <string>

namespace emulated_cuda {

namespace {

constexpr size_t kMiB = size_t{1} << 20;
constexpr size_t kGiB = size_t{1} << 30;

// From NVIDIA's data sheets of the A100 (SXM, 40 GB), H100 (SXM) and H200
// (SXM); the links are PCIe 4.0 or 5.0 x16 at what it gives in practice, and
// NVLink one way. `test` is a small GPU that does not exist.
const EmulatedGpu kGpus[] = {
    {"test",
     "Emulated test GPU",
     2 * kGiB,
     16,
     9,
     0,
     400e9,
     5e12,
     10e12,
     80e12,
     160e12,
     25e9,
     50e9},
    {"a100-40gb",
     "NVIDIA A100-SXM4-40GB",
     40 * kGiB,
     108,
     8,
     0,
     1555e9,
     9.7e12,
     19.5e12,
     156e12,
     312e12,
     25e9,
     300e9},
    {"h100-80gb",
     "NVIDIA H100 80GB HBM3",
     80 * kGiB,
     132,
     9,
     0,
     3350e9,
     34e12,
     67e12,
     494.7e12,
     989.4e12,
     50e9,
     450e9},
    {"h200",
     "NVIDIA H200",
     141 * 1000 * 1000 * size_t{1000},
     132,
     9,
     0,
     4800e9,
     34e12,
     67e12,
     494.7e12,
     989.4e12,
     50e9,
     450e9},
};

[[noreturn]] void refuse(
    const char* name,
    const char* value,
    const char* accepted) {
  std::fprintf(
      stderr,
      "emulated CUDA: %s must be %s, got '%s'\n",
      name,
      accepted,
      value);
  std::_Exit(2);
}

const char* text_of(const char* name, const char* otherwise) {
  const char* value = std::getenv(name);
  return value == nullptr || *value == '\0' ? otherwise : value;
}

EmulatedGpu read_gpu() {
  const char* value = text_of("EMULATED_CUDA_GPU", "test");
  std::string names;
  for (const EmulatedGpu& gpu : kGpus) {
    if (std::strcmp(gpu.name, value) == 0) {
      return gpu;
    }
    names += (names.empty() ? "one of " : ", ") + std::string(gpu.name);
  }
  refuse("EMULATED_CUDA_GPU", value, names.c_str());
}

double read_number(
    const char* name,
    const char* otherwise,
    double least,
    double most) {
  const char* value = text_of(name, otherwise);
  char* end = nullptr;
  const double number = std::strtod(value, &end);
  if (end == value || *end != '\0' || !(number >= least && number <= most)) {
    char accepted[80];
    std::snprintf(
        accepted, sizeof accepted, "a number from %g to %g", least, most);
    refuse(name, value, accepted);
  }
  return number;
}

size_t read_capacity(size_t otherwise) {
  const char* name = "EMULATED_CUDA_CAPACITY";
  const char* value = text_of(name, "");
  if (*value == '\0') {
    return otherwise;
  }
  char* end = nullptr;
  const double number = std::strtod(value, &end);
  const std::string unit = end;
  const double factor = unit.empty() ? 1
      : unit == "KiB"                ? 1024
      : unit == "MiB"                ? kMiB
      : unit == "GiB"                ? kGiB
                                     : 0;
  // A page of the driver API is the least that can be had.
  if (end == value || !(number * factor >= 2 * kMiB)) {
    refuse(
        name, value, "at least 2MiB: bytes, or a number with KiB, MiB or GiB");
  }
  return static_cast<size_t>(number * factor);
}

Races read_races() {
  const std::string value = text_of("EMULATED_CUDA_RACES", "error");
  if (value == "error") {
    return Races::Error;
  }
  if (value == "warn") {
    return Races::Warn;
  }
  if (value != "ignore") {
    refuse("EMULATED_CUDA_RACES", value.c_str(), "error, warn or ignore");
  }
  return Races::Ignore;
}

// As CUDA counts them: up to the first that does not exist.
int visible_of(int devices) {
  const char* list = std::getenv("CUDA_VISIBLE_DEVICES");
  if (list == nullptr) {
    return devices;
  }
  std::set<long> seen;
  for (const char* at = list; *at != '\0';) {
    char* end = nullptr;
    const long number = std::strtol(at, &end, 10);
    if (std::strncmp(at, "GPU-", 4) == 0 || std::strncmp(at, "MIG-", 4) == 0) {
      refuse("CUDA_VISIBLE_DEVICES", list, "device numbers");
    }
    if (end == at || number < 0 || number >= devices) {
      break;
    }
    if (!seen.insert(number).second) {
      return 0;
    }
    at = *end == ',' ? end + 1 : end;
    if (at == end && *end != '\0') {
      break;
    }
  }
  return static_cast<int>(seen.size());
}

Settings read() {
  Settings result{};
  result.gpu = read_gpu();
  result.devices = visible_of(
      static_cast<int>(read_number("EMULATED_CUDA_DEVICES", "1", 1, 16)));
  result.capacity = read_capacity(result.gpu.memory);
  result.timing = read_number("EMULATED_CUDA_TIMING", "0", 0, 1) != 0;
  result.races = read_races();
  result.event_lag =
      static_cast<int>(read_number("EMULATED_CUDA_EVENT_LAG", "1", 0, 1e6));
  result.launch_ns = read_number("EMULATED_CUDA_LAUNCH_NS", "5000", 0, 1e9);
  return result;
}

} // namespace

const Settings& settings() {
  static const Settings result = read();
  return result;
}

} // namespace emulated_cuda
