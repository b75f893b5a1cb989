#include "opened_library.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>
#include <system_error>
#include <vector>

#include "shingle/base/error.hpp"

namespace shingle::cuda {
namespace {

namespace fs = std::filesystem;

std::vector<fs::path> folders_in(const fs::path& folder) {
  std::vector<fs::path> found;
  std::error_code none;
  for (fs::directory_iterator at(folder, none), end; !none && at != end; at.increment(none))
    found.push_back(at->path());
  return found;
}

/// Copies of the library in Python packages: <environment>/lib/python3*/site-packages/nvidia/*/lib.
std::vector<std::string> in_packages(const std::string& soname) {
  std::vector<std::string> found;
  for (const char* const variable : {"VIRTUAL_ENV", "CONDA_PREFIX"}) {
    const char* const environment = std::getenv(variable);
    if (environment == nullptr) continue;
    for (const fs::path& python : folders_in(fs::path(environment) / "lib"))
      for (const fs::path& package : folders_in(python / "site-packages" / "nvidia"))
        if (const fs::path file = package / "lib" / soname; fs::exists(file)) found.push_back(file.string());
  }
  return found;
}

}  // namespace

OpenedLibrary::OpenedLibrary(std::string soname) : soname_(std::move(soname)) {
  handle_ = dlopen(soname_.c_str(), RTLD_NOW | RTLD_NOLOAD);
  if (handle_ != nullptr) return;
  for (const std::string& file : in_packages(soname_))
    if (handle_ = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL); handle_ != nullptr) return;
  handle_ = dlopen(soname_.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle_ != nullptr) return;
  const char* const why = dlerror();
  throw Unsupported(fmt::format("{} cannot be opened; install it, or add its folder to LD_LIBRARY_PATH: {}",
                                soname_, why != nullptr ? why : "unknown reason"));
}

void* OpenedLibrary::function(const char* name) const {
  if (void* const found = dlsym(handle_, name)) return found;
  throw Unsupported(fmt::format("{} has no {}; install a newer version", soname_, name));
}

}  // namespace shingle::cuda
