// Shared by the figures: text, colours and axes, as pieces of SVG.
#pragma once

#include <array>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace shingle::plot {

// Medium tones, readable on white and on black. Series beyond the tenth repeat the colours.
inline constexpr std::array<const char*, 10> palette{"#4e79a7", "#f28e2b", "#59a14f", "#b07aa1", "#76b7b2",
                                                     "#e15759", "#b6992d", "#5f9ed1", "#d37295", "#9d7660"};
inline constexpr const char* neutral = "#8c8c8c";

/// Escapes text and attributes of XML and HTML. Control characters, which XML does not allow, become �.
std::string escaped(std::string_view text);

/// `anchor` is start, middle or end: the part of the text that lies at x.
std::string text(double x, double y, std::string_view anchor, std::string_view words);

/// A short form of a count or a number of bytes: "512", "64K", "2M". The command line accepts the same form.
std::string size_name(double size);

/// A whole SVG document of this size in user units; it scales to the available space.
std::string document(double width, double height, std::string_view body);

/// Maps values to positions along an axis of a figure.
struct Scale {
  double from = 0;  ///< value at `begin`
  double to = 1;
  double begin = 0;  ///< in units of the picture
  double end = 1;
  double log = 0;  ///< base for powers at ticks; 0: linear axis

  double operator()(double value) const;
};

/// An axis with a margin on both sides of all values. On a logarithmic axis, values must be above 0.
Scale scale_around(std::span<const double> values, double begin, double end, double log);

/// About eight values at most, at round numbers, ascending.
std::vector<double> ticks(const Scale& scale);

/// 1, 2 or 5 times a power of ten: the smallest that covers `range` in at most `count` steps.
double round_step(double range, int count = 8);

/// Labels of an axis.
struct Labels {
  std::string title;
  std::function<std::string(double)> tick;
};

/// The grid of a figure with its ticks and the titles of both axes.
std::string grid(const Scale& x, const Scale& y, const Labels& along_x, const Labels& along_y);

}  // namespace shingle::plot
