#include "stopwatch.hpp"

#include <algorithm>
#include <cstring>
#include <list>
#include <vector>

namespace shingle::tune {

template <class Measure>
double Stopwatch::median(const Plan& plan, bool trace, Measure measure) const {
  const auto executable = world_.compile(plan);
  std::list<DeviceBuffer> memory;
  for (const int rank : world_.local_ranks())
    for (const Buffer& buffer : plan.buffers) {
      if (buffer.role == Role::internal) continue;
      const auto bytes = static_cast<std::size_t>(buffer.bytes(rank));
      void* data = memory.emplace_back(world_.allocate(rank, bytes)).data();
      constexpr int three_quarters = 0x3f;  // 0.747 in fp32 and bf16, 1.8 in fp16: no slow denormal numbers
      if (bytes > 0) std::memset(data, three_quarters, bytes);
      executable->bind(rank, buffer.role, data);
    }
  executable->run({.trace = trace});
  std::vector<double> times;
  for (int i = 0; i < repeat_; ++i)
    times.push_back(world_.all_max({measure(executable->run({.trace = trace}))})[0]);
  std::ranges::sort(times);
  return times[times.size() / 2];
}

double Stopwatch::us(const Plan& plan) const {
  return median(plan, false, [](const RunReport& report) { return report.elapsed_us; });
}

double Stopwatch::lane_us(const Plan& plan, int lane) const {
  return median(plan, true, [&](const RunReport& report) {
    double longest = 0;
    for (int rank = 0; rank < ranks(); ++rank) {
      double begin = -1, end = 0;
      for (const Span& span : report.spans) {
        if (span.rank != rank || span.lane != lane) continue;
        begin = begin < 0 ? span.begin_us : std::min(begin, span.begin_us);
        end = std::max(end, span.end_us);
      }
      if (begin >= 0) longest = std::max(longest, end - begin);
    }
    return longest;
  });
}

double Stopwatch::step_us(const Plan& plan, int lane, int first) const {
  return median(plan, true, [&](const RunReport& report) {
    std::vector<double> times;
    for (const Span& span : report.spans)
      if (span.lane == lane && span.step >= first) times.push_back(span.end_us - span.begin_us);
    std::ranges::sort(times);
    return times.empty() ? 0 : times[times.size() / 2];
  });
}

}  // namespace shingle::tune
