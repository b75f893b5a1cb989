// The contract on worlds of threads: of several sizes, with delays, with helpers, behind a slow link.
#include <random>
#include <thread>

#include "backend_contract.hpp"
#include "shingle/host/host.hpp"

namespace shingle::contract::threads_test {
namespace {

/// Holds up about every fourth step by up to a millisecond, differently on every rank.
void delay(const StepEvent& event) {
  std::minstd_rand random(
      static_cast<unsigned>(event.rank * 7919 + event.lane * 131 + event.step * 31 + event.epoch + 1));
  random.discard(3);
  if (random() % 4 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % 1000));
}

std::vector<Backend> worlds() {
  std::vector<Backend> list;
  for (const int ranks : {1, 2, 3, 5})
    list.push_back({"threads" + std::to_string(ranks),
                    [ranks] { return make_thread_world(ranks, {.workers_per_rank = 1}); }});
  list.push_back(
      {"delayed3", [] { return make_thread_world(3, {.workers_per_rank = 1, .on_step = delay}); }});
  list.push_back(
      {"workers3", [] { return make_thread_world(2, {.workers_per_rank = 3, .on_step = delay}); }});
  list.push_back({"paced4", [] { return make_thread_world(4, {.link = {1, 20}, .workers_per_rank = 1}); }});
  return list;
}

}  // namespace

INSTANTIATE_TEST_SUITE_P(Host, BackendContract, testing::ValuesIn(worlds()),
                         [](const auto& test) { return test.param.name; });

}  // namespace shingle::contract::threads_test
