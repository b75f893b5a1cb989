// Measures a profile, figure by figure.
#pragma once

#include <array>
#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "shingle/tune/profile.hpp"
#include "stopwatch.hpp"
#include "timed_plans.hpp"

namespace shingle::tuning {

class Profiler {
 public:
  Profiler(World& world, const ProfileOptions& options);
  Profiled go() &&;

 private:
  // Figures of a single rank (profile_compute.cpp).
  void steps();
  void memory();
  void passes(std::int64_t rows);
  double sum_us(std::int64_t rows, int sources);
  void tiles();
  void library();
  void hooked();
  void picking();
  void edges();
  void attention();
  std::vector<AttentionSize> attentions(bool backward) const;
  double full_rate_us(const Plan& plan) const;
  double alone_us(double us, double more) const;
  TileRate tile(const TileShape& shape);
  double wave_us(const TileShape& shape, std::int64_t k);
  double product_us(const Plan& plan);
  double at_one_pace(const Plan& plan);
  double reference_us();
  void settle();
  const std::array<std::int64_t, 4>& lengths() const;
  std::int64_t waves(const TileShape& shape, std::int64_t k);
  TileShape own_tile() const;

  // Copies between ranks (profile_engines.cpp).
  void engines();

  // Ranks together (profile_traffic.cpp).
  void collectives(int ranks);
  void sample(Op op, Curve& curve);
  void lone_calls();
  void choose_workers();

  // Computation beside communication (profile_contention.cpp).
  void contention();
  void own_workers();
  void beside_engines(const Plan& product);
  void other_computations();
  std::optional<Plan> computation(ComputationKind kind);
  double without_workers_us(const Plan& plan, ComputationKind kind, double all_us, std::int32_t left);
  std::optional<ContentionSample> beside(const Plan& product, double alone_us, Beside what);
  bool comes_late(const Plan& product);
  void shared_cores();
  void share_cores_with(const Plan& computation, ComputationKind kind);
  void keep(const ContentionSample& sample);
  void fit(std::string text);

  /// Announces the next figure. Returns false if the budget is spent.
  bool next(const std::string& what);
  /// Records the source of a figure, in place of the base's source.
  void note(const std::string& of, Origin origin, std::string text);
  /// As note(), for a figure that is partly still the base's.
  void note_part(const std::string& of, Origin origin, std::string text);
  void say_what_the_backend_says();
  /// Judges the spreads of what was timed since the last call.
  void judge();
  /// Estimated duration in seconds, from the reference product's time and the runs of each plan
  /// (profile_estimate.cpp).
  double expected_s();
  std::vector<TileShape> shapes() const;
  double tiles_s() const;
  double collectives_s() const;
  double contention_s() const;
  double runs_s(double plans, double us, bool multiplies) const;

  World& world_;
  const ProfileOptions& options_;
  Capabilities can_;
  DType dtype_;
  Machine machine_;
  int size_;         // ranks of the world
  bool calls_take_;  // collectives take some of the workers
  Stopwatch watch_;
  TimedPlans plans_;
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  std::vector<std::string> left_;  // figures that the budget did not reach
  std::size_t curves_ = 0;         // measured curves
  std::optional<Timed> reference_;
  std::vector<double> reference_us_;  // every time of `reference_`
  std::vector<TileShape> sampled_;
  std::string now_;  // figure being measured
  std::vector<Unsteady> unsteady_;
};

}  // namespace shingle::tuning
