#include "api.hpp"

#include <fmt/format.h>

#include "cuda/raii/opened_library.hpp"
#include "shingle/base/error.hpp"

namespace shingle::cuda {

const NcclApi& nccl() {
  static const NcclApi api = [] {
    const OpenedLibrary library("libnccl.so.2");
    NcclApi found;
#define SHINGLE_FIND(name) found.name = reinterpret_cast<decltype(found.name)>(library.function(#name));
    SHINGLE_NCCL_FUNCTIONS(SHINGLE_FIND)
#undef SHINGLE_FIND
    int version = 0;
    found.ncclGetVersion(&version);
    if (constexpr int least = NCCL_VERSION(2, 28, 0); version < least)
      throw Unsupported(fmt::format("NCCL {}.{} is too old; 2.28 or newer is needed", version / 10000,
                                    version / 100 % 100));
    return found;
  }();
  return api;
}

}  // namespace shingle::cuda
