// The argument of `--only`: a regular expression whose search time is proportional to its length and the
// text's.
#pragma once

#include <regex>
#include <string>

namespace shingle::cli {

class Pattern {
 public:
  /// ECMAScript syntax, at most 256 characters. Counted repetition, look-ahead and back references are
  /// refused, because their search time is unbounded. Empty: matches everything. Throws InvalidArgument with
  /// the reason.
  explicit Pattern(const std::string& text);

  /// True if any part of the text matches.
  bool in(const std::string& text) const { return std::regex_search(text, regex_); }

 private:
  std::regex regex_;
};

}  // namespace shingle::cli
