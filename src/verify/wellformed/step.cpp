// Well-formed: tiled steps and communication.
#include "step.hpp"

#include <algorithm>
#include <map>
#include <utility>
#include <variant>

#include "shingle/plan/placement.hpp"

namespace shingle::wellformed {
namespace {

/// True if the items of a row-wise pass, which are rows of tiles, are also the positions of the grid.
bool in_rows(const TileGrid& grid) {
  if (grid.tiles_n() > 1 || grid.positions() != grid.tiles()) return false;
  for (std::int64_t m = 0; m < grid.tiles_m(); ++m)
    if (grid.tile(m).m != m) return false;
  return true;
}

}  // namespace

// ----------------------------------------------------------------------------------------------------------
// tiled steps

void StepCheck::hooks(const std::vector<TileGate>& gates, const std::vector<TileNotify>& notifies,
                      const TileGrid& g, bool adds_parts) const {
  const auto entry_exists = [&](const Field& field, std::int32_t counter, std::int32_t rank,
                                std::int64_t entry) {
    const std::size_t have =
        plan_.counters[static_cast<std::size_t>(counter)].growth[static_cast<std::size_t>(rank)].size();
    require(entry >= 0 && entry < static_cast<std::int64_t>(have), field,
            "entry {}, but counter '{}' has {} entries on rank {}", entry,
            plan_.counters[static_cast<std::size_t>(counter)].name, have, rank);
  };
  const auto by_group = [&](const Field& field, std::size_t given, std::size_t wanted) {
    require(given == 0 || given == wanted, field, "{} of them for {} groups", given, wanted);
  };
  for (std::size_t i = 0; i < gates.size(); ++i) {
    const TileGate& gate = gates[i];
    const Field field{"gates", i};
    index(gate.counter, plan_.counters, field.at("counter"), "counters");
    require(!gate.of_parts || adds_parts, field.at("of_parts"), "no tile of the step is a sum of parts");
    groups(field.at("ends"), gate.ends, g);
    require(gate.targets.size() == gate.ends.size(), field.at("targets"), "{} of them for {} groups",
            gate.targets.size(), gate.ends.size());
    for (const std::uint32_t target : gate.targets)
      require(target <= max_count, field.at("targets"), "{} is above {}", target, max_count);
    by_group(field.at("entries"), gate.entries.size(), gate.ends.size());
    for (std::size_t group = 0; group < gate.ends.size(); ++group)
      entry_exists(field.at("ends"), gate.counter, rank_, gate.entry(static_cast<std::int64_t>(group)));
  }
  for (std::size_t i = 0; i < notifies.size(); ++i) {
    const TileNotify& notify = notifies[i];
    const Field field{"notify", i};
    index(notify.counter, plan_.counters, field.at("counter"), "counters");
    require(plan_.counters[static_cast<std::size_t>(notify.counter)].kind == CounterKind::add,
            field.at("counter"), "tiles add, but the counter is set by one writer");
    groups(field.at("ends"), notify.ends, g);
    by_group(field.at("entries"), notify.entries.size(), notify.ends.size());
    by_group(field.at("owners"), notify.owners.size(), notify.ends.size());
    require(notify.owners.empty() || notify.ranks.empty(), field.at("owners"),
            "are given beside ranks for all groups");
    std::vector<bool> seen(plan_.ranks.size());
    for (const std::int32_t rank : notify.owners) index(rank, plan_.ranks, field.at("owners"), "ranks");
    for (const std::int32_t rank : notify.ranks) {
      index(rank, plan_.ranks, field.at("ranks"), "ranks");
      require(!seen[static_cast<std::size_t>(rank)], field.at("ranks"), "rank {} twice", rank);
      seen[static_cast<std::size_t>(rank)] = true;
    }
    // Each rank needs the entries. Without owners, the lowest and highest entry stand for all groups.
    std::int64_t lowest = 0, highest = -1;
    for (std::size_t group = 0; group < notify.ends.size(); ++group) {
      const std::int64_t entry = notify.entry(static_cast<std::int64_t>(group));
      require(entry >= -1, field.at("entries"), "{} is below -1, which adds nothing", entry);
      if (entry < 0) continue;
      if (!notify.owners.empty()) entry_exists(field.at("ends"), notify.counter, notify.owners[group], entry);
      lowest = smaller(lowest, entry);
      highest = larger(highest, entry);
    }
    for (const std::int32_t rank : notify.ranks) {
      if (highest < 0 && lowest == 0) break;
      entry_exists(field.at("ends"), notify.counter, rank, lowest);
      if (highest >= 0) entry_exists(field.at("ends"), notify.counter, rank, highest);
    }
  }
}

void StepCheck::resources(const Resources& r) const {
  require(r.least >= 0 && r.least <= max_workers && r.most >= 0 && r.most <= max_workers, {"resources"},
          "{} to {} workers are outside [0, {}]", r.least, r.most, max_workers);
  require(r.most == 0 || r.least <= r.most, {"resources"}, "at least {} workers, but at most {}", r.least,
          r.most);
}

void StepCheck::operator()(const Gemm& g) const {
  require(plan_.workload() || plan_.problem().traits().multiplies(), {"b"}, "the problem has no product");
  grid(g.grid);
  own({"a"}, g.a);
  own({"b"}, g.b);
  const std::int64_t m = g.transpose_a ? g.a.cols : g.a.rows, k = g.transpose_a ? g.a.rows : g.a.cols;
  const std::int64_t b_k = g.transpose_b ? g.b.cols : g.b.rows, n = g.transpose_b ? g.b.rows : g.b.cols;
  if (g.groups.empty()) {
    require(k >= 1 && k == b_k, {"b"}, "op(A) has {} columns, op(B) {} rows", k, b_k);
    require(n == weight_cols(g), {"b"}, "op(B) has {} columns, but the grid {}{}", n, g.grid.cols,
            g.epilogue.activation == Activation::swiglu ? " of gate and up each" : "");
  } else {
    groups(g);
  }
  require(buffer(g.a).dtype == buffer(g.b).dtype, {"b"}, "{}, but A is {}", name(buffer(g.b).dtype),
          name(buffer(g.a).dtype));
  if (g.groups.empty()) row_map({"a_rows"}, g.a_rows, g.grid.rows, m);
  vector({"bias"}, g.bias, g.epilogue.bias, n);
  placement({"out"}, g.out, placed_rows(g));
  store({"out"}, g.out.slice);
  require(is_floating(buffer(g.a).dtype) && is_floating(buffer(g.out.slice).dtype), {"a"},
          "i32, which no product has");
  hooks(g.gates, g.notify, g.grid, !g.sums.from.empty());
  sums(g);
  require(g.epilogue.scale == 1, {"epilogue"}, "a product has no scale, not {}", g.epilogue.scale);
  resources(g.resources);
}

/// The grid that the output of a product has for its placement: in a grouped product, the rows up to the last
/// that a group has.
TileGrid StepCheck::placed_rows(const Gemm& g) {
  TileGrid grid = g.grid;
  if (!g.groups.empty()) grid.rows = 0;
  for (const RowGroup& group : g.groups) grid.rows = larger(grid.rows, group.row + group.rows);
  return grid;
}

/// Groups of a grouped product: rows of A, weights that B stacks, and whole tiles of virtual rows.
void StepCheck::groups(const Gemm& g) const {
  require(plan_.workload() || plan_.problem().traits().grouped, {"groups"}, "the problem has no experts");
  require(g.groups.size() <= max_groups, {"groups"}, "{} of them, at most {}", g.groups.size(), max_groups);
  require(!g.transpose_a && !g.epilogue.bias, {"groups"},
          "a grouped product has no transposed A and no bias");
  require(std::holds_alternative<placement::Matrix>(g.out.form) ||
              std::holds_alternative<placement::Returned>(g.out.form),
          {"out"}, "a grouped product stores rows, not {}", Placement::names[g.out.form.index()]);
  const std::int64_t k = g.a.cols, weight_rows = g.transpose_b ? weight_cols(g) : k;
  require(k >= 1 && g.b.cols == (g.transpose_b ? k : weight_cols(g)), {"b"},
          "{} columns do not fit a K of {} and {} columns of the product", g.b.cols, k, weight_cols(g));
  require(weight_rows >= 1 && g.b.rows % weight_rows == 0, {"b"}, "{} rows do not stack weights of {}",
          g.b.rows, weight_rows);
  const std::int64_t weights = g.b.rows / weight_rows;
  for (std::size_t i = 0; i < g.groups.size(); ++i) {
    const RowGroup& group = g.groups[i];
    const Field field{"groups", i};
    require(group.rows >= 0 && group.a_row >= 0 && group.a_row <= g.a.rows - group.rows, field,
            "rows {} to {} are not in A, which has {}", group.a_row, group.a_row + group.rows, g.a.rows);
    require(group.row >= 0 && group.row <= max_rows - group.rows, field, "its output begins at row {}",
            group.row);
    require(group.weight >= 0 && group.weight < weights, field, "weight {} is none of the {}", group.weight,
            weights);
  }
  live(g);
  require(g.group_tiles >= 1 && g.group_tiles <= max_group_tiles, {"group_tiles"}, "{} is outside [1, {}]",
          g.group_tiles, max_group_tiles);
  const std::int64_t rows = padded_rows(g.groups, g.grid.tile_rows, g.group_tiles);
  require(g.grid.rows == rows, {"grid"}, "{} rows, but the groups take {}", g.grid.rows, rows);
}

void StepCheck::operator()(const Elementwise& e) const {
  const bool swiglu = e.epilogue.activation == Activation::swiglu;
  grid(e.grid);
  require(!swiglu || e.grid.cols % 2 == 0, {"grid"},
          "swiglu takes gate and up together, but there are {} columns", e.grid.cols);
  const std::int64_t out_cols = swiglu ? e.grid.cols / 2 : e.grid.cols;
  const std::int64_t items = row_wise(e) ? e.grid.tiles_m() : e.grid.positions();
  require(e.first >= 0 && e.first <= items && e.count >= -1 && e.count <= items - e.first, {"count"},
          "{} items from {} on, but there are {}", e.count, e.first, items);
  require(!e.from.empty(), {"from"}, "nothing to read");
  for (std::size_t i = 0; i < e.from.size(); ++i) {
    one_rank({"from", i}, e.from[i]);
    placement({"from", i}, e.from[i], e.grid);
  }
  if (e.factors != Slice{}) {
    own({"factors"}, e.factors);
    require(e.factors.rows == e.grid.rows && e.factors.cols == static_cast<std::int64_t>(e.from.size()),
            {"factors"}, "{}x{}, not a factor for each of {} rows and {} sources", e.factors.rows,
            e.factors.cols, e.grid.rows, e.from.size());
    require(!row_wise(e) && !e.epilogue.any(), {"factors"}, "a weighted sum has no epilogue and no norm");
    tokens_in_place({"factors"}, {e.factors, placement::Matrix{RowMap::identity(e.factors.rows)}});
  }
  require(e.epilogue.scale == 1 || !row_wise(e), {"epilogue"}, "a norm or swiglu has no scale, not {}",
          e.epilogue.scale);
  // The output of a row of tiles is one piece, as wide as the output.
  const std::int64_t wide = row_wise(e) ? out_cols : 0;
  placement({"to"}, e.to, e.grid, wide);
  store({"to"}, e.to.slice);
  for (std::size_t i = 0; i < e.from.size(); ++i) picks(e, i);
  tokens_in_place({"to"}, e.to);
  vector({"bias"}, e.bias, e.epilogue.bias, e.grid.cols);
  vector({"norm_weight"}, e.norm_weight, e.norm.enabled, out_cols);
  require(!e.norm.enabled || (e.norm.epsilon >= 0 && e.norm.epsilon < 1e30f), {"norm"},
          "epsilon {} is outside [0, 1e30)", e.norm.epsilon);
  require(e.norm.enabled || !e.norm.residual, {"norm"}, "a residual needs the norm enabled");
  if (e.norm.residual) {
    one_rank({"residual"}, e.residual);
    one_rank({"sum"}, e.sum);
    placement({"residual"}, e.residual, e.grid, wide);
    placement({"sum"}, e.sum, e.grid, wide);
    store({"sum"}, e.sum.slice);
  } else {
    require(e.residual == Placement{} && e.sum == Placement{}, {"residual"}, "is given, but not used");
  }
  require(!row_wise(e) || (e.gates.empty() && e.notify.empty()) || in_rows(e.grid), {"gates"},
          "a row-wise step has hooks only if its grid has one column of tiles, in order");
  require(!row_wise(e) || e.queue < 0, {"queue"}, "a row-wise step is not shared");
  require(e.queue >= -1 && e.queue < max_queues, {"queue"}, "{} is outside [-1, {})", e.queue, max_queues);
  hooks(e.gates, e.notify, e.grid);
  flags(e);
  resources(e.resources);
}

/// What arrives by itself orders nothing but itself. So only passes with these gates read it, and only passes
/// that store it notify.
void StepCheck::flags(const Elementwise& e) const {
  const auto arrivals = [&](std::int32_t counter) {
    return plan_.counters[static_cast<std::size_t>(counter)].of_arrivals;
  };
  const bool sends = buffer(e.to.slice).flagged;
  const bool receives =
      std::ranges::any_of(e.from, [&](const Placement& at) { return buffer(at.slice).flagged; });
  require(!sends || !receives, {"to"}, "stores to a flagged buffer what it reads from one");
  require(!receives || std::ranges::any_of(e.gates, [&](const TileGate& g) { return arrivals(g.counter); }),
          {"gates"}, "reads a flagged buffer, but awaits no arrivals");
  for (std::size_t i = 0; i < e.gates.size(); ++i)
    require(receives == arrivals(e.gates[i].counter), {"gates", i},
            "a pass awaits arrivals if it reads a flagged buffer, and then nothing else");
  for (std::size_t i = 0; i < e.notify.size(); ++i)
    require(sends == arrivals(e.notify[i].counter), {"notify", i},
            "a pass notifies arrivals if it stores to a flagged buffer, and then nothing else");
}

// --------------------------------------------------------------------------------------------------------
// communication

const Communicator& StepCheck::communicator(std::int32_t i) const {
  index(i, plan_.communicators, {"communicator"}, "communicators");
  const Communicator& c = plan_.communicators[static_cast<std::size_t>(i)];
  require(std::find(c.ranks.begin(), c.ranks.end(), rank_) != c.ranks.end(), {"communicator"},
          "'{}' does not hold rank {}", c.name, rank_);
  return c;
}

void StepCheck::operator()(const Collective& c) const {
  const Communicator& comm = communicator(c.communicator);
  const auto size = static_cast<std::int64_t>(comm.ranks.size());
  const std::int64_t me = std::find(comm.ranks.begin(), comm.ranks.end(), rank_) - comm.ranks.begin();
  contiguous({"send"}, c.send);
  contiguous({"recv"}, c.recv);
  store({"recv"}, c.recv);
  require(c.send.cols == c.recv.cols && buffer(c.send).dtype == buffer(c.recv).dtype, {"recv"},
          "rows of {} {}, but sent are rows of {} {}", c.recv.cols, name(buffer(c.recv).dtype), c.send.cols,
          name(buffer(c.send).dtype));
  Slice in_place = c.send;  // the part of `send` that `recv` may equal
  const auto counts = [&](const Field& field, const std::vector<std::int64_t>& rows, std::int64_t sum) {
    if (c.kind != CollectiveKind::alltoall)
      return require(rows.empty(), field, "only an alltoall has counts by rank");
    require(static_cast<std::int64_t>(rows.size()) == size, field, "{} of them for {} ranks", rows.size(),
            size);
    for (const std::int64_t count : rows) {
      require(count >= 0 && count <= sum, field, "{} of {} rows", count, sum);
      sum -= count;
    }
    require(sum == 0, field, "they leave {} rows of the slice", sum);
  };
  counts({"send_rows"}, c.send_rows, c.send.rows);
  counts({"recv_rows"}, c.recv_rows, c.recv.rows);
  switch (c.kind) {
    case CollectiveKind::allreduce:
      require(c.send.rows == c.recv.rows, {"recv"}, "{} rows, but {} are sent", c.recv.rows, c.send.rows);
      break;
    case CollectiveKind::reducescatter:
      require(c.send.rows / size == c.recv.rows && c.send.rows % size == 0, {"send"},
              "{} rows are not {} for each of {} ranks", c.send.rows, c.recv.rows, size);
      in_place.row += me * c.recv.rows;
      in_place.rows = c.recv.rows;
      break;
    case CollectiveKind::allgather:
      require(c.recv.rows / size == c.send.rows && c.recv.rows % size == 0, {"recv"},
              "{} rows are not {} of each of {} ranks", c.recv.rows, c.send.rows, size);
      in_place.row -= me * c.send.rows;
      in_place.rows = c.recv.rows;
      break;
    case CollectiveKind::alltoall:
      in_place.rows = 0;
      break;
  }
  require(!overlap(c.send, c.recv) || c.recv == in_place, {"recv"}, "overlaps send other than in place");
  const CollectiveConfig& config = c.config;
  require(config.channels >= 0 && config.channels <= max_workers && config.chunk_bytes >= 0 &&
              config.threads >= 0,
          {"config"}, "{} channels, chunks of {} bytes, {} threads", config.channels, config.chunk_bytes,
          config.threads);
  require(!config.by_engines() && config.spared == 0 && config.delay == 0, {"config"},
          "'{}' is of copy engines or computations, not of a collective", shingle::describe(config));
  resources(c.resources);
}

void StepCheck::operator()(const Exchange& e) const {
  const Communicator& comm = communicator(e.communicator);
  const auto messages = [&](std::string_view what, const std::vector<Exchange::Message>& list, bool stores) {
    for (std::size_t i = 0; i < list.size(); ++i) {
      const Field field{what, i};
      require(std::find(comm.ranks.begin(), comm.ranks.end(), list[i].peer) != comm.ranks.end(),
              field.at("peer"), "rank {} is not in '{}'", list[i].peer, comm.name);
      contiguous(field.at("slice"), list[i].slice);
      if (stores) store(field.at("slice"), list[i].slice);
    }
  };
  messages("sends", e.sends, false);
  messages("receives", e.receives, true);
  resources(e.resources);
}

void check_step(const Plan& plan, int rank, int lane, int step) {
  const auto& steps = plan.ranks[static_cast<std::size_t>(rank)].lanes[static_cast<std::size_t>(lane)].steps;
  std::visit(StepCheck(plan, rank, lane, step), steps[static_cast<std::size_t>(step)]);
}

void check_queues(const Plan& plan, int rank) {
  const auto& lanes = plan.ranks[static_cast<std::size_t>(rank)].lanes;
  struct Queue {
    const Elementwise* pass;
    std::size_t last_lane;
  };
  std::map<std::int32_t, Queue> queues;
  for (std::size_t l = 0; l < lanes.size(); ++l)
    for (std::size_t s = 0; s < lanes[l].steps.size(); ++s) {
      const auto* pass = std::get_if<Elementwise>(&lanes[l].steps[s]);
      if (!pass || pass->queue < 0) continue;
      const auto [known, added] = queues.try_emplace(pass->queue, Queue{pass, l});
      if (added) continue;
      const bool again = std::exchange(known->second.last_lane, l) == l;
      Elementwise same = *pass;
      same.resources = known->second.pass->resources;
      if (!again && same == *known->second.pass) continue;
      throw Flaw{fmt::format("{}: queue: lane {} {} queue {}{}",
                             where(plan, rank, static_cast<int>(l), static_cast<int>(s)), lanes[l].name,
                             again ? "comes to" : "shares", pass->queue,
                             again ? " twice" : ", but does another pass")};
    }
}

}  // namespace shingle::wellformed
