#pragma once

#include "Export.h"
#include "Ids.h"
#include "TraceEvent.h"

#include <cstdint>
#include <cstdio>
#include <fstream>
#include <iosfwd>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace c10::remat {

// A trace that does not follow the format; the text gives the line, what was
// found there and what was expected.
struct TraceError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Writes events to a file. Write errors do not disturb the program that is
// traced: nothing is written after one, and `close` reports it.
class REMAT_API TraceWriter {
 public:
  // Creates or overwrites `path`. Throws UsageError if it cannot.
  explicit TraceWriter(const std::string& path);
  ~TraceWriter();
  TraceWriter(const TraceWriter&) = delete;
  TraceWriter& operator=(const TraceWriter&) = delete;

  void version(uint64_t id, Bytes size);
  void op(const TraceEvent& event);
  void access(uint64_t id);
  void leaf_write(uint64_t id);
  void parameter_write(uint64_t id);
  void death(uint64_t id);
  void evict(uint64_t id);
  void replay(uint64_t op);
  void pressure(Bytes wanted);

  // Any event; what the others call.
  void write(const TraceEvent& event);

  // Flushes. Throws UsageError if some of the trace could not be written.
  void close();

 private:
  std::string path_;
  std::string line_; // scratch
  FILE* file_ = nullptr;
  bool has_failed_ = false;
};

// Reads a trace event by event; strict.
class REMAT_API TraceReader {
 public:
  // Throws UsageError if `path` cannot be read, TraceError if it is not a
  // trace of a version that this reader knows.
  explicit TraceReader(const std::string& path);
  // Reads from `input`, which must outlive the reader; `name` is for errors.
  TraceReader(std::istream& input, std::string name);

  // False at the end. Throws TraceError.
  bool next(TraceEvent& event);

 private:
  void read_header();
  bool read_line();

  std::unique_ptr<std::ifstream> file_;
  std::istream& input_;
  std::string name_;
  std::string line_;
  uint64_t line_number_ = 0;
};

} // namespace c10::remat
