// How much of its communication a plan leaves exposed in unit costs, where computation alone takes one unit
// of time and communication alone a given fraction of it: ring by slices, and chunked by chunks. No clock is
// read: the figures are those of the plans (tests/property/ring_test.cpp proves the pattern).
#include <CLI/CLI.hpp>

#include "report.hpp"
#include "report/trace.hpp"
#include "shingle/api/registry.hpp"

using namespace shingle;

namespace {

/// Elements that a rank sends in all, by an algorithm that wastes nothing.
double wire_elements(const Problem& p) {
  const double part = static_cast<double>(p.m) * static_cast<double>(p.world - 1) / p.world;
  if (p.op == Op::allgather_gemm) return part * static_cast<double>(p.k);
  return (p.op == Op::gemm_allreduce ? 2 : 1) * part * static_cast<double>(p.n);
}

/// Time beyond the computation.
double exposed(const Plan& plan, double comm_over_gemm) {
  const Problem& p = plan.problem();
  const double products = static_cast<double>(p.m) * static_cast<double>(p.n);
  const Timeline timeline = schematic(plan, {1 / products, 0, comm_over_gemm / wire_elements(p)});
  return std::ranges::max_element(timeline.spans, {}, &Span::end_us)->end_us - 1;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Exposed communication of ring and chunked plans in unit costs, GEMM = 1");
  int ranks = 4;
  std::vector<int> slices{1, 2, 4, 8, 16};
  std::vector<double> fractions{0.25, 0.5, 0.7, 1.0, 1.5};
  std::string json;
  app.add_option("--world", ranks)->capture_default_str();
  app.add_option("--slices", slices, "slices a rank; chunked gets as many chunks of all rows")
      ->delimiter(',')
      ->capture_default_str();
  app.add_option("--fractions", fractions, "communication alone over GEMM alone")
      ->delimiter(',')
      ->capture_default_str();
  app.add_option("--json", json, "file for the record");
  CLI11_PARSE(app, argc, argv);

  auto record = bench::record(argc, argv);
  const Machine machine = machine_of(ranks);
  fmt::print("{} ranks; time beyond the GEMM's, by communication over GEMM\n{:<20} {:<8} {:>6}", ranks,
             "operator", "plan", "slices");
  for (const double fraction : fractions) fmt::print(" {:>8.2f}", fraction);
  fmt::print("\n");
  for (const Op op : {Op::gemm_reducescatter, Op::allgather_gemm, Op::gemm_allreduce})
    for (const Mechanism mechanism : {Mechanism::ring, Mechanism::chunked})
      for (const int count : slices) {
        Problem problem;
        problem.op = op;
        problem.world = ranks;
        problem.m = std::int64_t{4096} * ranks;
        problem.n = problem.k = 64;
        const Params params = mechanism == Mechanism::ring ? Params{RingParams{.slices = count}}
                                                           : Params{ChunkedParams{.chunks = count}};
        const Plan plan = make_plan(problem, machine, params).value();
        fmt::print("{:<20} {:<8} {:>6}", name(op), name(mechanism), count);
        for (const double fraction : fractions) {
          const double beyond = exposed(plan, fraction);
          fmt::print(" {:>8.3f}", beyond);
          record["rows"].push_back({{"op", name(op)},
                                    {"world", ranks},
                                    {"mechanism", name(mechanism)},
                                    {"slices", count},
                                    {"comm_over_gemm", fraction},
                                    {"exposed", beyond}});
        }
        fmt::print("\n");
      }
  bench::write(record, json);
  return 0;
}
