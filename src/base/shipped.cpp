// Finds files that ship with Shingle.
#include <dlfcn.h>

#include <filesystem>
#include <string_view>

#include "file.hpp"

namespace shingle {
namespace {

namespace fs = std::filesystem;

/// Path of the shared library or program that holds this code.
fs::path library_file() {
  Dl_info info{};
  // For a program the loader knows only argv[0], which may not be a path.
  if (::dladdr(reinterpret_cast<const void*>(&library_file), &info) != 0 && info.dli_fname != nullptr &&
      std::string_view(info.dli_fname).find('/') != std::string_view::npos)
    return info.dli_fname;
  return "/proc/self/exe";
}

}  // namespace

std::string find_shipped(std::string_view name) {
  std::error_code error;
  fs::path above = fs::canonical(library_file(), error);
  while (above.has_relative_path()) {
    above = above.parent_path();
    for (const char* below : {"share/shingle", "."})
      if (fs::path file = above / below / name; fs::is_regular_file(file, error))
        return file.lexically_normal().string();
  }
  return {};
}

}  // namespace shingle
