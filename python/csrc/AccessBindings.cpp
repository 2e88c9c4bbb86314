#include <torch/csrc/cuda/remat/AccessBindings.h>

#include <ATen/remat/RematMode.h>
#include <ATen/remat/capture/TensorKinds.h>

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/jit/api/function_impl.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/ir/ir.h>
#include <torch/csrc/utils/pybind.h>

#include <memory>
#include <unordered_set>
#include <utility>
#include <vector>

namespace {

namespace py = pybind11;
using at::remat::RematMode;
using at::remat::ResidencyPin;

// Note [C functions with Python names]
// `torch.utils.dlpack.to_dlpack` and `Generator.set_state` are functions of C:
// the one is known to programs that have imported it by now, the other belongs
// to a type that cannot be written to. Both look up the C function in their
// PyMethodDef at each call, so it is exchanged there.
PyCFunction exchange(PyObject* owner, const char* name, PyCFunction function) {
  const auto attribute =
      py::reinterpret_steal<py::object>(PyObject_GetAttrString(owner, name));
  if (!attribute) {
    throw py::error_already_set();
  }
  PyMethodDef* method = nullptr;
  if (PyCFunction_Check(attribute.ptr())) {
    method = reinterpret_cast<PyCFunctionObject*>(attribute.ptr())->m_ml;
  } else if (Py_TYPE(attribute.ptr()) == &PyMethodDescr_Type) {
    method = reinterpret_cast<PyMethodDescrObject*>(attribute.ptr())->d_method;
  }
  TORCH_CHECK(
      method != nullptr && method->ml_flags == METH_O,
      "remat: ",
      name,
      " is not the function of this PyTorch; was it replaced?");
  return std::exchange(method->ml_meth, function);
}

c10::StorageImpl* storage_if_any(PyObject* object) {
  if (!THPVariable_Check(object)) {
    return nullptr;
  }
  const at::Tensor& tensor = THPVariable_Unpack(object);
  return at::remat::is_plain(tensor) ? &at::remat::storage_of(tensor) : nullptr;
}

PyCFunction original_to_dlpack = nullptr;

PyObject* to_dlpack(PyObject* self, PyObject* tensor) {
  HANDLE_TH_ERRORS
  auto capsule =
      py::reinterpret_steal<py::object>(original_to_dlpack(self, tensor));
  c10::StorageImpl* storage = storage_if_any(tensor);
  if (capsule && storage != nullptr && RematMode::get().is_active()) {
    const py::gil_scoped_release no_gil;
    // The consumer's lifetime cannot be told: an alias for good.
    RematMode::get().add_alias(*storage);
  }
  return capsule.release().ptr();
  END_HANDLE_TH_ERRORS
}

PyCFunction original_set_state = nullptr;

PyObject* set_generator_state(PyObject* self, PyObject* state) {
  HANDLE_TH_ERRORS
  std::unique_ptr<ResidencyPin> pin;
  if (c10::StorageImpl* storage = storage_if_any(state)) {
    const py::gil_scoped_release no_gil;
    pin = RematMode::get().pin(*storage);
  }
  return original_set_state(self, state);
  END_HANDLE_TH_ERRORS
}

// No effect the second time.
void watch_c_functions() {
  if (original_to_dlpack != nullptr) {
    return;
  }
  const auto torch_c = py::module_::import("torch._C");
  original_to_dlpack = exchange(torch_c.ptr(), "_to_dlpack", &to_dlpack);
  original_set_state = exchange(
      torch_c.attr("Generator").ptr(), "set_state", &set_generator_state);
}

// Finds the tensors that are written when a script module is saved.
class ScriptTensors {
 public:
  void visit(const c10::IValue& value) {
    value.visit([&](const c10::IValue& part) {
      if (part.isTensor()) {
        add(part.toTensor());
      } else if (part.isObject()) {
        for (auto* method : part.type()->expect<c10::ClassType>()->methods()) {
          visit(*method);
        }
      }
      return false;
    });
  }

  void visit(torch::jit::Function& function) {
    auto* graph_function = torch::jit::tryToGraphFunction(function);
    if (graph_function != nullptr && functions_.insert(&function).second) {
      visit(graph_function->graph()->block());
    }
  }

  std::vector<at::Tensor> take() {
    return std::move(tensors_);
  }

 private:
  void visit(torch::jit::Block* block) {
    for (torch::jit::Node* node : block->nodes()) {
      for (torch::jit::Block* inner : node->blocks()) {
        visit(inner);
      }
      if (node->kind() != c10::prim::Constant) {
        continue;
      }
      const auto type = node->output()->type()->cast<c10::FunctionType>();
      if (type != nullptr) {
        visit(*type->function());
      } else if (node->hasAttribute(c10::attr::value)) {
        switch (node->kindOf(c10::attr::value)) {
        case torch::jit::AttributeKind::t:
          add(node->t(c10::attr::value));
          break;
        case torch::jit::AttributeKind::ts:
          for (const at::Tensor& tensor : node->ts(c10::attr::value)) {
            add(tensor);
          }
          break;
        case torch::jit::AttributeKind::ival:
          visit(node->ival(c10::attr::value));
          break;
        default:
          break;
        }
      }
    }
  }

  void add(const at::Tensor& tensor) {
    if (tensor.defined() && at::remat::is_plain(tensor)) {
      tensors_.push_back(tensor);
    }
  }

  std::vector<at::Tensor> tensors_;
  std::unordered_set<const torch::jit::Function*> functions_;
};

// Keeps what a script module or function holds resident for its lifetime.
class ScriptPin {
 public:
  explicit ScriptPin(const py::object& script) {
    ScriptTensors found;
    if (py::isinstance<torch::jit::Module>(script)) {
      found.visit(py::cast<torch::jit::Module&>(script)._ivalue());
    } else {
      found.visit(*py::cast<torch::jit::StrongFunctionPtr&>(script).function_);
    }
    tensors_ = found.take();
    const py::gil_scoped_release no_gil;
    for (const at::Tensor& tensor : tensors_) {
      pins_.push_back(RematMode::get().pin(at::remat::storage_of(tensor)));
    }
  }

 private:
  std::vector<at::Tensor> tensors_;
  std::vector<std::unique_ptr<ResidencyPin>> pins_;
};

} // namespace

void bind_accesses(py::module_& m) {
  py::class_<ScriptPin>(m, "ScriptPin")
      .def(py::init([](const py::object& script) {
        HANDLE_TH_ERRORS
        return std::make_unique<ScriptPin>(script);
        END_HANDLE_TH_ERRORS_PYBIND
      }));
  m.def("watch_c_functions", torch::wrap_pybind_function(&watch_c_functions));
}
