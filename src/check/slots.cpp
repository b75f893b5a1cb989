#include "slots.hpp"

#include <cmath>

namespace shingle {

TakenChoices taken_choices(const Inputs& inputs, int rank) {
  const Problem& p = inputs.problem();
  const auto tokens = static_cast<std::size_t>(p.m);
  std::vector<double> ids(tokens * static_cast<std::size_t>(p.experts.topk));
  inputs.read(rank, Role::topk_ids, {0, p.m, 0, p.experts.topk}, ids.data());
  TakenChoices taken;
  taken.of_expert.resize(static_cast<std::size_t>(p.experts.count));
  for (std::int64_t choice = 0; choice < p.experts.topk; ++choice)
    for (std::int64_t token = 0; token < p.m; ++token) {
      const double id = ids[static_cast<std::size_t>(token * p.experts.topk + choice)];
      if (id < 0 || id >= p.experts.count) {
        if (id != -1) ++taken.unknown;
        continue;
      }
      auto& of = taken.of_expert[static_cast<std::size_t>(std::lround(id))];
      if (std::ssize(of) < p.experts.capacity)
        of.push_back({token, choice});
      else
        ++taken.full;
    }
  return taken;
}

std::vector<std::int32_t> wanted_numbers(const Inputs& inputs, Role role, int rank) {
  const Problem& p = inputs.problem();
  if (role == Role::dropped) {
    const TakenChoices taken = taken_choices(inputs, rank);
    return {static_cast<std::int32_t>(taken.full), static_cast<std::int32_t>(taken.unknown)};
  }
  std::vector<std::int32_t> counts;
  for (int source = 0; source < p.world; ++source) {
    const TakenChoices taken = taken_choices(inputs, source);
    for (std::int64_t weight = 0; weight < p.weights(); ++weight)
      counts.push_back(static_cast<std::int32_t>(
          taken.of_expert[static_cast<std::size_t>(p.routing->first_expert(rank) + weight)].size()));
  }
  return counts;
}

}  // namespace shingle
