# shingle_layer(<name> [DEPENDS layers...] [PUBLIC libraries...] [PRIVATE libraries...])
#
# Folder = layer = target: shingle_<name> holds the sources below the current folder. Without sources it is
# header-only. PUBLIC libraries appear in the layer's headers, PRIVATE ones only in its sources.
# src/CMakeLists.txt joins all layers into the installed library.
function(shingle_layer name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "DEPENDS;PUBLIC;PRIVATE")
  set(layer shingle_${name})
  set(extensions *.cpp)
  if(SHINGLE_CUDA)
    list(APPEND extensions *.cu)
  endif()
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${extensions})
  list(TRANSFORM arg_DEPENDS PREPEND shingle_)

  if(sources)
    add_library(${layer} OBJECT ${sources})
    set(scope PUBLIC)
    target_include_directories(${layer} PRIVATE ${PROJECT_SOURCE_DIR}/src)
    target_link_libraries(${layer} PRIVATE ${arg_PRIVATE})
    target_sources(shingle PRIVATE $<TARGET_OBJECTS:${layer}>)
  else()
    add_library(${layer} INTERFACE)
    set(scope INTERFACE)
  endif()
  target_include_directories(${layer} ${scope} ${PROJECT_SOURCE_DIR}/include ${PROJECT_BINARY_DIR}/include)
  target_link_libraries(${layer} ${scope} ${arg_DEPENDS} ${arg_PUBLIC})
  target_link_libraries(shingle PUBLIC ${arg_PUBLIC} PRIVATE ${arg_PRIVATE})
endfunction()
