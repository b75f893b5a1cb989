// The epilogue's tile in shared memory (sm90): the MMA warps finish their sums and stage them there.
//
// Staging: a warp has 16 rows of each block of rows that its warpgroup multiplies. Sums that only need
// rounding are rounded in registers, and so are those of swiglu, as a lane holds the gates and the ups of the
// same places. Others go through the warp's scratch, so that C, bias and activation
// apply to eight columns of a row at a time. A padding of 16 bytes for each staged row avoids bank conflicts
// on both sides.
#pragma once

#include <cutlass/cutlass.h>

#include "cuda/kernels/ptx/shared.cuh"
#include "cuda/kernels/ptx/stmatrix.cuh"
#include "output.cuh"

namespace shingle::cuda {

/// Parameters as for HookedEpilogue.
template <class T, int Rows, int Cols, int Warps>
struct StagedTile {
  using Output = TileOutput<T, Cols>;

  static constexpr int stride = Cols * 2 + 16;  // bytes between two staged rows
  static constexpr int chunk = 16;              // columns of sums that a warp has in scratch at a time
  static constexpr int line = chunk * 4;        // bytes of a scratch row
  static constexpr int scratch_bytes = 16 * line;
  static constexpr int all_warps = 8;  // of both warpgroups, including ping-pong kernels
  static_assert(Cols / 2 % chunk == 0, "halves of a tile are whole chunks");

  struct Memory {
    alignas(128) char rows[Rows * stride];
    alignas(128) char scratch[all_warps * scratch_bytes];
  };

  const Output output;
  Memory& memory;

  /// Fills of the shared-memory tile for one output tile. fp32 output comes in two halves of the columns,
  /// unless swiglu halves the columns already.
  CUTLASS_DEVICE static int passes(const Output& output) { return output.fp32() && !output.gated() ? 2 : 1; }
  CUTLASS_DEVICE static int pass_cols(const Output& output) { return output.cols() / passes(output); }

  /// Rounds and stages sums that need nothing else.
  template <class Sums>
  CUTLASS_DEVICE void stage_plain(const Sums& sums, int thread) const {
    stage_blocks<Cols / 8>(thread, [&](int i, int j, float(&x)[8]) {
      const auto* sum = &sums(i * (Cols / 2) + 4 * j);
      CUTLASS_PRAGMA_UNROLL
      for (int v = 0; v < 8; ++v) x[v] = sum[v];
    });
  }

  /// Adds staged values to the sums of the same places. A warp adds what it stages itself later.
  template <class Sums>
  CUTLASS_DEVICE void add_staged(Sums& sums, int thread) const {
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < Rows / (16 * Warps); ++i) CUTLASS_PRAGMA_UNROLL
    for (int j = 0; j < Cols / 8; j += 2) {
      std::uint32_t pairs[4];
      ptx::ldmatrix_x4(blocks_at(thread, i, j), pairs);
      auto* const sum = &sums(i * (Cols / 2) + 4 * j);
      CUTLASS_PRAGMA_UNROLL
      for (int v = 0; v < 4; ++v) {
        const auto [low, high] = Numbers<T>::widen(pairs[v]);
        sum[2 * v] += low, sum[2 * v + 1] += high;
      }
    }
  }

  /// Rounds and stages silu(gate) · up.
  template <class Sums>
  CUTLASS_DEVICE void stage_gated(const Sums& sums, int thread) const {
    stage_blocks<Cols / 16>(thread, [&](int i, int j, float(&x)[8]) {
      const auto* gate = &sums(i * (Cols / 2) + 4 * j);
      const auto* up = gate + Cols / 4;
      CUTLASS_PRAGMA_UNROLL
      for (int v = 0; v < 8; ++v) x[v] = silu(gate[v]) * up[v];
    });
  }

  /// Stages half of the tile's output columns, one chunk of sixteen rows at a time. With swiglu, half of a
  /// chunk is gates and half is ups.
  template <class Sums>
  CUTLASS_DEVICE void stage_finished(int m, int n, int half, const Sums& sums, int thread, int warp) const {
    constexpr int of_half = Cols / 2 / chunk;
    const int lane = thread % 32, per_row = chunk / (output.gated() ? 16 : 8);
    const std::uint32_t scratch = ptx::shared_address(memory.scratch) + warp * scratch_bytes;
    CUTLASS_PRAGMA_NO_UNROLL
    for (int i = 0; i < Rows / (16 * Warps); ++i) {
      CUTLASS_PRAGMA_NO_UNROLL
      for (int c = half * of_half; c < (half + 1) * of_half; ++c) {
        stage_chunk(sums, i, c, lane, scratch);
        __syncwarp();
        finish_words(m, n, (i * Warps + thread / 32) * 16, c * per_row * 8, per_row, lane, scratch);
        __syncwarp();
      }
    }
  }

 private:
  /// Rounds and stages a row of `Blocks` 16×8 blocks of each block of rows. `get(i, j, x)` gives the values
  /// of blocks j and j + 1. Of each a lane holds four: two adjacent ones in each of two rows, eight rows
  /// apart.
  template <int Blocks, class Get>
  CUTLASS_DEVICE void stage_blocks(int thread, Get&& get) const {
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < Rows / (16 * Warps); ++i) CUTLASS_PRAGMA_UNROLL
    for (int j = 0; j < Blocks; j += 2) {
      float x[8];
      get(i, j, x);
      ptx::stmatrix_x4(blocks_at(thread, i, j), Numbers<T>::narrow(x[0], x[1]),
                       Numbers<T>::narrow(x[2], x[3]), Numbers<T>::narrow(x[4], x[5]),
                       Numbers<T>::narrow(x[6], x[7]));
    }
  }
  /// Address that a lane gives for blocks j and j + 1 of its warp's i-th sixteen rows.
  CUTLASS_DEVICE std::uint32_t blocks_at(int thread, int i, int j) const {
    const int lane = thread % 32;
    return ptx::shared_address(memory.rows) + (thread / 32 * 16 + lane % 16) * stride + lane / 16 * 16 +
           i * Warps * 16 * stride + j * 16;
  }
  /// The 16-byte words of a scratch row are permuted by the row's number, which avoids bank conflicts on both
  /// sides.
  CUTLASS_DEVICE static std::uint32_t word_at(std::uint32_t scratch, int row, int word) {
    return scratch + row * line + ((word ^ (row * line / 128 % (line / 16))) * 16);
  }
  /// Writes chunk c of block i of rows to scratch. Registers cannot be indexed at run time, so the loop is
  /// unrolled and runs one of its bodies.
  template <class Sums>
  CUTLASS_DEVICE void stage_chunk(const Sums& sums, int i, int c, int lane, std::uint32_t scratch) const {
    constexpr int chunks = Cols / chunk;
    CUTLASS_PRAGMA_UNROLL
    for (int at = 0; at < Rows / (16 * Warps) * chunks; ++at) {
      if (at != i * chunks + c) continue;
      const float* x = &sums(at / chunks * (Cols / 2));
      const int first = at % chunks * chunk;
      if (output.gated()) {
        stage_sums<chunk / 16>(x + first / 4, lane, 0, scratch);
        stage_sums<chunk / 16>(x + (first + Cols) / 4, lane, chunk / 8, scratch);
      } else {
        stage_sums<chunk / 8>(x + first / 2, lane, 0, scratch);
      }
    }
  }
  /// Writes `Blocks` blocks of eight columns to scratch, from the row's `word` on.
  template <int Blocks>
  CUTLASS_DEVICE static void stage_sums(const float* sums, int lane, int word, std::uint32_t scratch) {
    CUTLASS_PRAGMA_UNROLL
    for (int j = 0; j < Blocks; ++j) CUTLASS_PRAGMA_UNROLL
    for (int half = 0; half < 2; ++half)
      ptx::st_shared_v2(word_at(scratch, lane / 4 + 8 * half, word + 2 * j + lane % 4 / 2) + lane % 2 * 8,
                        sums[4 * j + 2 * half], sums[4 * j + 2 * half + 1]);
  }
  /// Each lane finishes eight columns of the output, with `per_row` lanes to a row: C, bias, activation, one
  /// rounding.
  CUTLASS_DEVICE void finish_words(int m, int n, int first_row, int first, int per_row, int lane,
                                   std::uint32_t scratch) const {
    const int column = first + lane % per_row * 8;
    const std::int64_t in_matrix = std::int64_t{n} * output.cols() + column;
    if (in_matrix >= output.args.cols) return;
    const std::uint32_t to =
        ptx::shared_address(memory.rows) + first_row * stride + column % pass_cols(output) * output.bytes();
    CUTLASS_PRAGMA_NO_UNROLL
    for (int row = lane / per_row; row < 16; row += 32 / per_row) {
      if (!output.row_exists(m, first_row + row)) continue;
      typename Output::Sums x, up;
      load_words(x, word_at(scratch, row, lane % per_row * 2), word_at(scratch, row, lane % per_row * 2 + 1));
      if (output.gated())
        load_words(up, word_at(scratch, row, lane % per_row * 2 + chunk / 8),
                   word_at(scratch, row, lane % per_row * 2 + chunk / 8 + 1));
      output.finish(std::int64_t{m} * output.args.part_rows + first_row + row, in_matrix, x, up);
      stage_word(to + row * stride, x);
    }
  }
  CUTLASS_DEVICE static void load_words(typename Output::Sums& x, std::uint32_t low, std::uint32_t high) {
    const uint4 a = ptx::ld_shared_v4(low), b = ptx::ld_shared_v4(high);
    const std::uint32_t bits[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
    CUTLASS_PRAGMA_UNROLL
    for (int v = 0; v < 8; ++v) x[v] = __uint_as_float(bits[v]);
  }
  CUTLASS_DEVICE void stage_word(std::uint32_t to, const typename Output::Sums& x) const {
    if (output.fp32()) {
      ptx::st_shared_v2(to, x[0], x[1]), ptx::st_shared_v2(to + 8, x[2], x[3]);
      ptx::st_shared_v2(to + 16, x[4], x[5]), ptx::st_shared_v2(to + 24, x[6], x[7]);
    } else {
      const auto words = narrowed<T>(x);
      ptx::st_shared_v4(to, {words.word[0], words.word[1], words.word[2], words.word[3]});
    }
  }
};

}  // namespace shingle::cuda
