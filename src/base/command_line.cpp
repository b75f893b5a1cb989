#include "command_line.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <vector>

namespace shingle {
namespace {

/// True of a variable, as "name=value", that changes what is measured. NCCL_VERSION is set in images of
/// containers, and NCCL_RUNTIME_CONNECT=0 by Shingle. bench/torch/record.py has the same rule.
bool matters(std::string_view variable) {
  constexpr std::array<std::string_view, 4> others{"CUDA_DEVICE_MAX_CONNECTIONS=", "CUDA_VISIBLE_DEVICES=",
                                                   "CUDA_MODULE_LOADING=", "CUDA_LAUNCH_BLOCKING="};
  if (variable.starts_with("NCCL_VERSION=") || variable == "NCCL_RUNTIME_CONNECT=0") return false;
  return variable.starts_with("NCCL_") ||
         std::ranges::any_of(others, [&](std::string_view name) { return variable.starts_with(name); });
}

/// The variable, a path in it without its folder.
std::string shown(std::string_view variable) {
  const std::size_t equals = variable.find('='), slash = variable.rfind('/');
  if (slash == std::string_view::npos) return std::string(variable);
  return std::string(variable.substr(0, equals + 1)) + std::string(variable.substr(slash + 1));
}

}  // namespace

std::string command_line(int argc, const char* const* argv) {
  std::vector<std::string> words;
  for (char** variable = environ; *variable != nullptr; ++variable)
    if (matters(*variable)) words.push_back(shown(*variable));
  std::ranges::sort(words);
  for (int i = 0; i < argc; ++i) {
    const std::string word = argv[i];
    words.push_back(i == 0 ? word.substr(word.rfind('/') + 1) : word);
  }
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : " ") + word;
  return text;
}

}  // namespace shingle
