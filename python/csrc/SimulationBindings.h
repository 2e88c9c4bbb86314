#pragma once

#include <torch/csrc/utils/pybind.h>

// Adds the simulator to the native module.
void bind_simulation(pybind11::module_& m);
