#include "token.hpp"

#include <fmt/format.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "base/file.hpp"
#include "shingle/base/error.hpp"

namespace shingle::net {
namespace {

constexpr const char* by_value = "SHINGLE_TOKEN";
constexpr const char* by_file = "SHINGLE_TOKEN_FILE";
/// Innermost launcher first. torchrun's id is "none" unless the user or --standalone sets one.
constexpr const char* by_launcher[] = {"TORCHELASTIC_RUN_ID", "OMPI_MCA_orte_precondition_transports",
                                       "PMIX_NAMESPACE", "SLURM_JOB_ID"};

std::string content(const std::string& path) {
  constexpr std::size_t most_bytes = 4096;
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0)
    throw IoError(fmt::format("{}: {}: {}", by_file, path, std::strerror(errno)));
  if ((status.st_mode & 077) != 0)
    throw InvalidArgument(fmt::format("{}: other users can access {} (mode {:03o}): chmod 600 it", by_file,
                                      path, status.st_mode & 0777));
  std::string text = read_file(path, most_bytes);
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r')) text.pop_back();
  if (text.empty())
    throw InvalidArgument(
        fmt::format("{}: {} is empty; expected a token, such as `openssl rand -hex 32` "
                    "prints",
                    by_file, path));
  return text;
}

}  // namespace

Token job_token(const std::function<const char*(const char* name)>& environment) {
  if (const char* value = environment(by_value)) {
    if (*value == '\0')
      throw InvalidArgument(
          fmt::format("{} is empty; expected a token, such as `openssl rand -hex 32` "
                      "prints; or unset it",
                      by_value));
    return {value, by_value, true};
  }
  if (const char* path = environment(by_file)) return {content(path), by_file, true};
  for (const char* name : by_launcher)
    if (const char* value = environment(name); value != nullptr && *value != '\0')
      return {value, name, false};
  return {};
}

Token job_token() {
  return job_token([](const char* name) { return static_cast<const char*>(std::getenv(name)); });
}

}  // namespace shingle::net
