#include "stopwatch.hpp"

#include <algorithm>
#include <chrono>
#include <random>
#include <thread>

namespace shingle::tuning {
namespace {

constexpr std::uint8_t three_quarters = 0x3f;  // in every byte: 0.747 in fp32 and bf16, 1.8 in fp16

/// Normally distributed numbers in the element type, as weights and activations are: power depends on the
/// values, and clocks on power. Their count is not a power of two, so that no two rows are equal.
std::vector<std::byte> random_elements(DType dtype) {
  constexpr std::size_t count = 1'000'003;
  std::mt19937 bits(1);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = normal(bits);
  std::vector<std::byte> elements(count * size_bytes(dtype));
  narrow(dtype, values.data(), elements.data(), count);
  return elements;
}

bool has_products(const Plan& plan) {
  for (const RankPlan& rank : plan.ranks)
    for (const Lane& lane : rank.lanes)
      for (const Step& step : lane.steps)
        if (std::holds_alternative<Gemm>(step) || std::holds_alternative<Attend>(step) ||
            std::holds_alternative<AttendBackward>(step))
          return true;
  return false;
}

double middle(std::vector<double> times) {
  std::ranges::sort(times);
  return times.empty() ? 0 : times[times.size() / 2];
}

/// Interquartile range over the median, after subtracting the clock's resolution. 0 for fewer than three
/// times.
double spread_of(std::vector<double> times) {
  constexpr double clock_us = 1;
  if (times.size() < 3) return 0;
  std::ranges::sort(times);
  const double range = times[times.size() * 3 / 4] - times[times.size() / 4];
  return std::max(range - clock_us, 0.0) / times[times.size() / 2];
}

struct Interval {
  double begin_us = 0, end_us = 0;

  double us() const { return end_us - begin_us; }
};

/// Interval of each step of a lane on a rank, over all groups of its tiles, in order.
std::map<std::int32_t, Interval> steps_of(const std::vector<Span>& spans, int rank, int lane) {
  std::map<std::int32_t, Interval> steps;
  for (const Span& span : spans) {
    if (span.rank != rank || span.lane != lane) continue;
    const auto [at, first] = steps.try_emplace(span.step, Interval{span.begin_us, span.end_us});
    if (first) continue;
    at->second.begin_us = std::min(at->second.begin_us, span.begin_us);
    at->second.end_us = std::max(at->second.end_us, span.end_us);
  }
  return steps;
}

/// Compares times of a rank's two lanes, by the rank's own clock.
Stopwatch::Beside beside_of(const Plan& plan, const std::vector<Span>& spans) {
  std::vector<double> products, collectives, alone;
  for (int rank = 0; rank < static_cast<int>(plan.ranks.size()); ++rank) {
    const auto computing = steps_of(spans, rank, 0);
    auto moving = steps_of(spans, rank, 1);
    std::erase_if(moving, [&](const auto& at) {
      const auto& lane = plan.ranks[static_cast<std::size_t>(rank)].lanes[1];
      const Step& step = lane.steps[static_cast<std::size_t>(at.first)];
      return !std::holds_alternative<Collective>(step) && !std::holds_alternative<Copy>(step);
    });
    if (computing.empty() || moving.empty()) continue;
    const auto within = [](const Interval& time, const auto& others) {
      return time.begin_us >= others.begin()->second.begin_us &&
             time.end_us <= others.rbegin()->second.end_us;
    };
    for (const auto& [step, time] : computing)
      if (within(time, moving)) products.push_back(time.us());
    for (const auto& [step, time] : moving)
      if (within(time, computing))
        collectives.push_back(time.us());
      else if (time.begin_us >= computing.rbegin()->second.end_us)
        alone.push_back(time.us());
  }
  return {middle(std::move(products)), middle(std::move(collectives)), middle(std::move(alone))};
}

}  // namespace

void Stopwatch::write_random(int rank, DType dtype, const DeviceBuffer& buffer) {
  std::vector<std::byte>& elements = random_[dtype];
  if (elements.empty()) elements = random_elements(dtype);
  for (std::size_t done = 0; done < buffer.bytes(); done += elements.size())
    world_.upload(rank, static_cast<std::byte*>(buffer.data()) + done, elements.data(),
                  std::min(elements.size(), buffer.bytes() - done));
}

Timed Stopwatch::prepare(const Plan& plan) {
  Timed timed;
  timed.multiplies = has_products(plan);
  timed.executable_ = world_.compile(plan);
  for (const int rank : world_.local_ranks())
    for (const Buffer& buffer : plan.buffers) {
      if (buffer.role == Role::internal) continue;
      const DeviceBuffer& memory =
          timed.memory_.emplace_back(world_.allocate(rank, static_cast<std::size_t>(buffer.bytes(rank))));
      if (timed.multiplies && is_input(buffer.role))
        write_random(rank, buffer.dtype, memory);
      else
        world_.fill(rank, memory.data(), three_quarters, memory.bytes());
      timed.executable_->bind(rank, buffer.role, memory.data());
    }
  timed.executable_->run({.timeout_us = timeout_us_});
  return timed;
}

template <class Measure>
double Stopwatch::median(Timed& timed, bool trace, Measure measure) {
  constexpr int most = 2;  // max. factor on the number of runs if their times differ
  std::vector<double> times;
  for (int i = 0; i < repeat_ || (i < most * repeat_ && most_spread_ > 0 && spread_of(times) > most_spread_);
       ++i) {
    if (timed.multiplies)
      std::this_thread::sleep_for(std::chrono::duration<double, std::micro>(timing_.rest_us));
    const RunReport report = timed.executable_->run({.timeout_us = timeout_us_, .trace = trace});
    times.push_back(world_.all_max({measure(report)})[0]);
  }
  spreads_.push_back(spread_of(times));
  std::ranges::sort(times);
  return times[times.size() / 2];
}

double Stopwatch::us(Timed& timed) {
  return median(timed, false, [](const RunReport& report) { return report.elapsed_us; });
}

double Stopwatch::us(const Plan& plan) {
  Timed timed = prepare(plan);
  return us(timed);
}

double Stopwatch::lane_us(const Plan& plan, int lane) {
  Timed timed = prepare(plan);
  return median(timed, true, [&](const RunReport& report) {
    double longest = 0;
    for (int rank = 0; rank < world_.size(); ++rank) {
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

double Stopwatch::step_us(const Plan& plan, int lane, int first) {
  Timed timed = prepare(plan);
  return median(timed, true, [&](const RunReport& report) {
    std::vector<double> times;
    for (int rank = 0; rank < world_.size(); ++rank)
      for (const auto& [step, time] : steps_of(report.spans, rank, lane))
        if (step >= first) times.push_back(time.us());
    return middle(std::move(times));
  });
}

Stopwatch::Beside Stopwatch::beside(const Plan& plan) {
  Timed timed = prepare(plan);
  std::vector<double> products, collectives, alone;
  median(timed, true, [&](const RunReport& report) {
    Beside us = beside_of(plan, report.spans);
    products.push_back(us.product_us);
    collectives.push_back(us.collective_us);
    alone.push_back(us.alone_us);
    return report.elapsed_us;
  });
  std::vector<double> medians{middle(std::move(products)), middle(std::move(collectives)),
                              middle(std::move(alone))};
  medians = world_.all_max(std::move(medians));
  return {medians[0], medians[1], medians[2]};
}

}  // namespace shingle::tuning
