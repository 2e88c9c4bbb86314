#include "Trace.h"

#include "Errors.h"
#include "TraceLine.h"

#include <cerrno>
#include <cstring>
#include <istream>
#include <utility>

namespace c10::remat {

// Note [Trace format]
// Text, one JSON object per line, always in exactly this form, so that it can
// be read by any JSON reader and by one of a hundred lines:
//
//   {"remat_trace":1}
//   {"version":1,"size":4096}
//   {"op":3,"name":"aten::relu","cost":2500,"inputs":[1],"outputs":[[2,4096]],
//    "overwrites":[[1,2]]}                                     (on one line)
//   {"access":2}  {"leaf_write":1}  {"parameter_write":1}  {"death":2}
//   {"evict":2}  {"replay":3}  {"pressure":65536}              (a line each)
//
// Sizes are in bytes and costs in ns. docs/design/trace.md says what each line
// means. The number in the first line grows when a line changes its meaning
// or form.

namespace {

constexpr uint64_t kFormat = 1;

using Kind = TraceEvent::Kind;

struct PlainKind {
  Kind kind;
  const char* prefix;
};

// Those with a single number.
constexpr PlainKind kPlainKinds[] = {
    {Kind::Access, "{\"access\":"},
    {Kind::LeafWrite, "{\"leaf_write\":"},
    {Kind::ParameterWrite, "{\"parameter_write\":"},
    {Kind::Death, "{\"death\":"},
    {Kind::Evict, "{\"evict\":"},
    {Kind::Replay, "{\"replay\":"},
    {Kind::Pressure, "{\"pressure\":"},
};

TraceEvent plain(Kind kind, uint64_t id) {
  TraceEvent event;
  event.kind = kind;
  event.id = id;
  return event;
}

void append_string(std::string& line, const std::string& text) {
  line += '"';
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      line += '\\';
    }
    line += c >= ' ' && c <= '~' ? c : '?';
  }
  line += '"';
}

template <class Items, class Append>
void append_list(std::string& line, const Items& items, Append append) {
  line += '[';
  bool first = true;
  for (const auto& item : items) {
    line += first ? "" : ",";
    first = false;
    append(item);
  }
  line += ']';
}

template <class Read>
void read_list(TraceLine& line, Read read) {
  line.expect("[");
  if (line.accept("]")) {
    return;
  }
  do {
    read();
  } while (line.accept(","));
  line.expect("]");
}

std::pair<uint64_t, uint64_t> read_pair(TraceLine& line) {
  line.expect("[");
  const uint64_t first = line.number();
  line.expect(",");
  const uint64_t second = line.number();
  line.expect("]");
  return {first, second};
}

void read_op(TraceLine& line, TraceEvent& event) {
  event.kind = Kind::Op;
  event.id = line.number();
  line.expect(",\"name\":");
  event.name = line.string();
  line.expect(",\"cost\":");
  const uint64_t cost = line.number();
  if (cost > INT64_MAX) {
    line.fail("a cost below 2^63");
  }
  event.cost = static_cast<CostNs>(cost);
  line.expect(",\"inputs\":");
  read_list(line, [&] { event.inputs.push_back(line.number()); });
  line.expect(",\"outputs\":");
  read_list(line, [&] {
    const auto [id, size] = read_pair(line);
    event.outputs.push_back({id, size});
  });
  line.expect(",\"overwrites\":");
  read_list(line, [&] {
    const auto [input, output] = read_pair(line);
    event.overwrites.push_back({input, output});
  });
}

void read_event(TraceLine& line, TraceEvent& event) {
  if (line.accept("{\"op\":")) {
    read_op(line, event);
  } else if (line.accept("{\"version\":")) {
    event.kind = Kind::Version;
    event.id = line.number();
    line.expect(",\"size\":");
    event.size = line.number();
  } else {
    bool is_known = false;
    for (const PlainKind& plain : kPlainKinds) {
      if (line.accept(plain.prefix)) {
        is_known = true;
        event.kind = plain.kind;
        (plain.kind == Kind::Pressure ? event.size : event.id) = line.number();
        break;
      }
    }
    if (!is_known) {
      line.fail("an event such as {\"op\":");
    }
  }
  line.expect("}");
  line.expect_end();
}

} // namespace

bool operator==(const TraceEvent& a, const TraceEvent& b) {
  const auto same = [](const auto& x, const auto& y, auto equal) {
    if (x.size() != y.size()) {
      return false;
    }
    for (size_t i = 0; i < x.size(); ++i) {
      if (!equal(x[i], y[i])) {
        return false;
      }
    }
    return true;
  };
  return a.kind == b.kind && a.id == b.id && a.size == b.size &&
      a.cost == b.cost && a.name == b.name && a.inputs == b.inputs &&
      same(a.outputs,
           b.outputs,
           [](const auto& x, const auto& y) {
             return x.id == y.id && x.size == y.size;
           }) &&
      same(a.overwrites, b.overwrites, [](const auto& x, const auto& y) {
           return x.input == y.input && x.output == y.output;
         });
}

TraceWriter::TraceWriter(const std::string& path)
    : path_(path), file_(std::fopen(path.c_str(), "w")) {
  if (file_ == nullptr) {
    throw UsageError(
        "cannot write a trace to \"" + path + "\": " + std::strerror(errno));
  }
  has_failed_ = std::fprintf(
                    file_,
                    "{\"remat_trace\":%llu}\n",
                    static_cast<unsigned long long>(kFormat)) < 0;
}

TraceWriter::~TraceWriter() {
  if (file_ != nullptr) {
    std::fclose(file_);
  }
}

void TraceWriter::version(uint64_t id, Bytes size) {
  TraceEvent event = plain(Kind::Version, id);
  event.size = size;
  write(event);
}

void TraceWriter::op(const TraceEvent& event) {
  REMAT_ASSERT(event.kind == Kind::Op && event.cost >= 0);
  write(event);
}

void TraceWriter::write(const TraceEvent& event) {
  if (has_failed_) {
    return;
  }
  line_.clear();
  const auto append_number = [&](uint64_t value) {
    line_ += std::to_string(value);
  };
  const auto append_pair = [&](uint64_t first, uint64_t second) {
    line_ += '[';
    append_number(first);
    line_ += ',';
    append_number(second);
    line_ += ']';
  };
  if (event.kind == Kind::Op) {
    line_ += "{\"op\":";
    append_number(event.id);
    line_ += ",\"name\":";
    append_string(line_, event.name);
    line_ += ",\"cost\":";
    append_number(static_cast<uint64_t>(event.cost));
    line_ += ",\"inputs\":";
    append_list(line_, event.inputs, append_number);
    line_ += ",\"outputs\":";
    append_list(line_, event.outputs, [&](const TraceEvent::Output& output) {
      append_pair(output.id, output.size);
    });
    line_ += ",\"overwrites\":";
    append_list(
        line_, event.overwrites, [&](const TraceEvent::Overwrite& overwrite) {
          append_pair(overwrite.input, overwrite.output);
        });
  } else if (event.kind == Kind::Version) {
    line_ += "{\"version\":";
    append_number(event.id);
    line_ += ",\"size\":";
    append_number(event.size);
  } else {
    for (const PlainKind& plain : kPlainKinds) {
      if (plain.kind == event.kind) {
        line_ += plain.prefix;
      }
    }
    append_number(event.kind == Kind::Pressure ? event.size : event.id);
  }
  line_ += "}\n";
  has_failed_ |= file_ == nullptr ||
      std::fwrite(line_.data(), 1, line_.size(), file_) != line_.size();
}

void TraceWriter::access(uint64_t id) {
  write(plain(Kind::Access, id));
}

void TraceWriter::leaf_write(uint64_t id) {
  write(plain(Kind::LeafWrite, id));
}

void TraceWriter::parameter_write(uint64_t id) {
  write(plain(Kind::ParameterWrite, id));
}

void TraceWriter::death(uint64_t id) {
  write(plain(Kind::Death, id));
}

void TraceWriter::evict(uint64_t id) {
  write(plain(Kind::Evict, id));
}

void TraceWriter::replay(uint64_t op) {
  write(plain(Kind::Replay, op));
}

void TraceWriter::pressure(Bytes wanted) {
  TraceEvent event;
  event.kind = Kind::Pressure;
  event.size = wanted;
  write(event);
}

void TraceWriter::close() {
  if (file_ != nullptr) {
    has_failed_ |= std::fclose(std::exchange(file_, nullptr)) != 0;
  }
  if (std::exchange(has_failed_, false)) {
    throw UsageError(
        "the trace \"" + path_ +
        "\" is incomplete: not all of it could be written; is there space?");
  }
}

TraceReader::TraceReader(const std::string& path)
    : file_(std::make_unique<std::ifstream>(path)),
      input_(*file_),
      name_(path) {
  if (!*file_) {
    throw UsageError(
        "cannot read a trace from \"" + path + "\": " + std::strerror(errno));
  }
  read_header();
}

TraceReader::TraceReader(std::istream& input, std::string name)
    : input_(input), name_(std::move(name)) {
  read_header();
}

bool TraceReader::next(TraceEvent& event) {
  if (!read_line()) {
    return false;
  }
  event = TraceEvent{};
  TraceLine line(name_, line_number_, line_);
  read_event(line, event);
  return true;
}

void TraceReader::read_header() {
  if (!read_line()) {
    throw TraceError(
        name_ + ":1: found an empty file, expected {\"remat_trace\":1}");
  }
  TraceLine line(name_, line_number_, line_);
  line.expect("{\"remat_trace\":");
  const uint64_t format = line.number();
  line.expect("}");
  line.expect_end();
  if (format != kFormat) {
    throw TraceError(
        name_ + ":1: found a trace of format " + std::to_string(format) +
        ", expected " + std::to_string(kFormat) +
        "; use the version that wrote it");
  }
}

bool TraceReader::read_line() {
  if (!std::getline(input_, line_)) {
    return false;
  }
  ++line_number_;
  if (input_.eof()) {
    throw TraceError(
        name_ + ":" + std::to_string(line_number_) +
        ": found a line that does not end, expected a newline; the trace was "
        "cut off");
  }
  return true;
}

} // namespace c10::remat
