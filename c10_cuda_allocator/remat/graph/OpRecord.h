#pragma once

#include "../Ids.h"
#include "InlineVector.h"

#include <algorithm>
#include <memory>

namespace c10::remat {

// What a ReplayPort needs to run the op again; opaque to the engine, which
// owns it.
struct OpPayload {
  virtual ~OpPayload() = default;
};

// The inputs or outputs of one op.
using VersionIds = InlineVector<VersionId, 4>;
using OpIds = InlineVector<OpId, 4>;

// `output` was made by writing over `input` in place.
struct Overwrite {
  uint32_t input;
  uint32_t output;
};

// What one executed op read, wrote and cost; never changed after capture.
struct OpRecord {
  const char* name = ""; // the operator's; outlives the record
  uint64_t sequence = 0; // order of execution; never reused
  CostNs cost = 0;
  VersionIds inputs; // each version once
  // Per input: where this record stands in that version's readers.
  InlineVector<uint32_t, 4> reader_positions;
  VersionIds outputs; // none where an output needs no record
  InlineVector<Overwrite, 1> overwrites;
  std::shared_ptr<OpPayload> payload;
  uint32_t live_outputs = 0; // outputs that still have this producer
  uint32_t planned = 0; // times that replays under way will run it
  bool alive = false; // the slot is in use
  // The history behind this record grew too long: its outputs become leaves
  // as soon as they are resident.
  bool cut_pending = false;
};

// Does the op write over `input` in place?
inline bool overwrites(const OpRecord& record, VersionId input) {
  return std::any_of(
      record.overwrites.begin(),
      record.overwrites.end(),
      [&](const Overwrite& overwrite) {
        return record.inputs[overwrite.input] == input;
      });
}

} // namespace c10::remat
