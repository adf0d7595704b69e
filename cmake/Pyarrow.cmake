# Finds the C++ headers and libraries of Arrow and Parquet that the Python package pyarrow brings,
# for libtandem_arrow.so. Looks in TANDEM_PYARROW (a CMake or environment variable: the folder of the
# package), or asks the interpreter (TANDEM_PYTHON, else python3).
#
# Sets TANDEM_PYARROW_FOLDER and TANDEM_PYARROW_LIBRARIES; without a pyarrow that fits, neither.
include_guard(GLOBAL)

set(oldest 24)
set(folder ${TANDEM_PYARROW})
if(NOT folder)
  set(folder $ENV{TANDEM_PYARROW})
endif()
if(NOT folder)
  set(python $ENV{TANDEM_PYTHON})
  if(NOT python)
    set(python python3)
  endif()
  execute_process(
    COMMAND ${python} -c "import importlib.util as u; print(u.find_spec('pyarrow').submodule_search_locations[0])"
    OUTPUT_VARIABLE folder ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE)
endif()
set(why "there is no pyarrow (pip install pyarrow)")
if(folder)
  set(why "${folder} lacks Arrow's headers")
  set(config ${folder}/include/arrow/util/config.h)
  if(EXISTS ${config})
    file(STRINGS ${config} version REGEX "define ARROW_VERSION_MAJOR")
    string(REGEX REPLACE "[^0-9]" "" version "${version}")
    set(why "${folder} has version ${version}, and ${oldest} is the oldest that is supported")
    file(GLOB TANDEM_PYARROW_LIBRARIES ${folder}/libparquet.so.* ${folder}/libarrow.so.*)
    if(version GREATER_EQUAL oldest AND TANDEM_PYARROW_LIBRARIES)
      set(TANDEM_PYARROW_FOLDER ${folder})
      message(STATUS "Parquet: with pyarrow ${version} in ${folder}")
    endif()
  endif()
endif()
if(NOT TANDEM_PYARROW_FOLDER)
  message(STATUS "Parquet: no libtandem_arrow.so, because ${why}")
endif()
