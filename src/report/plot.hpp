// What the pictures share: text, colours and axes, as pieces of SVG.
#pragma once

#include <array>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace shingle::plot {

// Middle tones that stand on white and on black alike; series beyond the tenth take the colours again.
inline constexpr std::array<const char*, 10> palette{"#4e79a7", "#f28e2b", "#59a14f", "#b07aa1", "#76b7b2",
                                                     "#e15759", "#b6992d", "#5f9ed1", "#d37295", "#9d7660"};
inline constexpr const char* neutral = "#8c8c8c";

/// For the text and the attributes of XML and HTML; control characters, which XML does not know, become �.
std::string escaped(std::string_view text);

/// `anchor` is start, middle or end of the words.
std::string text(double x, double y, std::string_view anchor, std::string_view words);

/// A count or a number of bytes in few letters: "512", "64K", "2M", as the command line reads them.
std::string size_name(double size);

/// A whole picture of so many units, which scales to the space that it gets.
std::string document(double width, double height, std::string_view body);

/// Where values lie along a side of a figure.
struct Scale {
  double from = 0;  ///< value at its begin
  double to = 1;
  double begin = 0;  ///< in units of the picture
  double end = 1;
  double log = 0;  ///< base that ticks are powers of; 0: a straight axis

  double operator()(double value) const;
};

/// An axis with a little room on both sides of all values, which are above 0 where it is logarithmic.
Scale scale_around(std::span<const double> values, double begin, double end, double log);

/// At most about eight values at round numbers, ascending.
std::vector<double> ticks(const Scale& scale);

/// 1, 2 or 5 times a power of ten, the least of which at most `count` make `range`.
double round_step(double range, int count = 8);

/// What is written beside an axis.
struct Labels {
  std::string title;
  std::function<std::string(double)> tick;
};

/// The grid of a figure with its ticks, and the titles of both axes.
std::string grid(const Scale& x, const Scale& y, const Labels& along_x, const Labels& along_y);

}  // namespace shingle::plot
