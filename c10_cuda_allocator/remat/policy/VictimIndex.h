#pragma once

#include "EvictionPolicy.h"

#include <array>
#include <cstdint>
#include <vector>

namespace c10::remat {

// The versions that may be evicted but for pins, kept so that the one with the
// lowest score is found by looking at the stalest of each bucket of like
// weight.
//
// Note [Buckets of like weight]
// With score = weight / staleness, of two versions with the same weight the
// staler has the lower score. Versions are therefore kept in heaps by the
// logarithm of their weight, each heap ordered by (last access, created); only
// heads compete, by their exact scores. Weights within a bucket differ by less
// than a factor of kBucketRatio, and so does the chosen score from the lowest
// one. Where a policy does not use staleness there is one heap, ordered by
// weight, and the choice is exact.
//
// Note [Keys are lower bounds]
// Accesses, pins and growing weights happen several times per op and must cost
// nothing here. A version's place is what it was when it was put there: its
// last access and its weight have only grown since, so it comes up too early,
// never too late, and is moved before it can win. Weights that fall are
// reported (EvictionPolicy::drain_lowered); what a policy fails to report is
// found by re-weighing kSwept versions per choice in turn.
//
// Note [Scores that change with every op]
// Where a policy ranks anew there is one heap, too. As time goes on scores
// grow, since what is needed comes nearer: keys are lower bounds here as well.
// What was read is needed later than before, and reported. What else has fallen
// the sweep finds. All is weighed anew only when scores no longer compare
// (EvictionPolicy::lock_epoch) or the policy begins or ends to rank so.
class VictimIndex {
 public:
  static constexpr int kBucketsPerOctave = 4;
  static constexpr double kBucketRatio = 1.1892071150027210667; // 2^(1/4)

  // Both must outlive the index.
  VictimIndex(const OpGraph& graph, EvictionPolicy& policy);

  // Adds or removes `id` according to what it is now. Call after each change
  // of its residency, owner, producer or escape; not for pins, reservations,
  // accesses or weights. O(1); the weight is computed at the next choice.
  void refresh(VersionId id);
  // Call before `id` is forgotten. No effect if it is not in the index.
  void remove(VersionId id);

  // The evictable version with the lowest score; none if there is none.
  // Versions that a replay will read soon are passed over (Evictor sees to
  // them), and those that the policy has locked while `allow_locked` is false.
  VersionId choose(Ticks now, bool allow_locked);

  // The same by looking at every version: exact, and slow.
  VersionId choose_exact(Ticks now, bool allow_locked) const;

  // The score of `id`, which is evictable.
  double score(VersionId id, Ticks now) const {
    return score(id, policy_.weight(graph_, id), now);
  }

  size_t size() const {
    return size_;
  }
  void check_invariants() const;

 private:
  static constexpr int kOctaves = 64; // weights from 2^-64 to 2^64
  static constexpr int kBuckets = 2 * kOctaves * kBucketsPerOctave;
  static constexpr int kWords = kBuckets / 64;
  static constexpr int kSwept = 4;

  struct Entry {
    int64_t key; // last access, or the weight's bits
    uint64_t created;
    VersionId id;
    uint32_t ticket; // not the slot's: the entry is stale

    friend bool operator>(const Entry& a, const Entry& b) {
      return a.key != b.key        ? a.key > b.key
          : a.created != b.created ? a.created > b.created
                                   : b.id < a.id;
    }
  };
  struct Bucket {
    std::vector<Entry> heap; // smallest first
    size_t stale = 0;
  };
  struct Slot {
    uint32_t ticket = 0; // of its entry; 0: in no heap
    int32_t bucket = 0;
    bool member = false;
    bool pending = false; // in pending_
    bool parked = false; // in parked_, in no heap
    double weight = 0; // when it was placed
  };
  struct Best {
    VersionId id;
    double score = 0;
  };

  bool is_member(VersionId id) const;
  bool is_current(const Entry& entry) const {
    return slots_[entry.id.index].ticket == entry.ticket;
  }
  double score(VersionId id, double weight, Ticks now) const;
  void weigh_all_anew();
  void offer(Best& best, VersionId id, double offered) const;
  void offer_if_allowed(Best& best, VersionId id, Ticks now, bool allow_locked)
      const;
  int bucket_of(double weight) const;
  int64_t key_of(VersionId id, double weight) const;

  void place(VersionId id, double weight);
  void displace(VersionId id);
  void pop(Bucket& bucket);
  void compact(int number);
  void place_pending();
  void unpark();
  void sweep();
  void compete(int number, Ticks now, bool allow_locked, Best& best);

  const OpGraph& graph_;
  EvictionPolicy& policy_;
  bool uses_staleness_;
  bool ranks_anew_;
  uint32_t last_ticket_ = 0;
  uint64_t lock_epoch_ = 0;
  size_t size_ = 0;
  uint32_t sweep_position_ = 0;
  std::vector<Slot> slots_; // by VersionId::index
  std::array<uint64_t, kWords> occupied_{}; // a bit per bucket with entries
  std::vector<Bucket> buckets_;
  std::vector<double> lowest_weight_; // of each bucket
  std::vector<VersionId> pending_; // members whose weight is yet to be asked
  std::vector<VersionId> parked_; // locked when they last came up
  std::vector<VersionId> lowered_; // scratch
  std::vector<Entry> aside_; // scratch
};

} // namespace c10::remat
