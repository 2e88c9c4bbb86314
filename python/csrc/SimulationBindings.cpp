#include <torch/csrc/cuda/remat/SimulationBindings.h>

#include <c10/remat/Errors.h>
#include <c10/remat/Trace.h>
#include <c10/remat/sim/SimrdLog.h>
#include <c10/remat/sim/Simulation.h>
#include <c10/remat/sim/TraceWorkload.h>

#include <string>

namespace py = pybind11;
using c10::remat::Bytes;
using c10::remat::SimulationResult;
using c10::remat::Workload;

namespace {

// Runs without the interpreter lock; what a caller did wrong is a ValueError.
template <class Work>
auto run(Work work) {
  try {
    const py::gil_scoped_release no_gil;
    return work();
  } catch (const c10::remat::UsageError& error) {
    throw py::value_error(error.what());
  } catch (const c10::remat::TraceError& error) {
    throw py::value_error(error.what());
  }
}

py::dict to_dict(const SimulationResult& result) {
  py::dict fields;
  fields["feasible"] = result.is_feasible();
  fields["overhead"] = result.overhead();
  fields["evictions"] = result.evictions;
  fields["replays"] = result.replays;
  fields["deepest_replay"] = result.deepest_replay;
  fields["peak_bytes"] = result.peak;
  return fields;
}

} // namespace

void bind_simulation(py::module_& m) {
  py::class_<Workload>(m, "Workload")
      .def(py::init([](const std::string& path) {
        return run([&] { return c10::remat::read_workload(path); });
      }))
      .def_property_readonly("cost_ns", &Workload::cost)
      .def_property_readonly("peak_bytes", &Workload::peak)
      .def(
          "simulate",
          [](const Workload& workload,
             const std::string& policy,
             Bytes budget,
             bool dtr_rules) {
            return to_dict(run([&] {
              return dtr_rules
                  ? c10::remat::simulate_as_dtr(workload, policy, budget)
                  : c10::remat::simulate(workload, policy, budget);
            }));
          },
          py::arg("policy"),
          py::arg("budget"),
          py::arg("dtr_rules"))
      .def(
          "write_trace",
          [](const Workload& workload, const std::string& path) {
            run([&] { c10::remat::write_trace(workload, path); });
          })
      .def(
          "write_simrd_log",
          [](const Workload& workload, const std::string& path) {
            run([&] { c10::remat::write_simrd_log(workload, path); });
          });
  m.def("dtr_policies", [] { return c10::remat::dtr_policy_names(); });
}
