#include "Rematerializer.h"

#include <algorithm>
#include <stdexcept>

namespace c10::remat {

namespace {

// A plan's inputs may be evicted again before their turn when memory is
// short; they are then replayed by a plan of their own. Far more ops than the
// first plan held mean that the working set does not fit.
constexpr size_t kLongestDetour = 64;

std::vector<VersionId> missing_inputs(const OpGraph& graph, OpId op) {
  std::vector<VersionId> missing;
  for (const VersionId input : graph[op].inputs) {
    if (!graph[input].resident) {
      missing.push_back(input);
    }
  }
  return missing;
}

} // namespace

// Note [Next uses]
// Frames are a stack: all ops of an inner one run before the next of the outer
// ones. An op's time is therefore its place counted from the end of its frame,
// on top of the places of the frames around it, and a larger time comes sooner.
// `next_use` is the complement of that: a larger value is used later. What it
// was before is kept, so that each use, once over, uncovers the next.
uint64_t Rematerializer::time_of(const std::vector<Frame>& frames) const {
  uint64_t places = 0;
  for (const Frame& frame : frames) {
    places += frame.plan.ops.size() - frame.next;
  }
  return places;
}

Rematerializer::Frame Rematerializer::reserve(
    ReplayPlan plan,
    uint64_t places_outside) {
  Frame frame;
  frame.uses_after.resize(plan.ops.size());
  for (size_t i = plan.ops.size(); i-- > 0;) {
    const uint64_t place = places_outside + plan.ops.size() - i;
    const OpId op = plan.ops[i];
    ++state_.graph[op].planned;
    for (const VersionId input : state_.graph[op].inputs) {
      StorageVersion& version = state_.graph[input];
      ++version.reservations;
      frame.uses_after[i].push_back(version.next_use);
      version.next_use = ~place;
    }
    // Keeps the record alive should its outputs' owners go meanwhile.
    for (const VersionId output : state_.graph[op].outputs) {
      if (output) {
        ++state_.graph[output].reservations;
      }
    }
  }
  frame.plan = std::move(plan);
  return frame;
}

void Rematerializer::unreserve(
    const Frame& frame,
    size_t place,
    Garbage& garbage) {
  const OpId op = frame.plan.ops[place];
  --state_.graph[op].planned;
  // Collecting may forget the record itself.
  VersionIds versions = state_.graph[op].inputs;
  for (size_t i = 0; i < versions.size(); ++i) {
    state_.graph[versions[i]].next_use = frame.uses_after[place][i];
  }
  for (const VersionId output : state_.graph[op].outputs) {
    if (output) {
      versions.push_back(output);
    }
  }
  for (const VersionId id : versions) {
    --state_.graph[id].reservations;
  }
  for (const VersionId id : versions) {
    state_.release_if_unused(id, garbage, /*was_replayed=*/true);
  }
  // Now, not when all of the plan has run: what its leaves hold is needed.
  state_.cut_if_pending(op, garbage);
}

ReplayRequest Rematerializer::request_for(OpId op) {
  OpGraph& graph = state_.graph;
  const OpRecord& record = graph[op];
  ReplayRequest request;
  request.record = &record;
  for (const VersionId id : record.inputs) {
    request.inputs.push_back(&graph[id]);
  }
  for (const VersionId id : record.outputs) {
    // One reservation is this op's own.
    const bool wanted = id && !graph[id].resident &&
        (graph[id].owned || graph[id].pins > 0 || graph[id].reservations > 1);
    request.outputs.push_back(wanted ? &graph[id] : nullptr);
  }
  for (const Overwrite& overwrite : record.overwrites) {
    const StorageVersion& input = *request.inputs[overwrite.input];
    request.keep_input.push_back(
        input.owned || input.pins > 0 || input.reservations > 1);
  }
  return request;
}

void Rematerializer::finish(const ReplayRequest& request) {
  for (StorageVersion* input : request.inputs) {
    --input->pins;
  }
  for (size_t i = 0; i < request.keep_input.size(); ++i) {
    if (request.keep_input[i]) {
      continue;
    }
    const uint32_t place = request.record->overwrites[i].input;
    StorageVersion& consumed = *request.inputs[place];
    consumed.resident = false;
    state_.resident -= consumed.size;
    if (consumed.kept) {
      const VersionId id = request.record->inputs[place];
      consumed.kept = false;
      state_.index->remove(id);
      state_.policy->on_evicted(state_.graph, id);
    }
  }
}

void Rematerializer::run(OpId op, std::unique_lock<std::mutex>& lock) {
  const ReplayRequest request = request_for(op);
  if (std::count(request.outputs.begin(), request.outputs.end(), nullptr) ==
      static_cast<std::ptrdiff_t>(request.outputs.size())) {
    return; // a detour has run it already
  }
  for (StorageVersion* input : request.inputs) {
    ++input->pins;
  }
  std::vector<std::unique_ptr<Buffer>> buffers;
  lock.unlock();
  try {
    buffers = state_.replayer.replay(request);
  } catch (...) {
    lock.lock();
    finish(request);
    throw;
  }
  lock.lock();
  finish(request);

  const OpRecord& record = *request.record;
  ++state_.counters.replays;
  if (state_.trace.is_on()) {
    state_.trace.replay(record);
  }
  state_.counters.recompute_ns += record.cost;
  state_.policy->on_replayed(record.cost);
  state_.now += record.cost;
  for (size_t i = 0; i < record.outputs.size(); ++i) {
    if (request.outputs[i] != nullptr) {
      state_.rematerialized(record.outputs[i], std::move(buffers[i]));
    }
  }
  for (StorageVersion* input : request.inputs) {
    input->last_access = state_.now;
  }
}

void Rematerializer::bring_back(
    const std::vector<VersionId>& targets,
    std::unique_lock<std::mutex>& lock,
    Garbage& garbage) {
  std::vector<Frame> frames;
  frames.push_back(reserve(make_replay_plan(state_.graph, targets), 0));
  const size_t planned = frames.back().plan.ops.size();
  state_.counters.deepest_replay =
      std::max<uint64_t>(state_.counters.deepest_replay, planned);
  const size_t most_ops = kLongestDetour * (planned + 1);
  size_t ops_run = 0;
  try {
    while (!frames.empty()) {
      Frame& frame = frames.back();
      if (frame.next == frame.plan.ops.size()) {
        frames.pop_back();
        continue;
      }
      const OpId op = frame.plan.ops[frame.next];
      auto missing = missing_inputs(state_.graph, op);
      if (!missing.empty()) {
        frames.push_back(
            reserve(make_replay_plan(state_.graph, missing), time_of(frames)));
        continue;
      }
      if (++ops_run > most_ops) {
        throw WorkingSetTooLarge();
      }
      run(op, lock);
      unreserve(frame, frame.next, garbage);
      ++frame.next;
      state_.settle(garbage);
    }
  } catch (...) {
    for (; !frames.empty(); frames.pop_back()) {
      const Frame& frame = frames.back();
      for (size_t i = frame.next; i < frame.plan.ops.size(); ++i) {
        unreserve(frame, i, garbage);
      }
    }
    state_.settle(garbage);
    throw;
  }
}

} // namespace c10::remat
