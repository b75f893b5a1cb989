# Writes OUTPUT, a source file that contains the commit of SOURCE. Rewrites it only if the commit changed, so that an
# unchanged tree relinks nothing. Runs at each build: cmake -D SOURCE=... -D OUTPUT=... -P commit.cmake
set(commit "")
if(EXISTS ${SOURCE}/.git)
  execute_process(
    COMMAND git --no-optional-locks -C ${SOURCE} describe --always --dirty --exclude=* --abbrev=12
    OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
endif()
if(commit STREQUAL "")
  set(commit unknown)
endif()
file(CONFIGURE OUTPUT ${OUTPUT} @ONLY CONTENT [[
#include "shingle/version.hpp"

const char* shingle::commit() noexcept { return "@commit@"; }
]])
