#include "EvictedAddress.h"

#include <sys/mman.h>
#include <unistd.h>

#include <csignal>
#include <cstddef>
#include <cstdint>

namespace at::remat {

namespace {

// Larger than any storage, so that no offset leaves it. Address space only.
constexpr size_t kRangeBytes = size_t{1} << 40;

// Where address space is limited: an address that no process can map.
void* const kUnmappable = reinterpret_cast<void*>(0xDEAD'0000'0000'0000);

constexpr char kExplanation[] =
    "\nremat: evicted bytes were read through a pointer that remat does not "
    "see: by C++ code that asked for a const pointer outside any op. Ask for a "
    "mutable one, use an op, or torch.cuda.remat.pin() the tensor; see "
    "docs/compatibility.md.\n";

struct sigaction previous_action {};

bool is_evicted_address(const void* address) {
  const auto start = reinterpret_cast<uintptr_t>(evicted_address());
  const auto at = reinterpret_cast<uintptr_t>(address);
  return at >= start && at - start < kRangeBytes;
}

// Async-signal-safe.
void on_fault(int signal, siginfo_t* info, void* context) {
  if (is_evicted_address(info->si_addr)) {
    const auto written =
        write(STDERR_FILENO, kExplanation, sizeof(kExplanation) - 1);
    (void)written;
  }
  if ((previous_action.sa_flags & SA_SIGINFO) != 0) {
    previous_action.sa_sigaction(signal, info, context);
  } else if (
      previous_action.sa_handler != SIG_DFL &&
      previous_action.sa_handler != SIG_IGN) {
    previous_action.sa_handler(signal);
  } else {
    sigaction(signal, &previous_action, nullptr); // and fault again
  }
}

} // namespace

void* evicted_address() {
  static void* const address = [] {
    void* range = mmap(
        nullptr,
        kRangeBytes,
        PROT_NONE,
        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
        -1,
        0);
    return range == MAP_FAILED ? kUnmappable : range;
  }();
  return address;
}

void explain_faults() {
  static const bool installed = [] {
    evicted_address();
    struct sigaction action {};
    action.sa_sigaction = &on_fault;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigemptyset(&action.sa_mask);
    return sigaction(SIGSEGV, &action, &previous_action) == 0;
  }();
  (void)installed;
}

} // namespace at::remat
