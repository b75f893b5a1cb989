#include "tuner.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <filesystem>
#include <mutex>
#include <utility>

#include "base/file.hpp"
#include "cupti.hpp"
#include "segment.hpp"
#include "shingle/base/error.hpp"
#include "shingle/base/units.hpp"
#include "star.hpp"
#include "tune/file_lock.hpp"

namespace shingle::nccl_tuner {
namespace {

/// Zero-based index of the communicator in this process. Ranks of one communicator in one process share an
/// index.
std::uint64_t ordinal_of(std::uint64_t communicator_id) {
  static std::mutex mutex;
  static std::vector<std::uint64_t> seen;
  const std::lock_guard guard(mutex);
  const auto found = std::ranges::find(seen, communicator_id);
  if (found != seen.end()) return static_cast<std::uint64_t>(found - seen.begin());
  seen.push_back(communicator_id);
  return seen.size() - 1;
}

/// FNV-1a of what a rank does with the table; 0 means no table. Only some interfaces serve chunk sizes.
std::uint64_t hash_of(const TunedTable& table, int interface) {
  if (table.entries.empty()) return 0;
  std::uint64_t hash = 0xcbf29ce484222325u + static_cast<std::uint64_t>(interface);
  for (const char c : to_json(table)) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return std::max<std::uint64_t>(hash, 1);
}

}  // namespace

Tuner::Tuner(const Communicator& communicator, const Log& log) : communicator_(communicator), log_(log) {
  if (communicator_.ranks < 2) return;  // no communication
  try {
    settings_ = settings_from_environment();
    start();
  } catch (const std::exception& error) {
    choices_ = {};
    online_.reset();
    log_.warn(fmt::format("{}; NCCL's own choice applies", error.what()));
  }
}

Tuner::~Tuner() {
  try {
    if (online_ && online_->learner) online_->learner->finish();
  } catch (const std::exception& error) {
    log_.warn(error.what());
  }
}

void Tuner::start() {
  const TunedTable table = read_table();
  if (!communicator_.id || (communicator_.nodes > 1 && !settings_.rendezvous)) {
    if (!settings_.learn.empty())
      log_.warn(communicator_.id
                    ? "does not tune a communicator of several hosts without SHINGLE_TUNER_RENDEZVOUS"
                    : "does not tune online with NCCL before 2.28");
    return take(table, false);
  }
  ordinal_ = ordinal_of(*communicator_.id);
  const auto interface = static_cast<std::uint64_t>(communicator_.interface);
  auto meeting =
      meet({hash_of(table, communicator_.interface), ordinal_, settings_.learn.empty() ? 0u : interface});
  if (!meeting->complete())
    throw Error(fmt::format("not all {} ranks of a communicator loaded this plugin within {}{}",
                            communicator_.ranks, format_us(static_cast<double>(settings_.deadline.count())),
                            meeting->trouble()));
  const std::uint32_t found = meeting->differences();
  if ((found & Difference::tables) != 0)
    throw Error("ranks of a communicator have different tables or versions of NCCL");
  take(table, (found & Difference::communicators) == 0);
  if ((found & Difference::modes) != 0)
    log_.warn(
        "does not tune online: SHINGLE_TUNER_LEARN is not set for all ranks, or they have different "
        "versions of NCCL");
  else if (!settings_.learn.empty())
    go_online(std::move(meeting));
}

std::unique_ptr<Meeting> Tuner::meet(const Credentials& credentials) {
  const auto ranks = static_cast<std::uint32_t>(communicator_.ranks);
  if (communicator_.nodes == 1)
    return std::make_unique<Segment>(*communicator_.id, ranks, credentials, settings_.deadline);
  return std::make_unique<Star>(*settings_.rendezvous, net::job_token(), *communicator_.id, ranks,
                                credentials, settings_.deadline);
}

/// Empty if the table cannot be read: ranks whose tables differ all use none.
TunedTable Tuner::read_table() {
  if (settings_.table.empty()) return {};
  try {
    return read_tuned_table(settings_.table);
  } catch (const Error& error) {
    log_.warn(fmt::format("{}; NCCL's own choice applies", error.what()));
    return {};
  }
}

/// Entries for this communicator override entries for any. They count only if all ranks have created their
/// communicators in the same order.
void Tuner::take(const TunedTable& table, bool with_communicators) {
  for (const bool own : {false, true}) {
    for (const TunedEntry& entry : table.entries) {
      const TunedKey& key = entry.key;
      if (std::cmp_not_equal(key.ranks, communicator_.ranks) ||
          std::cmp_not_equal(key.nodes, communicator_.nodes))
        continue;
      if (key.communicator.has_value() != own) continue;
      if (own && (!with_communicators || std::cmp_not_equal(*key.communicator, ordinal_))) continue;
      choices_.at({static_cast<std::uint8_t>(key.collective), static_cast<std::uint8_t>(key.size_class)}) =
          choice_of(entry.config);
      if (entry.config.chunk_bytes > 0 && !communicator_.asks_chunks())
        log_.inform("chunk sizes of the table need NCCL 2.30, or shingle tune --nccl-env");
    }
  }
}

/// Starts online tuning. On failure, ranks never agree on changes, and all keep their choices.
void Tuner::go_online(std::unique_ptr<Meeting> meeting) noexcept try {
  online_ = std::make_unique<Online>(std::move(meeting));
  if (!online_->meeting->leads()) return;
  const auto found = [this](const std::vector<Learnt>& learnt, const std::string& summary) {
    save(learnt, summary);
  };
  online_->learner.emplace(online_->meeting->agreement(), online_->calls, choices_, log_, found,
                           Learner::Options{.turn = settings_.turn,
                                            .limits = settings_.limits,
                                            .chunks = communicator_.asks_chunks(),
                                            .recorder = make_recorder()});
} catch (...) {
  online_.reset();
  log_.inform("out of memory: does not tune online");
}

/// Without CUPTI the search knows the time of an iteration alone.
std::unique_ptr<KernelRecorder> Tuner::make_recorder() {
  if (settings_.cupti.empty()) return nullptr;
  try {
    return make_cupti_recorder(settings_.cupti);
  } catch (const Error& error) {
    log_.warn(fmt::format("{}; computation and communication are not timed apart", error.what()));
    return nullptr;
  }
}

/// Errors never end the program: current choices stay, and learning ends.
void Tuner::on_call(const Call& call, const CostTable& table, int* channels) noexcept try {
  if (online_) agree(call, table);
  if (call.collective >= nccl_collectives) return;
  const Choice& choice = choices_.at(call.kind());
  const bool applied = choice.empty() || apply(choice, table, channels);
  chunks_.on_call(call.collective, applied ? choice : Choice{});
  if (!applied) refuse(call);
} catch (const std::exception& error) {
  stop(error.what());
} catch (...) {
  stop("an unknown exception");
}

void Tuner::agree(const Call& call, const CostTable& table) {
  Agreement& agreement = online_->meeting->agreement();
  online_->calls.push(call.signature());
  for (const Change& change : agreement.poll(online_->calls)) choices_.at(change.kind) = change.choice;
  if (online_->learner) learn(call, table);
  if (online_->troubled || agreement.trouble().empty()) return;
  online_->troubled = true;
  warn_of_end(agreement.trouble());
}

void Tuner::stop(std::string_view why) noexcept {
  online_.reset();
  warn_of_end(why);
}

void Tuner::warn_of_end(std::string_view why) noexcept try {
  log_.warn(fmt::format("stops tuning: {}; the configurations that the ranks last agreed on stay", why));
} catch (...) {
  log_.warn("stops tuning: out of memory");
}

/// On any error, the choices that the ranks have agreed on stay.
void Tuner::learn(const Call& call, const CostTable& table) noexcept try {
  online_->learner->on_call(call, table);
} catch (const std::exception& error) {
  online_->learner.reset();
  warn_of_end(error.what());
}

void Tuner::refuse(const Call& call) noexcept try {
  if (std::exchange(refused_[call.collective], true)) return;
  log_.warn(fmt::format("{} of {} cannot run as the table says; NCCL's own choice applies",
                        name(static_cast<NcclCollective>(call.collective)),
                        format_bytes(static_cast<double>(call.bytes))));
} catch (...) {  // out of memory: no message
}

/// Adds to results of other communicators and earlier programs. If there are none and no table exists, writes
/// an empty table that says why.
void Tuner::save(const std::vector<Learnt>& learnt, const std::string& summary) {
  try {
    const tuning::FileLock lock(settings_.learn + ".lock", std::chrono::seconds(1));
    const bool known = std::filesystem::exists(settings_.learn);
    if (known && learnt.empty()) return;
    TunedTable table;
    if (known) table = read_tuned_table(settings_.learn);
    table.why = learnt.empty() ? summary : "";
    for (const Learnt& found : learnt)
      store(table, {.key = {.collective = static_cast<NcclCollective>(found.kind.collective),
                            .size_class = found.kind.size_class,
                            .ranks = static_cast<int>(communicator_.ranks),
                            .nodes = static_cast<int>(communicator_.nodes)},
                    .config = found.config,
                    .iteration_us = found.iteration_us,
                    .default_us = found.default_us});
    write_file_atomically(settings_.learn, to_json(table));
  } catch (const std::exception& error) {
    log_.warn(fmt::format("SHINGLE_TUNER_LEARN: the learnt table is not written: {}", error.what()));
  }
}

}  // namespace shingle::nccl_tuner
