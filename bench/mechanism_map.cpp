// Which mechanism `auto` takes, over the operators of transformer layers and the number of tokens, on a
// machine: predicted speed-ups over `sequential`, never below one.
#include <CLI/CLI.hpp>

#include <map>

#include "api/choose.hpp"
#include "report.hpp"
#include "shingle/machine/profile.hpp"

using namespace shingle;

namespace {

struct Model {
  const char* name;
  std::int64_t hidden, ffn, heads, kv_heads, head;
  bool gated;
};
constexpr Model models[] = {{"llama-3-70b", 8192, 28672, 64, 8, 128, true},
                            {"gpt-3-175b", 12288, 49152, 96, 96, 128, false}};
constexpr std::int64_t tokens[] = {16, 64, 256, 512, 1024, 2048, 4096, 8192, 16384};

struct Row {
  std::string name;
  Op op;
  std::int64_t n, k;
};

std::vector<Row> rows(const Model& m, int tp) {
  const std::string name = m.name;
  std::vector<Row> all{
      {name + ".qkv", Op::allgather_gemm, (m.heads + 2 * m.kv_heads) * m.head / tp, m.hidden},
      {name + ".ffn_up", Op::allgather_gemm, (m.gated ? 2 : 1) * m.ffn / tp, m.hidden}};
  for (const Op op : {Op::gemm_reducescatter, Op::gemm_allreduce}) {
    all.push_back({name + ".attn_out", op, m.hidden, m.heads * m.head / tp});
    all.push_back({name + ".ffn_down", op, m.hidden, m.ffn / tp});
  }
  return all;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Mechanisms that are predicted to be fastest, by operator and tokens");
  std::string machine_name = "h200x8", json;
  int world = 8;
  app.add_option("--machine", machine_name)->capture_default_str();
  app.add_option("--world", world)->capture_default_str();
  app.add_option("--json", json, "file for the record");
  CLI11_PARSE(app, argc, argv);
  const Machine machine = machine_from_spec(machine_name);
  auto record = bench::record(argc, argv);
  std::map<Mechanism, int> wins;
  double worst = 1e9;
  fmt::print("{}, {} ranks, bf16: mechanism and predicted speed-up by M\n{:<44}", machine.name, world, "");
  for (const std::int64_t m : tokens) fmt::print(" {:>10}", m);
  fmt::print("\n");
  for (const Model& model : models)
    for (const Row& row : rows(model, world)) {
      fmt::print("{:<44}", fmt::format("{} {}", row.name, name(row.op)));
      for (const std::int64_t m : tokens) {
        const Problem problem{
            .op = row.op, .world = world, .m = m, .n = row.n, .k = row.k, .dtype = DType::bf16};
        const Chosen chosen = choose(problem, machine).value();
        const double speedup = chosen.sequential_us / chosen.us;
        worst = std::min(worst, speedup);
        ++wins[chosen.plan.mechanism];
        fmt::print(" {:>5.4} {:>4.2f}", name(chosen.plan.mechanism), speedup);
        std::fflush(stdout);
        record["rows"].push_back({{"name", row.name},
                                  {"op", name(row.op)},
                                  {"m", m},
                                  {"n", row.n},
                                  {"k", row.k},
                                  {"mechanism", name(chosen.plan.mechanism)},
                                  {"us", chosen.us},
                                  {"sequential_us", chosen.sequential_us}});
      }
      fmt::print("\n");
    }
  for (const auto& [mechanism, count] : wins) fmt::print("{}: {}\n", name(mechanism), count);
  fmt::print("least predicted speed-up {:.3f}\n", worst);
  bench::write(record, json);
  return worst >= 1 ? 0 : 1;
}
