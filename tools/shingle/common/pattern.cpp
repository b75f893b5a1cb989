#include "shingle/common/pattern.hpp"

#include <fmt/format.h>

#include <string_view>

#include "shingle/base/error.hpp"

namespace shingle::cli {
namespace {

// Selects the breadth-first search. Backtracking is exponential, and recurses once per character. Groups are
// disabled, because the search would copy them for each state.
#ifdef __GLIBCXX__
constexpr auto syntax = std::regex::ECMAScript | std::regex::nosubs | std::regex_constants::__polynomial;
#else
#error "Pattern needs a std::regex that does not backtrack: libstdc++'s"
#endif

std::string_view reason(const std::regex_error& error) {
  switch (error.code()) {
    case std::regex_constants::error_paren:
      return "its parentheses do not match";
    case std::regex_constants::error_brack:
      return "a '[' has no ']'";
    case std::regex_constants::error_range:
      return "a range in [ ] is reversed";
    case std::regex_constants::error_escape:
      return "it has an unknown escape after a backslash";
    case std::regex_constants::error_complexity:
    case std::regex_constants::error_backref:
      return "back references such as \\1 are not supported";
    default:
      return "it is not a regular expression";
  }
}

[[noreturn]] void refuse_pattern(const std::string& text, std::string_view why) {
  constexpr std::size_t shown = 40;
  throw InvalidArgument(fmt::format("'{}{}': {}; write a pattern such as 'ffn_down.*(8192|16384)x'",
                                    text.substr(0, shown), text.size() > shown ? "..." : "", why));
}

std::regex compiled(const std::string& text) {
  constexpr std::size_t most = 256;
  if (text.size() > most) refuse_pattern(text, fmt::format("{} characters, at most {}", text.size(), most));
  for (const unsigned char c : text)
    if (c < ' ' || c == 0x7f) throw InvalidArgument("a pattern must not hold control characters");
  if (text.find('{') != std::string::npos)
    refuse_pattern(text, "counted repetition with { } is not supported");
  if (text.find("(?=") != std::string::npos || text.find("(?!") != std::string::npos)
    refuse_pattern(text, "look-ahead is not supported");
  try {
    return std::regex(text, syntax);
  } catch (const std::regex_error& error) {
    refuse_pattern(text, reason(error));
  }
}

}  // namespace

Pattern::Pattern(const std::string& text) : regex_(compiled(text)) {}

}  // namespace shingle::cli
