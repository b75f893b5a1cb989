#include "expert_chunks.hpp"

#include <utility>

#include "expert_cut.hpp"
#include "experts.hpp"
#include "routed_rows.hpp"
#include "slot_cut.hpp"
#include "slots.hpp"

namespace shingle::planner {
namespace {

/// Experts whose routing the host knows: each chunk is an all-to-all there, and one back.
class RoutedChunks : public ExpertChunks {
 public:
  RoutedChunks(Builder& build, ExpertCut cut)
      : ExpertChunks(build),
        p_(build.problem()),
        routing_(*p_.routing),
        cut_(std::move(cut)),
        buffers_(build, RoutedRows(routing_)) {
    tokens = buffers_.arrivals, products = buffers_.products;
    if (p_.traits().before) sent_ = build.counter("packed", 1);
  }

  std::int64_t chunks() const override { return cut_.chunks(); }

  std::vector<Rows> rows(int rank, std::int64_t chunk) const override {
    std::vector<Rows> all;
    for (const ExpertCut::Run& run : cut_.runs(rank, chunk))
      all.push_back({run.arrived, run.arrived, routing_.receive_base(run.expert, run.source) + run.first,
                     run.rows, routing_.weight_of(run.expert)});
    return all;
  }

  void begin(int rank) const override {
    if (!p_.traits().before) return;
    Elementwise pack;
    pack.grid = packed_rows(rank, routing_.rows(rank), p_.k);
    pack.from.push_back(rows_of_tokens(p_, rank, build_.all(build_.a, rank)));
    pack.to = cut_.packed(rank, 0, pack.grid, build_.all(buffers_.packed, rank));
    build_.step(rank, compute_lane, std::move(pack));
    hand_over(build_, rank, sent_, compute_lane, communicate_lane);
  }

  void send(int rank, std::int64_t chunk) const override {
    exchange(rank, buffers_.packed, cut_.sent(rank, chunk), tokens, cut_.received(rank, chunk));
  }

  void give_back(int rank, std::int64_t chunk) const override {
    exchange(rank, products, cut_.received(rank, chunk), buffers_.returns, cut_.sent(rank, chunk));
  }

  Elementwise combine(int rank) const override {
    const std::int64_t count = p_.out_rows(rank);
    Elementwise pass = planner::combine(packed_rows(rank, count, p_.n), build_.all(build_.topk_weights, rank),
                                        build_.all(build_.out, rank));
    for (std::int64_t choice = 0; choice < p_.experts.topk; ++choice)
      pass.from.push_back(cut_.packed(rank, choice * count, pass.grid, build_.all(buffers_.returns, rank)));
    return pass;
  }

  void finish(int) const override {}
  Slice live(int) const override { return {}; }

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

  const Problem& p_;
  const Routing& routing_;
  ExpertCut cut_;
  RoutedBuffers buffers_;
  std::int32_t sent_ = -1;  // counter
};

/// Experts with a capacity. Where slots go is known, so all lies in their order, and a chunk is one message
/// between two ranks. Own slots need none: they are read where they were packed, and their products are
/// stored where those of other ranks return.
class SlotChunks : public ExpertChunks {
 public:
  SlotChunks(Builder& build, const std::vector<std::int64_t>& shares)
      : ExpertChunks(build),
        p_(build.problem()),
        routing_(*p_.routing),
        slots_(build),
        cut_(routing_, shares) {
    if (p_.traits().before) tokens = build.buffer("tokens", cut_.held_rows(), p_.k);
    if (p_.traits().after) products = build.buffer("products", cut_.held_rows(), p_.n);
    assigned_ = build.counter("assigned", 1);
    if (!p_.traits().before) counted_ = build.counter("counted", 1);
  }

  std::int64_t chunks() const override { return cut_.chunks(); }

  std::vector<Rows> rows(int rank, std::int64_t chunk) const override {
    std::vector<Rows> all;
    for (const SlotCut::Run& run : cut_.runs(rank, chunk))
      all.push_back({run.row, run.row,
                     routing_.receive_base(routing_.first_expert(rank) + run.weight, run.source),
                     routing_.capacity(), run.weight, live_element(routing_, rank, run.source, run.weight)});
    return all;
  }

  /// Counts travel before tokens, whose arrival so tells of them, too.
  void begin(int rank) const override {
    slots_.assign(rank);
    if (p_.traits().before) {
      Elementwise pack;
      pack.grid = build_.row_blocks(routing_.rows(rank), p_.k);
      pack.from.push_back(slots_.tokens(rank));
      pack.to = Builder::in_place(build_.rows(tokens, rank, 0, routing_.rows(rank)));
      build_.step(rank, compute_lane, std::move(pack));
    }
    hand_over(build_, rank, assigned_, compute_lane, communicate_lane);
    slots_.exchange_counts(rank);
    if (!p_.traits().before) hand_over(build_, rank, counted_, communicate_lane, compute_lane);
  }

  void send(int rank, std::int64_t chunk) const override {
    exchange(rank, tokens, cut_.sent(rank, chunk), cut_.received(rank, chunk));
  }

  void give_back(int rank, std::int64_t chunk) const override {
    exchange(rank, products, cut_.received(rank, chunk), cut_.sent(rank, chunk));
  }

  Elementwise combine(int rank) const override {
    return slots_.combine(rank, build_.rows(products, rank, 0, routing_.rows(rank)));
  }

  void finish(int rank) const override { slots_.return_counts(rank); }
  Slice live(int rank) const override { return slots_.live(rank); }

 private:
  void exchange(int rank, std::int32_t buffer, const std::vector<SlotCut::Part>& out,
                const std::vector<SlotCut::Part>& in) const {
    const auto messages = [&](const std::vector<SlotCut::Part>& parts) {
      std::vector<Exchange::Message> all;
      for (const SlotCut::Part& part : parts)
        all.push_back({part.peer, build_.rows(buffer, rank, part.row, part.rows)});
      return all;
    };
    if (!out.empty() || !in.empty()) build_.exchange(rank, messages(out), messages(in));
  }

  const Problem& p_;
  const Routing& routing_;
  Slots slots_;
  SlotCut cut_;
  std::int32_t assigned_ = -1, counted_ = -1;  // counters
};

}  // namespace

std::vector<std::int64_t> ExpertChunks::most_rows() const {
  std::vector<std::int64_t> most(static_cast<std::size_t>(build_.world()), 0);
  for (int rank = 0; rank < build_.world(); ++rank)
    for (std::int64_t chunk = 0; chunk < chunks(); ++chunk) {
      std::int64_t total = 0;
      for (const Rows& some : rows(rank, chunk)) total += some.rows;
      most[static_cast<std::size_t>(rank)] = larger(most[static_cast<std::size_t>(rank)], total);
    }
  return most;
}

std::unique_ptr<ExpertChunks> expert_chunks(Builder& build, const Machine& machine, const TileParams& tile,
                                            const std::vector<std::int64_t>& shares) {
  const Problem& p = build.problem();
  if (p.has_slots()) return std::make_unique<SlotChunks>(build, shares);
  return std::make_unique<RoutedChunks>(build,
                                        ExpertCut(*p.routing, tile_size(machine, tile).rows,
                                                  order_of_groups(machine, tile.order).cluster_m, shares));
}

ExpertProducts expert_products(const Builder& build, const ExpertChunks& chunks, const Machine& machine,
                               const TileParams& tile, int rank, std::int64_t first_chunk,
                               std::int64_t end_chunk, std::int32_t hidden) {
  const OperatorTraits& traits = build.problem().traits();
  ExpertProducts made;
  std::vector<RowGroup> there, back;  // of the product of tokens, and of the one whose products return
  std::int64_t row = 0;               // of the hidden layer, or by expert
  for (std::int64_t chunk = first_chunk; chunk < end_chunk; ++chunk)
    for (const ExpertChunks::Rows& some : chunks.rows(rank, chunk)) {
      if (!traits.chains()) row = some.by_expert;
      there.push_back({some.token, row, some.rows, some.weight, some.live});
      back.push_back({row, some.product, some.rows, some.weight, some.live});
      row += some.rows;
      made.chunk_of_rows.push_back(static_cast<std::int32_t>(chunk));
    }
  if (there.empty()) return made;
  const auto add = [&](Gemm product, std::int32_t a, std::vector<RowGroup> groups) {
    product.live = chunks.live(rank);
    made.gemms.push_back(grouped(build, machine, tile, std::move(product), a, std::move(groups)));
  };
  const auto in_place = [&](std::int32_t buffer) { return Builder::in_place(build.all(buffer, rank)); };
  const TileGrid one = build.one_tile(1);
  if (traits.chains())
    add(build.up_gemm(rank, build.one_tile(1, build.problem().inner), {}, in_place(hidden)), chunks.tokens,
        std::move(there));
  else if (traits.before)
    add(build.gemm(rank, one, {}, in_place(build.out)), chunks.tokens, std::move(there));
  if (traits.after)
    add(build.gemm(rank, one, {}, in_place(chunks.products)), traits.chains() ? hidden : build.a,
        std::move(back));
  return made;
}

}  // namespace shingle::planner
