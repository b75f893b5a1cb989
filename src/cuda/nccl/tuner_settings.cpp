#include "tuner_settings.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "base/file.hpp"
#include "cotune/tuned_table.hpp"
#include "cuda/nccl/api.hpp"

namespace shingle::cuda {
namespace {

constexpr const char* variable = "SHINGLE_TUNER_TABLE";

/// The same settings for calls of any kind and size.
TunedTable table_of(const CollectiveConfig& settings, int ranks) {
  TunedTable table;
  for (int collective = 0; collective < nccl_collectives; ++collective)
    for (int size = 0; size < size_classes; ++size)
      table.entries.push_back(
          {.key = {.collective = static_cast<NcclCollective>(collective), .size_class = size, .ranks = ranks},
           .config = settings});
  return table;
}

}  // namespace

bool has_tuner_plugin() {
  const char* const plugin = std::getenv("NCCL_TUNER_PLUGIN");              // a path, or what stands for one
  if (plugin == nullptr || std::getenv(variable) != nullptr) return false;  // a table of the user's stays
  return std::filesystem::path(plugin).filename().string().find("shingle") != std::string::npos;
}

bool nccl_asks_chunks() {
  int version = 0;
  return nccl().ncclGetVersion(&version) == ncclSuccess && version >= 23000;
}

CollectiveConfig tuner_settings(const CollectiveConfig& config) {
  if (!has_tuner_plugin()) return {};
  const bool both = config.algorithm != Algorithm::automatic && config.protocol != Protocol::automatic;
  return {.chunk_bytes = nccl_asks_chunks() ? config.chunk_bytes : 0,
          .algorithm = both ? config.algorithm : Algorithm::automatic,
          .protocol = both ? config.protocol : Protocol::automatic};
}

TunedCommunicator::TunedCommunicator(const CollectiveConfig& settings, int ranks) {
  if (settings == CollectiveConfig{} || ranks < 2) return;
  table_ = std::filesystem::temp_directory_path() / fmt::format("shingle-nccl-{}.json", ::getpid());
  write_file_atomically(table_.string(), to_json(table_of(settings, ranks)));
  ::setenv(variable, table_.c_str(), 1);
}

TunedCommunicator::~TunedCommunicator() {
  if (table_.empty()) return;
  ::unsetenv(variable);
  std::error_code ignored;
  std::filesystem::remove(table_, ignored);
}

}  // namespace shingle::cuda
