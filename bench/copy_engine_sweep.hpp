// All sizes of a collective, by every variant of copy engines and, on GPUs, by NCCL: timed, checked, and the
// best of each size.
#pragma once

#include <optional>

#include "base/statistics.hpp"
#include "copy_engine_beside.hpp"
#include "energy_meter.hpp"
#include "shingle/base/error.hpp"

namespace shingle::bench {

using Clock = std::chrono::steady_clock;

inline double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

struct SweepSettings {
  std::vector<std::string> ops, variants;  ///< variants: those alone; empty: all
  std::vector<std::int64_t> sizes;         ///< of what a rank has in the end
  EngineTrigger trigger = EngineTrigger::host;
  bool ring = false;     ///< beside the paper's variants
  bool library = false;  ///< beside them: NCCL
  int repeat = 0;        ///< runs of each, at most
  double time_us = 0;    ///< of all runs of each, about
  double budget_s = 0;   ///< after which no further size begins; 0: no bound
  double scale = 1;      ///< times are shown so many times shorter
  double energy_s = 0;   ///< of sustained runs; 0: no energy is measured
  std::string product;   ///< "MxNxK": beside which the best is measured; empty: none
  double idle_us = 0;    ///< before each run beside products
};

/// Who carries out a collective: a variant of copy engines, or the library.
struct Contender {
  std::optional<CopyVariant> variant;
  bool prelaunch = false;
  Plan plan;
  Samples samples;
  std::string note;  ///< why there are no times

  std::string text() const {
    return variant ? fmt::format("{}{}", name(*variant), prelaunch ? "'" : "") : "NCCL";
  }
  bool timed() const { return !samples.us.empty(); }
};

/// By growing size, as the paper's tables have them; then those that they do not.
inline std::vector<CopyVariant> variants_of(Op op, const SweepSettings& settings) {
  const bool gathers = op == Op::allgather;
  std::vector<CopyVariant> variants{CopyVariant::b2b, gathers ? CopyVariant::bcst : CopyVariant::swap,
                                    CopyVariant::pcpy};
  if (op == Op::allreduce) variants.push_back(CopyVariant::bcst);
  if (settings.ring) variants.push_back(CopyVariant::ring);
  if (!settings.variants.empty())
    std::erase_if(variants, [&](CopyVariant one) {
      return std::ranges::find(settings.variants, name(one)) == settings.variants.end();
    });
  return variants;
}

/// One size of one collective.
struct Point {
  Problem problem;
  std::vector<Contender> contenders;  ///< the library's first, where there is one
  bool right = true;

  const Contender* library() const { return contenders.front().variant ? nullptr : &contenders.front(); }
  /// The fastest of the copy engines'; null where none was timed.
  const Contender* best() const {
    const Contender* found = nullptr;
    for (const Contender& one : contenders)
      if (one.variant && one.timed() && (!found || one.samples.median() < found->samples.median()))
        found = &one;
    return found;
  }
  double gbps(const Contender& of) const { return bytes_out(problem) / of.samples.median() * 1e-3; }
};

class Sweep {
 public:
  Sweep(World& world, const SweepSettings& settings, nlohmann::json& record)
      : world_(world), settings_(settings), record_(record) {
    if (settings.energy_s > 0) measure_idle();
  }

  /// All sizes of a collective, while the budget lasts.
  void run(Op op) {
    const auto variants = variants_of(op, settings_);
    if (variants.empty()) return;
    print_header(op, variants);
    std::vector<Point> points;
    for (const std::int64_t bytes : settings_.sizes) {
      if (settings_.budget_s > 0 && world_.all_max({seconds_since(begin_)})[0] > settings_.budget_s) {
        print(fmt::format("{:>10}  left: the budget is spent\n", format_bytes(static_cast<double>(bytes))));
        record_["left"].push_back(fmt::format("{} {}", name(op), bytes));
        continue;
      }
      try {
        points.push_back(measure(collective_problem(op, world_.size(), bytes), variants));
        right_ = right_ && points.back().right;
      } catch (const CudaError& error) {  // memory that there is not
        print(fmt::format("{:>10}  {}\n", format_bytes(static_cast<double>(bytes)), error.what()));
        record_["left"].push_back(fmt::format("{} {}: {}", name(op), bytes, error.what()));
      }
    }
    summarise(op, points);
  }

  bool right() const { return right_; }
  bool in_order() const { return in_order_; }

 private:
  void print(const std::string& text) const {
    if (world_.local_ranks().front() != 0) return;
    std::fputs(text.c_str(), stdout);
    std::fflush(stdout);
  }

  void print_header(Op op, const std::vector<CopyVariant>& variants) const {
    std::string line =
        fmt::format("{}, {} ranks, us (' prelaunched)\n{:>10}", name(op), world_.size(), "bytes");
    if (settings_.library) line += fmt::format(" {:>9}", "NCCL");
    for (const char* mark : {"", "'"})
      for (const CopyVariant variant : variants)
        line += fmt::format(" {:>9}", fmt::format("{}{}", name(variant), mark));
    print(line + fmt::format("  {:<6} {:>6} {:>7}\n", "best", "GB/s", settings_.library ? "of NCCL" : ""));
  }

  std::vector<Contender> contenders(const Problem& problem, const std::vector<CopyVariant>& variants) const {
    std::vector<Contender> all;
    if (settings_.library) all.emplace_back().plan = library_plan(problem, world_.machine());
    for (const bool prelaunch : {false, true})
      for (const CopyVariant variant : variants) {
        const CopyEngineParams params{
            .variant = variant, .prelaunch = prelaunch, .trigger = settings_.trigger};
        Contender& one = all.emplace_back();
        one.variant = variant, one.prelaunch = prelaunch;
        if (auto plan = make_plan(problem, world_.machine(), params))
          one.plan = std::move(plan).value();
        else
          one.note = plan.reason();
      }
    return all;
  }

  Point measure(const Problem& problem, const std::vector<CopyVariant>& variants) {
    constexpr double timeout_us = 20e6;
    Point point{problem, contenders(problem, variants)};
    CollectiveTrial trial(world_, problem);
    for (Contender& one : point.contenders) {
      if (!one.note.empty()) continue;
      try {
        Operator op(world_, one.plan, timeout_us);
        trial.bind(op);
        if (trial.right(op))
          one.samples = trial.time(op, settings_.repeat, settings_.time_us);
        else
          one.note = "WRONG", point.right = false;
      } catch (const Unsupported& reason) {
        one.note = reason.what();
      }
      for (double& us : one.samples.us) us /= settings_.scale;
    }
    print_point(point);
    add_rows(point);
    if (!settings_.product.empty()) beside(point);
    if (settings_.energy_s > 0 && energy_missing_.empty()) energy(point, trial);
    return point;
  }

  void print_point(const Point& point) const {
    std::string line = fmt::format("{:>10}", format_bytes(static_cast<double>(matrix_bytes(point.problem))));
    for (const Contender& one : point.contenders)
      line += one.timed() ? fmt::format(" {:>9.1f}", one.samples.median())
                          : fmt::format(" {:>9}", one.note == "WRONG" ? one.note : "-");
    if (const Contender* best = point.best()) {
      line += fmt::format("  {:<6} {:>6.1f}", best->text(), point.gbps(*best));
      if (const Contender* library = point.library(); library && library->timed())
        line += fmt::format(" {:>6.2f}x", library->samples.median() / best->samples.median());
    }
    print(line + "\n");
  }

  void add_rows(const Point& point) {
    for (const Contender& one : point.contenders) {
      nlohmann::json row{{"op", name(point.problem.op)},
                         {"contender", one.text()},
                         {"prelaunch", one.prelaunch},
                         {"world", world_.size()},
                         {"bytes", matrix_bytes(point.problem)}};
      row["scale"] = settings_.scale;
      if (one.timed()) row.update(one.samples.json()), row["gbps_out"] = point.gbps(one);
      if (!one.note.empty()) row["note"] = one.note;
      record_["rows"].push_back(std::move(row));
    }
  }

  /// The fastest prelaunched variant and the library's, each beside products.
  void beside(const Point& point) {
    std::int64_t m = 0, n = 0, k = 0;
    if (std::sscanf(settings_.product.c_str(), "%ldx%ldx%ld", &m, &n, &k) != 3)
      throw InvalidArgument(fmt::format("'{}' is no product MxNxK", settings_.product));
    for (const Contender* one : rivals(point)) {
      const Beside found = BesideProducts(world_, one->plan, m, n, k).measure(7, settings_.idle_us);
      print(
          fmt::format("{:>10}  {} beside {}: product {:.1f} -> {:.1f} us ({:+.1f}%), collective {:.1f} -> "
                      "{:.1f} us, {:.1f} -> {:.1f} GB/s out of each\n",
                      "", one->text(), settings_.product, found.product_us, found.product_beside_us,
                      100 * found.product_slowdown(), found.collective_us, found.collective_beside_us,
                      bytes_out(point.problem) / found.collective_us * 1e-3,
                      bytes_out(point.problem) / found.collective_beside_us * 1e-3));
      nlohmann::json row = found.json();
      row["op"] = name(point.problem.op), row["contender"] = one->text(), row["product"] = settings_.product;
      row["bytes"] = matrix_bytes(point.problem);
      record_["beside"].push_back(std::move(row));
    }
  }

  std::vector<const Contender*> rivals(const Point& point) const {
    std::vector<const Contender*> found;
    if (const Contender* best = point.best()) found.push_back(best);
    if (const Contender* library = point.library(); library && library->timed()) found.push_back(library);
    return found;
  }

  /// Of all devices, while they have nothing to do but are as ready as in a run.
  void measure_idle() {
    meter_.emplace(world_.size());
    const double before = meter_->joules();
    const auto begin = Clock::now();
    std::this_thread::sleep_for(std::chrono::duration<double>(settings_.energy_s));
    idle_w_ = (meter_->joules() - before) / seconds_since(begin);
    energy_missing_ = meter_->missing();
    print(energy_missing_.empty()
              ? fmt::format("idle: {:.1f} W of each of {} devices\n", idle_w_ / world_.size(), world_.size())
              : fmt::format("no energy: {}\n", energy_missing_));
    record_["energy_missing"] = energy_missing_, record_["idle_w"] = idle_w_;
  }

  /// Sustained runs, so long that the counter's steps do not matter.
  void energy(const Point& point, CollectiveTrial& trial) {
    for (const Contender* one : rivals(point)) {
      Operator op(world_, one->plan, 20e6);
      trial.bind(op);
      op.run();
      const int epochs = 1 + static_cast<int>(settings_.energy_s * 1e6 / one->samples.median());
      const double before = meter_->joules();
      const auto begin = Clock::now();
      const double us = op.run(epochs).elapsed_us / epochs;
      const double seconds = seconds_since(begin), joules = meter_->joules() - before;
      const double each_mj = 1e3 * joules / epochs, net_mj = 1e3 * (joules - idle_w_ * seconds) / epochs;
      print(fmt::format(
          "{:>10}  {}: {:.3f} mJ a collective, {:.3f} mJ beyond idle; {:.1f} W of each device, "
          "{:.1f} us sustained, {} times in {:.2f} s\n",
          "", one->text(), each_mj, net_mj, joules / seconds / world_.size(), us, epochs, seconds));
      record_["energy"].push_back({{"op", name(point.problem.op)},
                                   {"contender", one->text()},
                                   {"bytes", matrix_bytes(point.problem)},
                                   {"mj", each_mj},
                                   {"beyond_idle_mj", net_mj},
                                   {"watts_each", joules / seconds / world_.size()},
                                   {"sustained_us", us},
                                   {"epochs", epochs},
                                   {"seconds", seconds}});
    }
  }

  /// The best variant by ranges of sizes, as the paper's tables; and whether, by size, the fastest goes from
  /// few engines to many.
  void summarise(Op op, const std::vector<Point>& points) {
    struct Range {
      std::string best;
      std::int64_t first = 0, last = 0;
      std::vector<double> over_library;
    };
    std::vector<Range> ranges;
    std::size_t last[] = {0, 0};
    for (const Point& point : points) {
      const Contender* best = point.best();
      if (!best) continue;
      const std::int64_t bytes = matrix_bytes(point.problem);
      if (ranges.empty() || ranges.back().best != best->text())
        ranges.push_back({best->text(), bytes, bytes, {}});
      ranges.back().last = bytes;
      if (const Contender* library = point.library(); library && library->timed())
        ranges.back().over_library.push_back(library->samples.median() / best->samples.median());
      note_order(point, last);
    }
    std::string text = fmt::format("{}, best:", name(op));
    for (const Range& range : ranges) {
      text += fmt::format(" {} {}", range.best, format_bytes(static_cast<double>(range.first)));
      if (range.last != range.first) text += " to " + format_bytes(static_cast<double>(range.last));
      if (!range.over_library.empty())
        text += fmt::format(" ({:.2f}x NCCL)", geometric_mean(range.over_library));
      text += ";";
      record_["tables"][std::string(name(op))].push_back(
          {{"best", range.best}, {"first", range.first}, {"last", range.last}});
    }
    print(text + "\n\n");
  }

  /// Of the paper's three variants, which come first, plain and prelaunched.
  void note_order(const Point& point, std::size_t (&last)[2]) {
    for (const bool prelaunch : {false, true}) {
      std::vector<double> us;
      for (const Contender& one : point.contenders)
        if (one.variant && one.prelaunch == prelaunch && one.timed() && us.size() < 3)
          us.push_back(one.samples.median());
      if (us.empty()) continue;
      const auto best = static_cast<std::size_t>(std::ranges::min_element(us) - us.begin());
      in_order_ = in_order_ && best >= last[prelaunch];
      last[prelaunch] = best;
    }
  }

  World& world_;
  const SweepSettings& settings_;
  nlohmann::json& record_;
  Clock::time_point begin_ = Clock::now();
  std::optional<EnergyMeter> meter_;
  std::string energy_missing_;
  double idle_w_ = 0;  // of all devices
  bool right_ = true, in_order_ = true;
};

}  // namespace shingle::bench
