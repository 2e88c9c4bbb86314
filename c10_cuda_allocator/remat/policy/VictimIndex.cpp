#include "VictimIndex.h"

#include "Staleness.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>

namespace c10::remat {

namespace {

// Below this many stale entries a heap is not worth compacting.
constexpr size_t kStaleTolerated = 64;

// Keeps the order of positive doubles.
int64_t bits_of(double positive) {
  int64_t bits = 0;
  std::memcpy(&bits, &positive, sizeof(bits));
  return bits;
}

} // namespace

VictimIndex::VictimIndex(const OpGraph& graph, EvictionPolicy& policy)
    : graph_(graph),
      policy_(policy),
      uses_staleness_(policy.uses_staleness() && !policy.ranks_anew()),
      ranks_anew_(policy.ranks_anew()),
      buckets_(kBuckets),
      lowest_weight_(kBuckets) {
  for (int i = 1; i < kBuckets; ++i) {
    lowest_weight_[i] =
        std::exp2(static_cast<double>(i) / kBucketsPerOctave - kOctaves);
  }
}

void VictimIndex::refresh(VersionId id) {
  if (!is_member(id)) {
    remove(id);
    return;
  }
  if (id.index >= slots_.size()) {
    slots_.resize(std::max<size_t>(id.index + 1, 2 * slots_.size()));
  }
  Slot& slot = slots_[id.index];
  if (!slot.member) {
    slot.member = true;
    ++size_;
    if (!slot.pending) {
      slot.pending = true;
      pending_.push_back(id);
    }
  }
}

void VictimIndex::remove(VersionId id) {
  if (id.index < slots_.size() && slots_[id.index].member) {
    slots_[id.index].member = false;
    slots_[id.index].parked = false;
    --size_;
    displace(id);
  }
}

VersionId VictimIndex::choose(Ticks now, bool allow_locked) {
  if (ranks_anew_ != policy_.ranks_anew() ||
      (ranks_anew_ && lock_epoch_ != policy_.lock_epoch())) {
    weigh_all_anew();
  }
  if (allow_locked || lock_epoch_ != policy_.lock_epoch()) {
    lock_epoch_ = policy_.lock_epoch();
    unpark();
  }
  place_pending();
  sweep();
  Best best;
  for (int word = 0; word < kWords; ++word) {
    // A copy: a head that moves to a bucket unseen here has competed already.
    for (uint64_t bits = occupied_[word]; bits != 0; bits &= bits - 1) {
      compete(word * 64 + __builtin_ctzll(bits), now, allow_locked, best);
    }
  }
  return best.id;
}

void VictimIndex::weigh_all_anew() {
  ranks_anew_ = policy_.ranks_anew();
  uses_staleness_ = policy_.uses_staleness() && !ranks_anew_;
  for (Bucket& bucket : buckets_) {
    bucket.heap.clear();
    bucket.stale = 0;
  }
  occupied_.fill(0);
  parked_.clear();
  pending_.clear();
  for (uint32_t i = 0; i < slots_.size(); ++i) {
    Slot& slot = slots_[i];
    slot.ticket = 0;
    slot.parked = false;
    slot.pending = slot.member;
    if (slot.member) {
      pending_.push_back(VersionId{i});
    }
  }
}

VersionId VictimIndex::choose_exact(Ticks now, bool allow_locked) const {
  Best best;
  graph_.for_each_version(
      [&](VersionId id) { offer_if_allowed(best, id, now, allow_locked); });
  return best.id;
}

void VictimIndex::check_invariants() const {
  std::vector<uint32_t> entries(slots_.size());
  for (int number = 0; number < kBuckets; ++number) {
    const Bucket& bucket = buckets_[number];
    const bool occupied = (occupied_[number / 64] >> (number % 64)) & 1;
    REMAT_ASSERT(occupied || bucket.heap.empty());
    REMAT_ASSERT(
        std::is_heap(bucket.heap.begin(), bucket.heap.end(), std::greater<>()));
    size_t stale = 0;
    for (const Entry& entry : bucket.heap) {
      if (!is_current(entry)) {
        ++stale;
        continue;
      }
      REMAT_ASSERT(slots_[entry.id.index].bucket == number);
      REMAT_ASSERT(entry.created == graph_[entry.id].created);
      REMAT_ASSERT(
          !uses_staleness_ || entry.key <= graph_[entry.id].last_access);
      ++entries[entry.id.index];
    }
    REMAT_ASSERT(stale == bucket.stale);
  }
  size_t members = 0;
  for (uint32_t i = 0; i < slots_.size(); ++i) {
    const Slot& slot = slots_[i];
    REMAT_ASSERT(entries[i] == (slot.ticket != 0 ? 1 : 0));
    REMAT_ASSERT(slot.member || slot.ticket == 0);
    REMAT_ASSERT(
        !slot.member || slot.ticket != 0 || slot.pending || slot.parked);
    members += slot.member ? 1 : 0;
  }
  REMAT_ASSERT(members == size_);
  graph_.for_each_version([&](VersionId id) {
    const bool member = id.index < slots_.size() && slots_[id.index].member;
    REMAT_ASSERT(member == is_member(id));
  });
}

bool VictimIndex::is_member(VersionId id) const {
  const StorageVersion& version = graph_[id];
  return version.alive && is_in_use(version) && !version.escaped &&
      version.producer && version.size > 0;
}

double VictimIndex::score(VersionId id, double weight, Ticks now) const {
  return uses_staleness_ ? weight / staleness(graph_[id].last_access, now)
                         : weight;
}

void VictimIndex::offer_if_allowed(
    Best& best,
    VersionId id,
    Ticks now,
    bool allow_locked) const {
  if (graph_.is_spare(id) && (allow_locked || !policy_.is_locked(graph_, id))) {
    offer(best, id, score(id, policy_.weight(graph_, id), now));
  }
}

void VictimIndex::offer(Best& best, VersionId id, double offered) const {
  if (!best.id || offered < best.score ||
      (offered == best.score && graph_[id].created < graph_[best.id].created)) {
    best = {id, offered};
  }
}

int VictimIndex::bucket_of(double weight) const {
  if (!uses_staleness_) {
    return 0;
  }
  int exponent = 0;
  const double fraction = std::frexp(weight, &exponent); // [0.5, 1)
  const int quarter = (fraction >= 0.5 * kBucketRatio ? 1 : 0) +
      (fraction >= 0.70710678118654752440 ? 1 : 0) +
      (fraction >= 1 / kBucketRatio ? 1 : 0);
  return std::clamp(
      (exponent - 1 + kOctaves) * kBucketsPerOctave + quarter, 0, kBuckets - 1);
}

int64_t VictimIndex::key_of(VersionId id, double weight) const {
  return uses_staleness_ ? graph_[id].last_access : bits_of(weight);
}

void VictimIndex::place(VersionId id, double weight) {
  REMAT_ASSERT(weight > 0 && std::isfinite(weight));
  Slot& slot = slots_[id.index];
  if (++last_ticket_ == 0) {
    ++last_ticket_; // 0 means none
  }
  slot.ticket = last_ticket_;
  slot.bucket = bucket_of(weight);
  slot.weight = weight;
  auto& heap = buckets_[slot.bucket].heap;
  heap.push_back({key_of(id, weight), graph_[id].created, id, slot.ticket});
  std::push_heap(heap.begin(), heap.end(), std::greater<>());
  occupied_[slot.bucket / 64] |= uint64_t{1} << (slot.bucket % 64);
}

void VictimIndex::displace(VersionId id) {
  Slot& slot = slots_[id.index];
  if (slot.ticket == 0) {
    return;
  }
  slot.ticket = 0;
  Bucket& bucket = buckets_[slot.bucket];
  if (++bucket.stale > bucket.heap.size() / 2 + kStaleTolerated) {
    compact(slot.bucket);
  }
}

void VictimIndex::pop(Bucket& bucket) {
  std::pop_heap(bucket.heap.begin(), bucket.heap.end(), std::greater<>());
  bucket.heap.pop_back();
}

void VictimIndex::compact(int number) {
  Bucket& bucket = buckets_[number];
  bucket.heap.erase(
      std::remove_if(
          bucket.heap.begin(),
          bucket.heap.end(),
          [this](const Entry& entry) { return !is_current(entry); }),
      bucket.heap.end());
  std::make_heap(bucket.heap.begin(), bucket.heap.end(), std::greater<>());
  bucket.stale = 0;
}

void VictimIndex::place_pending() {
  for (VersionId id : pending_) {
    Slot& slot = slots_[id.index];
    slot.pending = false;
    if (slot.member && slot.ticket == 0 && !slot.parked && is_member(id)) {
      place(id, policy_.weight(graph_, id));
    }
  }
  pending_.clear();
  policy_.drain_lowered(graph_, lowered_);
  for (VersionId id : lowered_) {
    if (id.index < slots_.size() && slots_[id.index].ticket != 0 &&
        is_member(id)) {
      displace(id);
      place(id, policy_.weight(graph_, id));
    }
  }
  lowered_.clear();
}

void VictimIndex::unpark() {
  for (VersionId id : parked_) {
    Slot& slot = slots_[id.index];
    slot.parked = false;
    if (slot.member && slot.ticket == 0 && !slot.pending) {
      slot.pending = true;
      pending_.push_back(id);
    }
  }
  parked_.clear();
}

void VictimIndex::sweep() {
  if (slots_.empty() || !(uses_staleness_ || ranks_anew_)) {
    return;
  }
  for (int i = 0; i < kSwept; ++i) {
    sweep_position_ = (sweep_position_ + 1) % slots_.size();
    const VersionId id{sweep_position_};
    if (slots_[id.index].ticket != 0 && is_member(id)) {
      const double weight = policy_.weight(graph_, id);
      const Slot& slot = slots_[id.index];
      if (uses_staleness_ ? bucket_of(weight) < slot.bucket
                          : weight < slot.weight) {
        displace(id);
        place(id, weight);
      }
    }
  }
}

void VictimIndex::compete(
    int number,
    Ticks now,
    bool allow_locked,
    Best& best) {
  Bucket& bucket = buckets_[number];
  aside_.clear();
  while (!bucket.heap.empty()) {
    const Entry entry = bucket.heap.front();
    if (!is_current(entry)) {
      pop(bucket);
      --bucket.stale;
      continue;
    }
    const VersionId id = entry.id;
    const StorageVersion& version = graph_[id];
    if (uses_staleness_) {
      if (best.id &&
          lowest_weight_[number] / staleness(entry.key, now) > best.score) {
        break; // nor can any behind it win
      }
      if (version.last_access != entry.key) {
        pop(bucket);
        bucket.heap.push_back(
            {version.last_access, entry.created, id, entry.ticket});
        std::push_heap(
            bucket.heap.begin(), bucket.heap.end(), std::greater<>());
        continue;
      }
    }
    if (!graph_.is_spare(id)) {
      pop(bucket);
      aside_.push_back(entry);
      continue;
    }
    Slot& slot = slots_[id.index];
    if (!allow_locked && policy_.is_locked(graph_, id)) {
      pop(bucket);
      slot.ticket = 0;
      slot.parked = true;
      parked_.push_back(id);
      continue;
    }
    const double weight = policy_.weight(graph_, id);
    if (bucket_of(weight) != number ||
        (!uses_staleness_ && bits_of(weight) != entry.key)) {
      pop(bucket);
      place(id, weight);
      // It competes now, for its new bucket may have had its turn.
      if (uses_staleness_) {
        offer(best, id, score(id, weight, now));
      }
      continue;
    }
    offer(best, id, score(id, weight, now));
    break;
  }
  for (const Entry& entry : aside_) {
    bucket.heap.push_back(entry);
    std::push_heap(bucket.heap.begin(), bucket.heap.end(), std::greater<>());
  }
  if (bucket.heap.empty()) {
    occupied_[number / 64] &= ~(uint64_t{1} << (number % 64));
  }
}

} // namespace c10::remat
