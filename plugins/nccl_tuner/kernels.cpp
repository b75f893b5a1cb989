#include "kernels.hpp"

#include <algorithm>
#include <array>
#include <map>

#include "call.hpp"

namespace shingle::nccl_tuner {
namespace {

constexpr std::size_t iterations = 2;  // that are timed

using Calls = std::vector<Kernel>;

/// Number of rotations after which an iteration looks the same.
std::size_t distinct_rotations(std::span<const std::uint64_t> iteration) {
  const std::size_t calls = iteration.size();
  for (std::size_t n = 1; n < calls; ++n)
    if (calls % n == 0 && std::ranges::equal(iteration.subspan(n), iteration.first(calls - n))) return n;
  return calls;
}

/// Number of the first iteration's call that the kernel `calls.front()` is, if the kernels continue the
/// iteration. If several calls fit, the larger calls are taken to last longer.
std::optional<std::size_t> rotation_of(std::span<const Kernel> calls,
                                       std::span<const std::uint64_t> iteration) {
  const std::size_t distinct = distinct_rotations(iteration);
  std::optional<std::size_t> best;
  double best_fit = -1;
  for (std::size_t first = 0; first < distinct; ++first) {
    bool fits = true;
    double fit = 0;
    for (std::size_t i = 0; i < calls.size() && fits; ++i) {
      const Call call = Call::of_signature(iteration[(first + i) % iteration.size()]);
      fits = calls[i].kind == static_cast<std::int8_t>(call.collective);
      fit += static_cast<double>(call.bytes) * (calls[i].end_us - calls[i].begin_us);
    }
    if (fits && fit > best_fit) best = first, best_fit = fit;
  }
  return best;
}

/// Time within [begin, end) in which some kernel runs, in order of `kernels`' begin.
template <class Filter>
std::vector<std::pair<double, double>> busy(const std::vector<Kernel>& kernels, double begin, double end,
                                            Filter filter) {
  std::vector<std::pair<double, double>> spans;
  for (const Kernel& kernel : kernels) {
    const double from = std::max(kernel.begin_us, begin), to = std::min(kernel.end_us, end);
    if (from >= to || !filter(kernel)) continue;
    if (!spans.empty() && from <= spans.back().second)
      spans.back().second = std::max(spans.back().second, to);
    else
      spans.emplace_back(from, to);
  }
  return spans;
}

double length(const std::vector<std::pair<double, double>>& spans) {
  double us = 0;
  for (const auto& [from, to] : spans) us += to - from;
  return us;
}

}  // namespace

std::int8_t kind_of_kernel(std::string_view name) {
  constexpr std::array<std::string_view, 3> prefixes{"ncclDevKernel_", "ncclKernel_", "ncclSym"};
  // In NCCL's order of collectives. "Reduce_" is the last word of no other name.
  constexpr std::array<std::string_view, nccl_collectives> collectives{"Broadcast_", "Reduce_", "AllGather_",
                                                                       "ReduceScatter_", "AllReduce_"};
  for (const std::string_view prefix : prefixes) {
    const std::size_t at = name.find(prefix);
    if (at == std::string_view::npos) continue;
    const std::string_view rest = name.substr(at + prefix.size());
    for (std::size_t i = 0; i < collectives.size(); ++i)
      if (rest.starts_with(collectives[i])) return static_cast<std::int8_t>(i);
    return Kernel::other_communication;
  }
  return Kernel::computation;
}

std::optional<Apart> timed_apart(std::vector<Kernel> kernels, std::span<const std::uint64_t> iteration) {
  std::ranges::sort(kernels, {}, &Kernel::begin_us);
  std::map<std::uint64_t, Calls> streams;
  for (const Kernel& kernel : kernels)
    if (kernel.kind >= 0) streams[kernel.stream].push_back(kernel);

  const std::size_t period = iteration.size(), timed = iterations * period;
  std::optional<Apart> found;
  for (const auto& [stream, calls] : streams) {
    if (period == 0 || calls.size() <= timed + period) continue;
    // The last kernel begins the iteration after the timed ones.
    const std::span last = std::span(calls).last(timed + period + 1);
    const auto first = rotation_of(last, iteration);
    if (!first) continue;
    if (found) return std::nullopt;
    const std::span counted = last.subspan(period, timed);
    const double begin = counted.front().begin_us, end = last.back().begin_us;
    found.emplace();
    found->call_us.assign(period, 0);
    for (std::size_t i = 0; i < timed; ++i)
      found->call_us[(*first + i) % period] += (counted[i].end_us - counted[i].begin_us) / iterations;
    const auto here = [&, gpu = stream >> 32](const Kernel& kernel) { return kernel.stream >> 32 == gpu; };
    const auto computes = [&](const Kernel& kernel) {
      return here(kernel) && kernel.kind == Kernel::computation;
    };
    const double any = length(busy(kernels, begin, end, here));
    const double computing = length(busy(kernels, begin, end, computes));
    found->exposed = end > begin ? (any - computing) / (end - begin) : 0;
  }
  return found;
}

}  // namespace shingle::nccl_tuner
