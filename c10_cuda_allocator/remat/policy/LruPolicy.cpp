#include "LruPolicy.h"

namespace c10::remat {

double LruPolicy::weight(const OpGraph& /*graph*/, VersionId /*id*/) const {
  return 1;
}

} // namespace c10::remat
