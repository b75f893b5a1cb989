// What memory holds, in the words of the problem.
#pragma once

#include <cstdint>
#include <string>

namespace shingle {

/// What the elements of a rectangle are, in the words of the problem.
struct Content {
  enum class Of : std::uint8_t {
    nothing,
    a,
    b,
    bias,
    residual,
    norm_weight,
    c,
    keys,
    values,
    attended,
    down,
    hidden,
    payload
  };
  Of of = Of::nothing;
  std::uint8_t done = 0;  ///< of c and hidden: bits of `Done`
  std::int32_t epoch = 0;
  std::int64_t row = 0;  ///< row in the problem's matrix = row in the buffer + this
  std::int64_t col = 0;
  std::uint64_t ranks =
      0;  ///< whose products are summed in c; whose operand a and b are; 0: no rank's in particular
  std::int32_t depth = 0;  ///< of an overlap's product: over how many of the K it goes
  std::int32_t value = 0;  ///< how it is computed: ValueTable::Id

  bool operator==(const Content&) const = default;
};

enum Done : std::uint8_t { epilogue_done = 1, residual_done = 2, norm_done = 4 };

std::string text_of(const Content& c);

/// Whether two contents are the same elements, however they are computed.
inline bool same_elements(const Content& a, Content b) {
  b.value = a.value;
  return a == b;
}

/// Whether two contents are parts of one sum: equal places, of disjoint sets of ranks. What is of no rank in
/// particular, such as the rows that an all-gather brings, is complete: there is nothing to add to it.
bool addable(const Content& a, const Content& b);

}  // namespace shingle
