# shingle_import(<name> <header> [folders...]): creates the imported target shingle::<name>. It finds the library by
# its header and its file, also below `folders`. It does not use the library's CMake package: Debian's oneDNN package
# needs OpenCL headers that it does not contain.
function(shingle_import name header)
  if(TARGET shingle::${name})
    return()
  endif()
  find_path(SHINGLE_${name}_INCLUDE_DIR ${header} HINTS ${ARGN} PATH_SUFFIXES include ${name} REQUIRED)
  find_library(SHINGLE_${name}_LIBRARY ${name} HINTS ${ARGN} PATH_SUFFIXES lib lib64 REQUIRED)
  mark_as_advanced(SHINGLE_${name}_INCLUDE_DIR SHINGLE_${name}_LIBRARY)
  add_library(shingle::${name} UNKNOWN IMPORTED GLOBAL)
  set_target_properties(
    shingle::${name} PROPERTIES IMPORTED_LOCATION ${SHINGLE_${name}_LIBRARY}
                                INTERFACE_INCLUDE_DIRECTORIES ${SHINGLE_${name}_INCLUDE_DIR})
endfunction()
