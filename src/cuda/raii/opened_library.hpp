// Shared libraries that are opened when they are first used, so that programs start without them.
#pragma once

#include <string>

namespace shingle::cuda {

class OpenedLibrary {
 public:
  /// Opens "libnccl.so.2", for example: the one that the process has loaded, else the one in a Python package
  /// nvidia-* of the active environment (VIRTUAL_ENV, CONDA_PREFIX), else the one that the loader finds.
  /// Throws Unsupported with the loader's reason. It stays open until the end of the process.
  explicit OpenedLibrary(std::string soname);

  /// Throws Unsupported if the library lacks the function.
  void* function(const char* name) const;
  /// The loader's, for libraries that look functions up themselves.
  void* handle() const noexcept { return handle_; }

 private:
  std::string soname_;
  void* handle_ = nullptr;
};

}  // namespace shingle::cuda
