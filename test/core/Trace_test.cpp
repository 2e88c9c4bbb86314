#include <c10/remat/Trace.h>

#include <c10/remat/Errors.h>
#include <gtest/gtest.h>

#include <random>
#include <sstream>

namespace c10::remat {
namespace {

using Kind = TraceEvent::Kind;

std::string path_in_test_folder(const char* name) {
  return testing::TempDir() + name;
}

std::vector<TraceEvent> read_all(TraceReader& reader) {
  std::vector<TraceEvent> events;
  TraceEvent event;
  while (reader.next(event)) {
    events.push_back(event);
  }
  return events;
}

std::string text_of_file(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

// What reading `text` complains of.
std::string error_of(const std::string& text) {
  std::istringstream input(text);
  try {
    TraceReader reader(input, "trace");
    read_all(reader);
  } catch (const TraceError& error) {
    return error.what();
  }
  return "no error";
}

TraceEvent some_op() {
  TraceEvent op;
  op.kind = Kind::Op;
  op.id = 3;
  op.name = "aten::add_";
  op.cost = 2500;
  op.inputs = {1, 2};
  op.outputs = {{4, 4096}};
  op.overwrites = {{1, 4}};
  return op;
}

TEST(TraceTest, WritesTheDocumentedForm) {
  const std::string path = path_in_test_folder("form.trace");
  TraceWriter writer(path);
  writer.version(1, 4096);
  writer.version(2, 8);
  writer.op(some_op());
  writer.access(4);
  writer.leaf_write(2);
  writer.parameter_write(2);
  writer.evict(4);
  writer.replay(3);
  writer.death(4);
  writer.pressure(65536);
  writer.close();
  EXPECT_EQ(
      text_of_file(path),
      "{\"remat_trace\":1}\n"
      "{\"version\":1,\"size\":4096}\n"
      "{\"version\":2,\"size\":8}\n"
      "{\"op\":3,\"name\":\"aten::add_\",\"cost\":2500,\"inputs\":[1,2],"
      "\"outputs\":[[4,4096]],\"overwrites\":[[1,4]]}\n"
      "{\"access\":4}\n"
      "{\"leaf_write\":2}\n"
      "{\"parameter_write\":2}\n"
      "{\"evict\":4}\n"
      "{\"replay\":3}\n"
      "{\"death\":4}\n"
      "{\"pressure\":65536}\n");
}

TEST(TraceTest, ReadsWhatWasWritten) {
  const std::string path = path_in_test_folder("round.trace");
  std::mt19937_64 random(1);
  std::vector<TraceEvent> events;
  for (int i = 0; i < 1000; ++i) {
    TraceEvent event;
    event.kind = static_cast<Kind>(random() % 8);
    if (event.kind == Kind::Op) {
      event.name = "a\"b\\c " + std::to_string(random());
      event.cost = static_cast<CostNs>(random() >> 2);
      for (uint64_t k = 0; k < random() % 3; ++k) {
        event.inputs.push_back(random());
        event.outputs.push_back({random(), random()});
        event.overwrites.push_back({random(), random()});
      }
    }
    if (event.kind == Kind::Version || event.kind == Kind::Pressure) {
      event.size = random();
    }
    event.id = event.kind == Kind::Pressure ? 0 : random();
    events.push_back(event);
  }
  TraceWriter writer(path);
  for (const TraceEvent& event : events) {
    writer.write(event);
  }
  writer.close();
  TraceReader reader(path);
  EXPECT_EQ(read_all(reader), events);
}

TEST(TraceTest, SaysWhereATraceIsDamaged) {
  const std::string header = "{\"remat_trace\":1}\n";
  EXPECT_EQ(
      error_of(header + "{\"evict\":1}\n{\"evict\":x}\n"),
      "trace:3:10: found \"x}\", expected a number");
  EXPECT_EQ(
      error_of(header + "{\"evict\":1\n"),
      "trace:2:11: found the end of the line, expected }");
  EXPECT_EQ(
      error_of(header + "{\"evict\":1} \n"),
      "trace:2:12: found \" \", expected the end of the line");
  EXPECT_EQ(
      error_of(header + "\n"),
      "trace:2:1: found the end of the line, expected an event such as "
      "{\"op\":");
  EXPECT_EQ(
      error_of(header + "{\"evict\":99999999999999999999}\n"),
      "trace:2:10: found \"99999999999999999999}\", expected a number below "
      "2^64");
  EXPECT_EQ(
      error_of(header + "{\"evict\":01}\n"),
      "trace:2:10: found \"01}\", expected a number");
}

TEST(TraceTest, SaysThatATraceWasCutOff) {
  EXPECT_EQ(
      error_of("{\"remat_trace\":1}\n{\"evict\":1}"),
      "trace:2: found a line that does not end, expected a newline; the trace "
      "was cut off");
  EXPECT_EQ(
      error_of(""),
      "trace:1: found an empty file, expected {\"remat_trace\":1}");
}

TEST(TraceTest, RefusesOtherFormats) {
  EXPECT_EQ(
      error_of("{\"remat_trace\":2}\n"),
      "trace:1: found a trace of format 2, expected 1; use the version that "
      "wrote it");
  EXPECT_EQ(
      error_of("INSTRUCTION\n"),
      "trace:1:1: found \"INSTRUCTION\", expected {\"remat_trace\":");
}

TEST(TraceTest, EveryCutOrChangedLetterIsNoticedOrHarmless) {
  const std::string path = path_in_test_folder("damage.trace");
  TraceWriter writer(path);
  writer.version(1, 4096);
  writer.op(some_op());
  writer.close();
  const std::string text = text_of_file(path);
  for (size_t i = 0; i + 1 < text.size(); ++i) {
    if (text[i] != '\n') { // whole lines may be missing
      EXPECT_NE(error_of(text.substr(0, i + 1)), "no error") << i;
    }
    std::string changed = text;
    changed[i] = '\x01';
    EXPECT_NE(error_of(changed), "no error") << i;
  }
}

TEST(TraceTest, ReportsFilesThatCannotBeOpened) {
  EXPECT_THROW(TraceWriter("/nowhere/at/all"), UsageError);
  EXPECT_THROW(TraceReader("/nowhere/at/all"), UsageError);
}

TEST(TraceTest, ReportsThatTheDeviceIsFull) {
  TraceWriter writer("/dev/full");
  for (uint64_t i = 0; i < 100000; ++i) {
    writer.access(i);
  }
  EXPECT_THROW(writer.close(), UsageError);
}

} // namespace
} // namespace c10::remat
