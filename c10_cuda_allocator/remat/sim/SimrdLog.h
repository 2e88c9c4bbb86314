#pragma once

#include "Workload.h"

#include <iosfwd>
#include <string>

namespace c10::remat {

// Note [DTR's log format]
// The format of the logs that were published with the simulator of DTR
// (Kirisame et al., ICLR 2021): one JSON object a line, what it says in
// INSTRUCTION.
//
//   CONSTANT{NAME}, MEMORY{NAME, MEMORY}    bytes that come from outside
//   CALL{NAME, ARGS[], RESULT[], TIME}      then, for each result:
//     MEMORY{NAME, MEMORY}, ALIAS{NAME, ALIAS: index of an argument or -1}
//   MUTATE{NAME, ARGS[], MUTATE[index], TIME}
//   COPY{DST, SRC}, COPY_FROM{DST, SRC}, RELEASE{NAME}, ANNOTATE{ANNOTATION}
//
// Numbers are in strings or plain, bytes and ns. A MUTATE makes fresh storages,
// copy on write. What comes before the annotation START is left out. What is
// held at the end must be resident then.

// `name` is for errors. Throws TraceError.
REMAT_API Workload read_simrd_log(std::istream& input, const std::string& name);

// A MUTATE is written as a CALL and RELEASEs, which means the same. Throws
// UsageError if `path` cannot be written.
REMAT_API void write_simrd_log(
    const Workload& workload,
    const std::string& path);

} // namespace c10::remat
