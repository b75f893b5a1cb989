// What a compute thread keeps between tiles: scratch memory, and operands that the next tile may reuse.
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

/// Rows of a tile that are contiguous both in A and in the output.
struct Segment {
  std::int64_t tile_row = 0;
  std::int64_t rows = 0;
  std::int64_t a_row = 0;     ///< row of op(A)
  std::int32_t out_rank = 0;  ///< rank whose memory holds the output
  std::int64_t out_row = 0;   ///< row of the output buffer
  std::int64_t out_col = 0;   ///< column of the output buffer for the tile's column 0
};

/// Identifies the operand in a panel: the rows or columns from `first` on, in one execution of a step.
struct PanelKey {
  std::int64_t execution = -1;
  std::int64_t first = 0;
  std::int64_t count = 0;
  bool operator==(const PanelKey&) const = default;
};

struct Worker {
  std::vector<Segment> segments;
  std::vector<std::byte*> rows;  ///< address of each row of a row-wise pass
  PanelKey a_key, b_key[2];
  Scratch a_panel, b_panel[2];  ///< packed or widened operands; two of B for SwiGLU
  Scratch product[2];           ///< fp32 tiles before the epilogue
  Scratch row, vectors;         ///< for row-wise passes
  Scratch q_panel, k_panel, v_panel, grad_panel, scores, weighted;  ///< for attention, in fp32
  Scratch onednn;
};

}  // namespace shingle::host
