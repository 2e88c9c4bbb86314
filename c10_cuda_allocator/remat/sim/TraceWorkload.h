#pragma once

#include "../TraceEvent.h"
#include "Workload.h"

#include <iosfwd>
#include <string>
#include <vector>

namespace c10::remat {

// What a trace that an engine recorded says of the program, without what that
// engine decided. `name` is for errors. Throws TraceError.
REMAT_API Workload
read_trace_workload(std::istream& input, const std::string& name);

// The same of events that are in memory.
REMAT_API Workload
workload_of(const std::vector<TraceEvent>& events, const std::string& name);

// The workload as an engine that never evicts would record it. Ops without
// storages of their own, which make views, are not in it. Throws UsageError if
// `path` cannot be written.
REMAT_API void write_trace(const Workload& workload, const std::string& path);

} // namespace c10::remat
