#include "content.hpp"

#include <fmt/format.h>

namespace shingle {

std::string text_of(const Content& c) {
  static constexpr const char* names[] = {"nothing",
                                          "A",
                                          "B",
                                          "bias",
                                          "residual",
                                          "norm weight",
                                          "C",
                                          "keys",
                                          "values",
                                          "attention",
                                          "part of the attention",
                                          "log-sum-exp",
                                          "down",
                                          "the first product",
                                          "top-k weights",
                                          "payload",
                                          "tokens",
                                          "top-k ids",
                                          "tokens of slots",
                                          "slots of tokens",
                                          "counts of slots",
                                          "number of dropped choices",
                                          "rows by expert of slots",
                                          "slots of rows by expert",
                                          "gradient of the attention",
                                          "part of the gradient of Q",
                                          "part of the gradient of K",
                                          "part of the gradient of V"};
  if (c.of == Content::Of::nothing) return "nothing";
  std::string text = names[static_cast<int>(c.of)];
  if (c.merged) text += " of merged slots";
  if (c.ranks != 0) {
    text += " of ranks";
    for (int r = 0; r < 64; ++r)
      if (c.ranks >> r & 1) text += fmt::format(" {}", r);
  }
  if (c.weight != 0) text += fmt::format(" with weight {}", c.weight);
  if (c.depth != 0) text += fmt::format(" over K = {}", c.depth);
  if (c.done & epilogue_done) text += ", epilogue applied";
  if (c.done & residual_done) text += ", residual added";
  if (c.done & norm_done) text += ", normalised";
  if (c.done & combined_done) text += ", combined";
  return text + fmt::format(" of epoch {}", c.epoch);
}

bool addable(const Content& a, const Content& b) {
  const bool summed = a.of == Content::Of::c || a.of == Content::Of::payload;
  return summed && a.of == b.of && a.depth == b.depth && a.weight == b.weight && a.merged == b.merged &&
         a.row == b.row && a.col == b.col && a.epoch == b.epoch && a.done == b.done &&
         (a.done & ~combined_done) == 0 && a.ranks != 0 && b.ranks != 0 && (a.ranks & b.ranks) == 0;
}

}  // namespace shingle
