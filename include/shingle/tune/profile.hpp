// Measuring a machine: its profile, from small plans that any backend can run.
#pragma once

#include <functional>
#include <string>

#include "shingle/backend/backend.hpp"

namespace shingle {

struct ProfileOptions {
  DType dtype = DType::f32;                            ///< of the products that are timed
  int repeat = 5;                                      ///< runs of each plan, of which the median counts
  std::function<void(const std::string&)> progress{};  ///< told what is measured next, in one line
};

/// The machine of a world with what it does in so long: tiles of several shapes, passes, copies, collectives
/// of several sizes, what a step and a signal cost, and what communication takes from computation beside it.
/// The world's links and engines should not be paced. Collective over the world's processes. Every figure is
/// the median of its runs, the maximum over ranks.
Machine profile(World& world, const ProfileOptions& options = {});

}  // namespace shingle
