// Transfers by copy engines: the commands of a collective, their engines, and the signals between ranks (DMA
// collectives §4; docs/mechanisms/copy-engine.md).
#pragma once

#include <functional>
#include <vector>

#include "planner/common/handshake.hpp"

namespace shingle::planner {

class CopyEngineBuilder : public ParamBuilder<CopyEngineParams> {
 public:
  using ParamBuilder::ParamBuilder;
  /// The lane of a rank's engine, submitted as the params say. Commands of an operator that are not
  /// prelaunched are created in the epoch, as the paper measures.
  std::int32_t engine(int rank, std::size_t number) {
    const auto launcher = static_cast<std::int32_t>(std::int64_t{rank} * params().launchers / world());
    return Builder::engine(rank, number,
                           {.launcher = launcher,
                            .prelaunched = params().prelaunch,
                            .timed = !params().prelaunch && !of_workload()});
  }
  /// Copies within a rank, on the compute lane.
  void copy_rows(int rank, const Slice& from, const Slice& to) {
    if (from.rows > 0) step(rank, compute_lane, Copy{from, to});
  }
  /// A GEMM before engines. If its tiles trigger the engines, it uses the tile of the params, else of the
  /// machine. Otherwise it is a call of cuBLASLt or oneDNN. On GPUs with many workers it leaves one for the
  /// waiting kernels beside it.
  Gemm triggering(Gemm gemm) const;
};

/// The data that a collective moves from each rank to each other.
struct Parcels {
  /// Rows of `source` for `dest`: source slice and target slice. Empty slices move nothing.
  std::function<Slice(int source, int dest)> from, to;
  bool same_for_all = false;  ///< true if all destinations get the same data, so that one read can serve two
};

/// One command of a rank's engine, and the other ranks that it writes to.
struct Command {
  Step step;
  std::vector<int> peers;
};

/// Commands of a rank in step with all others. The i-th goes to the i-th next rank, so that no receiver gets
/// two at the same time. `variant` is pcpy, b2b, bcst or swap.
std::vector<Command> commands_of(const Parcels& parcels, CopyVariant variant, int rank, int world);

/// The lanes of a transfer's steps on each rank.
struct TransferLanes {
  std::int32_t compute = compute_lane;  ///< makes the data, and waits for that of others
  std::size_t first_engine = 0;         ///< engines from this one on
  std::int32_t engines = 0;             ///< of each rank; 0: as the params say
};

/// The transfer of a collective's parcels, rank by rank. Call ready() when the rank's data is complete, then
/// arrived() where all data for it must have come. The rank may have other steps between the two.
class Transfer {
 public:
  using Use = std::function<void(int source)>;

  /// How the engines of a transfer start: by a trigger of its own, or behind an earlier transfer in the same
  /// engines, whose trigger also tells that the data of this one is complete. The latter needs direct
  /// triggers.
  enum class Start : std::uint8_t { by_trigger, behind };

  /// `handshake`: before a rank writes to others, these must have begun the epoch. Null if that is already
  /// known.
  Transfer(CopyEngineBuilder& build, const Parcels& parcels, CopyVariant variant, const Handshake* handshake,
           Start start = Start::by_trigger, const TransferLanes& lanes = {});

  /// True if any rank moves any data.
  bool any() const { return any_; }

  /// For the last tiled step before ready(): if engines are triggered directly, its tiles trigger them.
  void hook(const TileGrid& grid, std::vector<TileNotify>& notify, int rank);
  /// The compute lane has made the rank's data; engines may start, after these counts.
  void ready(CopyEngineBuilder& build, int rank, const std::vector<CounterRef>& after = {});
  /// The compute lane waits until all data has come. `use`, if given, is called for each other rank, to
  /// append steps that need only the data of this rank.
  void arrived(CopyEngineBuilder& build, int rank, const Use& use = {}) const {
    arrived(build, rank, lanes_.compute, use);
  }
  /// As above, for any lane.
  void arrived(CopyEngineBuilder& build, int rank, std::int32_t lane, const Use& use = {}) const;

 private:
  /// The commands of one engine, and the ranks to notify when it is done.
  struct Engine {
    std::vector<Command> commands;
    std::vector<int> told;
  };

  /// True for a ring that passes the same data on from rank to rank. Other data goes in step instead.
  bool passes_on() const { return variant_ == CopyVariant::ring && parcels_.same_for_all; }
  /// Awaits the `begun` signals of an engine's peers; in place: their data.
  void await_peers(CopyEngineBuilder& build, int rank, std::int32_t lane,
                   const std::vector<int>& peers) const;
  /// Signals the ranks that exchange with this one, once they have begun, that its data is complete.
  void tell_made(CopyEngineBuilder& build, int rank, std::int32_t lane) const;
  void deal(int rank, int world, std::int32_t wanted);
  void trigger_by_host(CopyEngineBuilder& build, int rank) const;
  std::int32_t begin_batch(CopyEngineBuilder& build, int rank, std::size_t e) const;
  void run_engine(CopyEngineBuilder& build, int rank, std::size_t e) const;
  void run_ring(CopyEngineBuilder& build, int rank) const;
  void await_all(CopyEngineBuilder& build, int rank, std::int32_t lane) const;
  bool awaits_turn(int rank, int i, int world) const;
  std::vector<int> met_first(int rank, int world) const;
  void run_in_step(CopyEngineBuilder& build, int rank) const;
  void end_by_host(CopyEngineBuilder& build, int rank) const;

  Parcels parcels_;
  CopyVariant variant_;
  PollScope poll_;
  EngineTrigger trigger_;
  const Handshake* handshake_;
  TransferLanes lanes_;
  std::vector<CounterRef> after_;  // of the rank that is ready
  bool any_ = false, hooked_ = false;
  std::size_t most_engines_ = 0;
  std::vector<std::vector<Engine>> engines_;  // by rank
  std::vector<std::uint32_t> started_;        // by rank: target of the trigger
  std::vector<std::vector<std::int64_t>>
      awaited_;  // by rank: entries of `sent_` that together mean that all has come
  std::int32_t computed_ = -1, trigger_count_ = -1, ready_ = -1, done_ = -1, sent_ = -1, come_ = -1,
               made_ = -1, in_step_ = -1;
};

}  // namespace shingle::planner
