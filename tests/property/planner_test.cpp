// Every planner, on any problem, machine and params: a plan that is proven, or a reason; and a reason only
// where there has to be one.
#include "shingle/planner/planner.hpp"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <chrono>
#include <iterator>
#include <optional>
#include <string>

#include "backend/remote.hpp"
#include "shingle/plan/json.hpp"
#include "shingle/plan/print.hpp"
#include "shingle/verify/verify.hpp"
#include "shingle/verify/wellformed.hpp"
#include "support/random_problem.hpp"
#include "verify/residency.hpp"

namespace shingle::planner_test {
namespace {

using namespace test;

constexpr Mechanism mechanisms[] = {Mechanism::sequential, Mechanism::chunked, Mechanism::signal,
                                    Mechanism::ring,       Mechanism::fused,   Mechanism::copy_engine,
                                    Mechanism::low_latency};

/// Whether any two ranks send each other the same number of rows.
bool symmetric(const Routing& routing) {
  for (int a = 0; a < routing.world(); ++a)
    for (int b = 0; b < a; ++b)
      if (routing.count(a, b) != routing.count(b, a)) return false;
  return true;
}

/// Why copy engines cannot carry out a problem's collective.
std::optional<std::string> excuse_of_engines(const Problem& p, const CopyEngineParams& params) {
  if (p.op == Op::gemm) return "no communication";
  if (p.op == Op::mlp) return "two collectives";
  if (p.row_order == RowOrder::block_cyclic) return "rows dealt";
  if (params.poll == PollScope::collective && params.trigger == EngineTrigger::direct)
    return "one place, many writers";
  const bool slices = p.traits().reduces() && params.sum_slices > 1;
  if (slices && params.trigger == EngineTrigger::host) return "a thread awaits all engines";
  const bool gathers = p.op == Op::allgather || p.op == Op::allgather_gemm || p.op == Op::gemm_allgather_gemm;
  const bool all = p.op == Op::allreduce || p.op == Op::gemm_allreduce;
  switch (params.variant) {
    case CopyVariant::bcst:
      if (!gathers && !all) return "the same rows for all";
      break;
    case CopyVariant::ring:
      if (params.engines > 1) return "one engine a rank";
      break;
    case CopyVariant::swap:
      if (gathers || (p.routing && !symmetric(*p.routing))) return "as much each way";
      if (slices) return "whole shards";
      break;
    default:
      break;
  }
  return std::nullopt;
}

std::optional<std::string> excuse_of_low_latency(const Problem& p, const Machine& machine,
                                                 const LowLatencyParams& params) {
  const OperatorTraits& of = p.traits();
  if (p.op == Op::gemm || of.attends || of.chains() || of.routes()) return "another kind of operator";
  if (p.op == Op::allgather) return "values stay as they are";
  if (p.epilogue.scale != 1 || p.f32_sums) return "plain sums";
  if (machine.workers <= machine.collective_workers) return "workers";
  const std::int64_t row = (of.gathers() ? p.k : p.n) * static_cast<std::int64_t>(size_bytes(p.dtype));
  if (row % 16 != 0) return "words";
  if (of.reduces() && p.result_epilogue().activation == Activation::swiglu) return "two columns";
  if (params.hops == 2 && (!of.reduces() || of.scatters())) return "one hop";
  return std::nullopt;
}

/// Why there can be no plan. All there is; whatever else a planner refuses is a defect.
std::optional<std::string> excuse(const Problem& p, const Machine& machine, const Params& params) {
  const Mechanism mechanism = mechanism_of(params);
  if (p.traits().grouped && mechanism != Mechanism::sequential && mechanism != Mechanism::chunked &&
      mechanism != Mechanism::signal && mechanism != Mechanism::fused)
    return "experts";
  // Collectives gather rows; those of an A that is stored by columns are not contiguous.
  if (p.traits().gathers() && p.transpose_a) return "transpose_a";
  // A column of A is a row of C: as A is equally wide everywhere, so must every rank's rows be many; and a
  // matrix has a column.
  if (p.op == Op::gemm_alltoall && p.transpose_a)
    for (int rank = 0; rank < p.world; ++rank)
      if (p.routing->rows(rank) != p.m || p.m == 0) return "transpose_a";
  if (const auto* copies = std::get_if<CopyEngineParams>(&params)) return excuse_of_engines(p, *copies);
  if (const auto* few = std::get_if<LowLatencyParams>(&params))
    return excuse_of_low_latency(p, machine, *few);
  if (const auto* fused = std::get_if<FusedParams>(&params)) {
    if (p.op == Op::gemm || p.traits().is_collective()) return "nothing to overlap";
    if (p.row_order == RowOrder::block_cyclic && p.op != Op::allgather_gemm) return "rows dealt";
    if (fused->helpers >= machine.workers) return "workers";
    if (p.op == Op::gemm_allgather_gemm) return "made rows";
    return std::nullopt;
  }
  // GEMM and collective run beside each other, if not in this epoch, then in the next one on another rank.
  const auto* ring = std::get_if<RingParams>(&params);
  const bool engines =
      ring != nullptr && ring->engines > 0 && !(ring->unregistered && p.op == Op::gemm_allreduce);
  const std::int32_t taken = engines ? std::min(machine.collective_workers, 1) : machine.collective_workers;
  if (p.op != Op::gemm && machine.workers <= taken) return "workers";
  const auto* signal = std::get_if<SignalParams>(&params);
  if (signal != nullptr && signal->helpers >= machine.workers - taken) return "workers";
  // There is nothing to overlap.
  if ((p.op == Op::gemm || p.traits().is_collective()) && mechanism != Mechanism::sequential)
    return "nothing to overlap";
  // Signal sends what a GEMM has finished.
  if (p.traits().gathers() && !p.traits().grouped && mechanism == Mechanism::signal) return "gathers";
  // Chunks of tokens would read every weight again.
  if (p.traits().replicates_tokens() && mechanism == Mechanism::chunked) return "tokens of all";
  // Rows of a slice are scattered over what a rank multiplies.
  if (p.op == Op::alltoall_gemm && mechanism == Mechanism::chunked) return "dispatch";
  // What it gathers is there from the beginning.
  if (p.op == Op::gemm_allgather_gemm && mechanism == Mechanism::ring) return "made rows";
  // Rows go to any rank, not around the ring.
  if (p.traits().routes() && mechanism == Mechanism::ring) return "routed";
  return std::nullopt;
}

std::string all_of(const Problem& p, const Plan& plan) {
  return describe(p) + "\n" + to_text(plan);
}

bool is_prelaunched(const Plan& plan) {
  return std::ranges::any_of(plan.ranks, [](const RankPlan& rank) {
    return std::ranges::any_of(rank.lanes, [](const Lane& lane) { return lane.submission.prelaunched; });
  });
}

void require_proof(const Problem& p, const Plan& plan) {
  const Proof proof = verify(plan);
  if (!proof) RC_FAIL(proof.rule + ": " + proof.failure + "\n" + all_of(p, plan));
  // Any other plan may come before and after, except where commands are launched before their epoch.
  const Proof composed = verify(plan, Setting::context);
  if (!composed && !is_prelaunched(plan))
    RC_FAIL("in a context, " + composed.rule + ": " + composed.failure + "\n" + all_of(p, plan));
}

/// What each rank hands to collectives, to other ranks and, around a ring, to its engines in an epoch, in
/// elements.
std::vector<std::int64_t> sent_elements(const Plan& plan) {
  std::vector<std::int64_t> sent(plan.ranks.size());
  for (std::size_t rank = 0; rank < sent.size(); ++rank)
    for (const Lane& lane : plan.ranks[rank].lanes)
      for (const Step& step : lane.steps) {
        if (const auto* collective = std::get_if<Collective>(&step))
          sent[rank] += collective->send.rows * collective->send.cols;
        const auto* copy = std::get_if<Copy>(&step);
        if (copy != nullptr && plan.mechanism == Mechanism::ring) sent[rank] += copy->to.rows * copy->to.cols;
        if (const auto* exchange = std::get_if<Exchange>(&step))
          for (const auto& message : exchange->sends) {
            RC_ASSERT(message.slice.rows > 0);
            sent[rank] += message.slice.rows * message.slice.cols;
          }
      }
  return sent;
}

/// Around a ring a rank sends every row of a sum but those of its own shard, and of what is gathered those of
/// all shards but the next rank's: nothing is padded.
std::int64_t expected_on_ring(const Problem& p, int rank) {
  const auto shard = [&](int r) {
    if (p.traits().scatters()) return p.out_rows(r);
    if (p.op == Op::allgather_gemm) return p.a_rows(r);
    return std::clamp<std::int64_t>(p.m - r * p.shard_rows(), 0, p.shard_rows());
  };
  if (p.world == 1) return 0;
  const std::int64_t summed = (p.m - shard(rank)) * p.n, others = p.m - shard((rank + 1) % p.world);
  if (p.op == Op::gemm_reducescatter) return summed;
  if (p.op == Op::allgather_gemm) return others * p.k;
  if (p.op == Op::mlp) return others * p.k + summed;
  return summed + others * p.out_cols() * (p.norm.residual ? 2 : 1);
}

/// Chunks and groups of tensor-parallel experts are messages to other ranks, in which nothing is padded.
std::int64_t expected_of_slices(const Problem& p, int rank) {
  const auto tokens = [&](int r) { return p.routing->rows(r) / p.choices(); };
  const std::int64_t cols =
      (p.traits().before ? p.k : 0) + (p.traits().after ? std::int64_t{p.experts.topk} : 0);
  std::int64_t sent = (p.world - 1) * tokens(rank) * cols;
  for (int owner = 0; owner < p.world; ++owner)
    if (owner != rank && p.traits().after) sent += tokens(owner) * p.n;
  return sent;
}

/// The same by formula: signal pads the columns to whole tiles, scatters and gathers pad the rows to equal
/// shards, and nothing is sent twice.
std::int64_t expected_elements(const Problem& p, const Plan& plan, int rank) {
  if (plan.mechanism == Mechanism::fused || plan.mechanism == Mechanism::copy_engine ||
      plan.mechanism == Mechanism::low_latency)
    return 0;  // no library takes part
  if (plan.mechanism == Mechanism::ring) return expected_on_ring(p, rank);
  if (plan.mechanism != Mechanism::sequential && p.traits().slices_experts() &&
      !p.traits().replicates_tokens())
    return expected_of_slices(p, rank);
  const std::int64_t cols = p.traits().reduces() ? p.n : p.out_cols();
  std::int64_t wire_cols = cols;
  if (plan.mechanism == Mechanism::signal && !p.traits().grouped) {  // tiles are stacked
    const std::int64_t tile_cols = std::get<SignalParams>(params_of(plan)).tile.cols;
    wire_cols = ceil_div(cols, tile_cols) * tile_cols;
  }
  switch (p.op) {
    case Op::gemm:
      return 0;
    case Op::gemm_allreduce:
    case Op::grouped_gemm_allreduce:
    case Op::moe_allreduce:
    case Op::allreduce:
      return p.m * wire_cols;
    case Op::gemm_reducescatter:
    case Op::attention_reducescatter:
    case Op::reducescatter:
    case Op::ulysses_attention:
      return p.world * p.shard_rows() * wire_cols;
    case Op::allgather_gemm:
    case Op::allgather:
    case Op::gemm_allgather_gemm:
      return p.shard_rows() * p.gathered_cols();
    case Op::allgather_attention:
      return 2 * p.shard_rows() * p.kv_cols();
    case Op::attention_backward:
      break;  // not drawn here: its rows depend on who sees whom
    case Op::gemm_alltoall:
    case Op::alltoall:
      return p.routing->rows(rank) * wire_cols;
    case Op::alltoall_gemm:
      return p.routing->rows(rank) * p.k;
    case Op::alltoall_grouped_gemm:
      return p.routing->rows(rank) * p.k;
    case Op::grouped_gemm_alltoall:
      return p.routing->received(rank) * p.n;
    case Op::moe:
      return p.routing->rows(rank) * p.k + p.routing->received(rank) * p.n;
    case Op::allgather_grouped_gemm:
      return p.m * p.k;
    case Op::grouped_gemm_reducescatter:
      return p.m * p.experts.topk + p.world * p.m * p.n;
    case Op::moe_tp:
      return p.m * (p.k + p.experts.topk) + p.world * p.m * p.n;
    case Op::mlp:
      return p.shard_rows() * p.k + p.world * p.shard_rows() * p.n;
  }
  return -1;
}

void check_plan(const Problem& p, const Machine& machine, const Params& params, const Plan& plan) {
  require_proof(p, plan);
  RC_ASSERT(plan == *plan_with(p, machine, params));  // no clock, no chance, no order of addresses
  RC_ASSERT(plan.problem() == p);
  RC_ASSERT(plan.mechanism == mechanism_of(params));
  // A plan holds what was chosen: with that, it is made again.
  const auto again = plan_with(p, machine, params_of(plan));
  RC_ASSERT(again.has_value());
  RC_ASSERT(plan == *again);
  RC_ASSERT(plan_from_json(to_json(plan)) == plan);
  if (params == with_unregistered(params) && !remote_user_buffers(plan).empty())
    RC_FAIL("peers use a matrix that they do not reach\n" + all_of(p, plan));
  const auto sent = sent_elements(plan);
  for (int rank = 0; rank < p.world; ++rank)
    if (sent[static_cast<std::size_t>(rank)] != expected_elements(p, plan, rank))
      RC_FAIL("rank " + std::to_string(rank) + " sends " +
              std::to_string(sent[static_cast<std::size_t>(rank)]) + " elements, not " +
              std::to_string(expected_elements(p, plan, rank)) + "\n" + all_of(p, plan));
}

/// Groups that are not a partition of the waves have a reason, whatever is wrong with them.
void check_wrong_groups(const Problem& p, const Machine& machine, SignalParams params, const Plan& plan) {
  const std::vector<std::int64_t> right = std::get<SignalParams>(params_of(plan)).group_waves;
  const auto refuses = [&](std::vector<std::int64_t> groups, const char* what) {
    params.group_waves = std::move(groups);
    const auto wrong = plan_signal(p, machine, params);
    if (wrong) RC_FAIL(std::string("took groups with ") + what + "\n" + all_of(p, *wrong));
    RC_ASSERT(!wrong.reason().empty());
    RC_ASSERT(wrong.reason().find('\n') == std::string::npos);
  };
  const auto with = [&](std::int64_t more) {
    auto groups = right;
    groups.push_back(more);
    return groups;
  };
  refuses(with(1), "a wave too many");
  refuses(with(0), "a group of none");
  refuses(with(-1), "a negative group");
  refuses(with(INT64_MAX), "a sum that overflows");
  if (right.size() > 1) refuses({right.begin(), right.end() - 1}, "waves left over");
}

/// How often each mechanism had a plan, so that the test shows what it covered.
struct Coverage {
  int plans[std::size(mechanisms)] = {}, excused = 0;
};

void try_one(Coverage& coverage) {
  Drawn draw;
  const Problem p = random_problem(draw);
  const Machine machine = random_machine(draw);
  for (Params params : random_params(draw, p)) {
    auto plan = plan_with(p, machine, params);
    if (const auto excused = excuse(p, machine, params)) {
      if (plan) RC_FAIL("has a plan although: " + *excused);
      RC_ASSERT(!plan.reason().empty());
      ++coverage.excused;
      continue;
    }
    if (!plan) RC_FAIL("no plan, although there is no excuse: " + plan.reason());
    if (auto* signal = std::get_if<SignalParams>(&params);
        signal && !p.traits().grouped) {  // groups of experts are shares
      check_wrong_groups(p, machine, *signal, *plan);
      if (chance(draw, 70)) signal->group_waves = random_groups(draw, *plan);
      plan = plan_with(p, machine, params);
      if (!plan) RC_FAIL("refuses a partition of its waves: " + plan.reason());
    }
    if (machine.collective_workers > 0)
      if (const auto starved = starved_call(*plan)) RC_FAIL(*starved + "\n" + all_of(p, *plan));
    check_plan(p, machine, params, *plan);
    ++coverage.plans[params.index()];
  }
}

TEST(Planner, GivesAProvenPlanOrAReason) {
  // Bounded in time, because machines differ and sanitizers are slow; RC_PARAMS asks for more problems.
  constexpr auto budget = std::chrono::seconds(60);
  const auto start = std::chrono::steady_clock::now();
  Coverage coverage;
  EXPECT_TRUE(rc::check([&] {
    for (int i = 0; i < 4; ++i)
      if (std::chrono::steady_clock::now() - start < budget) try_one(coverage);
  }));
  for (const Mechanism mechanism : mechanisms) {
    const int plans = coverage.plans[static_cast<int>(mechanism)];
    RecordProperty(std::string(name(mechanism)), plans);
    // Few random rows have a multiple of 16 bytes.
    EXPECT_GT(plans, mechanism == Mechanism::low_latency ? 0 : 20) << name(mechanism);
  }
  RecordProperty("excused", coverage.excused);
}

Machine gpu() {
  Machine machine;
  machine.workers = 132;
  machine.collective_workers = 4;
  machine.tile_rows = 128;
  machine.tile_cols = 256;
  return machine;
}

/// FlashOverlap's largest evaluation: 16384×8192 on 8 ranks.
Problem large(Op op) {
  Problem p;
  p.op = op;
  p.world = 8;
  p.m = 16384, p.n = 8192, p.k = 3584;
  if (op == Op::mlp) p.inner = 7168;
  p.dtype = DType::bf16;
  return p;
}

TEST(Planner, PlansOfLargeProblemsAreSmall) {
  // Closed forms, not tables: the size of a plan depends on its groups and ranks, not on its tiles. Around a
  // ring every rank has a step for each slice of each rank; by default of large problems there are more.
  for (const Op op : {Op::gemm_allreduce, Op::gemm_reducescatter, Op::allgather_gemm, Op::mlp})
    for (const Mechanism mechanism : mechanisms) {
      const Params params =
          mechanism == Mechanism::ring ? RingParams{.slices = 4} : default_params(mechanism);
      const auto plan = plan_with(large(op), gpu(), params);
      if (!plan) continue;
      Problem half = large(op);
      half.m /= 2;
      const auto smaller_plan = plan_with(half, gpu(), params);
      const std::size_t bytes = to_json(*plan, -1).size(), half_bytes = to_json(*smaller_plan, -1).size();
      EXPECT_LT(bytes, (mechanism == Mechanism::ring ? 2048u : 128u) << 10)
          << name(op) << ", " << name(mechanism);
      EXPECT_LT(bytes, half_bytes + half_bytes / 20) << name(op) << ", " << name(mechanism);
    }
}

TEST(Planner, GroupsAreWavesOfTheWorkersThatCollectivesLeave) {
  const SignalParams params{.group_waves = std::vector<std::int64_t>(16, 2)};  // 4096 tiles: 32 waves of 128
  const auto plan = plan_signal(large(Op::gemm_allreduce), gpu(), params);
  ASSERT_TRUE(plan) << plan.reason();
  const auto& gemm = std::get<Gemm>(plan->ranks[0].lanes[0].steps[0]);
  ASSERT_EQ(gemm.notify.size(), 1u);
  ASSERT_EQ(gemm.notify[0].ends.size(), 16u);
  for (std::size_t g = 0; g < 16; ++g)
    EXPECT_EQ(gemm.notify[0].ends[g], 256 * static_cast<std::int64_t>(g + 1));
}

TEST(Planner, WrongProblemsThrowAndWrongParamsAreReasons) {
  for (const Mechanism mechanism : mechanisms) {
    Problem p = large(Op::gemm_allreduce);
    p.k = 0;
    EXPECT_THROW((void)plan_with(p, gpu(), default_params(mechanism)), InvalidArgument) << name(mechanism);
  }
  const auto refused = [](const Params& params) {
    return !plan_with(large(Op::gemm_allreduce), gpu(), params);
  };
  EXPECT_TRUE(refused(SignalParams{.tile = {.rows = -1}}));
  EXPECT_TRUE(refused(SignalParams{.tile = {.order = {.swizzle = 0}}}));
  EXPECT_TRUE(refused(SignalParams{.tile = {.order = {.cluster_m = -3}}}));
  EXPECT_TRUE(refused(SignalParams{.tile = {.order = {.rotation = -1}}}));
  EXPECT_TRUE(refused(SignalParams{.tile = {.order = {.cluster_n = 1 << 30}}}));
  EXPECT_TRUE(refused(SignalParams{.group_waves = std::vector<std::int64_t>(1 << 20, 1)}));
  EXPECT_TRUE(refused(ChunkedParams{.chunks = -1}));
  EXPECT_TRUE(refused(ChunkedParams{.chunks = INT32_MAX}));
  EXPECT_TRUE(refused(RingParams{.slices = -1}));
  EXPECT_TRUE(refused(RingParams{.slices = INT32_MAX}));
}

TEST(Planner, AbsurdSizesAreReasonsToo) {
  // The tiles of a step are counted in 32 bits.
  Problem p = large(Op::gemm_allreduce);
  p.m = p.n = max_extent;
  SignalParams params{.tile = {1, 1}};
  EXPECT_FALSE(plan_signal(p, gpu(), params));
  p.m = p.n = 1;
  params.tile.order = {Raster::along_m, 4096, 4096, 4096, 0};  // 2^36 phantom tiles
  EXPECT_FALSE(plan_signal(p, gpu(), params));
}

}  // namespace
}  // namespace shingle::planner_test
