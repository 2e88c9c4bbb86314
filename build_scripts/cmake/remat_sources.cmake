# remat_sources(OUT FOLDER): the .cpp files below FOLDER that go into a library.
# Programs and tests that live beside them do not.
function(remat_sources out folder)
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${folder}/*.cpp)
  list(FILTER sources EXCLUDE REGEX "_(test|main|bench)\\.cpp$")
  set(${out} ${sources} PARENT_SCOPE)
endfunction()
