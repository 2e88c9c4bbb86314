include(${CMAKE_CURRENT_LIST_DIR}/remat_sources.cmake)
remat_sources(REMAT_C10_CUDA_SRCS ${CMAKE_CURRENT_LIST_DIR}/../../c10/cuda/remat)
list(APPEND C10_CUDA_SRCS ${REMAT_C10_CUDA_SRCS})
