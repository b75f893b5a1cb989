#include "shingle/bench/sweep.hpp"

#include <fmt/format.h>

namespace shingle::cli {
namespace {

std::int64_t ProblemFlags::*field_of(const std::string& name) {
  if (name == "m") return &ProblemFlags::m;
  if (name == "n") return &ProblemFlags::n;
  if (name == "k") return &ProblemFlags::k;
  if (name == "inner") return &ProblemFlags::inner;
  throw InvalidArgument(fmt::format("--sweep: unknown size '{}' (one of m, n, k, inner)", name));
}

std::int64_t swept_extent(const std::string& text) {
  try {
    const std::int64_t value = parse_size(text);
    if (value >= 1 && value <= max_extent) return value;
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(fmt::format("--sweep: {}", error.what()));
  }
  throw InvalidArgument(fmt::format("--sweep: {} is outside [1, {}]", text, max_extent));
}

}  // namespace

std::vector<ProblemFlags> swept(const ProblemFlags& flags, const std::vector<std::string>& sweeps) {
  constexpr std::size_t most = 4096;
  if (!sweeps.empty() && !flags.model.empty())
    throw InvalidArgument("--sweep needs --op; a --model sets its own sizes");
  std::vector<ProblemFlags> all{flags};
  for (const std::string& sweep : sweeps) {
    const std::size_t equals = sweep.find('=');
    if (equals == std::string::npos)
      throw InvalidArgument(
          fmt::format("--sweep: '{}' is not a size and its values, such as k=1K,2K", sweep));
    const auto field = field_of(sweep.substr(0, equals));
    std::vector<ProblemFlags> longer;
    for (const ProblemFlags& one : all)
      for (std::size_t begin = equals + 1, end = 0; end != std::string::npos; begin = end + 1) {
        end = sweep.find(',', begin);
        longer.push_back(one);
        longer.back().*field =
            swept_extent(sweep.substr(begin, end == std::string::npos ? end : end - begin));
        if (longer.size() > most) throw InvalidArgument(fmt::format("--sweep: more than {} sizes", most));
      }
    all = std::move(longer);
  }
  return all;
}

}  // namespace shingle::cli
