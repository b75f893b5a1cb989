// What the NCCL tuner plugin costs a collective on the host: each call between NCCL and the library, as NCCL
// makes it. Ranks make their calls in turn on one thread, so that nothing waits.
#include <CLI/CLI.hpp>
#include <chrono>
#include <filesystem>
#include <memory>
#include <thread>

#include "report.hpp"
#include "support/nccl_harness.hpp"

using namespace shingle;
using namespace shingle::test;
using Clock = std::chrono::steady_clock;

namespace {

constexpr double target_ns = 1000;

/// Two ranks of a communicator; the first leads.
struct Ranks {
  Ranks(const NcclPlugin& plugin, std::uint64_t id) {
    std::thread other([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      rank[1] = std::make_unique<NcclCommunicator>(plugin, id, 2);
    });
    rank[0] = std::make_unique<NcclCommunicator>(plugin, id, 2);
    other.join();
  }
  std::unique_ptr<NcclCommunicator> rank[2];
};

/// Of each rank's calls, ns: means over an iteration, with what the harness does in NCCL's place.
struct Cost {
  bench::Samples of[2];
};

/// An FSDP-like iteration: gathers forward, gathers and scatters backward, and one small sum.
void iterate(NcclCommunicator& rank, int layers) {
  for (int i = 0; i < layers; ++i) rank.call(NcclCollective::allgather, 64 << 20);
  for (int i = 0; i < layers; ++i) {
    rank.call(NcclCollective::allgather, 64 << 20);
    rank.call(NcclCollective::reducescatter, 64 << 20);
  }
  rank.call(NcclCollective::allreduce, 512);
}

Cost measure(Ranks& ranks, double seconds) {
  constexpr int layers = 16;
  Cost cost;
  const auto end = Clock::now() + std::chrono::duration<double>(seconds);
  while (Clock::now() < end) {
    for (int i : {0, 1}) {
      const auto begin = Clock::now();
      iterate(*ranks.rank[i], layers);
      const double ns = std::chrono::duration<double, std::nano>(Clock::now() - begin).count();
      cost.of[i].us.push_back(ns / (3 * layers + 1));
    }
  }
  return cost;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("What the NCCL tuner plugin costs a collective on the host");
  std::string plugin_path = SHINGLE_TEST_NCCL_TUNER, json;
  double seconds = 2;
  app.add_option("--plugin", plugin_path)->capture_default_str();
  app.add_option("--seconds", seconds, "for each row")->capture_default_str();
  app.add_option("--json", json, "file for the record");
  CLI11_PARSE(app, argc, argv);

  std::string name = (std::filesystem::temp_directory_path() / "nccl_tuner.XXXXXX").string();
  const std::filesystem::path folder = ::mkdtemp(name.data());
  const std::string table = folder / "table.json", learnt = folder / "learnt.json";
  const TunedKey key{.collective = NcclCollective::allgather, .size_class = 26, .ranks = 2};
  write_file_atomically(
      table,
      to_json({{{.key = key,
                 .config = {.channels = 4, .algorithm = Algorithm::ring, .protocol = Protocol::simple}}}}));
  const NcclPlugin plugin(plugin_path);
  auto record = bench::record(argc, argv);
  bool within = true;
  fmt::print("ns a collective: median, and 99 of 100 iterations below (target {:.0f})\n", target_ns);
  const auto row = [&](const std::string& mode, Ranks& ranks) {
    const Cost cost = measure(ranks, seconds);
    for (int i : {0, 1}) {
      const double median = cost.of[i].median(), high = cost.of[i].at(0.99);
      const char* who = i == 0 ? "leader" : "follower";
      fmt::print("  {:<22} {:<9} {:7.1f} {:7.1f}\n", mode, who, median, high);
      record["rows"].push_back({{"mode", mode}, {"rank", who}, {"median_ns", median}, {"p99_ns", high}});
      within = within && median <= target_ns;
    }
  };
  std::uint64_t id = static_cast<std::uint64_t>(::getpid()) << 20;
  {
    Ranks ranks(plugin, id++);
    row("nothing to do", ranks);
  }
  {
    const Variable variable("SHINGLE_TUNER_TABLE", table);
    Ranks ranks(plugin, id++);
    row("table", ranks);
  }
  {
    const Variable variable("SHINGLE_TUNER_LEARN", learnt);
    Ranks ranks(plugin, id++);
    row("online, tuning", ranks);
  }
  std::filesystem::remove_all(folder);
  bench::write(record, json);
  return within ? 0 : 1;
}
