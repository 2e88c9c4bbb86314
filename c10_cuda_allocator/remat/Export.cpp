#include "Export.h"

#include <stdexcept>
#include <string>

namespace c10::remat {

void assertion_failed(const char* expression, const char* file, int line) {
  throw std::logic_error(
      "remat: internal invariant broken: " + std::string(expression) + " at " +
      file + ":" + std::to_string(line) + "; please report this");
}

} // namespace c10::remat
