#include "RematKey.h"

namespace at::remat {

namespace {

thread_local int depth = 0;

} // namespace

int op_depth() {
  return depth;
}

OpDepthGuard::OpDepthGuard() {
  ++depth;
}

OpDepthGuard::~OpDepthGuard() {
  --depth;
}

} // namespace at::remat
