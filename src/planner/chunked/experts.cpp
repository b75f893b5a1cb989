// Experts in chunks: while the tokens of some experts are multiplied, those of the next experts arrive, and
// products of the experts before return.
//
// All tokens are sent before the first products return: the communicate lane then waits for no product while
// tokens are still to be sent.
#include "planner/common/experts.hpp"

#include <utility>

#include "chunked.hpp"
#include "expert_cut.hpp"

namespace shingle::planner {
namespace {

class Chunks {
 public:
  Chunks(ChunkedBuilder& build, const Machine& machine)
      : build_(build),
        p_(build.problem()),
        routing_(*p_.routing),
        machine_(machine),
        cut_(routing_, tile_size(machine, {}).rows, order_of_groups(machine, {}).cluster_m,
             build.params().chunks) {
    std::vector<std::int64_t> routed, received, of_chunk;
    for (int r = 0; r < p_.world; ++r) {
      routed.push_back(routing_.rows(r));
      received.push_back(routing_.received(r));
      of_chunk.push_back(cut_.most_rows(r));
    }
    if (p_.traits().before) {
      packed_ = build.buffer("packed", routed, p_.k);
      arrivals_ = build.buffer("arrivals", received, p_.k);
      sent_ = build.counter("packed", 1);
      arrived_ = build.counter("arrived", cut_.chunks());
    }
    if (p_.traits().chains()) hidden_ = build.buffer("hidden", of_chunk, p_.inner);
    if (p_.traits().after) {
      products_ = build.buffer("products", received, p_.n);
      returns_ = build.buffer("returns", routed, p_.n);
      computed_ = build.counter("computed", cut_.chunks());
      returned_ = build.counter("returned", 1);
    }
  }

  /// Tokens of a rank to the ranks of their experts.
  void dispatch(int rank) const {
    Elementwise pack;
    pack.grid = packed_rows(rank, routing_.rows(rank), p_.k);
    pack.from.push_back(rows_of_tokens(p_, rank, build_.all(build_.a, rank)));
    pack.to = cut_.packed(rank, 0, pack.grid, build_.all(packed_, rank));
    build_.step(rank, compute_lane, std::move(pack));
    hand_over(build_, rank, sent_, compute_lane, communicate_lane);
    for (std::int64_t chunk = 0; chunk < cut_.chunks(); ++chunk) {
      exchange(rank, packed_, cut_.sent(rank, chunk), arrivals_, cut_.received(rank, chunk));
      build_.notify(rank, communicate_lane, arrived_, chunk);
    }
  }

  /// The products of a rank. Those that return are sent chunk by chunk.
  void multiply(int rank) const {
    for (std::int64_t chunk = 0; chunk < cut_.chunks(); ++chunk) {
      if (p_.traits().before) build_.await(rank, compute_lane, arrived_, chunk);
      multiply(rank, chunk);
      if (!p_.traits().after) continue;
      build_.notify(rank, compute_lane, computed_, chunk);
      build_.await(rank, communicate_lane, computed_, chunk);
      exchange(rank, products_, cut_.received(rank, chunk), returns_, cut_.sent(rank, chunk));
    }
  }

  /// Sums the products of a rank's tokens. Collectives run in order, so a wait for the last covers all.
  void combine(int rank) const {
    hand_over(build_, rank, returned_, communicate_lane, compute_lane);
    const std::int64_t tokens = p_.out_rows(rank);
    Elementwise pass = planner::combine(packed_rows(rank, tokens, p_.n),
                                        build_.all(build_.topk_weights, rank), build_.all(build_.out, rank));
    for (std::int64_t choice = 0; choice < p_.experts.topk; ++choice)
      pass.from.push_back(cut_.packed(rank, choice * tokens, pass.grid, build_.all(returns_, rank)));
    build_.step(rank, compute_lane, std::move(pass));
  }

 private:
  /// Grid of a pass over rows that are packed.
  TileGrid packed_rows(int rank, std::int64_t rows, std::int64_t cols) const {
    return cut_.splits(rank) ? make_grid(rows, cols, 1, static_cast<std::int32_t>(cols))
                             : build_.row_blocks(rows, cols);
  }

  void exchange(int rank, std::int32_t from, const ExpertCut::Share& sent, std::int32_t to,
                const ExpertCut::Share& received) const {
    build_.collective(rank, CollectiveKind::alltoall, build_.rows(from, rank, sent.first, sent.total()),
                      build_.rows(to, rank, received.first, received.total()), sent.rows, received.rows);
  }

  void multiply(int rank, std::int64_t chunk) const {
    const bool before = p_.traits().before.has_value(), after = p_.traits().after.has_value(),
               chains = p_.traits().chains();
    if (cut_.runs(rank, chunk).empty()) return;
    std::vector<RowGroup> groups;
    std::int64_t in_chunk = 0;
    for (const ExpertCut::Run& run : cut_.runs(rank, chunk)) {
      const std::int64_t by_expert = routing_.receive_base(run.expert, run.source) + run.first;
      groups.push_back({before ? run.arrived : by_expert,
                        chains   ? in_chunk
                        : before ? by_expert
                                 : run.arrived,
                        run.rows, run.expert % routing_.experts_per_rank()});
      in_chunk += run.rows;
    }
    if (chains) {
      add(build_.up_gemm(rank, build_.one_tile(1, p_.inner), {}, in_place(hidden_, rank)), arrivals_, groups);
      for (RowGroup& group : groups) std::swap(group.a_row, group.row);
    }
    add(build_.gemm(rank, build_.one_tile(1), {}, in_place(after ? products_ : build_.out, rank)),
        chains   ? hidden_
        : before ? arrivals_
                 : build_.a,
        std::move(groups));
  }

  Placement in_place(std::int32_t buffer, int rank) const {
    return Builder::in_place(build_.all(buffer, rank));
  }

  void add(Gemm product, std::int32_t a, std::vector<RowGroup> groups) const {
    const int rank = product.a.rank;
    build_.step(rank, compute_lane, grouped(build_, machine_, {}, std::move(product), a, std::move(groups)));
  }

  Builder& build_;
  const Problem& p_;
  const Routing& routing_;
  const Machine& machine_;
  ExpertCut cut_;
  std::int32_t packed_ = -1, arrivals_ = -1, hidden_ = -1, products_ = -1, returns_ = -1;  // buffers
  std::int32_t sent_ = -1, arrived_ = -1, computed_ = -1, returned_ = -1;                  // counters
};

}  // namespace

void experts_in_chunks(ChunkedBuilder& build, const Machine& machine) {
  const OperatorTraits& traits = build.problem().traits();
  const Chunks chunks(build, machine);
  for (int r = 0; r < build.world(); ++r) {
    if (traits.before) chunks.dispatch(r);
    chunks.multiply(r);
    if (traits.after) chunks.combine(r);
  }
}

}  // namespace shingle::planner
