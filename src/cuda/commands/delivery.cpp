// Deliveries: stores to flagged buffers of peers, and passes over what arrives, as one kernel.
#include <fmt/format.h>

#include <algorithm>

#include "command.hpp"
#include "cuda/kernels/flagged.hpp"
#include "cuda/memory/flagged.hpp"
#include "cuda/raii/check.hpp"
#include "elements.hpp"
#include "library.hpp"
#include "shingle/base/error.hpp"
#include "shingle/plan/print.hpp"

namespace shingle::cuda {
namespace {

class Deliver final : public Command {
 public:
  explicit Deliver(const DeliveryArgs& args) : args_(args) {
    check(prepare_delivery(args_, launch_), "prepare a delivery");
  }
  void enqueue(cudaStream_t stream, const Shifts& shifts) override {
    DeliveryArgs args = args_;
    args.shifts = shifts;
    check(launch_delivery(args, launch_, stream), "launch a delivery");
  }

 private:
  DeliveryArgs args_;
  DeliveryLaunch launch_;
};

/// Fills the arguments of a delivery from its passes. With `product`, that GEMM's kernel does the sends.
class Maker {
 public:
  Maker(const Context& context, const Gemm* product) : context_(context), product_(product) {
    args_.product_sent = product != nullptr;
    product_sends_.flagged = context.memory.flagged().place(context.rank);
    args_.flagged = context.memory.flagged().place(context.rank);
    args_.watch = context.watch;
    args_.early = context.launch.may_start_early;
    args_.workers = context.plan.workers;
    const Problem& problem = context.plan.problem();
    std::uint32_t hash = 2166136261u;  // FNV-1a
    for (const char letter : describe(problem))
      hash = (hash ^ static_cast<unsigned char>(letter)) * 16777619u;
    args_.plan = hash;
    args_.m = static_cast<std::uint32_t>(problem.m);
  }

  void add(const Elementwise& pass) {
    require(pass.first == 0 && pass.count < 0 && pass.queue < 0, "does all items of a pass by itself");
    require(args_.cols == 0 || args_.cols == pass.grid.cols, "has passes of equal width");
    args_.cols = static_cast<std::int32_t>(pass.grid.cols);
    args_.type = element(buffer(pass.to.slice).dtype);
    require(pass.grid.cols * static_cast<std::int64_t>(size_bytes(buffer(pass.to.slice).dtype)) % 16 == 0,
            "moves rows of multiples of 16 bytes");
    for (const Placement& from : pass.from)
      require(buffer(from.slice).dtype == buffer(pass.to.slice).dtype, "sums rows of the output's type");
    if (buffer(pass.to.slice).flagged)
      send(pass);
    else
      take(pass);
  }

  const DeliveryArgs& finish() {
    used_bytes_ = std::max(used_bytes_, FlaggedMemory::first_byte(context_.plan.world()));  // the greetings
    args_.extent.used = static_cast<std::uint32_t>(used_bytes_ / greeting_bytes);
    if (used_bytes_ > most_flagged_bytes + FlaggedMemory::first_byte(context_.plan.world()))
      throw Unsupported(
          fmt::format("CUDA: a delivery may receive {} bytes; at most {}", used_bytes_, most_flagged_bytes));
    if (product_ == nullptr && hole_end_bytes_ <= used_bytes_) {
      args_.extent.hole = static_cast<std::uint32_t>(hole_bytes_ / greeting_bytes);
      args_.extent.hole_end = static_cast<std::uint32_t>(hole_end_bytes_ / greeting_bytes);
    }
    return args_;
  }
  const ProductSends& product_sends() const { return product_sends_; }

 private:
  void require(bool holds, const char* what) const {
    if (!holds)
      throw Unsupported(fmt::format("CUDA: steps {} to {} of lane {}: a delivery {}", context_.launch.first,
                                    context_.launch.last - 1, context_.launch.stream, what));
  }
  const Buffer& buffer(const Slice& slice) const {
    return context_.plan.buffers[static_cast<std::size_t>(slice.buffer)];
  }
  /// The rows of a placement, in order and whole.
  DeliveredRows rows(const Placement& at, std::int64_t count) const {
    const auto* const form = std::get_if<placement::Matrix>(&at.form);
    require(form != nullptr && form->rows == RowMap::identity(count) && at.slice.col == 0 &&
                at.slice.cols == buffer(at.slice).cols,
            "moves whole rows in order");
    return rows(at.slice);
  }
  DeliveredRows rows(const Slice& slice) const {
    if (buffer(slice).flagged) return {reinterpret_cast<char*>(offset(slice)), 0, true, 0};
    const Address address = context_.memory.at(slice, context_.parity);
    return {address.at, address.matrix, false, 0};
  }
  /// A delivery takes a copy of the flagged memory for itself, so the buffer of each begins at the same
  /// place.
  std::int64_t offset(const Slice& slice) const {
    return FlaggedMemory::first_byte(context_.plan.world()) +
           slice.row * context_.memory.row_bytes(slice.buffer);
  }

  void send(const Elementwise& pass) {
    require(args_.sent < most_deliveries, "has at most 16 sends");
    require(pass.from.size() == 1 && pass.epilogue == Epilogue{} && !pass.norm.enabled,
            "sends rows as they are");
    SentRows sent;
    sent.from = rows(pass.from.front(), pass.grid.rows);
    sent.to = offset(pass.to.slice);
    (void)rows(pass.to, pass.grid.rows);
    require(pass.to.slice.row == hole_row_ || hole_row_ < 0, "sends from one slot");
    hole_row_ = pass.to.slice.row;
    // Other ranks have the same slots, and store nothing into this rank's own.
    hole_bytes_ = sent.to;
    hole_end_bytes_ = sent.to + pass.grid.rows * context_.memory.row_bytes(pass.to.slice.buffer);
    sent.rows = static_cast<std::int32_t>(pass.grid.rows);
    for (const std::int32_t rank : ranks_of(pass.to, context_.plan.world())) {
      require(rank != context_.rank, "sends to other ranks");
      sent.ranks |= 1u << rank;
    }
    note_used(pass.to.slice);
    if (product_ != nullptr)
      send_product(pass.from.front().slice.row, sent.rows, sent.ranks);
    else
      args_.sends[args_.sent++] = sent;
  }

  /// Rows of the product's buffer that its kernel stores into this rank's slot on some ranks.
  void send_product(std::int64_t row, std::int32_t count, std::uint32_t ranks) {
    require(product_sends_.count <= most_deliveries, "has at most 17 sends of a product");
    require(hole_row_ >= 0, "sends before it takes");
    const auto first = static_cast<std::int32_t>(row - runs_of(*product_).front().to);
    product_sends_.sends[product_sends_.count++] = {hole_bytes_, first, count, ranks};
  }

  void take(const Elementwise& pass) {
    require(args_.taken < most_deliveries, "has at most 16 passes");
    require(pass.epilogue.activation != Activation::swiglu, "does not join columns");
    TakenRows& taken = args_.takes[args_.taken++];
    taken.first = sources_, taken.count = static_cast<std::int32_t>(pass.from.size());
    taken.rows = static_cast<std::int32_t>(pass.grid.rows);
    require(sources_ + taken.count <= most_deliveries, "reads at most 16 sources");
    for (const Placement& from : pass.from) {
      DeliveredRows& source = args_.sources[sources_++] = rows(from, pass.grid.rows);
      if (product_ != nullptr && from.slice.buffer == product_->out.slice.buffer) {
        send_product(from.slice.row, taken.rows, 1u << context_.rank);
        source = {reinterpret_cast<char*>(hole_bytes_), 0, true, static_cast<std::uint8_t>(context_.rank)};
        continue;
      }
      if (!source.flagged) continue;
      require(from.slice.rank == context_.rank, "reads what arrives here");
      source.source = static_cast<std::uint8_t>(sender(from.slice));
      require(source.source != context_.rank, "reads slots of other ranks");
      note_used(from.slice);
    }
    taken.to = rows(pass.to, pass.grid.rows);
    const bool first = args_.taken == 1;
    const DeliveredRows bias = pass.epilogue.bias ? rows(pass.bias) : DeliveredRows{};
    const DeliveredRows weight = pass.norm.enabled ? rows(pass.norm_weight) : DeliveredRows{};
    const Activate activation = activate(pass.epilogue.activation);
    require(first || (args_.activate == activation && args_.norm == pass.norm.enabled &&
                      args_.has_residual == pass.norm.residual && args_.bias.at == bias.at),
            "finishes all rows alike");
    args_.activate = activation;
    args_.bias = bias;
    args_.norm = pass.norm.enabled;
    args_.epsilon = pass.norm.epsilon;
    args_.norm_weight = weight;
    args_.has_residual = pass.norm.residual;
    if (!pass.norm.residual) return;
    taken.residual = rows(pass.residual, pass.grid.rows);
    taken.sum = rows(pass.sum, pass.grid.rows);
  }

  /// The rank whose rows arrive in a slice.
  int sender(const Slice& slice) const {
    const auto sends = [&](const Step& step) {
      const auto* const pass = std::get_if<Elementwise>(&step);
      if (pass == nullptr || pass->to.slice.buffer != slice.buffer || pass->to.slice.row != slice.row)
        return false;
      const auto to = ranks_of(pass->to, context_.plan.world());
      return std::ranges::find(to, context_.rank) != to.end();
    };
    for (std::size_t rank = 0; rank < context_.plan.ranks.size(); ++rank)
      for (const Lane& lane : context_.plan.ranks[rank].lanes)
        if (std::ranges::any_of(lane.steps, sends)) return static_cast<int>(rank);
    return context_.rank;
  }

  /// All that any rank may store of the buffer, which other ranks store at the same places.
  void note_used(const Slice& slice) {
    require(flagged_ < 0 || flagged_ == slice.buffer, "uses one flagged buffer");
    flagged_ = slice.buffer;
    const Buffer& flagged = buffer(slice);
    used_bytes_ = std::max(used_bytes_, offset({slice.buffer, slice.rank, 0, 0, 0, 0}) +
                                            flagged.bytes(context_.rank) / flagged.depth);
  }

  const Context& context_;
  const Gemm* product_;
  ProductSends product_sends_{};
  DeliveryArgs args_{};
  std::int32_t sources_ = 0;
  std::int32_t flagged_ = -1;  // the buffer
  std::int64_t used_bytes_ = 0, hole_bytes_ = 0, hole_end_bytes_ = 0, hole_row_ = -1;
};

/// The steps of the launch's lane.
const std::vector<Step>& steps_of(const Context& context) {
  const RankPlan& rank = context.plan.ranks[static_cast<std::size_t>(context.rank)];
  return rank.lanes[static_cast<std::size_t>(context.launch.stream)].steps;
}

}  // namespace

ProductSends product_sends(const Context& context, const Gemm& step) {
  Maker maker(context, &step);
  const std::vector<Step>& steps = steps_of(context);
  for (std::int32_t i = context.launch.last; i < context.launch.sends_until; ++i)
    if (const auto* const pass = std::get_if<Elementwise>(&steps[static_cast<std::size_t>(i)]))
      maker.add(*pass);
  return maker.product_sends();
}

std::unique_ptr<Command> make_delivery(const Context& context, const std::vector<Step>& steps) {
  const Gemm* product = nullptr;
  if (context.launch.sent_by >= 0) {
    product = &std::get<Gemm>(steps_of(context)[static_cast<std::size_t>(context.launch.sent_by)]);
    if (!sends_product(context, *product)) product = nullptr;
  }
  Maker maker(context, product);
  for (const Step& step : steps)
    if (const auto* const pass = std::get_if<Elementwise>(&step)) maker.add(*pass);
  return std::make_unique<Deliver>(maker.finish());
}

}  // namespace shingle::cuda
