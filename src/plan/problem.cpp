#include "shingle/plan/problem.hpp"

#include <fmt/format.h>

#include <cmath>

#include "base/names.hpp"
#include "shingle/base/error.hpp"

namespace shingle {
namespace {

constexpr Names<Activation, 5> activation_names{{{Activation::none, "none"},
                                                 {Activation::relu, "relu"},
                                                 {Activation::gelu, "gelu"},
                                                 {Activation::silu, "silu"},
                                                 {Activation::swiglu, "swiglu"}}};

void require_extent(std::string_view what, std::int64_t value, std::int64_t least) {
  if (value < least || value > max_extent)
    throw InvalidArgument(fmt::format("{} = {} is outside [{}, {}]", what, value, least, max_extent));
}

/// Requires heads, sequences and sizes of an attention to match.
void validate_attention(const Problem& p) {
  const Attention& a = p.attention;
  require_extent("heads", a.heads, 1);
  require_extent("kv_heads", a.kv_heads, 1);
  require_extent("head_dim", a.head_dim, 1);
  if (a.heads % a.kv_heads != 0)
    throw InvalidArgument(fmt::format("heads = {} is not a multiple of kv_heads = {}", a.heads, a.kv_heads));
  if (p.traits().splits_heads() && a.kv_heads % p.world != 0)
    throw InvalidArgument(fmt::format("kv_heads = {} is not a multiple of {} ranks", a.kv_heads, p.world));
  const std::int64_t heads = p.traits().shards_tokens() ? a.heads : a.heads / p.world;
  if (heads > p.k || heads * a.head_dim != p.k)
    throw InvalidArgument(
        fmt::format("k = {} must be the {} columns of a rank's {} heads", p.k, heads * a.head_dim, heads));
  std::int64_t tokens = 0;
  for (const std::int64_t length : a.lengths) {
    require_extent("a sequence's length", length, 1);
    tokens += length;
  }
  if (!a.lengths.empty() && tokens != p.m)
    throw InvalidArgument(fmt::format("the sequences have {} tokens, but m = {}", tokens, p.m));
  if (a.returns_lse && p.op != Op::allgather_attention)
    throw InvalidArgument(
        fmt::format("{} does not return the log-sum-exp: allgather+attention does", name(p.op)));
  if (p.traits().shards_tokens()) {
    if (p.n != p.k)
      throw InvalidArgument(
          fmt::format("n = {} must equal k = {}: the result has the columns of the queries", p.n, p.k));
    if (p.transpose_a || p.transpose_b || p.epilogue.any() || p.norm.enabled)
      throw InvalidArgument(
          fmt::format("{} takes no transposes, epilogue or norm: its result is the attention", name(p.op)));
  }
  if (p.transpose_a) throw InvalidArgument("attention takes Q by rows: transpose_a must be off");
}

bool adjusts_sums(const Problem& p) {
  return p.epilogue.scale != 1 || p.f32_sums;
}

/// Requires a collective alone to move rows unchanged, or to sum them, and an all-reduce to normalise them.
void validate_collective(const Problem& p) {
  if (p.n != p.k)
    throw InvalidArgument(
        fmt::format("{} has no GEMM: n = {} and k = {} must be equal", name(p.op), p.n, p.k));
  if (p.transpose_a || p.transpose_b || p.epilogue.bias || p.epilogue.activation != Activation::none)
    throw InvalidArgument(
        fmt::format("{} has no GEMM: it takes no transposes, bias or activation", name(p.op)));
  if (p.norm.enabled && p.op != Op::allreduce)
    throw InvalidArgument(fmt::format("{} takes no norm: allreduce does", name(p.op)));
  if (p.norm.enabled && adjusts_sums(p))
    throw InvalidArgument("an allreduce with a norm takes neither a scale nor f32 sums");
}

/// Requires experts and routing to match, and refuses options that a grouped product does not have.
void validate_experts(const Problem& p) {
  const Experts& e = p.experts;
  const bool sliced = p.traits().slices_experts();
  if (e.count < 1) throw InvalidArgument(fmt::format("{} experts; {} needs at least 1", e.count, name(p.op)));
  if (!sliced && e.count % p.world != 0)
    throw InvalidArgument(
        fmt::format("{} experts do not divide among {} rank{}", e.count, p.world, p.world == 1 ? "" : "s"));
  if (e.topk < 1 || e.topk > e.count)
    throw InvalidArgument(
        fmt::format("topk = {} is outside [1, {}], the number of experts", e.topk, e.count));
  if (p.routing->experts() != e.count)
    throw InvalidArgument(
        fmt::format("the routing has {} experts, the operator {}", p.routing->experts(), e.count));
  if (e.capacity < 0) throw InvalidArgument(fmt::format("capacity = {} must not be negative", e.capacity));
  if (p.routing->capacity() != e.capacity)
    throw InvalidArgument(
        fmt::format("the routing has {} slots for each expert, the operator a capacity of {}",
                    p.routing->capacity(), e.capacity));
  if (p.routing->split() != p.traits().expert_split())
    throw InvalidArgument(
        sliced
            ? fmt::format("{} has a slice of every expert on each rank: its routing must be split by slice",
                          name(p.op))
            : fmt::format("{} has a part of the experts on each rank: its routing must be split by expert",
                          name(p.op)));
  for (int rank = 0; rank < p.sources() && !p.has_slots(); ++rank)
    if (p.routing->rows(rank) % e.topk != 0)
      throw InvalidArgument(fmt::format("rank {} routes {} rows, which is no multiple of topk = {}", rank,
                                        p.routing->rows(rank), e.topk));
  if (p.transpose_a || p.epilogue.bias || p.norm.enabled)
    throw InvalidArgument(fmt::format("{} takes no transposed A, bias or norm", name(p.op)));
  if (p.traits().after && p.result_epilogue().any())
    throw InvalidArgument(fmt::format("{} takes no activation: it sums products", name(p.op)));
}

/// Requires the two weights to match, and refuses options that a chain of products does not have.
void validate_chain(const Problem& p) {
  require_extent("inner", p.inner, 1);
  require_extent("the columns of the first product", p.b_cols(), 1);
  if (p.transpose_a)
    throw InvalidArgument(fmt::format("{} shards A by rows: transpose_a must be off", name(p.op)));
}

}  // namespace

std::string_view name(Activation activation) {
  return name_in(activation_names, activation);
}
Activation parse_activation(std::string_view text) {
  return parse_in(activation_names, "activation", text);
}

void Problem::validate() const {
  if (!is_floating(dtype))
    throw InvalidArgument(fmt::format("dtype = {} is not f32, bf16 or f16", name(dtype)));
  if (world < 1 || world > max_planned_world)
    throw InvalidArgument(fmt::format("world = {} is outside [1, {}]", world, max_planned_world));
  require_extent("m", m, traits().routes() && !has_slots() ? 0 : 1);
  require_extent("n", n, 1);
  require_extent("k", k, 1);
  if (result_epilogue().activation == Activation::swiglu && n % 2 != 0)
    throw InvalidArgument(fmt::format("swiglu takes gate and up columns together: n = {} must be even", n));
  if (norm.residual && !norm.enabled) throw InvalidArgument("a residual needs norm = rmsnorm");
  if (norm.enabled && !(norm.epsilon >= 0 && std::isfinite(norm.epsilon)))
    throw InvalidArgument(fmt::format("norm epsilon = {} must be finite and not negative", norm.epsilon));
  if (traits().routes() != (routing != nullptr))
    throw InvalidArgument(traits().routes() ? fmt::format("{} needs a routing", name(op))
                                            : "only all-to-alls and experts take a routing");
  if (routing) {
    if (routing->world() != sources())
      throw InvalidArgument(
          traits().replicates_tokens()
              ? fmt::format("the routing has {} ranks, but {} needs one source: all ranks have its tokens",
                            routing->world(), name(op))
              : fmt::format("the routing has {} ranks, the world {}", routing->world(), world));
    if (!traits().grouped && routing->experts() != world)
      throw InvalidArgument(fmt::format("{} sends rows to ranks, but the routing has experts", name(op)));
    if (traits().grouped) validate_experts(*this);
    std::int64_t most = 0;
    for (int r = 0; r < sources(); ++r) most = larger(most, routing->rows(r) / choices());
    if (most != m && !has_slots())
      throw InvalidArgument(fmt::format("m = {}, but the routing's largest rank has {} {}", m, most,
                                        traits().grouped ? "tokens" : "rows"));
  }
  if (!traits().grouped && experts != Experts{})
    throw InvalidArgument(fmt::format("{} has no experts", name(op)));
  if (!std::isfinite(epilogue.scale))
    throw InvalidArgument(fmt::format("scale = {} must be finite", epilogue.scale));
  if (adjusts_sums(*this) && !(traits().is_collective() && traits().reduces()))
    throw InvalidArgument(
        fmt::format("{} takes neither a scale nor f32 sums: reducescatter and allreduce do", name(op)));
  if (traits().is_collective()) validate_collective(*this);
  if (traits().attends) {
    validate_attention(*this);
  } else if (attention != Attention{}) {
    throw InvalidArgument(fmt::format("{} has no attention", name(op)));
  }
  if (traits().chains()) {
    validate_chain(*this);
  } else if (inner != 0) {
    throw InvalidArgument(
        fmt::format("inner = {}, but {} has at most one GEMM; only mlp takes it", inner, name(op)));
  }
  if (row_order == RowOrder::zigzag && (!traits().shards_tokens() || traits().splits_heads()))
    throw InvalidArgument(
        fmt::format("{} takes no zigzag rows: allgather+attention and attention-backward do", name(op)));
  if (row_order == RowOrder::block_cyclic) {
    if (op != Op::gemm_reducescatter && op != Op::allgather_gemm)
      throw InvalidArgument("block-cyclic rows are for gemm+reducescatter and allgather+gemm");
    require_extent("row_block", row_block, 1);
    constexpr std::int64_t most_blocks = 1 << 20;
    if (ceil_div(shard_rows(), row_block) > most_blocks)
      throw InvalidArgument(
          fmt::format("row_block = {} gives a rank more than {} blocks", row_block, most_blocks));
  } else if (row_block != 0) {
    throw InvalidArgument(fmt::format("row_block = {} needs row order block-cyclic", row_block));
  }
}

std::int64_t Problem::a_rows(int rank) const {
  if (traits().grouped && !traits().takes_tokens()) return routing->received(rank);
  if (has_slots()) return m;
  if (traits().routes()) return routing->rows(source_of(rank)) / choices();
  if (!traits().shards_a()) return m;
  std::int64_t rows = 0;
  for (const GlobalRun& run : shard_runs(rank)) rows += run.rows;
  return rows;
}

std::int64_t Problem::out_rows(int rank) const {
  if (traits().combines()) return token_run(rank).rows;
  if (traits().routes()) return routing->received(rank);
  if (!traits().shards_out()) return m;
  std::int64_t rows = 0;
  for (const GlobalRun& run : shard_runs(rank)) rows += run.rows;
  return rows;
}

std::int64_t Problem::global_rows() const {
  if (!traits().routes()) return m;
  if (has_slots() && traits().after) return m * sources();
  return routing->global_base(sources()) / (traits().after ? choices() : 1);
}

GlobalRun Problem::token_run(int rank) const {
  const int source = source_of(rank);
  if (has_slots()) return {0, source * m, m};
  return {0, routing->global_base(source) / choices(), routing->rows(source) / choices()};
}

GlobalRun Problem::expert_run(int rank) const {
  GlobalRun run{0, 0, routing->received(rank)};
  if (traits().slices_experts()) return run;
  for (int before = 0; before < rank; ++before) run.global_row += routing->received(before);
  return run;
}

TokenRange Problem::sequence_of(std::int64_t token) const {
  if (attention.lengths.empty()) return {0, m};
  TokenRange range;
  for (const std::int64_t length : attention.lengths) {
    range = {range.end, range.end + length};
    if (token < range.end) break;
  }
  return range;
}

TokenRange Problem::seen_by(std::int64_t first, std::int64_t rows) const {
  if (rows == 0) return {first, first};
  const std::int64_t last = first + rows - 1;
  return {sequence_of(first).first, attention.causal ? last + 1 : sequence_of(last).end};
}

TokenRange Problem::seeing(const TokenRange& keys) const {
  if (keys.empty()) return {keys.first, keys.first};
  return {attention.causal ? keys.first : sequence_of(keys.first).first, sequence_of(keys.end - 1).end};
}

std::vector<GlobalRun> Problem::shard_runs(int rank) const {
  const std::int64_t shard = shard_rows();
  std::vector<GlobalRun> runs;
  const auto add = [&](std::int64_t first, std::int64_t most) {
    const std::int64_t rows = smaller(most, m - first);
    if (rows <= 0) return;
    if (!runs.empty() && runs.back().global_row + runs.back().rows == first)
      runs.back().rows += rows;
    else
      runs.push_back({runs.empty() ? 0 : runs.back().rows, first, rows});
  };
  if (row_order == RowOrder::contiguous) {
    add(rank * shard, shard);
    return runs;
  }
  if (row_order == RowOrder::zigzag) {
    const std::int64_t chunk = zigzag_rows();
    add(rank * chunk, chunk);
    add((2 * world - 1 - rank) * chunk, chunk);
    return runs;
  }
  // Virtual rows in global order. This rank owns the rank-th part of every block of world · row_block rows.
  for (std::int64_t local = 0; local < shard; local += row_block) {
    const std::int64_t size = smaller(row_block, shard - local);
    const std::int64_t global = local * world + rank * size;
    const std::int64_t rows = smaller(size, m - global);
    if (rows > 0) runs.push_back({local, global, rows});
  }
  return runs;
}

std::vector<GlobalRun> Problem::a_runs(int rank) const {
  if (traits().shards_a()) return shard_runs(rank);
  if (traits().grouped && !traits().takes_tokens()) return {expert_run(rank)};
  if (traits().routes()) return {token_run(rank)};
  return {{0, 0, m}};
}

std::vector<GlobalRun> Problem::query_runs(int rank) const {
  return traits().splits_heads() ? std::vector<GlobalRun>{{0, 0, m}} : shard_runs(rank);
}

std::vector<GlobalRun> Problem::out_runs(int rank) const {
  if (traits().shards_out()) return shard_runs(rank);
  if (!traits().routes()) return {{0, 0, m}};
  if (traits().grouped) return {traits().after ? token_run(rank) : expert_run(rank)};
  std::vector<GlobalRun> runs;
  std::int64_t local = 0;
  for (int s = 0; s < world; ++s) {
    const std::int64_t base = routing->global_base(s);
    for (std::int64_t row = 0; row < routing->rows(s); ++row) {
      if (routing->dest(s, row) != rank) continue;
      if (row > 0 && !runs.empty() && runs.back().global_row + runs.back().rows == base + row) {
        ++runs.back().rows;
      } else {
        runs.push_back({local, base + row, 1});
      }
      ++local;
    }
  }
  return runs;
}

bool Problem::operator==(const Problem& o) const {
  const bool same_routing = routing && o.routing ? *routing == *o.routing : routing == o.routing;
  return op == o.op && world == o.world && m == o.m && n == o.n && k == o.k && inner == o.inner &&
         dtype == o.dtype && transpose_a == o.transpose_a && transpose_b == o.transpose_b &&
         epilogue == o.epilogue && f32_sums == o.f32_sums && norm == o.norm && row_order == o.row_order &&
         row_block == o.row_block && attention == o.attention && experts == o.experts && same_routing;
}

Problem with_m(Problem problem, std::int64_t m) {
  problem.m = m;
  if (!problem.has_slots()) return problem;
  Experts& experts = problem.experts;
  experts.capacity = static_cast<std::int32_t>(smaller(experts.capacity, m * experts.topk));
  problem.routing = std::make_shared<const Routing>(
      Routing::slots(problem.sources(), experts.count, experts.capacity, problem.traits().expert_split()));
  return problem;
}

std::string describe(const Problem& p) {
  std::string text = p.traits().multiplies()
                         ? fmt::format("{} {}x{}x{} {}", name(p.op), p.m, p.n, p.k, name(p.dtype))
                         : fmt::format("{} {}x{} {}", name(p.op), p.m, p.n, name(p.dtype));
  if (p.traits().chains()) text += fmt::format(", {} inner", p.inner);
  if (p.traits().attends) {
    const Attention& a = p.attention;
    text += fmt::format(", {} heads of {}", a.heads, a.head_dim);
    if (a.kv_heads != a.heads) text += fmt::format(" ({} of K and V)", a.kv_heads);
    if (a.causal) text += ", causal";
    if (a.returns_lse) text += ", with log-sum-exp";
    if (!a.lengths.empty()) text += fmt::format(", {} sequences", a.lengths.size());
  }
  if (p.traits().grouped) text += fmt::format(", {} of {} experts", p.experts.topk, p.experts.count);
  if (p.has_slots()) text += fmt::format(" with a capacity of {}", p.experts.capacity);
  if (p.transpose_a) text += ", A transposed";
  if (p.transpose_b) text += ", B transposed";
  if (p.epilogue.bias) text += ", bias";
  if (p.epilogue.activation != Activation::none) text += fmt::format(", {}", name(p.epilogue.activation));
  if (p.epilogue.scale != 1) text += fmt::format(", times {}", p.epilogue.scale);
  if (p.f32_sums) text += ", sums in f32";
  if (p.norm.enabled) text += p.norm.residual ? ", residual + rmsnorm" : ", rmsnorm";
  if (p.row_order == RowOrder::zigzag) text += ", zigzag";
  if (p.row_order == RowOrder::block_cyclic) text += fmt::format(", rows dealt in blocks of {}", p.row_block);
  return text + fmt::format(", {} rank{}", p.world, p.world == 1 ? "" : "s");
}

}  // namespace shingle
