# libtorch_remat.so (the hooks) and torch/cuda/remat/_C (the Python binding).
# Included where torch_python, torch_cpu and c10 are targets: upstream's build
# makes them, the splice build imports the stock ones. The Python module's name
# ends in REMAT_PYTHON_SUFFIX, and links pybind11 as torch_python does.
include(${CMAKE_CURRENT_LIST_DIR}/remat_sources.cmake)
set(REMAT_ROOT ${CMAKE_CURRENT_LIST_DIR}/../..)

remat_sources(REMAT_HOOKS_SRCS ${REMAT_ROOT}/aten/src/ATen/remat)
add_library(torch_remat SHARED ${REMAT_HOOKS_SRCS})
target_link_libraries(torch_remat PRIVATE torch_cpu c10)
set_target_properties(torch_remat PROPERTIES
  CXX_VISIBILITY_PRESET hidden
  INSTALL_RPATH "$ORIGIN")

remat_sources(REMAT_PYTHON_SRCS ${REMAT_ROOT}/torch/csrc/cuda/remat)
add_library(torch_remat_python MODULE ${REMAT_PYTHON_SRCS})
target_link_libraries(torch_remat_python PRIVATE torch_remat torch_python torch_cpu c10)
if(TARGET pybind::pybind11)
  target_link_libraries(torch_remat_python PRIVATE pybind::pybind11)
endif()
if(NOT REMAT_PYTHON_SUFFIX)
  execute_process(
    COMMAND ${Python_EXECUTABLE} -c
      "import sysconfig; print(sysconfig.get_config_var('EXT_SUFFIX'), end='')"
    OUTPUT_VARIABLE REMAT_PYTHON_SUFFIX)
endif()
set_target_properties(torch_remat_python PROPERTIES
  CXX_VISIBILITY_PRESET hidden
  PREFIX "" OUTPUT_NAME _C SUFFIX "${REMAT_PYTHON_SUFFIX}"
  INSTALL_RPATH "$ORIGIN/../../lib")

install(TARGETS torch_remat DESTINATION "${TORCH_INSTALL_LIB_DIR}")
install(TARGETS torch_remat_python DESTINATION cuda/remat)
# The headers of our other folders are installed with those that they lie in.
install(DIRECTORY ${REMAT_ROOT}/aten/src/ATen/remat DESTINATION include/ATen
  FILES_MATCHING PATTERN "*.h")
