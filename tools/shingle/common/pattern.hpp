// What `--only` takes: a regular expression whose search takes time in proportion to its length and the
// text's.
#pragma once

#include <regex>
#include <string>

namespace shingle::cli {

class Pattern {
 public:
  /// As ECMAScript has it, of 256 characters at most, without counted repetition, look-ahead and back
  /// references: these take time without bound. Empty: everything matches. Throws InvalidArgument that says
  /// what is wrong.
  explicit Pattern(const std::string& text);

  /// Whether any part of the text matches.
  bool in(const std::string& text) const { return std::regex_search(text, regex_); }

 private:
  std::regex regex_;
};

}  // namespace shingle::cli
