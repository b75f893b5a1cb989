// Folds lines that differ only in numbers.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>

#include "describe.hpp"

namespace shingle::text {
namespace {

constexpr std::size_t max_period = 4;
constexpr std::size_t min_repeats = 3;
constexpr std::size_t max_digits = 12;  // of a number; longer ones are text, so that no sum overflows

/// A line as texts with numbers between them.
struct Tokens {
  std::vector<std::string> texts{""};  // one more than numbers
  std::vector<std::int64_t> numbers;
  std::vector<std::string> spelled;  // the numbers as written

  explicit Tokens(const std::string& line) {
    const auto digit = [](char c) { return c >= '0' && c <= '9'; };
    for (std::size_t i = 0; i < line.size();) {
      std::size_t end = i;
      while (end < line.size() && digit(line[end])) ++end;
      if (end == i || end - i > max_digits) {
        end = std::max(end, i + 1);
        texts.back() += line.substr(i, end - i);
        i = end;
        continue;
      }
      std::int64_t value = 0;
      std::from_chars(line.data() + i, line.data() + end, value);
      numbers.push_back(value);
      spelled.push_back(line.substr(i, end - i));
      texts.emplace_back();
      i = end;
    }
  }
};

/// Step by which each number grows from line to line. With `modulo` it may wrap, and is then in [0, modulo).
struct Growth {
  std::vector<std::int64_t> steps;
  std::vector<bool> wraps;
};

std::optional<Growth> growth_of(const std::vector<const Tokens*>& lines, std::int64_t modulo) {
  const Tokens& first = *lines[0];
  Growth growth;
  for (const Tokens* line : lines)
    if (line->texts != first.texts) return std::nullopt;
  for (std::size_t n = 0; n < first.numbers.size(); ++n) {
    const std::int64_t step = lines.size() > 1 ? lines[1]->numbers[n] - first.numbers[n] : 0;
    bool plain = true, wraps = modulo > 1;
    for (std::size_t i = 0; i < lines.size(); ++i) {
      const std::int64_t value = lines[i]->numbers[n],
                         off = value - first.numbers[n] - static_cast<std::int64_t>(i) * step;
      plain = plain && off == 0;
      wraps = wraps && value < modulo && off % modulo == 0;
    }
    if (!plain && !wraps) return std::nullopt;
    growth.steps.push_back(plain ? step : (step % modulo + modulo) % modulo);
    growth.wraps.push_back(!plain);
  }
  return growth;
}

std::string formula(std::int64_t start, std::int64_t step, char letter, std::int64_t modulo) {
  const std::int64_t size = step < 0 ? -step : step;
  const std::string term = fmt::format("{}{}", size == 1 ? "" : std::to_string(size), letter);
  std::string text = step < 0     ? fmt::format("{}-{}", start, term)
                     : start == 0 ? term
                                  : fmt::format("{}+{}", start, term);
  return modulo > 0 ? fmt::format("{{({})%{}}}", text, modulo) : fmt::format("{{{}}}", text);
}

std::string write(const Tokens& first, const Growth& growth, char letter, std::int64_t modulo) {
  std::string text = first.texts[0];
  for (std::size_t n = 0; n < first.numbers.size(); ++n) {
    text += growth.steps[n] == 0
                ? first.spelled[n]
                : formula(first.numbers[n], growth.steps[n], letter, growth.wraps[n] ? modulo : 0);
    text += first.texts[n + 1];
  }
  return text;
}

/// Number of times that the `period` lines from `at` on repeat, each time with the same growth.
std::size_t repeats(const std::vector<Tokens>& lines, std::size_t at, std::size_t period) {
  std::size_t count = 1;
  for (;; ++count) {
    for (std::size_t j = 0; j < period; ++j) {
      const std::size_t next = at + count * period + j;
      if (next >= lines.size()) return count;
      const Tokens &first = lines[at + j], &second = lines[at + period + j], &line = lines[next];
      if (line.texts != first.texts) return count;
      for (std::size_t n = 0; n < first.numbers.size(); ++n)
        if (line.numbers[n] !=
            first.numbers[n] + static_cast<std::int64_t>(count) * (second.numbers[n] - first.numbers[n]))
          return count;
    }
  }
}

}  // namespace

std::string merged(const std::vector<std::string>& lines, char letter, std::int64_t modulo) {
  std::vector<Tokens> tokens(lines.begin(), lines.end());
  std::vector<const Tokens*> pointers;
  for (const Tokens& line : tokens) pointers.push_back(&line);
  const auto growth = growth_of(pointers, modulo);
  return growth ? write(tokens[0], *growth, letter, modulo) : "";
}

std::vector<std::string> folded(const std::vector<std::string>& lines) {
  const std::vector<Tokens> tokens(lines.begin(), lines.end());
  std::vector<std::string> out;
  for (std::size_t at = 0; at < lines.size();) {
    std::size_t best = 0, times = 1;
    for (std::size_t period = 1; period <= max_period; ++period) {
      const std::size_t count = repeats(tokens, at, period);
      if (count >= min_repeats && count * period > best * times) best = period, times = count;
    }
    if (best == 0) {
      out.push_back(lines[at++]);
      continue;
    }
    out.push_back(fmt::format("for i = 0..{}", times - 1));
    for (std::size_t j = 0; j < best; ++j) {
      const std::vector<const Tokens*> two{&tokens[at + j], &tokens[at + best + j]};
      out.push_back("  " + write(*two[0], *growth_of(two, 0), 'i', 0));
    }
    at += best * times;
  }
  return out;
}

}  // namespace shingle::text
