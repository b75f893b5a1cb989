#include "shingle/bench/shape.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "shingle/run/execute.hpp"
#include "shingle/run/memory.hpp"
#include "shingle/run/together.hpp"

namespace shingle::cli {
namespace {

/// Seconds since construction.
class Stopwatch {
 public:
  double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
  }

 private:
  const std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

template <class... Types>
bool is_one_of(const std::exception& failure) {
  return (... || (dynamic_cast<const Types*>(&failure) != nullptr));
}

/// True if a failure has left the world broken. A refusal, such as out of GPU memory, leaves the world
/// intact. A failure during a run breaks it.
bool broken(World& world, const std::exception& failure) {
  if (!is_one_of<InvalidArgument, Unsupported, std::bad_alloc, CudaError>(failure)) return true;
  try {
    world.barrier();
    return false;
  } catch (const Error&) {
    return true;
  }
}

std::string failure_text(const std::exception& failure) {
  return is_one_of<std::bad_alloc>(failure) ? "out of memory" : failure.what();
}

class ShapeRun {
 public:
  ShapeRun(World& world, const Shape& shape, const BenchOptions& options, Progress& progress)
      : world_(world),
        shape_(shape),
        problem_(shape.named.problem),
        options_(options),
        progress_(progress),
        inputs_(random_inputs(problem_, options.seed)) {}

  /// Sets up what all entries share.
  void set_up() {
    const Stopwatch watch;
    if (world_.capabilities().host_accessible)
      require_memory(user_matrix_bytes(problem_, options_.launch), describe(shape_.named), options_.launch);
    now("filling inputs");
    together(world_, [&] { memory_.emplace(world_, *inputs_); });
    now("preparing the reference");
    if (options_.checked == Checked::sampled && RowSample::serves(problem_))
      together(world_, [&] { sample_.emplace(*inputs_, world_.local_ranks(), options_.seed); });
    if (!problem_.traits().is_collective()) gemm_.emplace(world_, *inputs_, *memory_, timeout_us());
    sequential_.emplace(world_, *shape_.entries.at(0).candidate.plan, timeout_us());
    memory_->bind(*sequential_);
    setup_s_ = watch.seconds();
  }

  void run(const Entry& contender, BenchRow& row) {
    const bool baseline = &contender == &shape_.entries.at(0);
    const Stopwatch watch;
    const Entry& entry = contender.rivals.empty() ? contender : fastest(contender, row);
    std::optional<Operator> own;
    if (!baseline && *entry.candidate.plan != sequential_->plan()) {
      own.emplace(world_, *entry.candidate.plan, timeout_us());
      memory_->bind(*own);
    }
    Operator& op = own ? *own : *sequential_;
    row.row.params = params_json(op.plan());
    double most_bytes = 0;
    for (const int rank : world_.local_ranks())
      most_bytes = std::max(most_bytes, static_cast<double>(op.memory_bytes(rank)));
    row.memory_bytes = world_.all_max({most_bytes})[0];
    check(op, row);
    row.setup_s = baseline ? setup_s_ + watch.seconds() : watch.seconds();
    now(entry.contender + ", measuring");
    const std::span<Operator> products = baseline && gemm_ ? gemm_->products() : std::span<Operator>();
    Measurement time = measure(world_, products, *sequential_, op, options_.measure);
    if (baseline) gemm_us_ = time.gemm_us;
    time.gemm_us = gemm_us_;
    check(op, row);
    row.row.time = std::move(time);
  }

 private:
  /// The fastest rival, or the sequential plan. Nothing else uses these measurements.
  const Entry& fastest(const Entry& contender, BenchRow& row) {
    constexpr double worth = 1.02;  // smaller differences are noise over a few rounds
    const Entry* best = &shape_.entries.front();
    double most = 1;
    for (const Entry& rival : contender.rivals)
      if (const double speedup = try_out(rival, *row.row.choice); speedup > std::max(most, worth))
        best = &rival, most = speedup;
    row.row.mechanism = best->candidate.mechanism;
    row.row.choice->confirmed = true;
    row.row.choice->reason =
        fmt::format("{}: {:.2f} times as fast as sequential, measured", best->candidate.mechanism, most);
    row.predicted = best->predicted;
    return *best;
  }

  /// Speed-up over the sequential plan, in a few rounds. 0 if the world does not serve the rival.
  double try_out(const Entry& rival, Chosen& choice) try {
    constexpr int rounds = 5;
    now(fmt::format("{}, trying {}", rival.contender, rival.candidate.mechanism));
    MeasureOptions brief = options_.measure;
    brief.repeat = rounds;
    Operator op(world_, *rival.candidate.plan, timeout_us());
    memory_->bind(op);
    const Measurement time = measure(world_, {}, *sequential_, op, brief);
    for (Considered& at : choice.considered)
      if (name(mechanism_of(at.params)) == rival.candidate.mechanism &&
          (at.measured_us == 0 || time.overlapped_us < at.measured_us)) {
        at.us = rival.predicted ? rival.predicted->us : at.us;
        at.measured_us = time.overlapped_us;
        at.params = params_of(*rival.candidate.plan);
      }
    return time.speedup();
  } catch (const std::exception& failure) {
    if (broken(world_, failure)) throw;
    return 0;
  }

  void now(const std::string& what) { progress_.now(fmt::format("{}: {}", describe(shape_.named), what)); }

  double timeout_us() const { return run_timeout_us(problem_, options_.where); }

  /// Checks one more run from poisoned outputs. The worst check of the row is kept.
  void check(Operator& op, BenchRow& row) {
    if (options_.checked == Checked::none) return;
    now(row.contender + ", checking");
    const Check found = checked_run(world_, op, *memory_, [&] {
      return sample_ ? memory_->check(*sample_) : shingle::check(*inputs_, memory_->outputs());
    });
    const bool first = row.checked.empty();
    row.checked = fmt::format(
        "{}, before and after timing",
        sample_ && sample_->apart() > 1 ? fmt::format("one of every {} rows", sample_->apart()) : "all rows");
    if (!first && row.row.check.passed == found.passed && row.row.check.max_error >= found.max_error) return;
    if (!first && !row.row.check.passed && found.passed) return;
    row.row.check = found;
    if (!found.passed) row.row.reason = wrong_result(found);
  }

  World& world_;
  const Shape& shape_;
  const Problem& problem_;
  const BenchOptions& options_;
  Progress& progress_;
  const std::unique_ptr<Inputs> inputs_;
  std::optional<Workspace> memory_;
  std::optional<RowSample> sample_;
  std::optional<GemmAlone> gemm_;
  std::optional<Operator> sequential_;
  double setup_s_ = 0, gemm_us_ = 0;
};

BenchRow row_of(const Shape& shape, const Entry& entry, const std::string& backend) {
  BenchRow row{.row = {.named = shape.named,
                       .backend = backend,
                       .mechanism = entry.candidate.mechanism,
                       .choice = entry.candidate.choice,
                       .note = entry.candidate.note},
               .contender = entry.contender,
               .predicted = entry.predicted};
  if (entry.candidate.plan) {
    row.row.params = params_json(*entry.candidate.plan);
  } else {
    row.row.reason = entry.candidate.plan.reason();
  }
  return row;
}

/// A plan with a mechanism and params, or the choice of `auto`.
Candidate planned(const Contender& contender, const Problem& problem, const Target& target,
                  const ShapeOptions& options) {
  try {
    if (contender.automatic)
      return candidate_of(
          choose(problem, target.machine,
                 {.tune = {.params = contender.params, .refuses = options.refuses}, .cache = options.cache}));
    return candidate_with(contender.mechanism, problem, target, contender.params);
  } catch (const Error& error) {
    return {contender.automatic ? "auto" : std::string(name(contender.mechanism)), Reason{error.what()}, {}};
  }
}

void predict(Entry& entry, const Machine& machine) {
  if (!entry.candidate.plan || machine.tiles.empty()) return;
  if (const Result<Metrics> metrics = measure(*entry.candidate.plan, machine)) entry.predicted = *metrics;
}

/// The mechanisms predicted to be fastest, each with its searched params and untuned.
std::vector<Entry> rivals_of(const Contender& contender, const Chosen& chosen, const Problem& problem,
                             const Machine& machine, const ShapeOptions& options) {
  std::vector<Considered> considered = chosen.considered;
  std::erase_if(considered, [](const Considered& at) {
    return at.us == 0 || mechanism_of(at.params) == Mechanism::sequential;
  });
  std::ranges::stable_sort(considered, {}, &Considered::us);
  considered.resize(std::min(considered.size(), static_cast<std::size_t>(options.confirm)));
  std::vector<Entry> rivals;
  const auto add = [&](Mechanism mechanism, Plan plan) {
    rivals.push_back({contender.label, {std::string(name(mechanism)), std::move(plan), {}}});
  };
  for (const Considered& at : considered) {
    const Mechanism mechanism = mechanism_of(at.params);
    Result<Plan> found = plan_with(problem, machine, at.params);
    if (!found) continue;
    std::optional<Plan> untuned =
        untuned_plan(*found, machine, {.params = contender.params, .refuses = options.refuses});
    add(mechanism, std::move(found).value());
    if (untuned) add(mechanism, std::move(*untuned));
  }
  return rivals;
}

}  // namespace

Shape plan_shape(const NamedProblem& named, const Target& target, const ShapeOptions& options) {
  const Machine& machine = target.machine;
  Shape shape{.named = named, .entries = {}};
  std::vector<Contender> all{{.label = std::string(name(Mechanism::sequential))}};
  all.insert(all.end(), options.contenders.begin(), options.contenders.end());
  for (const Contender& contender : all) {
    Entry entry{contender.label, planned(contender, named.problem, target, options)};
    predict(entry, machine);
    if (options.confirm > 0 && entry.candidate.choice)
      entry.rivals = rivals_of(contender, *entry.candidate.choice, named.problem, machine, options);
    for (Entry& rival : entry.rivals) predict(rival, machine);
    shape.entries.push_back(std::move(entry));
  }
  return shape;
}

void bench_shape(World& world, const Shape& shape, const BenchOptions& options, Progress& progress,
                 const std::function<void(BenchRow)>& emit) {
  std::optional<ShapeRun> run;
  std::string why_not;
  const auto guarded = [&](const Entry& entry, auto work) {
    BenchRow row = row_of(shape, entry, options.backend);
    bool lost = false;
    try {
      if (entry.candidate.plan) work(row);
    } catch (const std::exception& failure) {
      row.row.reason = failure_text(failure);
      lost = broken(world, failure);
      // Every process prints it now, because releasing a broken world may take long or end this process.
      if (lost && options.launch.processes()) print_failure(failure, options.launch);
    }
    const std::string reason = row.row.reason;
    emit(std::move(row));
    if (lost) throw BrokenWorld(reason);
    return reason;
  };
  for (const Entry& entry : shape.entries) {
    const bool baseline = &entry == &shape.entries.front();
    const std::string reason = guarded(entry, [&](BenchRow& row) {
      if (baseline) {
        run.emplace(world, shape, options, progress);
        run->set_up();
      } else if (!run) {
        throw Unsupported("the sequential plan has failed: " + why_not);
      }
      run->run(entry, row);
    });
    if (baseline && !reason.empty()) why_not = reason, run.reset();
  }
}

}  // namespace shingle::cli
