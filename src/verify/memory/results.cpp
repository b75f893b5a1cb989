#include "results.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace shingle {

Results::Results(const Plan& plan, const ValueTable& values, Budget& budget)
    : plan_(plan),
      scatters_(!plan.workload() && plan.problem().traits().scatters()),
      values_(values),
      budget_(budget) {
  for (const Buffer& buffer : plan.buffers) {
    const bool output = is_output(buffer.role) && !buffer.rows.empty();
    first_.emplace_back(output ? std::ranges::max(buffer.rows) : 0, buffer.cols, Held{}, &budget);
  }
}

void Results::note(const Place& at, const Rect& rect, Content found) {
  found.epoch = 0;
  constexpr std::int64_t entry_bytes = 48;
  if (found_.emplace(found.value, scatters_ ? at.rank : -1).second) budget_.keep(Budget::cells, entry_bytes);
  budget_.spend(Budget::accessed, 1);
  first_[static_cast<std::size_t>(at.buffer)].visit(rect, [&](const Rect& cell, Held& held) {
    if (held.content.of == Content::Of::nothing) held = {found, at.rank};
    if (!same_elements(held.content, found) || held.content.value == found.value) return;
    throw CheckFailure{
        "rounding",
        fmt::format("{} on rank {}, {}, is {}, but the same elements on rank {} are {}: ranks differ in "
                    "the last bits",
                    plan_.buffers[static_cast<std::size_t>(at.buffer)].name, at.rank, text_of(cell),
                    values_.text_of(found.value), held.rank, values_.text_of(held.content.value))};
  });
}

bool Results::holds(const Rounding& statement) const {
  // Any rank may own the rows of a sum that all ranks hold alike.
  const std::int64_t world = plan_.world();
  const bool by_owner = statement.summing == Summing::ring || statement.summing == Summing::owner_first;
  const std::int64_t tried = by_owner && !scatters_ ? world : 1;
  budget_.spend(Budget::visited, static_cast<std::int64_t>(found_.size()) * world * tried);
  return std::ranges::all_of(
      found_, [&](const auto& found) { return values_.satisfies(found.first, statement, found.second); });
}

void Results::check_statement() const {
  const std::vector<Rounding> all = statements(plan_.work);
  const auto says = [&](const Rounding& one) { return sentence(plan_.work, one) == plan_.rounding; };
  if (std::ranges::any_of(all, [&](const Rounding& one) { return says(one) && holds(one); })) return;
  const bool known = std::ranges::any_of(all, says);
  const auto truth = std::ranges::find_if(all, [&](const Rounding& one) { return holds(one); });
  throw CheckFailure{
      "rounding", fmt::format("rounding is \"{:.200}\", which is {}: the output holds {}; expected \"{}\"",
                              plan_.rounding,
                              known ? "not what its steps do" : "none of the sentences that a plan may hold",
                              found_.empty() ? "nothing" : values_.text_of(found_.rbegin()->first),
                              sentence(plan_.work, *truth))};
}

}  // namespace shingle
