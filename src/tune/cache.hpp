// What was tuned before, on disk: one file a machine and version of Shingle.
#pragma once

#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "shingle/machine/machine.hpp"
#include "shingle/plan/plan.hpp"

namespace shingle {

inline constexpr int tune_cache_version = 1;

/// The params that were found for a problem and a mechanism.
struct TuneEntry {
  Problem problem;  ///< without its routing: all routings of the same sizes share an entry
  Mechanism mechanism = Mechanism::signal;
  Params params{};
  double predicted_us = 0;  ///< 0: not predicted
  double measured_us = 0;   ///< 0: not measured

  bool operator==(const TuneEntry&) const = default;
};

/// 16 hexadecimal digits, the same for machines whose figures are the same, whatever their sources.
std::string fingerprint(const Machine& machine);

/// $XDG_CACHE_HOME/shingle, or ~/.cache/shingle. Throws IoError where neither XDG_CACHE_HOME nor HOME is an
/// absolute path.
std::string default_cache_directory();

/// The reason why nothing can be kept in a folder, which is made where it is missing; empty: it can. To be
/// asked before what is to be kept is measured.
std::string why_not_kept(const std::string& directory);

/// Entries of one machine. Any number of threads and processes may use a file at once: a store locks it,
/// takes in what others have stored, and replaces it as a whole, so none is lost and nobody reads half of
/// one. A file of another version is as good as none. So is one that cannot be read or understood, after a
/// warning; the next store replaces either.
class TuneCache {
 public:
  /// Takes one line without a newline.
  using Warn = std::function<void(const std::string&)>;

  /// Reads what is there; creates nothing. Without `warn`, warnings go to stderr.
  explicit TuneCache(const Machine& machine, const std::string& directory = default_cache_directory(),
                     Warn warn = {});

  const std::string& path() const { return path_; }

  /// Of this very problem but for its routing; as of the construction or this object's last store.
  std::optional<TuneEntry> find(const Problem& problem, Mechanism mechanism) const;
  /// All there are, to look for a neighbour (tune/reuse.hpp).
  std::vector<TuneEntry> entries() const;

  /// Adds an entry, or replaces the one of the same problem and mechanism. Throws IoError where the file
  /// cannot be written or another process keeps it locked for ten seconds, InvalidArgument where a time is
  /// negative or not finite.
  void store(TuneEntry entry);

  /// Hands a line to who takes warnings.
  void warn(const std::string& line) const { warn_(line); }

 private:
  using Entries = std::map<std::string, TuneEntry>;  // by key

  Entries load() const;

  std::string fingerprint_;
  std::string path_;
  Warn warn_;
  mutable std::mutex mutex_;  // of entries_
  Entries entries_;
};

}  // namespace shingle
