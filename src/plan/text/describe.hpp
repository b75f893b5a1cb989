// What the printer's files share.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "shingle/plan/plan.hpp"

namespace shingle::text {

/// A step on one line, as rank `own` sees it: "@rank" stands behind what lies in another's memory.
std::string step_line(const Plan& plan, const Step& step, int own);

/// "8, 16 (3 times), 40", "16 each"; a long list is cut.
std::string list(const std::vector<std::int64_t>& values);
/// "0-3,6".
std::string ranges(const std::vector<std::int64_t>& ranks);

/// One line for several that differ in numbers only, where each of these grows by the same step from line to
/// line (or, if `modulo` is given, does so modulo it): "recv[{512+128r}:{640+128r}]" with letter r. Empty
/// where the lines differ in more.
std::string merged(const std::vector<std::string>& lines, char letter, std::int64_t modulo = 0);

/// Lines with what repeats folded: three or more repetitions of up to four lines become one, under a heading
/// that says how often.
std::vector<std::string> folded(const std::vector<std::string>& lines);

}  // namespace shingle::text
