// Well-formed: the plan's tables. step.cpp and place.cpp check the steps.
#include "shingle/verify/wellformed.hpp"

#include <algorithm>

#include "check.hpp"
#include "plan/accesses.hpp"
#include "plan/steps.hpp"
#include "shingle/base/error.hpp"
#include "shingle/plan/json.hpp"
#include "shingle/plan/print.hpp"
#include "shingle/plan/shapes.hpp"

namespace shingle {
namespace wellformed {
namespace {

void check_name(const std::string& text, const std::string& where, std::size_t most = 256) {
  require(text.size() <= most, where, "{} characters, at most {}", text.size(), most);
  const bool plain = std::all_of(text.begin(), text.end(),
                                 [](char c) { return static_cast<unsigned char>(c) >= ' ' && c != 0x7f; });
  require(plain, where, "holds control characters");
}

void check_head(const Plan& plan) {
  std::visit([](const auto& work) { work.validate(); }, plan.work);
  for (const auto& [name, value] : plan.params) {
    check_name(name, "params");
    check_name(value, "params." + name, 1 << 20);
  }
  require(plan.workers >= 1 && plan.workers <= max_workers, "workers", "{} is outside [1, {}]", plan.workers,
          max_workers);
  check_name(plan.rounding, "rounding", 4096);
}

void check_ranks(const Plan& plan) {
  const auto world = static_cast<std::size_t>(plan.world());
  require(!plan.ranks.empty() && world % plan.ranks.size() == 0, "ranks", "{} of them, but the world has {}",
          plan.ranks.size(), world);
  if (!is_symmetric(plan)) return;
  const std::string reason = asymmetry(plan.work);
  require(reason.empty(), "ranks", "{} of them cannot stand for all {}: {}", plan.ranks.size(), world,
          reason);
}

/// Rows of the shard of m rows on a rank, without listing its runs: only the last block of a rank can be
/// short.
std::int64_t rows_of_shard(const Problem& p, int rank) {
  if (p.row_order == RowOrder::zigzag) return p.a_rows(rank);  // at most two runs
  const std::int64_t shard = p.shard_rows(), padding = p.world * shard - p.m;
  const std::int64_t block = p.row_order == RowOrder::block_cyclic ? p.row_block : shard;
  const std::int64_t last = shard % block == 0 ? smaller(block, shard) : shard % block;
  return shard - last + larger(smaller(p.world * last - padding - rank * last, last), 0);
}

/// Shape of a user's buffer on a rank, as the problem or the workload defines it.
Shape user_shape(const Workload& workload, Role role, int) {
  return shape_of(workload, role);
}

Shape user_shape(const Problem& p, Role role, int rank) {
  switch (role) {
    case Role::a:
      // A stored by columns has the same width on all ranks: that of the largest shard.
      if (p.transpose_a) return {p.k, p.traits().shards_a() ? p.shard_rows() : p.m};
      return {p.traits().shards_a() ? rows_of_shard(p, rank) : p.a_rows(rank), p.k};
    case Role::b:
    case Role::down:
    case Role::topk_weights:
    case Role::topk_ids:
    case Role::dropped:
    case Role::counts:
      return shape_of(p, role, rank);
    case Role::bias:
      return {1, p.b_cols()};
    case Role::norm_weight:
      return {1, p.out_cols()};
    case Role::keys:
    case Role::values:
    case Role::keys_grad:
    case Role::values_grad:
      return {p.kv_rows(rank), p.kv_cols()};
    case Role::lse:
    case Role::out_lse:
      return {rows_of_shard(p, rank), p.attention.heads};
    default:
      return {p.traits().shards_out() ? rows_of_shard(p, rank) : p.out_rows(rank), p.out_cols()};
  }
}

bool is_asked_for(const Workload& workload, Role role) {
  const std::vector<Role> roles = roles_of(workload);
  return std::ranges::find(roles, role) != roles.end();
}

bool is_asked_for(const Problem& p, Role role) {
  switch (role) {
    case Role::b:
      return p.traits().multiplies();
    case Role::bias:
      return p.epilogue.bias;
    case Role::norm_weight:
      return p.norm.enabled;
    case Role::keys:
    case Role::values:
      return p.traits().attends;
    case Role::grad:
    case Role::attended:
    case Role::lse:
    case Role::keys_grad:
    case Role::values_grad:
      return p.traits().backward;
    case Role::out_lse:
      return p.attention.returns_lse;
    case Role::down:
      return p.traits().chains();
    case Role::topk_weights:
      return p.traits().combines();
    case Role::topk_ids:
    case Role::dropped:
      return p.has_slots();
    case Role::counts:
      return p.has_slots() && !p.traits().combines();
    case Role::payload:
      return false;
    case Role::residual:
    case Role::sum:
      return p.norm.residual;
    default:
      return true;
  }
}

void check_size(const Plan& plan, const Buffer& b, std::int64_t& total, const std::string& where) {
  require(b.rows.size() == plan.ranks.size(), where, "rows of {} ranks, but planned are {}", b.rows.size(),
          plan.ranks.size());
  require(b.flagged ? b.depth == flagged_copies : b.depth == 1 || b.depth == 2, where,
          "depth {}; expected {}", b.depth, b.flagged ? "3, of a flagged buffer" : "1 or 2");
  require(b.cols >= 1 && b.cols <= max_rows, where, "{} columns; expected 1 to {}", b.cols, max_rows);
  const std::int64_t row_bytes = b.cols * static_cast<std::int64_t>(size_bytes(b.dtype)) * b.depth;
  for (const std::int64_t rows : b.rows) {
    require(rows >= 0, where, "{} rows; expected at least 0", rows);
    require(rows <= (max_bytes - total) / row_bytes, where,
            "the plan's buffers take more than 2^60 bytes together");
    total += rows * row_bytes;
  }
}

/// The word for a plan's work in messages.
std::string_view kind_of(const Plan& plan) {
  return plan.workload() ? "workload" : "problem";
}

/// `work`: the plan's problem or workload.
void check_buffers(const Plan& plan, const auto& work) {
  const std::string_view kind = kind_of(plan);
  std::int64_t total = 0;
  for (std::size_t i = 0; i < plan.buffers.size(); ++i) {
    const Buffer& b = plan.buffers[i];
    check_name(b.name, fmt::format("buffers[{}].name", i));
    const std::string where = fmt::format("buffer '{}'", b.name);
    check_size(plan, b, total, where);
    const bool other = b.role == Role::internal && (b.dtype == DType::f32 || b.dtype == DType::i32);
    require(b.dtype == dtype_of(plan.work, b.role) || other, where, "is {}, but the {} {}", name(b.dtype),
            kind, name(dtype_of(plan.work, b.role)));
    if (b.flagged)
      for (std::size_t r = 0; r < b.rows.size(); ++r) {
        const std::int64_t copy = b.bytes(static_cast<int>(r)) / b.depth;
        require(copy <= most_flagged_bytes, where, "{} bytes of a copy are flagged on rank {}, at most {}",
                copy, r, most_flagged_bytes);
      }
    if (b.role == Role::internal) continue;
    require(find_buffer(plan, b.role) == static_cast<std::int32_t>(i), where,
            "a second buffer for the user's {}; expected one", name(b.role));
    require(is_asked_for(work, b.role), where, "the {} has no {}", kind, name(b.role));
    require(b.depth == 1 && !b.flagged, where, "a user's buffer has depth 1, not {}, and no flags", b.depth);
    for (int r = 0; r < static_cast<int>(plan.ranks.size()); ++r) {
      const Shape shape = user_shape(work, b.role, r);
      require(b.rows[static_cast<std::size_t>(r)] == shape.rows && b.cols == shape.cols, where,
              "{}x{} on rank {}, but the {} asks for {}x{}", b.rows[static_cast<std::size_t>(r)], b.cols, r,
              kind, shape.rows, shape.cols);
    }
  }
  for (auto role = Role::a; role < Role::internal; role = static_cast<Role>(static_cast<int>(role) + 1))
    require(!is_asked_for(work, role) || find_buffer(plan, role) >= 0, "buffers", "none is the user's {}",
            name(role));
}

void check_counters(const Plan& plan) {
  for (std::size_t i = 0; i < plan.counters.size(); ++i) {
    const Counter& c = plan.counters[i];
    check_name(c.name, fmt::format("counters[{}].name", i));
    const std::string where = fmt::format("counter '{}'", c.name);
    require(c.growth.size() == plan.ranks.size(), where, "growth on {} ranks, but planned are {}",
            c.growth.size(), plan.ranks.size());
    require(!c.of_arrivals || (!c.of_begins && c.kind == CounterKind::add), where,
            "counts arrivals, so it adds, and counts nothing else");
    for (const auto& entries : c.growth)
      for (const std::uint32_t growth : entries)
        require(growth <= max_count, where, "grows by {} an epoch, at most {}", growth, max_count);
  }
}

void check_communicators(const Plan& plan) {
  for (std::size_t i = 0; i < plan.communicators.size(); ++i) {
    const Communicator& c = plan.communicators[i];
    check_name(c.name, fmt::format("communicators[{}].name", i));
    const std::string where = fmt::format("communicator '{}'", c.name);
    require(!c.ranks.empty(), where, "has no ranks");
    std::vector<bool> seen(static_cast<std::size_t>(plan.world()));
    for (const std::int32_t rank : c.ranks) {
      require_index(rank, seen, where, "ranks");
      require(!seen[static_cast<std::size_t>(rank)], where, "rank {} twice", rank);
      seen[static_cast<std::size_t>(rank)] = true;
    }
    require(!is_symmetric(plan) || c.ranks.size() == seen.size(), where,
            "holds {} of {} ranks, but some stand for all", c.ranks.size(), seen.size());
  }
}

void check_submission(const Plan& plan, const Lane& lane, const std::string& where) {
  const Submission& how = lane.submission;
  for (const Step& step : lane.steps)
    require(lane.kind != LaneKind::host || synchronises(step), where,
            "a host lane only awaits and notifies; it cannot run {}", name(step));
  for (const Step& step : lane.steps)
    require(lane.kind != LaneKind::copy || is_command(step) || std::holds_alternative<Await>(step) ||
                std::holds_alternative<Notify>(step),
            where, "a copy lane holds commands, awaits and notifies; it cannot run {}", name(step));
  require(!how.prelaunched || (!lane.steps.empty() && std::holds_alternative<Await>(lane.steps.front())),
          where, "a prelaunched lane must begin with an await, else it would begin before its epoch");
  require(lane.kind == LaneKind::copy || how == Submission{}, where, "only copy lanes have a submission");
  require(lane.kind != LaneKind::copy || !is_symmetric(plan), where,
          "launching threads differ from rank to rank, but some ranks stand for all");
  require(how.launcher >= -1 && how.launcher < plan.world(), where, "launcher {} is outside [-1, {})",
          how.launcher, plan.world());
  std::int32_t last = 0;
  for (const std::int32_t end : how.doorbells) {
    require(end > last && static_cast<std::size_t>(end) < lane.steps.size(), where,
            "doorbell at {} of {} steps, after one at {}", end, lane.steps.size(), last);
    last = end;
  }
}

/// What arrives in flagged buffers orders nothing else. So the ranks of such a plan share no other memory,
/// and no step but a pass uses these buffers.
void check_flags(const Plan& plan, const std::string& where, const Step& step, int rank) {
  const Accesses accesses = accesses_of(step, plan.world());
  for (const auto& [other, buffer] : accesses.memory) {
    const Buffer& used = plan.buffers[static_cast<std::size_t>(buffer)];
    require(!used.flagged || std::holds_alternative<Elementwise>(step), where,
            "uses '{}', which is flagged: only passes do", used.name);
    require(used.flagged || other == rank, where,
            "uses '{}' of rank {}; in a plan with flagged buffers ranks share nothing else", used.name,
            other);
  }
  for (const CounterRef& count : accesses.counters)
    require(count.rank == rank || plan.counters[static_cast<std::size_t>(count.counter)].of_arrivals, where,
            "adds to '{}' of rank {}; in a plan with flagged buffers ranks only count arrivals",
            plan.counters[static_cast<std::size_t>(count.counter)].name, count.rank);
}

void check_rank(const Plan& plan, int rank) {
  const RankPlan& r = plan.ranks[static_cast<std::size_t>(rank)];
  const bool flagged = has_flagged(plan);
  require(r.lanes.size() <= max_lanes, fmt::format("rank {}", rank), "{} lanes, at most {}", r.lanes.size(),
          max_lanes);
  for (std::size_t lane = 0; lane < r.lanes.size(); ++lane) {
    check_name(r.lanes[lane].name, fmt::format("rank {}, lane {}, name", rank, lane));
    check_submission(plan, r.lanes[lane],
                     fmt::format("rank {}, lane {}, submission", rank, r.lanes[lane].name));
    for (std::size_t step = 0; step < r.lanes[lane].steps.size(); ++step) {
      check_step(plan, rank, static_cast<int>(lane), static_cast<int>(step));
      if (flagged)
        check_flags(plan, shingle::where(plan, rank, static_cast<int>(lane), static_cast<int>(step)),
                    r.lanes[lane].steps[step], rank);
    }
  }
  check_queues(plan, rank);
  const std::string where = fmt::format("rank {}, issue", rank);
  std::vector<std::size_t> issued(r.lanes.size());
  for (const std::int32_t lane : r.issue) {
    require_index(lane, r.lanes, where, "lanes");
    ++issued[static_cast<std::size_t>(lane)];
  }
  for (std::size_t lane = 0; lane < r.lanes.size(); ++lane)
    require(issued[lane] == r.lanes[lane].steps.size(), where, "{} steps of lane {}, which has {}",
            issued[lane], r.lanes[lane].name, r.lanes[lane].steps.size());
}

}  // namespace
}  // namespace wellformed

std::optional<std::string> malformed(const Plan& plan) {
  using namespace wellformed;
  try {
    check_head(plan);
    check_ranks(plan);
    std::visit([&](const auto& work) { check_buffers(plan, work); }, plan.work);
    check_counters(plan);
    check_communicators(plan);
    for (int rank = 0; rank < static_cast<int>(plan.ranks.size()); ++rank) check_rank(plan, rank);
  } catch (const Flaw& flaw) {
    return flaw.text;
  } catch (const InvalidArgument& e) {
    return fmt::format("{}: {}", kind_of(plan), e.what());
  }
  return std::nullopt;
}

Plan plan_from_json(std::string_view text) {
  Plan plan = parse_plan(text);
  if (const auto problem = malformed(plan)) throw InvalidArgument(*problem);
  return plan;
}

}  // namespace shingle
