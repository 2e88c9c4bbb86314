#pragma once

#include <vector>

namespace c10::remat {

// How NextUsePolicy weighs what it knows of a value.
struct Tuning {
  double cost = 1;
  double size = 1;
  double distance = 1;
  bool keeps = true; // intermediates
  // By value: what is added to the logarithm of its score. Zero behind the
  // end.
  std::vector<float> bias;
};

} // namespace c10::remat
