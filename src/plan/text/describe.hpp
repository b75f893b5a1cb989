// Shared by the files of the printer.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "shingle/plan/plan.hpp"

namespace shingle::text {

/// A step on one line, as seen by rank `own`: "@rank" follows everything in another rank's memory.
std::string step_line(const Plan& plan, const Step& step, int own);

/// A list as "8, 16 (3 times), 40" or "16 each"; the middle of a long list is left out.
std::string list(const std::vector<std::int64_t>& values);
/// Ranks as "0-3,6".
std::string ranges(const std::vector<std::int64_t>& ranks);

/// One line for several that differ only in numbers, if each number grows by the same step from line to line.
/// With `modulo`, it may also grow modulo that value. For example "recv[{512+128r}:{640+128r}]" with letter
/// r. Empty if the lines differ in other ways.
std::string merged(const std::vector<std::string>& lines, char letter, std::int64_t modulo = 0);

/// Folds repetitions: three or more of up to four lines become one, under a heading with their number.
std::vector<std::string> folded(const std::vector<std::string>& lines);

}  // namespace shingle::text
