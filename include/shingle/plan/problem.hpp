// Problem: an operator with its sizes, transposes, epilogue and element types. It defines the result, not how
// it is computed.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "shingle/base/dtype.hpp"
#include "shingle/grid/row_map.hpp"
#include "shingle/plan/collective_kind.hpp"
#include "shingle/plan/routing.hpp"

namespace shingle {

/// The most ranks of a world that can run, and of a plan that can be proven.
inline constexpr int max_world = 64;
/// The most ranks of a problem. Above max_world a problem can only be planned and simulated.
inline constexpr int max_planned_world = 16384;
/// The largest M, N or K.
inline constexpr std::int64_t max_extent = (std::int64_t{1} << 31) - 1;

enum class Op : std::uint8_t {
  gemm,                ///< each rank computes its own product; no communication
  gemm_allreduce,      ///< C = sum over ranks of A_r · B_r, whole on every rank
  gemm_reducescatter,  ///< the same sum; rank r keeps its shard of the rows
  allgather_gemm,      ///< A is sharded by rows; each rank multiplies all of A with its own B_r
  gemm_alltoall,       ///< each rank computes its own product; the routing sends the rows to their ranks
  alltoall_gemm,  ///< the routing sends rows of A to ranks; each rank multiplies its received rows with its
                  ///< own B_r (mixture-of-experts dispatch)
  alltoall_grouped_gemm,  ///< the routing sends tokens to experts; a rank multiplies the tokens of each of
                          ///< its experts with the expert's weight
  grouped_gemm_alltoall,  ///< a rank multiplies such rows, which then return to their tokens; a token's rows
                          ///< are summed with their weights (mixture-of-experts combine)
  moe,  ///< both: tokens go to their experts, pass activation(x · B_e) · D_e there, return and are summed
  allgather_grouped_gemm,  ///< tensor-parallel experts: tokens are gathered; each rank multiplies those of
                           ///< every expert with its own columns of the expert's weight
  grouped_gemm_reducescatter,  ///< each rank multiplies rows of every expert, over its own part of K; the sum
                               ///< over a token's rows, with their weights, and over ranks lands with the
                               ///< token
  moe_tp,                      ///< both: moe with tensor-parallel experts
  grouped_gemm_allreduce,   ///< as grouped-gemm+reducescatter, of tokens that all ranks have; so is the sum
  moe_allreduce,            ///< as moe-tp, of tokens that all ranks have; so is the sum
  attention_reducescatter,  ///< C = sum over ranks of attention(Q_r, K_r, V_r) · B_r; rank r keeps its shard
                            ///< of the rows
  mlp,  ///< C = sum over ranks of activation(A · B_r + bias_r) · D_r; A and C are sharded by rows (a
        ///< transformer's MLP with sequence parallelism)
  gemm_allgather_gemm,  ///< C = H · D_r; H = activation(A · B + bias) is computed in row shards, then
                        ///< gathered: producer, all-gather, consumer
  ulysses_attention,    ///< out = attention(Q, K, V), all sharded by tokens; ranks exchange tokens for heads
                        ///< and back (DeepSpeed-Ulysses); there is no B
  allgather_attention,  ///< the same out; ranks attend with all heads of their own queries to the keys and
                        ///< values of all ranks (ring attention, context parallelism)
  attention_backward,   ///< the gradients of allgather+attention with respect to Q, K and V
  allgather,            ///< A is sharded by rows; every rank gets all of it
  reducescatter,        ///< the sum over ranks of A_r; rank r keeps its shard of the rows
  allreduce,            ///< the sum over ranks of A_r, whole on every rank
  alltoall,             ///< the routing sends rows of A to their ranks
};

/// What an operator is made of. One row an operator (src/plan/operators.cpp); everything below asks the row.
struct OperatorTraits {
  Op op = Op::gemm;
  std::string_view name;
  /// Brings rows to where they are computed with. ulysses-attention: heads for tokens.
  std::optional<CollectiveKind> before{};
  /// Takes the result to where it is kept.
  std::optional<CollectiveKind> after{};
  int products = 0;       ///< 1: with B; 2: the second with `down`
  bool attends = false;   ///< A is the queries of an attention
  bool backward = false;  ///< of the attention, its gradients are wanted
  bool grouped = false;   ///< destinations of the routing are experts, each with a weight of its own

  bool multiplies() const { return products > 0; }
  bool chains() const { return products == 2; }
  bool is_collective() const { return products == 0 && !attends; }
  /// How ranks share the experts of a grouped product. Tokens that are gathered, and sums over ranks, need a
  /// slice of every expert on each rank.
  ExpertSplit expert_split() const {
    const bool exchanges = before == CollectiveKind::alltoall || after == CollectiveKind::alltoall;
    return grouped && !exchanges ? ExpertSplit::by_slice : ExpertSplit::by_expert;
  }
  bool slices_experts() const { return expert_split() == ExpertSplit::by_slice; }
  /// A of a grouped product is tokens; else rows by expert.
  bool takes_tokens() const { return grouped && (before || chains()); }
  /// All ranks have the same tokens, as in tensor-parallel inference; else each has its own.
  bool replicates_tokens() const { return grouped && after == CollectiveKind::allreduce; }
  /// Attention alone: a rank's Q, K, V and output are all heads of its shard of the tokens.
  bool shards_tokens() const { return attends && products == 0; }
  /// A rank attends with its part of the heads, which the world must divide.
  bool splits_heads() const { return attends && before != CollectiveKind::allgather; }
  /// A token's products are summed with their weights.
  bool combines() const { return grouped && after.has_value(); }
  bool reduces() const { return after == CollectiveKind::allreduce || scatters(); }
  /// Each rank keeps its shard of the rows of the sum, or of the tokens.
  bool scatters() const { return after == CollectiveKind::reducescatter; }
  /// A routing says where rows go.
  bool routes() const {
    return grouped || (!attends && (before == CollectiveKind::alltoall || after == CollectiveKind::alltoall));
  }
  /// A rank's result is made of rows of A that other ranks hold.
  bool gathers() const { return before && !attends; }
  /// A rank's A is its shard of the m rows.
  bool shards_a() const { return (before == CollectiveKind::allgather && !grouped) || shards_tokens(); }
  /// A rank's output is its shard of the m rows.
  bool shards_out() const { return (scatters() && !grouped) || shards_tokens(); }
};
const OperatorTraits& traits(Op op);

/// "gemm+allreduce", …
std::string_view name(Op op);
Op parse_op(std::string_view text);
/// The names of all operators, as a list for messages.
std::string op_list();

/// The experts of a mixture of experts, and how many of them a token goes to.
///
/// Row j · t + i of a rank's routing, for a rank with t tokens, is choice j of its token i. An expert's
/// weight is k×n, or n×k with transpose_b. B stacks those of a rank. A rank orders rows as Routing says: by
/// expert, then by source rank, then by row there. alltoall+grouped-gemm: A is the tokens, the output their
/// rows by expert. grouped-gemm+alltoall: A is rows by expert, the output Σ_j topk_weights[i, j] · the
/// product of choice j of token i. moe: A is the tokens, and so is the output, as in grouped-gemm+alltoall.
///
/// Rank r has the r-th part of the experts. With tensor-parallel experts (allgather+grouped-gemm,
/// grouped-gemm+reducescatter, moe-tp, grouped-gemm+allreduce, moe+allreduce) it has a slice of each instead:
/// some columns of a weight whose tokens are gathered, and some rows of a weight whose products are summed
/// over ranks. n, k and inner are those of the slice.
///
/// grouped-gemm+allreduce and moe+allreduce: all ranks have the same m tokens. The routing has one source,
/// which stands for all ranks: tokens, choices and their weights must be equal on all ranks.
///
/// With a capacity the routing is known on the device only, from Role::topk_ids: choice j of token i is an
/// expert; -1 is none. Rank s has `capacity` *slots* for each expert, slot e · capacity and those behind it
/// for expert e. Its choices take slots in the order of routed rows, choice 0 of all tokens first. A choice
/// that finds no slot is dropped: it adds nothing, and Role::dropped counts it. Problem::routing then says
/// where slots go: it is that of every call. Rows by expert are those of slots, also of empty ones, and
/// Role::counts says how many of an expert's rows from a rank have a token. m is the most tokens of a rank.
struct Experts {
  std::int32_t count = 0;  ///< experts of all ranks; the world must divide them if each rank has a part
  std::int32_t topk = 0;   ///< experts of a token
  /// Rows that an expert takes of the tokens of one rank; 0: the host routes.
  std::int32_t capacity = 0;
  bool operator==(const Experts&) const = default;
};

enum class Activation : std::uint8_t { none, relu, gelu, silu, swiglu };
std::string_view name(Activation activation);
Activation parse_activation(std::string_view text);

/// Applied once to the operator's result, after the reduction if there is one. In operators with two products
/// (mlp, gemm+allgather+gemm) it applies to the first product, and the result has no epilogue.
///
/// gelu is the exact x·Φ(x). swiglu takes B = [gate | up] of N columns in all and yields N/2 columns
/// silu(A·gate) · (A·up). Here N is b_cols() if there are two products.
///
/// `scale` is for a reducescatter or an allreduce alone, such as 1/W for the mean over W ranks.
struct Epilogue {
  bool bias = false;  ///< a row vector of N elements, added before the activation
  Activation activation = Activation::none;
  float scale = 1;  ///< factor of a sum over ranks

  bool any() const { return bias || activation != Activation::none || scale != 1; }
  bool operator==(const Epilogue&) const = default;
};

/// RMSNorm of the result, after the epilogue: y = x / sqrt(mean(x²) + epsilon) · weight. With `residual`, the
/// residual is first added to x, and x itself is a second output (`sum`).
struct Norm {
  bool enabled = false;
  bool residual = false;
  float epsilon = 1e-5f;

  bool operator==(const Norm&) const = default;
};

/// Attention over a batch of sequences packed along the rows. Each head computes softmax(Q·Kᵀ /
/// sqrt(head_dim)) · V within each sequence. Heads are consecutive blocks of head_dim columns. Q is A.
///
/// attention+reducescatter: rank r has query heads [r · heads / world, …) of all tokens. Q is m×k; K and V
/// are m×kv_cols. ulysses-attention and allgather+attention: rank r has all heads of its shard of the tokens.
///
/// attention-backward: as allgather+attention. Inputs are also the gradient of the result (Role::grad), the
/// result (Role::attended) and its log-sum-exp (Role::lse). With S = Q·Kᵀ / sqrt(head_dim) the gradients are
/// dV = Pᵀ·dO, dQ = dS·K / sqrt(head_dim) and dK = dSᵀ·Q / sqrt(head_dim), where P = exp(S − lse) and
/// dS = P ∘ (dO·Vᵀ − rowsum(dO ∘ O)).
struct Attention {
  std::int64_t heads = 0;     ///< query heads of all ranks
  std::int64_t kv_heads = 0;  ///< heads of K and V of all ranks; heads / kv_heads consecutive query heads
                              ///< share one (grouped-query). The world must divide it, unless the operator
                              ///< is allgather+attention or attention-backward
  std::int64_t head_dim = 0;
  /// True: a token sees only itself and earlier tokens of its sequence.
  bool causal = false;
  std::vector<std::int64_t> lengths{};  ///< tokens of each sequence, m in all; empty: one sequence of m
  /// allgather+attention: the log-sum-exp of the scaled scores, log Σ exp(S), is a second output
  /// (Role::out_lse), which attention-backward takes as Role::lse.
  bool returns_lse = false;

  bool operator==(const Attention&) const = default;
};

/// Tokens [first, end).
struct TokenRange {
  std::int64_t first = 0;
  std::int64_t end = 0;

  std::int64_t count() const { return end - first; }
  bool empty() const { return end <= first; }
  bool operator==(const TokenRange&) const = default;
};
/// The tokens in both ranges.
inline TokenRange common(const TokenRange& a, const TokenRange& b) {
  const std::int64_t first = larger(a.first, b.first);
  return {first, larger(smaller(a.end, b.end), first)};
}

/// Order of the rows of a row-sharded matrix: the output of gemm+reducescatter, the input A of
/// allgather+gemm, the tokens of allgather+attention and attention-backward. Other operators have contiguous
/// rows.
///
/// `contiguous`: rank r holds rows [r · ceil(M/W), …). `block_cyclic`: the ranks hold blocks of `row_block`
/// rows in turn. A reduce-scatter of row-subtiles leaves this order (FlashOverlap §3.3.4); an allgather+gemm
/// of the same order restores the rows.
///
/// `zigzag`: the rows are cut into 2W chunks of ceil(M/2W). Rank r holds chunks r and 2W − 1 − r, in this
/// order. All ranks then have the same work in causal attention. It is for allgather+attention and
/// attention-backward only.
enum class RowOrder : std::uint8_t { contiguous, block_cyclic, zigzag };

/// A run of rows on one rank that are consecutive rows of the operator's global matrix and of one source
/// rank.
struct GlobalRun {
  std::int64_t local_row = 0;
  std::int64_t global_row = 0;
  std::int64_t rows = 0;
};

/// An operator with its sizes. Sizes are those of one rank's GEMM, as in BLAS: C[m×n] = op(A)[m×k] ·
/// op(B)[k×n].
///
/// Matrices are row-major. A is stored m×k, or k×m with transpose_a (the weight gradient). B is stored k×n,
/// or n×k with transpose_b (the layout of Linear layers). For allgather+gemm, m counts the gathered rows. For
/// gemm+alltoall and alltoall+gemm the routing gives the rows of each rank; m is the row count of the rank
/// that sends most.
///
/// mlp and gemm+allgather+gemm have two weights: B and `down`. B is k × b_cols(), or b_cols() × k with
/// transpose_b. `down` is inner × n, or n × inner with transpose_b. m counts all rows; each rank holds a
/// shard of them, and A is shard × k. The output of mlp is shard × n. The output of gemm+allgather+gemm is m
/// × n; its B and bias are the same on all ranks. In moe, moe-tp and moe+allreduce B and `down` stack the
/// weights of a rank's experts.
///
/// A collective without a product moves an A of n = k columns and has no B.
struct Problem {
  Op op = Op::gemm;
  int world = 1;
  std::int64_t m = 0;
  std::int64_t n = 0;
  std::int64_t k = 0;
  std::int64_t inner = 0;    ///< two products: columns of the activated first product on a rank
  DType dtype = DType::f32;  ///< of inputs, staging and outputs, not i32; products accumulate in fp32
  bool transpose_a = false;
  bool transpose_b = false;
  Epilogue epilogue{};
  /// reducescatter and allreduce alone: the output is f32. With a narrower dtype the ranks' values then
  /// travel in that dtype, and their sum in fp32 is not rounded.
  bool f32_sums = false;
  Norm norm{};
  RowOrder row_order = RowOrder::contiguous;
  std::int64_t row_block = 0;                ///< block_cyclic: rows of a block; else 0
  std::shared_ptr<const Routing> routing{};  ///< all-to-all: destinations of the rows of A or of the product
  /// attention+reducescatter: k = heads / world · head_dim. Attention alone: n = k = heads · head_dim.
  Attention attention{};
  /// Grouped products only. m counts the tokens of the rank that has most.
  Experts experts{};

  /// Throws InvalidArgument that names the wrong field. Reasons: a size outside [1, max_extent], a world out
  /// of range, a routing that does not fit, an odd N for swiglu, a meaningless combination.
  void validate() const;

  const OperatorTraits& traits() const { return shingle::traits(op); }

  /// Columns of K and of V on a rank.
  std::int64_t kv_cols() const {
    return attention.kv_heads / (traits().shards_tokens() ? 1 : world) * attention.head_dim;
  }
  /// Rows of K and of V on a rank.
  std::int64_t kv_rows(int rank) const { return traits().shards_tokens() ? a_rows(rank) : m; }
  /// Columns of the heads that a rank attends with.
  std::int64_t attended_cols() const {
    return traits().shards_tokens() && traits().splits_heads() ? k / world : k;
  }
  /// The queries that a rank attends with.
  std::vector<GlobalRun> query_runs(int rank) const;
  /// The sequence that holds a token.
  TokenRange sequence_of(std::int64_t token) const;
  /// The tokens whose K and V at least one of the queries [first, first + rows) sees.
  TokenRange seen_by(std::int64_t first, std::int64_t rows) const;
  /// The tokens that see at least one of these keys.
  TokenRange seeing(const TokenRange& keys) const;
  /// True if the device routes tokens to slots.
  bool has_slots() const { return experts.capacity > 0; }
  /// Sources of the routing: the ranks, or one that stands for all if these have the same tokens.
  int sources() const { return traits().replicates_tokens() ? 1 : world; }
  int source_of(int rank) const { return traits().replicates_tokens() ? 0 : rank; }
  /// True if a rank has the slots of all ranks, in an order that the plan chooses.
  bool orders_slots() const {
    return has_slots() && traits().slices_experts() && !traits().replicates_tokens();
  }
  /// Rows of an expert from some ranks that have a token if each expert is chosen equally often: those that
  /// predictions assume.
  std::int64_t expected_rows(std::int64_t sources = 1) const {
    return smaller(sources * experts.capacity,
                   ceil_div(sources * m * experts.topk, larger(experts.count, 1)));
  }
  /// Rows that a rank's experts multiply: those of the routing, or with slots as many as are expected.
  std::int64_t expected_received(int rank) const {
    return has_slots() ? weights() * sources() * expected_rows() : routing->received(rank);
  }
  /// Weights that B stacks on a rank: its experts, or one.
  std::int64_t weights() const {
    if (!traits().grouped) return 1;
    return traits().slices_experts() ? experts.count : experts.count / world;
  }
  /// Rows of the routing of a rank for each of its tokens, unless they are slots.
  std::int64_t choices() const { return traits().grouped ? experts.topk : 1; }
  /// Columns of op(B): n. With two products: the columns of the first one, inner, or 2 · inner for swiglu.
  std::int64_t b_cols() const { return traits().chains() ? (swiglu() ? 2 : 1) * inner : n; }
  /// Columns of the rows that an all-gather moves: those of A, or of the first product.
  std::int64_t gathered_cols() const { return op == Op::gemm_allgather_gemm ? inner : k; }
  /// Epilogue of the complete result: none if there are two products, because it then applies to the first
  /// one.
  Epilogue result_epilogue() const { return traits().chains() ? Epilogue{} : epilogue; }
  /// Columns of the output: n, or n/2 if swiglu is applied to the result.
  std::int64_t out_cols() const { return swiglu() && !traits().chains() ? n / 2 : n; }
  /// Rows of the largest shard of m rows: ceil(m / world), or two chunks of a zigzag.
  std::int64_t shard_rows() const {
    return row_order == RowOrder::zigzag ? 2 * zigzag_rows() : ceil_div(m, world);
  }
  /// Rows of A (not of its storage) on a rank.
  std::int64_t a_rows(int rank) const;
  /// Rows of the output on a rank.
  std::int64_t out_rows(int rank) const;
  /// Rows of the operator's global output: m, or the rows of all ranks together if a routing moves them.
  std::int64_t global_rows() const;

  /// Global rows of a rank's A and of its output, in order of the local row. In a grouped product, rows by
  /// expert count through the ranks that receive them, unless all ranks do; tokens through their owners.
  std::vector<GlobalRun> a_runs(int rank) const;
  std::vector<GlobalRun> out_runs(int rank) const;

  bool operator==(const Problem& other) const;

 private:
  bool swiglu() const { return epilogue.activation == Activation::swiglu; }
  std::int64_t zigzag_rows() const { return ceil_div(m, 2 * std::int64_t{world}); }
  std::vector<GlobalRun> shard_runs(int rank) const;
  GlobalRun token_run(int rank) const;
  GlobalRun expert_run(int rank) const;
};

/// The problem with another m, and with a capacity that is no larger than so many tokens need. Of a problem
/// with slots, the routing follows.
Problem with_m(Problem problem, std::int64_t m);

/// One line: "gemm+allreduce 4096x8192x3584 bf16, 8 ranks".
std::string describe(const Problem& problem);

}  // namespace shingle
