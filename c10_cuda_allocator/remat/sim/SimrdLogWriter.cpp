#include "SimrdLog.h"

#include "../Errors.h"

#include <cerrno>
#include <cstring>
#include <fstream>
#include <unordered_map>
#include <vector>

namespace c10::remat {

namespace {

using Kind = Workload::Step::Kind;

std::string quoted(const std::string& text) {
  std::string result = "\"";
  for (const char c : text) {
    result += c >= ' ' && c <= '~' && c != '"' && c != '\\' ? c : '?';
  }
  return result + '"';
}

class LogWriter {
 public:
  LogWriter(const Workload& workload, std::ostream& output)
      : workload_(workload), output_(output) {}

  void write() {
    output_ << R"({"ANNOTATION":"START","INSTRUCTION":"ANNOTATE"})" << '\n';
    for (const Workload::Step& step : workload_.steps) {
      write(step);
    }
  }

 private:
  void write(const Workload::Step& step) {
    switch (step.kind) {
    case Kind::Constant:
      output_ << R"({"INSTRUCTION":"CONSTANT","NAME":)" << fresh(step.tensor)
              << "}\n";
      write_memory(step.tensor);
      break;
    case Kind::Op:
      write_op(step);
      break;
    case Kind::Retain: {
      const std::string source = any(step.tensor);
      output_ << R"({"DST":)" << fresh(step.tensor)
              << R"(,"INSTRUCTION":"COPY","SRC":)" << source << "}\n";
      break;
    }
    case Kind::Release:
      release(step.tensor);
      break;
    case Kind::Access:
      // The format knows no reads outside ops: one that takes no time.
      output_ << R"({"ARGS":[)" << any(step.tensor)
              << R"(],"INSTRUCTION":"CALL","NAME":"access","RESULT":[],)"
              << R"("TIME":"0"})" << '\n';
      break;
    case Kind::LeafWrite:
    case Kind::ParameterWrite:
      break; // nor writes to constants
    }
  }

  void write_op(const Workload::Step& step) {
    output_ << R"({"ARGS":[)";
    for (size_t i = 0; i < step.inputs.size(); ++i) {
      output_ << (i == 0 ? "" : ",") << any(step.inputs[i]);
    }
    output_ << R"(],"INSTRUCTION":"CALL","NAME":)" << quoted(step.name)
            << R"(,"RESULT":[)";
    for (size_t i = 0; i < step.outputs.size(); ++i) {
      output_ << (i == 0 ? "" : ",") << fresh(step.outputs[i]);
    }
    output_ << R"(],"TIME":")" << step.cost << "\"}\n";
    for (const Workload::Tensor output : step.outputs) {
      write_memory(output);
      int64_t alias = -1;
      for (size_t i = 0; i < step.inputs.size() && alias < 0; ++i) {
        if (workload_.storage_of[step.inputs[i]] ==
            workload_.storage_of[output]) {
          alias = static_cast<int64_t>(i);
        }
      }
      output_ << R"({"ALIAS":")" << alias
              << R"(","INSTRUCTION":"ALIAS","NAME":)" << any(output) << "}\n";
    }
    for (const Workload::Overwrite& overwrite : step.overwrites) {
      release(step.inputs[overwrite.input]);
    }
  }

  void write_memory(Workload::Tensor tensor) {
    output_ << R"({"INSTRUCTION":"MEMORY","MEMORY":")"
            << workload_.size_of[workload_.storage_of[tensor]] << R"(","NAME":)"
            << any(tensor) << "}\n";
  }

  void release(Workload::Tensor tensor) {
    output_ << R"({"INSTRUCTION":"RELEASE","NAME":)" << any(tensor) << "}\n";
    names_[tensor].pop_back();
  }

  // A name is a reference; a tensor has one for each.
  std::string fresh(Workload::Tensor tensor) {
    names_[tensor].push_back(
        std::string("\"x") + std::to_string(next_name_++) + "\"");
    return names_[tensor].back();
  }
  const std::string& any(Workload::Tensor tensor) {
    return names_.at(tensor).back();
  }

  const Workload& workload_;
  std::ostream& output_;
  std::unordered_map<Workload::Tensor, std::vector<std::string>> names_;
  uint64_t next_name_ = 0;
};

} // namespace

void write_simrd_log(const Workload& workload, const std::string& path) {
  std::ofstream file(path);
  LogWriter(workload, file).write();
  file.flush();
  if (!file) {
    throw UsageError(
        "cannot write a log to \"" + path + "\": " + std::strerror(errno));
  }
}

} // namespace c10::remat
