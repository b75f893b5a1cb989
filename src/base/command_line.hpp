// The command of this process, for records of what it measured.
#pragma once

#include <string>

namespace shingle {

/// The words of a command, the first without its folder, behind the variables of the environment that change
/// what NCCL and CUDA do: "NCCL_P2P_DISABLE=1 shingle bench …". Of a path in a variable, the file's name is
/// kept.
std::string command_line(int argc, const char* const* argv);

}  // namespace shingle
