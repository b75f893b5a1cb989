// Tensor-parallel experts of tokens that all ranks have: the last product is computed in strips of columns.
// When the tiles of a strip are computed, helpers sum the choices of all tokens for its columns, and store
// the sums with the ranks that add those of all ranks, while the next strip is multiplied.
//
// In one shot every rank stores its sums on all ranks, and each adds all rows: more bytes, one hop. In two
// hops a rank adds the rows that it owns, and stores the result in internal memory of all ranks. Each rank
// copies it from there to its output.
#include <utility>

#include "fused.hpp"
#include "planner/common/replicated_tokens.hpp"

namespace shingle::planner {
namespace {

using Strip = ReplicatedTokens::Strip;

class ReplicatedSums {
 public:
  ReplicatedSums(FusedBuilder& build, const Machine& machine)
      : build_(build),
        p_(build.problem()),
        handshake_(build),
        tokens_(build, machine, build.params().tile, build.workers() - build.helpers()),
        // Without helpers nothing is beside the product.
        shares_(
            static_cast<std::size_t>(build.helpers() > 0 ? strips_of(p_, machine, build.params().tile) : 1),
            1),
        tall_(rows_of_tile()),
        owned_(ceil_div(ceil_div(p_.m, p_.world), tall_) * tall_) {
    const auto strips = static_cast<std::int64_t>(shares_.size());
    const DType staged = build.params().stage_fp32 ? DType::f32 : p_.dtype;
    staging_ = build.typed_buffer("staging", staged, p_.world * rows_of_part(), p_.n);
    if (build.helpers() > 0) computed_ = build.counter("computed", strips);
    stored_ = build.counter("stored", strips);
    if (one_shot()) return;
    result_ = build.buffer("result", p_.m, p_.n);
    returned_ = build.counter("returned", strips);
  }

  void compute(int rank) const {
    tokens_.take(rank);
    ReplicatedTokens::Product product = tokens_.product(rank, shares_);
    std::vector<std::uint32_t> computed;
    if (computed_ >= 0) computed = ReplicatedTokens::count_by_strip(product, computed_);
    handshake_.await_all(build_, rank, compute_lane);
    build_.step(rank, compute_lane, std::move(product.gemm));
    // A strip is added while the choices of the next are summed.
    const auto strips = static_cast<std::int32_t>(product.strips.size());
    const auto at = [&](std::int32_t strip) { return product.strips[static_cast<std::size_t>(strip)]; };
    for (std::int32_t turn = 0; turn <= strips; ++turn) {
      if (turn < strips) {
        Elementwise pass = send(rank, at(turn), turn);
        if (computed_ >= 0) await(pass, computed_, turn, computed[static_cast<std::size_t>(turn)]);
        add(rank, std::move(pass), 2 * turn);
      }
      if (turn >= 1) sum(rank, at(turn - 1), turn - 1);
    }
    if (!one_shot()) place(rank, strips);
  }

 private:
  bool one_shot() const { return build_.params().one_shot; }
  std::int32_t helper_lane(int rank) const {
    return build_.helpers() > 0 ? build_.helper_lane(rank, "combine") : compute_lane;
  }
  std::int32_t rows_of_tile() const {
    const std::int32_t tall = build_.row_blocks(p_.m, p_.n).tile_rows;
    return one_shot() ? tall : static_cast<std::int32_t>(smaller(tall, larger(ceil_div(p_.m, p_.world), 1)));
  }
  /// Rows of a rank's part of the staging memory.
  std::int64_t rows_of_part() const { return one_shot() ? p_.m : owned_; }
  std::int64_t first_row(int owner) const { return smaller(owner * owned_, p_.m); }
  std::int64_t rows_of(int owner) const { return first_row(owner + 1) - first_row(owner); }
  std::uint32_t tiles_of(std::int64_t rows) const {
    return static_cast<std::uint32_t>(ceil_div(rows, tall_));
  }
  std::vector<std::int32_t> everyone(int rank) const {
    std::vector<std::int32_t> ranks;
    for (int i = 0; i < p_.world; ++i) ranks.push_back((rank + i) % p_.world);
    return ranks;
  }
  TileGrid grid_of(std::int64_t rows, const Strip& strip, const TileOrder& order = {}) const {
    return make_grid(rows, strip.cols, tall_, static_cast<std::int32_t>(strip.cols), order);
  }
  Placement on_all(int rank, Slice slice) const {
    std::vector<std::int32_t> ranks = everyone(rank);
    slice.rank = ranks.front();
    return {slice, placement::Matrix{RowMap::identity(slice.rows), std::move(ranks)}};
  }
  static void await(Elementwise& pass, std::int32_t counter, std::int32_t strip, std::uint32_t target) {
    pass.gates.push_back({counter, {pass.grid.positions()}, {target}, {strip}});
  }

  /// The pass that sums the choices of all tokens, and stores the sums with the ranks that add them.
  Elementwise send(int rank, const Strip& strip, std::int32_t number) const {
    // All begin with the rows of another rank, so that not all store to one rank at a time.
    const int owners_of_rows = static_cast<int>(ceil_div(p_.m, owned_)),
              first = one_shot() ? 0 : (rank + 1) % owners_of_rows;
    const TileOrder order{.rotation = static_cast<std::int32_t>(tiles_of(first_row(first)))};
    Elementwise pass = tokens_.combine(rank, strip, grid_of(p_.m, strip, order));
    const Slice part = columns_of(build_.rows(staging_, rank, rank * rows_of_part(), rows_of_part()), strip);
    if (one_shot()) {
      pass.to = on_all(rank, part);
      pass.notify.push_back({stored_, everyone(rank), {pass.grid.positions()}, {number}});
      return pass;
    }
    RowMap owners = RowMap::identity(p_.m);
    owners.stride = owned_;
    pass.to = {part, placement::Owners{owners}};
    TileNotify notify{stored_, {}, {}, {}, {}};
    std::int64_t end = 0;
    for (int turn = 0; turn < owners_of_rows; ++turn) {
      const int owner = (first + turn) % owners_of_rows;
      notify.ends.push_back(end += tiles_of(rows_of(owner)));
      notify.entries.push_back(number);
      notify.owners.push_back(owner);
    }
    pass.notify.push_back(std::move(notify));
    return pass;
  }

  /// Adds the sums of all ranks, in rank order.
  void sum(int rank, const Strip& strip, std::int32_t number) const {
    const std::int64_t rows = one_shot() ? p_.m : rows_of(rank);
    if (rows == 0) return;
    Elementwise pass;
    pass.grid = grid_of(rows, strip);
    for (int holder = 0; holder < p_.world; ++holder)
      pass.from.push_back(
          Builder::in_place(columns_of(build_.rows(staging_, rank, holder * rows_of_part(), rows), strip)));
    await(pass, stored_, number, static_cast<std::uint32_t>(p_.world) * tiles_of(rows));
    if (one_shot()) {
      pass.to = Builder::in_place(columns_of(build_.all(build_.out, rank), strip));
    } else {
      pass.to = on_all(rank, columns_of(build_.rows(result_, rank, first_row(rank), rows), strip));
      pass.notify.push_back({returned_, everyone(rank), {pass.grid.positions()}, {number}});
    }
    add(rank, std::move(pass), 2 * number + 1);
  }

  /// Copies the result from internal memory to the output, at the end, when all workers do so fast.
  void place(int rank, std::int32_t strips) const {
    Elementwise pass = build_.copy(build_.all(result_, rank), build_.all(build_.out, rank));
    for (std::int32_t strip = 0; strip < strips; ++strip) await(pass, returned_, strip, tiles_of(p_.m));
    pass.resources = {1, build_.workers() - build_.helpers()};
    build_.step(rank, compute_lane, std::move(pass));
  }

  /// Helpers take tiles of a pass as soon as they can be computed, all workers after the last product.
  void add(int rank, Elementwise pass, std::int32_t queue) const {
    if (build_.helpers() > 0) pass.queue = queue;
    share(build_, rank, std::move(pass), helper_lane(rank), build_.helpers(),
          build_.workers() - build_.helpers());
  }

  FusedBuilder& build_;
  const Problem& p_;
  Handshake handshake_;
  const ReplicatedTokens tokens_;
  const std::vector<std::int64_t> shares_;
  const std::int32_t tall_;                                   // rows of the tiles of all passes
  const std::int64_t owned_;                                  // rows of a rank, or less for the last ranks
  std::int32_t staging_ = -1, result_ = -1;                   // buffers; staging has a part for each rank
  std::int32_t computed_ = -1, stored_ = -1, returned_ = -1;  // counters, by strip
};

}  // namespace

void fuse_replicated_tokens(FusedBuilder& build, const Machine& machine) {
  if (build.problem().m == 0) return;
  const ReplicatedSums sums(build, machine);
  for (int r = 0; r < build.world(); ++r) sums.compute(r);
}

}  // namespace shingle::planner
