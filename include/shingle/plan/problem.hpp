// Problem: an operator with its sizes, transposes, epilogue and element types; and what its result has to be.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "shingle/base/dtype.hpp"
#include "shingle/grid/row_map.hpp"
#include "shingle/plan/overlap.hpp"
#include "shingle/plan/routing.hpp"

namespace shingle {

/// The most ranks that can run, and whose plan can be proven.
inline constexpr int max_world = 64;
/// The most ranks of a problem: those above max_world can be planned and simulated.
inline constexpr int max_planned_world = 16384;
/// The largest M, N or K.
inline constexpr std::int64_t max_extent = (std::int64_t{1} << 31) - 1;

enum class Op : std::uint8_t {
  gemm,                ///< every rank its own product, no communication
  gemm_allreduce,      ///< C = sum over ranks of A_r · B_r, whole on every rank
  gemm_reducescatter,  ///< the same sum, rank r keeps its shard of the rows
  allgather_gemm,      ///< A is sharded by rows; every rank multiplies all of it with its own B_r
  gemm_alltoall,       ///< every rank its own product, whose rows then go where the routing says
  alltoall_gemm,       ///< rows of A go where the routing says; every rank multiplies those that it gets with
                       ///< its own B_r (the dispatch of a mixture of experts)
  attention_reducescatter,  ///< C = sum over ranks of attention(Q_r, K_r, V_r) · B_r, rank r keeps its rows
  mlp,  ///< C = sum over ranks of activation(A · B_r + bias_r) · D_r, where A is sharded by rows and rank r
        ///< keeps its shard of the rows of C: the MLP of a transformer with sequence parallelism
  gemm_allgather_gemm,  ///< C = H · D_r, where H = activation(A · B + bias) is made and sharded by rows: a
                        ///< producer, the gather of what it makes, and a consumer
  ulysses_attention,    ///< out = attention(Q, K, V), all of them sharded by tokens: ranks exchange their
                        ///< tokens for heads and back (DeepSpeed-Ulysses); no product with a B
  allgather,            ///< A is sharded by rows; every rank gets all of it
  reducescatter,        ///< the sum over ranks of A_r, rank r keeps its shard of the rows
  allreduce,            ///< the same sum, whole on every rank
  alltoall,             ///< rows of A go where the routing says
  overlap,              ///< computations and collectives beside each other (Lagom), as `overlap` lists them
};

/// "gemm+allreduce", …
std::string_view name(Op op);
Op parse_op(std::string_view text);
/// The names of all, as a list.
std::string op_list();

enum class Activation : std::uint8_t { none, relu, gelu, silu, swiglu };
std::string_view name(Activation activation);
Activation parse_activation(std::string_view text);

/// Applied to the operator's result, once: after the reduction where there is one. Where a second product
/// follows (mlp, gemm+allgather+gemm) it is that of the first one, and nothing is applied to the result.
/// gelu is the exact x·Φ(x). swiglu takes B = [gate | up], N columns in all, and yields N/2 columns
/// silu(A·gate) · (A·up). (Of two products N is here the columns of the first, b_cols().)
struct Epilogue {
  bool bias = false;  ///< a row vector of N elements, added before the activation
  Activation activation = Activation::none;

  bool any() const { return bias || activation != Activation::none; }
  bool operator==(const Epilogue&) const = default;
};

/// RMSNorm of the result, after the epilogue: y = x / sqrt(mean(x²) + epsilon) · weight. With `residual`, x
/// is first added to the residual and x itself is a second output (`sum`).
struct Norm {
  bool enabled = false;
  bool residual = false;
  float epsilon = 1e-5f;

  bool operator==(const Norm&) const = default;
};

/// Attention of a batch of sequences packed along the rows: for each head softmax(Q·Kᵀ / sqrt(head_dim)) · V,
/// within each sequence; heads lie side by side in the columns, head_dim each, and Q is A.
/// attention+reducescatter: rank r has query heads [r · heads / world, …) of all tokens, Q is m×k, K and V
/// are m×kv_cols. ulysses-attention: rank r has all heads of its shard of the tokens.
struct Attention {
  std::int64_t heads = 0;     ///< query heads of all ranks; the world divides them
  std::int64_t kv_heads = 0;  ///< grouped-query: heads / kv_heads consecutive query heads share one of K and
                              ///< V; the world divides these too
  std::int64_t head_dim = 0;
  bool causal = false;                  ///< a token sees itself and what comes before it in its sequence only
  std::vector<std::int64_t> lengths{};  ///< tokens of each sequence, together m; empty: one sequence of m

  bool operator==(const Attention&) const = default;
};

/// Tokens [first, end).
struct TokenRange {
  std::int64_t first = 0;
  std::int64_t end = 0;
};

/// Order of the rows of a row-sharded matrix (the output of gemm+reducescatter, the input A of
/// allgather+gemm; of other operators rows are contiguous). `contiguous`: rank r holds rows [r · ceil(M/W),
/// …). `block_cyclic`: blocks of `row_block` rows are dealt to the ranks in turn (FlashOverlap §3.3.4: what a
/// reduce-scatter of row-subtiles leaves; an allgather+gemm that takes the same order puts the rows back).
enum class RowOrder : std::uint8_t { contiguous, block_cyclic };

/// A run of rows on one rank that are consecutive rows of the operator's global matrix, and of one source
/// rank.
struct GlobalRun {
  std::int64_t local_row = 0;
  std::int64_t global_row = 0;
  std::int64_t rows = 0;
};

/// A collective alone moves an A of n = k columns, and there is no B.
///
/// An overlap's computations multiply the first rows and columns of A with those of B; its collectives move
/// the first rows of a `payload` of n columns. M, N and K are the largest of the computations'. The output
/// has the results one below the other, computations first, each from its column 0 on: see rows_of().
///
/// Sizes are those of one rank's GEMM: C[m×n] = op(A)[m×k] · op(B)[k×n], as BLAS has it. Matrices are
/// row-major. A is stored m×k, or k×m with transpose_a (the weight gradient); B is stored k×n, or n×k with
/// transpose_b (as Linear layers keep it). For allgather+gemm, m counts the gathered rows; for gemm+alltoall
/// and alltoall+gemm the rows of each rank are the routing's, and m those of the rank that sends most.
///
/// mlp and gemm+allgather+gemm have two weights: B, k × b_cols() (transposed: b_cols() × k), and `down`,
/// inner × n (transposed by the same flag: n × inner). m counts all rows, of which every rank holds its
/// shard: A is shard × k. Of an mlp the output is shard × n as well; of gemm+allgather+gemm it is m × n, and
/// B and the bias are the same on all ranks.
struct Problem {
  Op op = Op::gemm;
  int world = 1;
  std::int64_t m = 0;
  std::int64_t n = 0;
  std::int64_t k = 0;
  std::int64_t inner = 0;    ///< of two products: columns of the activated first one on a rank
  DType dtype = DType::f32;  ///< of inputs, staging and outputs; products accumulate in fp32
  bool transpose_a = false;
  bool transpose_b = false;
  Epilogue epilogue{};
  Norm norm{};
  RowOrder row_order = RowOrder::contiguous;
  std::int64_t row_block = 0;                ///< rows of a block, for block_cyclic; else 0
  std::shared_ptr<const Routing> routing{};  ///< where an all-to-all sends the rows of A or of the product
  /// attention+reducescatter: k = heads / world · head_dim; ulysses-attention: n = k = heads · head_dim.
  Attention attention{};
  std::shared_ptr<const Overlap> overlap{};  ///< for the operator of that name

  /// Throws InvalidArgument that names the wrong field: sizes below one or above max_extent, a world out of
  /// range, a routing that does not fit, an odd N for swiglu, a combination that has no meaning.
  void validate() const;

  /// Whether a collective is all there is.
  bool is_collective() const {
    return op == Op::allgather || op == Op::reducescatter || op == Op::allreduce || op == Op::alltoall;
  }
  /// Whether it is a list of computations and collectives.
  bool overlaps() const { return op == Op::overlap; }
  /// Whether there is a product, and so a matrix B.
  bool multiplies() const { return !is_collective() && !exchanges_heads(); }
  /// Whether the ranks' products are summed.
  bool reduces() const { return op == Op::gemm_allreduce || op == Op::allreduce || scatters(); }
  /// Whether each rank keeps its shard of the rows of the sum.
  bool scatters() const {
    return op == Op::gemm_reducescatter || op == Op::reducescatter || op == Op::attention_reducescatter ||
           op == Op::mlp;
  }
  /// Whether rows go where a routing says.
  bool routes() const { return op == Op::gemm_alltoall || op == Op::alltoall_gemm || op == Op::alltoall; }
  /// Whether a rank's result is made of rows of A that other ranks hold.
  bool gathers() const {
    return op == Op::allgather_gemm || op == Op::allgather || op == Op::alltoall_gemm || chains();
  }
  /// Whether a second product, with `down`, takes the first one's result.
  bool chains() const { return op == Op::mlp || op == Op::gemm_allgather_gemm; }
  /// Whether A is the queries of an attention.
  bool attends() const { return op == Op::attention_reducescatter || exchanges_heads(); }
  /// Whether ranks hold all heads of some tokens, and attend to all tokens with some heads.
  bool exchanges_heads() const { return op == Op::ulysses_attention; }
  /// Whether a rank's A is its shard of the m rows.
  bool shards_a() const {
    return op == Op::allgather_gemm || op == Op::allgather || chains() || exchanges_heads();
  }
  /// Whether a rank's output is its shard of the m rows.
  bool shards_out() const { return scatters() || exchanges_heads(); }
  /// Columns of K and of V that a rank holds.
  std::int64_t kv_cols() const {
    return attention.kv_heads / (exchanges_heads() ? 1 : world) * attention.head_dim;
  }
  /// Rows of K and of V that a rank holds.
  std::int64_t kv_rows(int rank) const { return exchanges_heads() ? a_rows(rank) : m; }
  /// The sequence that a token is in.
  TokenRange sequence_of(std::int64_t token) const;
  /// Tokens whose K and V any of the queries [first, first + rows) sees.
  TokenRange seen_by(std::int64_t first, std::int64_t rows) const;
  /// Columns of op(B): n, and of two products those of the first: inner, twice that for swiglu.
  std::int64_t b_cols() const { return chains() ? (swiglu() ? 2 : 1) * inner : n; }
  /// Columns of the rows that an all-gather brings: A's, or those that a first product has made of A.
  std::int64_t gathered_cols() const { return op == Op::gemm_allgather_gemm ? inner : k; }
  /// What the complete result passes: the epilogue, unless a first product passes it.
  Epilogue result_epilogue() const { return chains() ? Epilogue{} : epilogue; }
  /// Columns of the output: n, or n/2 where swiglu is applied to the result.
  std::int64_t out_cols() const { return swiglu() && !chains() ? n / 2 : n; }
  /// Rows of the largest shard of m rows: ceil(m / world).
  std::int64_t shard_rows() const { return ceil_div(m, world); }
  /// Rows of A (not of its storage) that a rank holds.
  std::int64_t a_rows(int rank) const;
  /// Rows of the output that a rank holds.
  std::int64_t out_rows(int rank) const;
  /// Rows of the operator's global output: m, or all ranks' rows together where a routing moves them.
  std::int64_t global_rows() const;

  /// Which rows of the global matrix the rows of a rank's A and of its output are, in order of the local row.
  std::vector<GlobalRun> a_runs(int rank) const;
  std::vector<GlobalRun> out_runs(int rank) const;

  bool operator==(const Problem& other) const;

 private:
  bool swiglu() const { return epilogue.activation == Activation::swiglu; }
  std::vector<GlobalRun> shard_runs(int rank) const;
};

/// The problem of an overlap: its sizes are the list's. Throws InvalidArgument as Problem::validate().
Problem overlap_problem(Overlap overlap, int world, DType dtype);

/// One line: "gemm+allreduce 4096x8192x3584 bf16, 8 ranks".
std::string describe(const Problem& problem);

}  // namespace shingle
