#pragma once

#include "Export.h"
#include "Ids.h"

#include <cstdint>
#include <string>
#include <vector>

namespace c10::remat {

// What happened in an engine, in order; see Note [Trace format]. Versions and
// ops are named by sequence numbers, which are never reused.
struct TraceEvent {
  enum class Kind {
    Version, // id, size: a storage that no recorded op made
    // id, name, cost, inputs, outputs with sizes, overwrites. Id 0: not
    // recorded; what it made follows as versions.
    Op,
    Access, // id: read outside any op
    LeafWrite, // id: its bytes are about to change
    ParameterWrite, // the same, of a parameter: the optimizer's doing
    Death, // id: its owner is gone
    Evict, // id
    Replay, // id of the op
    Pressure, // size: bytes asked for
  };
  struct Output {
    uint64_t id;
    Bytes size;
  };
  struct Overwrite {
    uint64_t input;
    uint64_t output;
  };

  Kind kind = Kind::Version;
  uint64_t id = 0;
  Bytes size = 0;
  CostNs cost = 0;
  std::string name;
  std::vector<uint64_t> inputs;
  std::vector<Output> outputs;
  std::vector<Overwrite> overwrites;

  friend bool operator==(const TraceEvent& a, const TraceEvent& b);
};

} // namespace c10::remat
