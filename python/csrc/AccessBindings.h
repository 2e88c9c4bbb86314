#pragma once

#include <torch/csrc/utils/pybind.h>

// Adds to the native module what _access.py needs for accesses that cannot be
// wrapped in Python.
void bind_accesses(pybind11::module_& m);
