// The functions of the host backend that need MPI, in libshingle.so: those of libshingle-mpi.so, opened at
// first use.
#include <dlfcn.h>
#include <fmt/format.h>

#include <filesystem>
#include <string_view>

#include "base/log.hpp"
#include "host/mpi/library.hpp"
#include "mpi_module.hpp"
#include "shingle/base/error.hpp"
#include "shingle/version.hpp"

namespace shingle {
namespace {

constexpr const char* module_name = "libshingle-mpi.so";

/// Path of the module beside libshingle.so; empty if there is none.
std::string module_beside() {
  Dl_info info{};
  if (::dladdr(reinterpret_cast<const void*>(&module_beside), &info) == 0 || info.dli_fname == nullptr)
    return {};
  std::error_code error;
  const auto here = std::filesystem::canonical(info.dli_fname, error).parent_path() / module_name;
  return std::filesystem::exists(here, error) ? here.string() : std::string();
}

const MpiModule& open_module() {
  const std::string beside = module_beside();
  // Open MPI's own plugins look for its symbols among the global ones. The module is never closed: MPI acts
  // at process exit.
  void* const opened = ::dlopen(beside.empty() ? module_name : beside.c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (opened == nullptr)
    throw Unsupported(
        fmt::format("the mpi backend needs {}, which cannot be opened ({}); install it beside "
                    "libshingle.so, with its MPI library, or choose the host backend",
                    module_name, ::dlerror()));
  const auto* const found = static_cast<const MpiModule*>(::dlsym(opened, "shingle_mpi_module"));
  if (found == nullptr || std::string_view(found->commit) != commit())
    throw Unsupported(fmt::format("{} is of commit {}, libshingle.so of {}: install both of one build",
                                  module_name, found != nullptr ? found->commit : "unknown", commit()));
  found->set_log_sink(log_line);
  return *found;
}

const MpiModule& the_module() {
  static const MpiModule& loaded = open_module();  // tried again after a failure
  return loaded;
}

}  // namespace

std::string host::mpi_library() {
  return the_module().library();
}

std::unique_ptr<World> make_mpi_world(const HostOptions& options) {
  return the_module().make_world(options);
}

}  // namespace shingle
