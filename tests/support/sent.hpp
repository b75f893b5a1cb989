// What a rank of a plan sends: messages, copies, and stores of its steps to other ranks.
#pragma once

#include <cstdint>

#include "shingle/plan/plan.hpp"

namespace shingle::test {

/// Calls visit(slice) for each slice that steps of a rank send to, or copy to, or store on another rank.
template <class Visit>
void for_each_sent(const Plan& plan, int rank, Visit&& visit) {
  const auto stored = [&](const Placement& to) {
    if (to.slice.rank != rank) visit(to.slice);
  };
  for (const Lane& lane : plan.ranks[static_cast<std::size_t>(rank)].lanes)
    for (const Step& step : lane.steps) {
      if (const auto* copy = std::get_if<Copy>(&step)) visit(copy->from);
      if (const auto* pass = std::get_if<Elementwise>(&step)) stored(pass->to);
      if (const auto* attend = std::get_if<Attend>(&step)) stored(attend->out);
      if (const auto* exchange = std::get_if<Exchange>(&step))
        for (const auto& message : exchange->sends) visit(message.slice);
    }
}

inline std::int64_t sent_rows(const Plan& plan, int rank) {
  std::int64_t rows = 0;
  for_each_sent(plan, rank, [&](const Slice& slice) { rows += slice.rows; });
  return rows;
}

inline std::int64_t sent_elements(const Plan& plan, int rank) {
  std::int64_t elements = 0;
  for_each_sent(plan, rank, [&](const Slice& slice) { elements += slice.rows * slice.cols; });
  return elements;
}

}  // namespace shingle::test
