// What is measured for a profile, figure by figure.
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
  // what one rank does (profile_compute.cpp)
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

  // what copies between ranks take (profile_engines.cpp)
  void engines();

  // what ranks do together (profile_traffic.cpp)
  void collectives(int ranks);
  void sample(Op op, Curve& curve);
  void lone_calls();
  void choose_workers();

  // computation beside communication (profile_contention.cpp)
  void contention();
  void own_workers();
  std::optional<ContentionSample> beside(const Plan& product, double alone_us, Beside what);
  bool comes_late(const Plan& product);
  void shared_cores();
  void keep(const ContentionSample& sample);
  void fit(std::string text);

  /// Says what comes next; false where the budget is spent.
  bool next(const std::string& what);
  /// Where a figure comes from, in place of what the base said of it.
  void note(const std::string& of, Origin origin, std::string text);
  /// The same of one of which part is still the base's.
  void note_part(const std::string& of, Origin origin, std::string text);
  void say_what_the_backend_says();
  /// Judges what was timed since the last call.
  void judge();
  /// Seconds, by the pace of a product and how often each plan runs (profile_estimate.cpp).
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
  std::vector<std::string> left_;  // what the budget did not reach
  std::size_t curves_ = 0;         // measured
  std::optional<Timed> reference_;
  std::vector<double> reference_us_;  // every time of it
  std::vector<TileShape> sampled_;
  double begin_us_ = 0;  // of a run, beside its steps
  std::string now_;      // what is measured
  std::vector<Unsteady> unsteady_;
};

}  // namespace shingle::tuning
