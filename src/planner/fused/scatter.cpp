// gemm+alltoall in which tiles store every row where the routing sends it: no packing, no collective, no
// restore. If peers cannot access the output, rows go to internal memory. From there they are copied to the
// output, one band of columns at a time, when all ranks have computed the band.
#include "fused.hpp"
#include "planner/common/routed_rows.hpp"

namespace shingle::planner {
namespace {

class Scatter {
 public:
  Scatter(FusedBuilder& build, const Machine& machine)
      : build_(build),
        machine_(machine),
        fills_(build.params().unregistered && !build.needs_finishing()),
        order_(order_of(build.params().tile.order)) {
    const Problem& p = build.problem();
    const std::int64_t cols = build.product_cols();
    const TileSize tile = tile_size(machine, build.params().tile);
    if (fills_ && order_.raster == Raster::along_m)
      turns_ =
          ceil_div(ceil_div(cols, smaller(tile.cols, cols)), std::int64_t{order_.swizzle} * order_.cluster_n);
    turns_of_band_ = ceil_div(turns_, most_bands);
    bands_ = ceil_div(turns_, turns_of_band_);
    for (int r = 0; r < p.world; ++r) everyone_.push_back(r);
    target_ = build.needs_finishing() || fills_
                  ? build.buffer("received", RoutedRows(*p.routing).received, cols)
                  : build.out;
    stored_ = build.counter("stored", p.world * bands_);
  }

  /// Appends the product of a rank, stored where the routing sends its rows.
  void multiply(int rank) const {
    placement::Routed store{rank};
    for (int dest = 0; dest < build_.world(); ++dest)
      store.bases.push_back(routing().receive_base(dest, rank));
    const TileGrid grid = tiles(routing().rows(rank));
    Gemm gemm =
        build_.gemm(rank, grid, RowMap::identity(grid.rows), {build_.all(target_, rank), std::move(store)});
    TileNotify notify{stored_, everyone_, ends(grid)};
    for (std::int64_t band = 0; band < bands_; ++band) notify.entries.push_back(entry(rank, band));
    gemm.notify.push_back(std::move(notify));
    gemm.resources = {1, build_.workers() - helpers()};
    build_.step(rank, compute_lane, std::move(gemm));
  }

  /// Appends the receiver's part: awaits the rows, or copies them to the output.
  void receive(int rank) const {
    if (fills_) return fill(rank);
    for (int source = 0; source < build_.world(); ++source)
      if (const std::uint32_t count = tiles_in(source, 0); count > 0)
        build_.await(rank, compute_lane, stored_, source, count);
    finish_rows(build_, rank, target_, routing().received(rank));
  }

 private:
  static constexpr std::int64_t most_bands = 8;

  const Routing& routing() const { return *build_.problem().routing; }
  std::int32_t helpers() const { return fills_ ? build_.helpers() : 0; }
  std::int32_t entry(int source, std::int64_t band) const {
    return static_cast<std::int32_t>(source * bands_ + band);
  }

  /// Column order if bands of columns are copied on and the params give no order.
  TileOrder order_of(const TileOrder& order) const {
    if (!fills_ || order != TileOrder{}) return order;
    return {Raster::along_m, machine_.order.swizzle * machine_.order.cluster_n, 1, 1, 0};
  }

  /// Grid over `rows` rows. The bands of columns do not depend on the number of rows.
  TileGrid tiles(std::int64_t rows) const {
    const std::int64_t cols = build_.product_cols();
    const TileSize tile = tile_size(machine_, build_.params().tile).within(rows, cols);
    return make_grid(rows, cols, tile.rows, tile.cols, order_);
  }
  /// Positions at which the bands end.
  std::vector<std::int64_t> ends(const TileGrid& grid) const {
    std::vector<std::int64_t> ends;
    for (std::int64_t band = 0; band < bands_; ++band)
      ends.push_back(smaller((band + 1) * turns_of_band_, turns_) * (grid.positions() / turns_));
    return ends;
  }
  /// Tiles of a band in a source's product.
  std::uint32_t tiles_in(int source, std::int64_t band) const {
    const TileGrid grid = tiles(routing().rows(source));
    const std::vector<std::int64_t> ends = this->ends(grid);
    const std::int64_t first = band == 0 ? 0 : ends[static_cast<std::size_t>(band) - 1];
    return static_cast<std::uint32_t>(grid.tiles_before(ends[static_cast<std::size_t>(band)]) -
                                      grid.tiles_before(first));
  }

  /// Copies rows from internal memory to the output. Helpers start as soon as a band is complete; all workers
  /// help in the end.
  void fill(int rank) const {
    Elementwise pass;
    pass.grid = tiles(routing().received(rank));
    pass.from.push_back(Builder::in_place(build_.all(target_, rank)));
    pass.to = Builder::in_place(build_.all(build_.out, rank));
    for (int source = 0; source < build_.world(); ++source) {
      TileGate gate{stored_, ends(pass.grid), {}};
      for (std::int64_t band = 0; band < bands_; ++band) {
        gate.entries.push_back(entry(source, band));
        gate.targets.push_back(tiles_in(source, band));
      }
      pass.gates.push_back(std::move(gate));
    }
    pass.queue = 0;
    const std::int32_t lane = helpers() > 0 ? build_.helper_lane(rank, "fill") : compute_lane;
    share(build_, rank, std::move(pass), lane, helpers(), build_.workers() - helpers());
  }

  FusedBuilder& build_;
  const Machine& machine_;
  bool fills_;  // true if rows are copied on from `target_`
  TileOrder order_;
  std::int64_t turns_ = 1;          // turns of the outermost loop; each covers some columns
  std::int64_t turns_of_band_ = 1;  // turns of each band; the last band may have fewer
  std::int64_t bands_ = 1;
  std::vector<std::int32_t> everyone_;
  std::int32_t target_;  // buffer
  std::int32_t stored_;  // counter, entry source · bands + band
};

}  // namespace

void fuse_scatter(FusedBuilder& build, const Machine& machine) {
  const Scatter scatter(build, machine);
  const Handshake handshake(build);
  for (int r = 0; r < build.world(); ++r) {
    handshake.await_all(build, r, compute_lane);
    scatter.multiply(r);
    scatter.receive(r);
  }
}

}  // namespace shingle::planner
