include(${CMAKE_CURRENT_LIST_DIR}/remat_sources.cmake)
remat_sources(REMAT_C10_SRCS ${CMAKE_CURRENT_LIST_DIR}/../../c10/remat)
list(APPEND C10_SRCS ${REMAT_C10_SRCS})
