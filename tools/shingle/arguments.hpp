// Reads the command line, and refuses what is wrong with it in one line.
#pragma once

#include <optional>

#include "shingle/common/process_launch.hpp"

namespace CLI {
class App;
}

namespace shingle::cli {

inline constexpr int bad_usage = 2;  ///< exit code of a refused command line or file

/// Exit code if the arguments were answered (help, version). Empty if there is work to do. Throws
/// InvalidArgument if they are refused.
std::optional<int> parse(CLI::App& app, int argc, const char* const* argv, const ProcessLaunch& launch);

}  // namespace shingle::cli
