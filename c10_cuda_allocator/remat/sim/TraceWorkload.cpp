#include "TraceWorkload.h"

#include "../Trace.h"

#include <algorithm>
#include <unordered_map>

namespace c10::remat {

namespace {

using Kind = Workload::Step::Kind;

class TraceConverter {
 public:
  explicit TraceConverter(const std::string& name) : name_(name) {
    workload_.name = name;
  }

  void add(const TraceEvent& event) {
    Workload::Step step;
    switch (event.kind) {
    case TraceEvent::Kind::Version:
      step.kind = Kind::Constant;
      step.tensor = make(event.id, event.size);
      break;
    case TraceEvent::Kind::Op:
      add_op(event);
      return;
    case TraceEvent::Kind::Access:
      step.kind = Kind::Access;
      step.tensor = tensor(event.id);
      break;
    case TraceEvent::Kind::LeafWrite:
    case TraceEvent::Kind::ParameterWrite:
      step.kind = event.kind == TraceEvent::Kind::LeafWrite
          ? Kind::LeafWrite
          : Kind::ParameterWrite;
      step.tensor = tensor(event.id);
      break;
    case TraceEvent::Kind::Death:
      step.kind = Kind::Release;
      step.tensor = tensor(event.id);
      tensors_.erase(event.id);
      break;
    case TraceEvent::Kind::Evict:
    case TraceEvent::Kind::Replay:
    case TraceEvent::Kind::Pressure:
      return; // decisions, which are the simulated engine's now
    }
    workload_.steps.push_back(std::move(step));
  }

  Workload take() {
    return std::move(workload_);
  }

 private:
  void add_op(const TraceEvent& event) {
    Workload::Step step;
    step.name = event.name;
    step.cost = event.cost;
    step.is_recorded = event.id != 0;
    for (const uint64_t input : event.inputs) {
      step.inputs.push_back(tensor(input));
    }
    std::unordered_map<uint64_t, uint32_t> places;
    for (const TraceEvent::Output& output : event.outputs) {
      if (output.id != 0) {
        places[output.id] = static_cast<uint32_t>(step.outputs.size());
        step.outputs.push_back(make(output.id, output.size));
      }
    }
    for (const TraceEvent::Overwrite& overwrite : event.overwrites) {
      const auto input =
          std::find(event.inputs.begin(), event.inputs.end(), overwrite.input);
      const auto place = places.find(overwrite.output);
      if (input == event.inputs.end()) {
        fail(overwrite.input);
      }
      if (place != places.end()) {
        step.overwrites.push_back(
            {static_cast<uint32_t>(input - event.inputs.begin()),
             place->second});
        tensors_.erase(overwrite.input);
      }
    }
    workload_.steps.push_back(std::move(step));
  }

  Workload::Tensor make(uint64_t id, Bytes size) {
    const auto made = workload_.add_tensor(workload_.add_storage(size));
    if (!tensors_.emplace(id, made).second) {
      throw TraceError(
          name_ + ": found version " + std::to_string(id) +
          " a second time, expected each to be made once");
    }
    return made;
  }

  Workload::Tensor tensor(uint64_t id) const {
    const auto found = tensors_.find(id);
    if (found == tensors_.end()) {
      fail(id);
    }
    return found->second;
  }

  [[noreturn]] void fail(uint64_t id) const {
    throw TraceError(
        name_ + ": found version " + std::to_string(id) +
        ", expected one that was made and has not died");
  }

  const std::string name_;
  Workload workload_;
  std::unordered_map<uint64_t, Workload::Tensor> tensors_; // that live
};

class TraceExporter {
 public:
  TraceExporter(const Workload& workload, const std::string& path)
      : workload_(workload),
        writer_(path),
        ids_(workload.size_of.size()),
        references_(workload.size_of.size()) {}

  void write() {
    for (const Workload::Step& step : workload_.steps) {
      write(step);
    }
    writer_.close();
  }

 private:
  void write(const Workload::Step& step) {
    const Workload::Storage storage =
        step.kind == Kind::Op ? 0 : workload_.storage_of[step.tensor];
    switch (step.kind) {
    case Kind::Constant:
      ids_[storage] = next_id_++;
      ++references_[storage];
      writer_.version(ids_[storage], workload_.size_of[storage]);
      break;
    case Kind::Op:
      write_op(step);
      break;
    case Kind::Retain:
      ++references_[storage];
      break;
    case Kind::Release:
      if (--references_[storage] == 0) {
        writer_.death(ids_[storage]);
      }
      break;
    case Kind::Access:
      writer_.access(ids_[storage]);
      break;
    case Kind::LeafWrite:
      writer_.leaf_write(ids_[storage]);
      break;
    case Kind::ParameterWrite:
      writer_.parameter_write(ids_[storage]);
      break;
    }
  }

  void write_op(const Workload::Step& step) {
    TraceEvent event;
    event.kind = TraceEvent::Kind::Op;
    event.name = step.name;
    event.cost = step.cost;
    for (const Workload::Tensor input : step.inputs) {
      const uint64_t id = ids_[workload_.storage_of[input]];
      if (std::find(event.inputs.begin(), event.inputs.end(), id) ==
          event.inputs.end()) {
        event.inputs.push_back(id);
      }
    }
    for (const Workload::Tensor output : step.outputs) {
      const Workload::Storage storage = workload_.storage_of[output];
      ++references_[storage];
      if (ids_[storage] == 0) {
        ids_[storage] = next_id_++;
        event.outputs.push_back({ids_[storage], workload_.size_of[storage]});
      }
    }
    for (const Workload::Overwrite& overwrite : step.overwrites) {
      event.overwrites.push_back(
          {ids_[workload_.storage_of[step.inputs[overwrite.input]]],
           ids_[workload_.storage_of[step.outputs[overwrite.output]]]});
    }
    if (step.is_recorded && event.outputs.empty()) {
      return;
    }
    event.id = step.is_recorded ? next_id_++ : 0;
    writer_.op(event);
  }

  const Workload& workload_;
  TraceWriter writer_;
  std::vector<uint64_t> ids_; // by storage; 0: not yet made
  std::vector<uint32_t> references_; // by storage
  uint64_t next_id_ = 1;
};

} // namespace

Workload read_trace_workload(std::istream& input, const std::string& name) {
  TraceReader reader(input, name);
  TraceConverter converter(name);
  TraceEvent event;
  while (reader.next(event)) {
    converter.add(event);
  }
  return converter.take();
}

Workload workload_of(
    const std::vector<TraceEvent>& events,
    const std::string& name) {
  TraceConverter converter(name);
  for (const TraceEvent& event : events) {
    converter.add(event);
  }
  return converter.take();
}

void write_trace(const Workload& workload, const std::string& path) {
  TraceExporter(workload, path).write();
}

} // namespace c10::remat
