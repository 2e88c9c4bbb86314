#include "SimrdLog.h"

#include "../Errors.h"
#include "../Trace.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <istream>
#include <map>
#include <unordered_map>

namespace c10::remat {

namespace {

using Kind = Workload::Step::Kind;

// A flat JSON object, whose values are strings, numbers or lists of these. All
// that is in such logs; not a JSON reader for anything else.
class LogLine {
 public:
  LogLine(const std::string& source, uint64_t number, const std::string& text)
      : source_(source), number_(number), text_(text) {
    expect('{');
    if (!accept('}')) {
      do {
        const std::string key = scalar();
        expect(':');
        fields_[key] = values();
      } while (accept(','));
      expect('}');
    }
    skip_space();
    if (position_ != text_.size()) {
      fail("the end of the line");
    }
  }

  const std::vector<std::string>& list(const char* key) const {
    const auto found = fields_.find(key);
    if (found == fields_.end()) {
      fail(std::string("\"") + key + "\"");
    }
    return found->second;
  }
  const std::string& text(const char* key) const {
    const auto& found = list(key);
    if (found.size() != 1) {
      fail(std::string("one value for \"") + key + "\"");
    }
    return found[0];
  }
  int64_t number(const char* key) const {
    return to_number(text(key));
  }
  int64_t to_number(const std::string& text) const {
    errno = 0;
    char* end = nullptr;
    const long long value = std::strtoll(text.c_str(), &end, 10);
    if (text.empty() || *end != '\0' || errno != 0) {
      fail("a whole number for \"" + text + "\"");
    }
    return value;
  }

  [[noreturn]] void fail(const std::string& expected) const {
    throw TraceError(
        source_ + ":" + std::to_string(number_) + ": found " +
        text_.substr(0, 120) + ", expected " + expected);
  }

 private:
  void skip_space() {
    while (position_ < text_.size() &&
           std::strchr(" \t\r", text_[position_]) != nullptr) {
      ++position_;
    }
  }
  bool accept(char c) {
    skip_space();
    const bool found = position_ < text_.size() && text_[position_] == c;
    position_ += found ? 1 : 0;
    return found;
  }
  void expect(char c) {
    if (!accept(c)) {
      fail(std::string("'") + c + "' at column " + std::to_string(position_));
    }
  }
  std::string scalar() {
    std::string value;
    if (accept('"')) {
      while (position_ < text_.size() && text_[position_] != '"') {
        value += text_[position_++];
      }
      expect('"');
      return value;
    }
    while (position_ < text_.size() &&
           std::strchr(",]}: ", text_[position_]) == nullptr) {
      value += text_[position_++];
    }
    if (value.empty()) {
      fail("a value at column " + std::to_string(position_));
    }
    return value;
  }
  std::vector<std::string> values() {
    std::vector<std::string> all;
    if (!accept('[')) {
      all.push_back(scalar());
      return all;
    }
    if (!accept(']')) {
      do {
        skip_space();
        all.push_back(scalar());
      } while (accept(','));
      expect(']');
    }
    return all;
  }

  const std::string& source_;
  const uint64_t number_;
  const std::string& text_;
  size_t position_ = 0;
  std::map<std::string, std::vector<std::string>> fields_;
};

class LogReader {
 public:
  LogReader(std::istream& input, const std::string& name)
      : input_(input), name_(name) {
    workload_.name = name;
    workload_.ends_resident = true;
  }

  Workload read() {
    std::string text;
    while (std::getline(input_, text)) {
      ++line_number_;
      if (text.empty()) {
        continue;
      }
      add(LogLine(name_, line_number_, text));
    }
    if (!pending_.empty() || is_constant_pending_) {
      throw TraceError(
          name_ +
          ": found the end, expected MEMORY and ALIAS of what the "
          "last instruction made; the log was cut off");
    }
    return std::move(workload_);
  }

 private:
  // A result of the last CALL that is yet to be described.
  struct Pending {
    std::string name;
    Bytes size = 0;
    bool has_size = false;
  };

  void add(const LogLine& line) {
    const std::string& instruction = line.text("INSTRUCTION");
    if (instruction == "MEMORY") {
      add_memory(line);
      return;
    }
    if (instruction == "ALIAS") {
      add_alias(line);
      return;
    }
    if (!pending_.empty() || is_constant_pending_) {
      line.fail("MEMORY and ALIAS of what the instruction before made");
    }
    Workload::Step step;
    if (instruction == "ANNOTATE") {
      if (line.text("ANNOTATION") == "START") {
        workload_.steps.clear();
        tensors_.clear();
        workload_.storage_of.clear();
        workload_.size_of.clear();
      }
      return;
    }
    if (instruction == "CONSTANT") {
      step.kind = Kind::Constant;
      constant_ = line.text("NAME");
      is_constant_pending_ = true;
    } else if (instruction == "CALL") {
      step.name = line.text("NAME");
      step.cost = line.number("TIME");
      for (const std::string& argument : line.list("ARGS")) {
        step.inputs.push_back(tensor(line, argument));
      }
      for (const std::string& result : line.list("RESULT")) {
        pending_.push_back({result});
      }
      std::reverse(pending_.begin(), pending_.end());
    } else if (instruction == "MUTATE") {
      add_mutate(line);
      return;
    } else if (instruction == "COPY") {
      step.kind = Kind::Retain;
      step.tensor = tensor(line, line.text("SRC"));
      tensors_[line.text("DST")] = step.tensor;
    } else if (instruction == "COPY_FROM") {
      const Workload::Tensor source = tensor(line, line.text("SRC"));
      Workload::Tensor& target = tensor(line, line.text("DST"));
      step.kind = Kind::Retain;
      step.tensor = source;
      workload_.steps.push_back(step);
      step.kind = Kind::Release;
      step.tensor = target;
      target = source;
    } else if (instruction == "RELEASE") {
      step.kind = Kind::Release;
      step.tensor = tensor(line, line.text("NAME"));
      tensors_.erase(line.text("NAME"));
    } else {
      line.fail("an instruction such as CALL");
    }
    workload_.steps.push_back(std::move(step));
  }

  void add_memory(const LogLine& line) {
    const int64_t size = line.number("MEMORY");
    if (size < 0) {
      line.fail("a size of at least 0");
    }
    if (is_constant_pending_ && line.text("NAME") == constant_) {
      is_constant_pending_ = false;
      const auto made =
          workload_.add_tensor(workload_.add_storage(static_cast<Bytes>(size)));
      workload_.steps.back().tensor = made;
      tensors_[constant_] = made;
    } else if (!pending_.empty() && pending_.back().name == line.text("NAME")) {
      pending_.back().size = static_cast<Bytes>(size);
      pending_.back().has_size = true;
    } else {
      line.fail("the size of what the instruction before made");
    }
  }

  void add_alias(const LogLine& line) {
    if (pending_.empty() || pending_.back().name != line.text("NAME") ||
        !pending_.back().has_size) {
      line.fail("ALIAS after CALL and MEMORY of the same name");
    }
    Workload::Step& step = workload_.steps.back();
    const int64_t alias = line.number("ALIAS");
    if (alias >= static_cast<int64_t>(step.inputs.size())) {
      line.fail("the index of an argument, or -1");
    }
    const Workload::Storage storage = alias < 0
        ? workload_.add_storage(pending_.back().size)
        : workload_.storage_of[step.inputs[static_cast<size_t>(alias)]];
    const auto made = workload_.add_tensor(storage);
    step.outputs.push_back(made);
    tensors_[pending_.back().name] = made;
    pending_.pop_back();
  }

  void add_mutate(const LogLine& line) {
    Workload::Step step;
    step.name = line.text("NAME");
    step.cost = line.number("TIME");
    const auto& arguments = line.list("ARGS");
    for (const std::string& argument : arguments) {
      step.inputs.push_back(tensor(line, argument));
    }
    std::vector<Workload::Step> releases;
    for (const std::string& text : line.list("MUTATE")) {
      const int64_t index = line.to_number(text);
      if (index < 0 || index >= static_cast<int64_t>(arguments.size())) {
        line.fail("indices of arguments in MUTATE");
      }
      const auto place = static_cast<size_t>(index);
      const Workload::Tensor old = step.inputs[place];
      const auto made = workload_.add_tensor(
          workload_.add_storage(workload_.size_of[workload_.storage_of[old]]));
      step.outputs.push_back(made);
      tensors_[arguments[place]] = made;
      Workload::Step release;
      release.kind = Kind::Release;
      release.tensor = old;
      releases.push_back(release);
    }
    workload_.steps.push_back(std::move(step));
    for (Workload::Step& release : releases) {
      workload_.steps.push_back(std::move(release));
    }
  }

  Workload::Tensor& tensor(const LogLine& line, const std::string& name) {
    const auto found = tensors_.find(name);
    if (found == tensors_.end()) {
      line.fail("a name that was defined and not released: " + name);
    }
    return found->second;
  }

  std::istream& input_;
  const std::string name_;
  uint64_t line_number_ = 0;
  Workload workload_;
  std::unordered_map<std::string, Workload::Tensor> tensors_;
  std::vector<Pending> pending_; // the next one last
  std::string constant_;
  bool is_constant_pending_ = false;
};

} // namespace

Workload read_simrd_log(std::istream& input, const std::string& name) {
  return LogReader(input, name).read();
}

} // namespace c10::remat
