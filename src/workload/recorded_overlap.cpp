#include "recorded_overlap.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <unordered_map>
#include <utility>

#include "shingle/base/error.hpp"
#include "torch_trace.hpp"

namespace shingle {
namespace {

using torch::Call;
using torch::Iteration;
using torch::Wait;
using torch::Work;

/// Index of the last computation and of the last collective that an item comes after; -1: none.
struct After {
  std::int32_t computation = -1, collective = -1;

  void join(const After& other) {
    computation = std::max(computation, other.computation);
    collective = std::max(collective, other.collective);
  }
};

/// Tracks the work before each point of a stream: its own earlier work, and work of other streams whose
/// events it awaits. Work and waits are passed in enqueue order.
class Streams {
 public:
  explicit Streams(const std::vector<Wait>& waits) : next_(waits.begin()), end_(waits.end()) {}

  /// Enqueues work with index `place` in a list. Returns the items that it comes after.
  After enqueue(const Work& work, const After& place) {
    for (; next_ != end_ && next_->correlation < work.correlation; ++next_) enqueue(*next_);
    const After after = before(work.stream, work.correlation);
    After with = after;
    with.join(place);
    behind_[work.stream].emplace_back(work.correlation, with);
    return after;
  }

 private:
  using Waits = std::vector<Wait>::const_iterator;

  void enqueue(const Wait& wait) {
    After after = before(wait.stream, wait.correlation);
    if (behind_.size() > most_streams)
      throw InvalidArgument(fmt::format("the trace has more than {} streams", most_streams));
    if (wait.on_stream >= 0)
      after.join(before(wait.on_stream, wait.recorded));
    else
      for (const auto& [stream, behind] : behind_) after.join(before(stream, wait.recorded));
    behind_[wait.stream].emplace_back(wait.correlation, after);
  }

  /// Everything that a stream had enqueued or awaited at a correlation.
  After before(std::int64_t stream, std::int64_t correlation) const {
    const auto found = behind_.find(stream);
    if (found == behind_.end()) return {};
    const auto next =
        std::ranges::lower_bound(found->second, correlation, {}, [](const auto& at) { return at.first; });
    return next == found->second.begin() ? After{} : std::prev(next)->second;
  }

  static constexpr std::size_t most_streams = 1024;  // each wait for all streams visits every stream

  Waits next_, end_;
  /// By stream: for each enqueued item, its correlation and the work before it.
  std::map<std::int64_t, std::vector<std::pair<std::int64_t, After>>> behind_;
};

/// A computation: consecutive kernels.
struct Computation {
  std::string name;
  double us = 0;
  std::optional<torch::Product> product;
  std::int64_t op = -1;
  std::int32_t awaits = -1;  ///< last collective that it comes after
};

struct RecordedCollective {
  const Work* work;
  std::int32_t awaits = -1;  ///< last computation that it comes after
};

class Recording {
 public:
  Recording(const Iteration& iteration, int ranks)
      : iteration_(iteration), ranks_(ranks > 0 ? ranks : busiest()) {
    for (const Work& work : iteration.work) {
      if (!work.call)
        computing_.push_back(&work);
      else if (work.call->kind && work.call->ranks == ranks_ && work.call->bytes > 0)
        collectives_.push_back({&work});
      else
        ++left_out_;
    }
    if (collectives_.empty())
      throw InvalidArgument(ranks > 0 ? fmt::format("no collectives of {} ranks in {}", ranks, where())
                                      : fmt::format("no collectives in {}", where()));
    std::ranges::stable_sort(computing_, {}, &Work::begin_us);
    std::ranges::stable_sort(collectives_, {}, [](const RecordedCollective& c) { return c.work->begin_us; });
    awaited_.resize(computing_.size(), -1);
    if (iteration.has_waits)
      by_streams();
    else
      by_time();
    join();
  }

  RecordedOverlap take() && {
    RecordedOverlap recorded{.workload = {.world = ranks_},
                             .step = iteration_.name,
                             .left_out = left_out_,
                             .exact = iteration_.has_waits};
    double begin = iteration_.work.front().begin_us, end = begin;
    for (const Work& work : iteration_.work)
      begin = std::min(begin, work.begin_us), end = std::max(end, work.end_us);
    recorded.us = end - begin;
    add_computations(recorded);
    for (const RecordedCollective& item : collectives_) {
      const Call& call = *item.work->call;
      recorded.workload.collectives.push_back({std::string(name(*call.kind)), *call.kind, call.bytes, {}});
      if (item.awaits > last_) recorded.workload.collectives.back().after = {last_ = item.awaits};
    }
    recorded.workload.validate();
    return recorded;
  }

 private:
  std::string where() const { return iteration_.name.empty() ? "the trace" : iteration_.name; }

  /// Size of the groups that move the most bytes.
  int busiest() const {
    std::map<int, double> bytes;  // double, because sums may exceed 64 bits
    for (const Work& work : iteration_.work)
      if (work.call && work.call->kind) bytes[work.call->ranks] += static_cast<double>(work.call->bytes);
    const auto most = std::ranges::max_element(bytes, {}, [](const auto& group) { return group.second; });
    return most == bytes.end() ? 0 : most->first;
  }

  void by_streams() {
    std::unordered_map<const Work*, After> places;
    for (std::size_t i = 0; i < computing_.size(); ++i)
      places[computing_[i]].computation = static_cast<int>(i);
    for (std::size_t i = 0; i < collectives_.size(); ++i)
      places[collectives_[i].work].collective = static_cast<int>(i);
    Streams streams(iteration_.waits);
    for (const Work& work : iteration_.work) {
      const auto place = places.find(&work);
      const After after = streams.enqueue(work, place == places.end() ? After{} : place->second);
      if (place == places.end()) continue;
      if (work.call)
        collectives_[static_cast<std::size_t>(place->second.collective)].awaits = after.computation;
      else
        awaited_[static_cast<std::size_t>(place->second.computation)] = after.collective;
    }
  }

  void by_time() {
    std::vector<const Work*> sent;
    for (const RecordedCollective& item : collectives_) sent.push_back(item.work);
    awaited_ = last_before(computing_, sent);
    const std::vector<std::int32_t> awaits = last_before(sent, computing_);
    for (std::size_t i = 0; i < awaits.size(); ++i) collectives_[i].awaits = awaits[i];
  }

  /// For each work, the index of the last of `others` that had ended when it began, or -1. Both lists are in
  /// order of begin.
  static std::vector<std::int32_t> last_before(const std::vector<const Work*>& works,
                                               const std::vector<const Work*>& others) {
    std::vector<std::int32_t> by_end(others.size());
    for (std::size_t i = 0; i < by_end.size(); ++i) by_end[i] = static_cast<std::int32_t>(i);
    const auto end = [&](std::int32_t i) { return others[static_cast<std::size_t>(i)]->end_us; };
    std::ranges::sort(by_end, {}, end);
    std::vector<std::int32_t> last;
    std::int32_t over = -1;
    auto next = by_end.begin();
    for (const Work* work : works) {
      for (; next != by_end.end() && end(*next) <= work->begin_us; ++next) over = std::max(over, *next);
      last.push_back(over);
    }
    return last;
  }

  /// Joins kernels into computations. Consecutive kernels of one GEMM are one; so are other kernels, unless a
  /// collective comes between them. Work that is too short is added to the next computation.
  void join();
  void add_computations(RecordedOverlap& recorded);

  const Iteration& iteration_;
  int ranks_ = 0, left_out_ = 0;
  std::vector<const Work*> computing_;
  std::vector<std::int32_t> awaited_;  ///< by kernel: the last collective that it comes after
  std::vector<RecordedCollective> collectives_;
  std::vector<Computation> computations_;
  std::int32_t last_ = -1;
};

void Recording::join() {
  constexpr double least_us = 5;
  std::vector<bool> ends(computing_.size(), false);  // true if a collective awaits the kernel
  for (const RecordedCollective& item : collectives_)
    if (item.awaits >= 0) ends[static_cast<std::size_t>(item.awaits)] = true;
  std::vector<std::int32_t> places;  // by kernel: index of its computation, or of the last one before it
  Computation other;                 // the computation that is being joined
  std::int32_t awaits = -1;
  const auto finish = [&] {
    if (other.us < least_us) return;
    other.name = "other";
    other.awaits = awaits;
    computations_.push_back(std::exchange(other, {}));
  };
  for (std::size_t i = 0; i < computing_.size(); ++i) {
    const Work& work = *computing_[i];
    const double us = work.end_us - work.begin_us;
    if (awaited_[i] > awaits) {
      finish();
      awaits = awaited_[i];
    }
    const bool goes_on = work.product && !computations_.empty() && computations_.back().op == work.op;
    if (goes_on) {
      computations_.back().us += us;
    } else if (work.product) {
      finish();
      computations_.push_back(
          {work.name.substr(work.name.rfind(':') + 1), us, work.product, work.op, awaits});
    } else {
      other.us += us;
    }
    if (ends[i]) finish();
    places.push_back(static_cast<std::int32_t>(computations_.size()) - 1);
  }
  finish();
  for (RecordedCollective& item : collectives_)
    if (item.awaits >= 0) item.awaits = places[static_cast<std::size_t>(item.awaits)];
}

void Recording::add_computations(RecordedOverlap& recorded) {
  constexpr std::int64_t side = 2048;  // about a wave of tiles
  double flops = 0, us = 0;
  std::array<double, 3> flops_of{};
  for (const Computation& item : computations_) {
    if (!item.product) continue;
    const auto& [m, n, k, dtype] = *item.product;
    const double own = 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
    flops += own, us += item.us, ++recorded.products;
    if (dtype) flops_of[static_cast<std::size_t>(*dtype)] += own;
  }
  if (recorded.products == 0 || us <= 0)
    throw InvalidArgument(fmt::format("no matrix products in {}", where()));
  recorded.workload.dtype = static_cast<DType>(std::ranges::max_element(flops_of) - flops_of.begin());
  std::int32_t awaited = -1;
  for (const Computation& item : computations_) {
    Workload::Computation computation{item.name, side, side, 1, {}};
    if (item.product) {
      computation.m = item.product->m, computation.n = item.product->n, computation.k = item.product->k;
    } else {
      computation.k = std::max(std::llround(item.us * flops / us / (2.0 * side * side)), 1LL);
    }
    if (item.awaits > awaited) computation.after = {awaited = item.awaits};
    recorded.workload.computations.push_back(std::move(computation));
  }
}

}  // namespace

RecordedOverlap recorded_overlap(std::string_view trace, const RecordingOptions& options) {
  const Iteration iteration = torch::read_trace(trace, options.step);
  return Recording(iteration, options.ranks).take();
}

}  // namespace shingle
