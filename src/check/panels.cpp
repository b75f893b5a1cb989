#include "panels.hpp"

#include <algorithm>

#include "slots.hpp"

namespace shingle {
namespace {

/// Owners of global rows [row, row + rows) of a gathered A, in order.
std::vector<ARows> owners(const Problem& problem, std::int64_t row, std::int64_t rows) {
  struct Owned {
    std::int64_t global;
    ARows local;
  };
  std::vector<Owned> found;
  for (int rank = 0; rank < problem.world; ++rank)
    for (const GlobalRun& run : problem.a_runs(rank)) {
      const std::int64_t first = larger(run.global_row, row),
                         end = smaller(run.global_row + run.rows, row + rows);
      if (first < end) found.push_back({first, {rank, run.local_row + first - run.global_row, end - first}});
    }
  std::sort(found.begin(), found.end(), [](const Owned& a, const Owned& b) { return a.global < b.global; });
  std::vector<ARows> in_order;
  for (const Owned& owned : found) in_order.push_back(owned.local);
  return in_order;
}

bool holds(const Problem& problem, int rank, const Panel& panel) {
  for (const GlobalRun& run : problem.out_runs(rank))
    if (run.global_row < panel.row + panel.rows && panel.row < run.global_row + run.rows) return true;
  return false;
}

/// Rows of A of a panel, for one rank.
std::vector<ARows> sources_of(const Problem& p, const Panel& panel, int rank) {
  if (!panel.gathered.empty()) return panel.gathered;
  return {{rank, panel.row - (p.routing ? p.routing->global_base(rank) : 0), panel.rows}};
}

/// Tokens [row, row + rows) of a rank's received rows, as rows of the ranks that own them.
std::vector<ARows> tokens_of(const Problem& p, std::span<const Routing::Row> rows) {
  std::vector<ARows> found;
  for (const auto& [source, row] : rows) {
    const std::int64_t token = row % p.a_rows(source);
    if (!found.empty() && found.back().owner == source && found.back().row + found.back().rows == token)
      ++found.back().rows;
    else
      found.push_back({source, token, 1});
  }
  return found;
}

/// The choices of a source's tokens [first, first + rows) that each expert takes, with their rows by expert.
struct RoutedChoice {
  TokenChoice of;
  std::int64_t by_expert = 0;
};
std::vector<std::vector<RoutedChoice>> choices_of(const Inputs& inputs, int source, std::int64_t first,
                                                  std::int64_t rows) {
  const Problem& p = inputs.problem();
  const Routing& routing = *p.routing;
  std::vector<std::vector<RoutedChoice>> found(static_cast<std::size_t>(routing.experts()));
  const auto take = [&](int expert, const TokenChoice& of, std::int64_t before) {
    found[static_cast<std::size_t>(expert)].push_back({of, routing.receive_base(expert, source) + before});
  };
  if (p.has_slots()) {
    const TakenChoices taken = taken_choices(inputs, source);
    for (int expert = 0; expert < routing.experts(); ++expert) {
      const std::vector<TokenChoice>& slots = taken.of_expert[static_cast<std::size_t>(expert)];
      for (std::size_t slot = 0; slot < slots.size(); ++slot)
        if (slots[slot].token >= first && slots[slot].token < first + rows)
          take(expert, slots[slot], static_cast<std::int64_t>(slot));
    }
    return found;
  }
  for (std::int64_t choice = 0; choice < p.experts.topk; ++choice)
    for (std::int64_t token = first; token < first + rows; ++token) {
      const std::int64_t routed = choice * (routing.rows(source) / p.choices()) + token;
      const int expert = routing.dest(source, routed);
      take(expert, {token, choice}, routing.count_before(source, expert, routed));
    }
  return found;
}

/// The products of a panel's tokens, which `owner` has.
std::vector<Term> terms_of_choices(const Inputs& inputs, const Panel& panel, int owner) {
  const Problem& p = inputs.problem();
  const Routing& routing = *p.routing;
  const int source = p.source_of(owner);
  const std::int64_t first = panel.row - p.out_runs(source).front().global_row;
  const std::vector<std::vector<RoutedChoice>> chosen = choices_of(inputs, source, first, panel.rows);
  std::vector<Term> terms;
  for (int expert = 0; expert < routing.experts(); ++expert)
    for (int holder = 0; holder < p.world; ++holder) {
      if (chosen[static_cast<std::size_t>(expert)].empty() || !routing.receives(holder, expert)) continue;
      Term& term = terms.emplace_back(Term{.rank = holder, .weight = routing.weight_of(expert)});
      term.sources.reserve(chosen[static_cast<std::size_t>(expert)].size());
      term.to.reserve(chosen[static_cast<std::size_t>(expert)].size());
      for (const auto& [of, by_expert] : chosen[static_cast<std::size_t>(expert)]) {
        term.sources.push_back(p.traits().takes_tokens() ? ARows{source, of.token, 1}
                                                         : ARows{holder, by_expert, 1});
        Term::To& to = term.to.emplace_back(Term::To{.row = of.token - first});
        inputs.read(source, Role::topk_weights, {of.token, 1, of.choice, 1}, &to.factor);
      }
    }
  return terms;
}

/// Adds the panels of a rank's experts.
void cut_experts(const Problem& p, int rank, std::int64_t most_rows, std::vector<Panel>& panels) {
  const Routing& routing = *p.routing;
  const std::int64_t base = p.out_runs(rank).front().global_row;
  const std::vector<Routing::Row> received = routing.received_rows(rank);
  for (int weight = 0; weight < routing.experts_per_rank(); ++weight) {
    const int expert = routing.first_expert(rank) + weight;
    const std::int64_t end = routing.receive_base(expert, p.world);
    for (std::int64_t row = routing.receive_base(expert, 0); row < end; row += most_rows) {
      const std::int64_t rows = smaller(most_rows, end - row);
      const std::span<const Routing::Row> of(received.data() + row, static_cast<std::size_t>(rows));
      panels.push_back({base + row, rows, {rank}, tokens_of(p, of), weight, {rank}});
    }
  }
}

/// Adds the panels of a rank's experts, of the rows that have a token.
void cut_slots(const Inputs& inputs, int rank, std::int64_t most_rows, std::vector<Panel>& panels) {
  const Problem& p = inputs.problem();
  const Routing& routing = *p.routing;
  for (int source = 0; source < p.world; ++source) {
    const TakenChoices taken = taken_choices(inputs, source);
    for (int weight = 0; weight < routing.experts_per_rank(); ++weight) {
      const int expert = routing.first_expert(rank) + weight;
      const std::int64_t base = p.out_runs(rank).front().global_row + routing.receive_base(expert, source);
      const std::vector<TokenChoice>& slots = taken.of_expert[static_cast<std::size_t>(expert)];
      for (std::int64_t first = 0; first < std::ssize(slots); first += most_rows) {
        Panel panel{base + first, smaller(most_rows, std::ssize(slots) - first), {rank}, {}, weight, {rank}};
        for (std::int64_t slot = first; slot < first + panel.rows; ++slot)
          panel.gathered.push_back({source, slots[static_cast<std::size_t>(slot)].token, 1});
        panels.push_back(std::move(panel));
      }
    }
  }
}

}  // namespace

std::int64_t count_rows(const std::vector<ARows>& sources) {
  std::int64_t count = 0;
  for (const ARows& source : sources) count += source.rows;
  return count;
}

std::vector<Panel> make_panels(const Inputs& inputs, std::span<const int> ranks, std::int64_t most_rows) {
  const Problem& p = inputs.problem();
  if (!p.has_slots() || p.traits().combines()) return make_panels(p, ranks, most_rows);
  std::vector<Panel> panels;
  for (const int rank : ranks) cut_slots(inputs, rank, most_rows, panels);
  return panels;
}

std::vector<Panel> make_panels(const Problem& problem, std::span<const int> ranks, std::int64_t most_rows) {
  std::vector<Panel> panels;
  const auto cut = [&](std::int64_t row, std::int64_t rows, const std::vector<int>& terms,
                       std::span<const int> readers) {
    for (const std::int64_t end = row + rows; row < end; row += most_rows) {
      Panel panel{row, smaller(most_rows, end - row), terms, {}, 0, {}};
      if (problem.traits().gathers()) panel.gathered = owners(problem, panel.row, panel.rows);
      for (const int rank : readers)
        if (holds(problem, rank, panel)) panel.readers.push_back(rank);
      if (!panel.readers.empty()) panels.push_back(std::move(panel));
    }
  };
  if (problem.traits().replicates_tokens()) {
    cut(0, problem.m, {0}, ranks);
  } else if (problem.traits().combines()) {
    for (const int& rank : ranks) {
      const GlobalRun tokens = problem.out_runs(rank).front();
      cut(tokens.global_row, tokens.rows, {rank}, {&rank, 1});
    }
  } else if (problem.traits().grouped) {
    for (const int& rank : ranks) cut_experts(problem, rank, most_rows, panels);
  } else if (problem.traits().reduces()) {
    std::vector<int> all(static_cast<std::size_t>(problem.world));
    for (int rank = 0; rank < problem.world; ++rank) all[static_cast<std::size_t>(rank)] = rank;
    cut(0, problem.m, all, ranks);
  } else if (problem.op == Op::gemm_alltoall || problem.op == Op::alltoall) {
    for (int source = 0; source < problem.world; ++source)
      cut(problem.routing->global_base(source), problem.routing->rows(source), {source}, ranks);
  } else if (problem.traits().shards_tokens()) {
    for (const int& rank : ranks)  // attention of another rank's shard would not be compared
      for (const GlobalRun& run : problem.out_runs(rank)) cut(run.global_row, run.rows, {rank}, {&rank, 1});
  } else {
    for (const int& rank : ranks) cut(0, problem.global_rows(), {rank}, {&rank, 1});
  }
  return panels;
}

std::vector<Term> terms_of(const Inputs& inputs, const Panel& panel) {
  const Problem& p = inputs.problem();
  if (p.traits().combines()) return terms_of_choices(inputs, panel, panel.ranks.front());
  std::vector<Term> terms;
  for (const int rank : panel.ranks) terms.push_back({rank, panel.weight, sources_of(p, panel, rank), {}});
  return terms;
}

}  // namespace shingle
