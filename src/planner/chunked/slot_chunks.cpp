// Experts with a capacity in chunks: slots of some experts and ranks are multiplied while the next ones arrive
// and the products before return.
//
// Where slots go is known, so all lies in the order of slots, and a chunk is one message between two ranks. A
// rank's own slots need none: they are read where they were packed, and their products are stored where those
// of other ranks return.
#include <utility>

#include "chunked.hpp"
#include "planner/common/experts.hpp"
#include "planner/common/slot_cut.hpp"
#include "planner/common/slots.hpp"

namespace shingle::planner {
namespace {

class SlotChunks {
 public:
  SlotChunks(ChunkedBuilder& build, const Machine& machine)
      : build_(build),
        p_(build.problem()),
        routing_(*p_.routing),
        machine_(machine),
        slots_(build),
        cut_(routing_, build.params().chunks) {
    const std::int64_t held = cut_.held_rows();
    if (p_.traits().before) {
      tokens_ = build.buffer("tokens", held, p_.k);
      arrived_ = build.counter("arrived", cut_.chunks());
    }
    assigned_ = build.counter("assigned", 1);
    if (!p_.traits().before) counted_ = build.counter("counted", 1);
    if (p_.traits().chains()) hidden_ = build.buffer("hidden", cut_.most_rows(), p_.inner);
    if (p_.traits().after) {
      products_ = build.buffer("products", held, p_.n);
      computed_ = build.counter("computed", cut_.chunks());
      returned_ = build.counter("returned", 1);
    }
  }

  /// Gives tokens slots, tells all ranks how many have one, and sends them.
  void dispatch(int rank) const {
    slots_.assign(rank);
    if (p_.traits().before) {
      Elementwise pack;
      pack.grid = build_.row_blocks(routing_.rows(rank), p_.k);
      pack.from.push_back(slots_.tokens(rank));
      pack.to = Builder::in_place(build_.rows(tokens_, rank, 0, routing_.rows(rank)));
      build_.step(rank, compute_lane, std::move(pack));
    }
    hand_over(build_, rank, assigned_, compute_lane, communicate_lane);
    slots_.exchange_counts(rank);
    if (!p_.traits().before) return hand_over(build_, rank, counted_, communicate_lane, compute_lane);
    for (std::int64_t chunk = 0; chunk < cut_.chunks(); ++chunk) {  // their arrival tells of the counts, too
      exchange_slots(build_, rank, tokens_, cut_.sent(rank, chunk), cut_.received(rank, chunk));
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
      exchange_slots(build_, rank, products_, cut_.received(rank, chunk), cut_.sent(rank, chunk));
    }
    slots_.return_counts(rank);
  }

  /// Sums the products of a rank's tokens. Exchanges run in order, so a wait for the last covers all.
  void combine(int rank) const {
    hand_over(build_, rank, returned_, communicate_lane, compute_lane);
    build_.step(rank, compute_lane,
                slots_.combine(rank, build_.rows(products_, rank, 0, routing_.rows(rank))));
  }

 private:
  void multiply(int rank, std::int64_t chunk) const {
    const bool chains = p_.traits().chains(), before = p_.traits().before.has_value();
    std::vector<RowGroup> groups;
    std::int64_t in_chunk = 0;
    for (const SlotCut::Run& run : cut_.runs(rank, chunk)) {
      const std::int64_t by_expert =
          routing_.receive_base(routing_.first_expert(rank) + run.weight, run.source);
      groups.push_back({before ? run.row : by_expert, chains ? in_chunk : before ? by_expert : run.row,
                        routing_.capacity(), run.weight, live_element(routing_, rank, run.source, run.weight)});
      in_chunk += routing_.capacity();
    }
    if (chains) {
      add(build_.up_gemm(rank, build_.one_tile(1, p_.inner), {}, in_place(hidden_, rank)), tokens_, groups);
      for (RowGroup& group : groups) std::swap(group.a_row, group.row);
    }
    add(build_.gemm(rank, build_.one_tile(1), {}, in_place(p_.traits().after ? products_ : build_.out, rank)),
        chains   ? hidden_
        : before ? tokens_
                 : build_.a,
        std::move(groups));
  }

  Placement in_place(std::int32_t buffer, int rank) const {
    return Builder::in_place(build_.all(buffer, rank));
  }

  void add(Gemm product, std::int32_t a, std::vector<RowGroup> groups) const {
    const int rank = product.a.rank;
    product.live = slots_.live(rank);
    build_.step(rank, compute_lane, grouped(build_, machine_, {}, std::move(product), a, std::move(groups)));
  }

  ChunkedBuilder& build_;
  const Problem& p_;
  const Routing& routing_;
  const Machine& machine_;
  Slots slots_;
  SlotCut cut_;
  std::int32_t tokens_ = -1, hidden_ = -1, products_ = -1;  // buffers
  std::int32_t assigned_ = -1, counted_ = -1, arrived_ = -1, computed_ = -1, returned_ = -1;  // counters
};

}  // namespace

void slots_in_chunks(ChunkedBuilder& build, const Machine& machine) {
  const OperatorTraits& traits = build.problem().traits();
  const SlotChunks chunks(build, machine);
  for (int r = 0; r < build.world(); ++r) {
    chunks.dispatch(r);
    chunks.multiply(r);
    if (traits.after) chunks.combine(r);
  }
}

}  // namespace shingle::planner
