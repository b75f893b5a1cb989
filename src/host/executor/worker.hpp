// What a thread that computes tiles keeps between them: scratch memory, and operands that the next tile may
// need again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "memory.hpp"

namespace shingle::host {

/// Memory that grows to the largest request and is reused.
class Scratch {
 public:
  template <class T = std::byte>
  T* reserve(std::int64_t count) {
    const auto bytes = static_cast<std::size_t>(count) * sizeof(T);
    if (bytes > bytes_ || !memory_) {
      memory_.reset();
      memory_ = allocate(bytes);
      bytes_ = bytes;
    }
    return static_cast<T*>(memory_.get());
  }

 private:
  std::shared_ptr<void> memory_;
  std::size_t bytes_ = 0;
};

/// Rows of a tile that are consecutive both in A and in the output.
struct Segment {
  std::int64_t tile_row = 0;
  std::int64_t rows = 0;
  std::int64_t a_row = 0;     ///< row of op(A)
  std::int32_t out_rank = 0;  ///< in whose memory the output is
  std::int64_t out_row = 0;   ///< of the output buffer
  std::int64_t out_col = 0;   ///< where the tile's column 0 is
};

/// Which operand a panel holds: of an execution of a step, the rows or columns from `first` on.
struct PanelKey {
  std::int64_t execution = -1;
  std::int64_t first = 0;
  std::int64_t count = 0;
  bool operator==(const PanelKey&) const = default;
};

struct Worker {
  std::vector<Segment> segments;
  std::vector<std::byte*> rows;  ///< where the rows of a pass lie
  PanelKey a_key, b_key[2];
  Scratch a_panel, b_panel[2];                          ///< packed or widened operands; two of B for swiglu
  Scratch product[2];                                   ///< fp32 tiles before the epilogue
  Scratch row, vectors;                                 ///< of passes over rows
  Scratch q_panel, k_panel, v_panel, scores, weighted;  ///< of attention: fp32
  Scratch onednn;
};

}  // namespace shingle::host
