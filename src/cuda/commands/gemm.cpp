// Gemm steps: the instrumented kernel if the step has hooks, else cuBLASLt or the kernel for few rows.
#include <fmt/format.h>

#include <algorithm>

#include "command.hpp"
#include "cuda/kernels/gemm.hpp"
#include "cuda/raii/check.hpp"
#include "grid/split.hpp"
#include "lower/launch_rules.hpp"
#include "served_gemm.hpp"
#include "shingle/base/error.hpp"

namespace shingle::cuda {
namespace {

/// Pacing of stores to other ranks, per SM. The rate is 1.5 times the share of NVLink 4 of one SM, as not all
/// SMs store remotely at the same time.
constexpr std::uint32_t cycles_per_kib = 400;

struct Operands {
  Address a, b, bias;
};

class InstrumentedGemm final : public Command {
 public:
  /// The partial sums of split-K are in the lane's workspace.
  InstrumentedGemm(const GemmInstance& instance, const CountedGemmArgs& args, const Operands& operands,
                   Scratch& workspace)
      : instance_(instance),
        args_(args),
        operands_(operands),
        workspace_(workspace),
        params_(std::make_unique<GemmParams>()) {
    workspace.reserve(args.split.sum_bytes(args));
    check(instance.load(), "load a GEMM kernel");
  }
  void enqueue(cudaStream_t stream, const Shifts& shifts) override {
    if (!prepared_) prepare(shifts);
    if (!holds(shifts)) rebind(shifts);
    check(instance_.launch(params_.get(), args_.ctas, stream), "launch a GEMM kernel");
  }
  /// Makes the kernel's parameters, for these shifts.
  void prepare(const Shifts& shifts) {
    set_addresses(shifts);
    check(instance_.prepare(args_, params_.get()), "prepare a GEMM kernel");
    prepared_ = true;
  }

 private:
  void rebind(const Shifts& shifts) {
    set_addresses(shifts);
    check(instance_.rebind(args_, params_.get()), "move a GEMM kernel's operands");
  }
  void set_addresses(const Shifts& shifts) {
    args_.a = operands_.a.in(shifts);
    args_.b = operands_.b.in(shifts);
    args_.bias = operands_.bias.in(shifts);
    args_.out.shift = shifts.of[args_.out.matrix];
    args_.sums.shift = shifts.of[args_.sums.matrix];
    args_.split.sums = workspace_.get<float>();
  }
  /// True if the kernel's parameters hold these addresses.
  bool holds(const Shifts& shifts) const {
    return args_.a == operands_.a.in(shifts) && args_.b == operands_.b.in(shifts) &&
           args_.bias == operands_.bias.in(shifts) && args_.out.shift == shifts.of[args_.out.matrix] &&
           args_.sums.shift == shifts.of[args_.sums.matrix] &&
           (args_.split.others == 0 || args_.split.sums == workspace_.get());
  }

  const GemmInstance& instance_;
  CountedGemmArgs args_;  // of an instance that counts nothing: a GemmArgs
  Operands operands_;
  const Scratch& workspace_;  // may still grow while other commands are made
  std::unique_ptr<GemmParams> params_;
  bool prepared_ = false;
};

/// Where clusters find how many of their rows have a token.
std::vector<LiveRows> live_rows(const Context& context, const Gemm& step, const Tiling& tiling,
                                std::int32_t cluster) {
  const auto* const counts =
      reinterpret_cast<const std::int32_t*>(context.memory.at(step.live, context.parity).at);
  std::vector<LiveRows> live;
  for (std::size_t i = 0; i < tiling.positions.size(); i += static_cast<std::size_t>(cluster)) {
    const Tile tile = tiling.tile(tiling.positions[i]);
    LiveRows& rows = live.emplace_back();
    if (tiling.grid.phantom(tile)) continue;
    const ProductTile product = product_tile(step, tile);
    rows = {counts + product.group->live, static_cast<std::int32_t>(product.in_group)};
  }
  return live;
}

/// Adds to the own tiles the addresses of a call's parts and sums, and the gates of parts.
GemmSums with_tables(GemmSums sums, const Context& context, const Gemm& step, const Tiling& tiling,
                     const std::vector<TileGate>& gates) {
  const Tables tables = context.tables();
  std::vector<Route> parts;
  for (const Placement& from : step.sums.from) parts.push_back(tables.route(from, tiling));
  sums.parts = context.table_memory.put(parts);
  for (const Placement& to : step.sums.to) {
    const Role role = context.plan.buffers[static_cast<std::size_t>(to.slice.buffer)].role;
    if (role == Role::internal) continue;
    sums.matrix = static_cast<std::uint8_t>(role);
    sums.moved += static_cast<std::int32_t>(std::max<std::size_t>(replicas(to).size(), 1));
  }
  sums.gate = tables.gates(gates, tiling, context.rank);
  return sums;
}

}  // namespace

bool instrumented(const Gemm& step) {
  return !step.gates.empty() || !step.notify.empty() || step.grid.positions() > 1 ||
         !std::holds_alternative<placement::Matrix>(step.out.form) || !replicas(step.out).empty() ||
         !step.groups.empty() ||
         (step.epilogue.activation != Activation::none && step.epilogue.activation != Activation::relu);
}

std::int32_t ctas_of_cluster(const Plan& plan, const Gemm& step) {
  return serve(plan, step).choice.instance->tile.cluster;
}

void require_served(const Plan& plan, const Step& step) {
  const auto* gemm = std::get_if<Gemm>(&step);
  if (gemm != nullptr && gemm->grid.tiles() > 0 && instrumented(*gemm)) serve(plan, *gemm);
  const auto* pass = std::get_if<Elementwise>(&step);
  if (pass != nullptr) require_served(plan, *pass);
  if (const auto* exchange = std::get_if<Exchange>(&step)) require_served(plan, *exchange);
  if (pass != nullptr && pass->queue >= 0 && row_wise(*pass))
    throw Unsupported("CUDA: row-wise passes (RMSNorm, SwiGLU) cannot share a work queue between lanes");
  const auto* attend = std::get_if<Attend>(&step);
  if (attend != nullptr && attend->grid.tiles() > 0) require_served(plan, *attend);
  const auto* backward = std::get_if<AttendBackward>(&step);
  if (backward != nullptr && backward->grid.tiles() > 0) require_served(plan, *backward);
  const auto* merge = std::get_if<Merge>(&step);
  if (merge != nullptr && merge->grid.tiles() > 0) require_served(plan, *merge);
  if (const auto* slots = std::get_if<AssignSlots>(&step)) require_served(plan, *slots);
}

std::unique_ptr<Command> make_command(const Context& context, const Gemm& step) {
  if (step.grid.tiles() == 0) return nullptr;
  if (!instrumented(step)) {
    auto skinny = context.launch.weights_early ? make_skinny_gemm(context, step) : nullptr;
    return skinny ? std::move(skinny) : make_library_gemm(context, step);
  }
  auto [grid, tiles, rows, choice, args] = serve(context.plan, step);
  const std::int64_t skipped = rows.base * (step.transpose_a ? 1 : args.lda);
  Operands operands{.a = context.memory.at(step.a, context.parity) + skipped * 2,
                    .b = context.memory.at(step.b, context.parity),
                    .bias = {}};
  if (step.epilogue.bias) operands.bias = context.memory.at(step.bias, context.parity);
  for (const Address& operand : {operands.a, operands.b, operands.bias})
    if (reinterpret_cast<std::uintptr_t>(operand.at) % 16 != 0)
      throw InvalidArgument(
          fmt::format("A, B and bias of rank {} must begin at multiples of 16 bytes", context.rank),
          context.rank);
  const Tiling tiling{grid,
                      tiles,
                      choice.positions,
                      rows.parts > 1 ? rows.parts * rows.part_rows : grid.tile_rows,
                      rows.parts,
                      rows.part_rows,
                      step.groups.empty() ? nullptr : &step};
  const Tables tables = context.tables();
  // Loads of phantom tiles in a cluster read entries after the last row of tiles.
  if (!rows.first.empty()) rows.first.resize(rows.first.size() + choice.instance->tile.cluster - 1, 0);
  args.a_first = context.table_memory.put(rows.first);
  if (!rows.weight.empty()) {
    args.weight_of = context.table_memory.put(rows.weight);
    args.weights = step.b.rows / weight_of(step, step.groups.front()).rows;
  }
  args.out = tables.route(step, tiling);
  args.leaving = tables.leaving(step, tiling, context.rank);
  args.pace = cycles_per_kib;
  std::vector<TileGate> gates, gates_of_parts;
  for (const TileGate& gate : step.gates) (gate.of_parts ? gates_of_parts : gates).push_back(gate);
  args.gate = tables.gates(gates, tiling, context.rank);
  if (!step.sums.from.empty()) args.sums = with_tables(args.sums, context, step, tiling, gates_of_parts);
  args.notify = tables.notifies(step.notify, tiling, context.rank);
  args.watch = context.watch;
  if (step.live.buffer >= 0) {
    const std::vector<LiveRows> live = live_rows(context, step, tiling, choice.instance->tile.cluster);
    const std::vector<std::uint64_t> nothing(step.gates.empty() ? 0 : live.size(), ~std::uint64_t{0});
    args.live = context.table_memory.put(live);
    args.decided = const_cast<std::uint64_t*>(context.table_memory.put(nothing));
  }
  args.early = context.launch.may_start_early && step.live.buffer < 0;
  const std::int32_t most = most_workers(step, context.plan.workers, args.early);
  const SharedTiles shared =
      shared_tiles(*choice.instance, k_split(step), args, choice.positions.size(), most);
  args.works = context.table_memory.put(deal(*choice.instance, args, order_of(tiling, false), most, shared));
  const std::vector<std::uint32_t> none(args.split.arrived_words(args), 0);
  args.split.arrived = const_cast<std::uint32_t*>(context.table_memory.put(none));
  auto command = std::make_unique<InstrumentedGemm>(*choice.instance, args, operands, context.workspace);
  if (!context.memory.by_call()) command->prepare({});
  return command;
}

}  // namespace shingle::cuda
