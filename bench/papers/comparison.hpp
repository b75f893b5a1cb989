// What the programs of this folder print: a paper's figure, ours, and the difference.
#pragma once

#include <fmt/format.h>

#include <cmath>
#include <string>

namespace shingle::papers {

class Comparison {
 public:
  explicit Comparison(const std::string& title) {
    fmt::print("{}\n{:<58} {:>12} {:>12} {:>11}  {}\n", title, "", "paper", "ours", "difference", "within");
  }

  /// A figure that should be near the paper's, by a relative tolerance.
  void near(const std::string& what, double paper, double ours, double tolerance, const char* unit = "") {
    const double off = ours / paper - 1;
    line(what, fmt::format("{:.4g}{}", paper, unit), fmt::format("{:.4g}{}", ours, unit),
         fmt::format("{:+.1f}%", 100 * off), fmt::format("{:.0f}%", 100 * tolerance),
         std::abs(off) <= tolerance);
  }
  /// A figure that should be in a range; the paper's is as the paper says it.
  void in(const std::string& what, const std::string& paper, double ours, double least, double most,
          const char* unit = "") {
    line(what, paper, fmt::format("{:.4g}{}", ours, unit), "", fmt::format("[{:.4g}, {:.4g}]", least, most),
         ours >= least && ours <= most);
  }
  void holds(const std::string& what, const std::string& paper, bool ours) {
    line(what, paper, ours ? "yes" : "no", "", "yes", ours);
  }
  /// A figure that was fitted to the paper's, or that the paper does not have: printed, not judged.
  void note(const std::string& what, const std::string& paper, const std::string& ours) {
    fmt::print("{:<58} {:>12} {:>12}\n", what, paper, ours);
  }

  /// 0 where all figures are as they should be.
  int exit_code() const { return all_ ? 0 : 1; }

 private:
  void line(const std::string& what, const std::string& paper, const std::string& ours,
            const std::string& difference, const std::string& within, bool kept) {
    fmt::print("{:<58} {:>12} {:>12} {:>11}  {}{}\n", what, paper, ours, difference, within,
               kept ? "" : "  NO");
    all_ = all_ && kept;
  }

  bool all_ = true;
};

}  // namespace shingle::papers
