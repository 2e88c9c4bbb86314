#pragma once

#include "EngineState.h"
#include "replay/Rematerializer.h"

#include <mutex>

namespace c10::remat {

// Makes leaves of what was computed from a leaf, so that its bytes are needed
// no more; see Note [Leaves that are written or die]. The engine's lock is
// held.
class LeafCutter {
 public:
  LeafCutter(EngineState& state, Rematerializer& rematerializer)
      : state_(state), rematerializer_(rematerializer) {}

  // Is `id` small beside what rests on it?
  bool is_worth_keeping(VersionId id) const;

  // Are they worth keeping for the sake of `dependents` bytes?
  static bool is_worth_keeping(Bytes kept, Bytes dependents);

  // `id` is about to be written: brings back its evicted dependents, for which
  // it drops `lock`, and makes leaves of all. Needs the replay lock. Throws
  // what a replay throws.
  void cut(VersionId id, std::unique_lock<std::mutex>& lock, Garbage& garbage);

  // The storage of `id` has died: makes leaves of its dependents, of those
  // evicted when they next come back, until when `id` is held; or of none.
  void cut_from_dead(VersionId id, Garbage& garbage);

  // Gives back at least `wanted` bytes of dead leaves, or what there is.
  Bytes release_held(Bytes wanted, Garbage& garbage);

 private:
  bool is_cuttable(VersionId id) const;
  // False if some dependent is evicted, or cannot become a leaf now.
  bool try_cut(VersionId id, Garbage& garbage);

  EngineState& state_;
  Rematerializer& rematerializer_;
};

} // namespace c10::remat
