#include "command_line.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <vector>

namespace shingle {
namespace {

/// True of a variable, as "name=value", that changes what is measured. bench/torch/record.py has the same
/// rule.
bool matters(std::string_view variable) {
  constexpr std::array<std::string_view, 3> others{
      "CUDA_DEVICE_MAX_CONNECTIONS=", "CUDA_VISIBLE_DEVICES=", "CUDA_MODULE_LOADING="};
  const bool path = variable.find('/') != std::string_view::npos;
  // A version says nothing, and Shingle sets the other itself.
  if (path || variable.starts_with("NCCL_VERSION=") || variable.starts_with("NCCL_RUNTIME_CONNECT="))
    return false;
  return variable.starts_with("NCCL_") ||
         std::ranges::any_of(others, [&](std::string_view name) { return variable.starts_with(name); });
}

}  // namespace

std::string command_line(int argc, const char* const* argv) {
  std::vector<std::string> words;
  for (char** variable = environ; *variable != nullptr; ++variable)
    if (matters(*variable)) words.emplace_back(*variable);
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
