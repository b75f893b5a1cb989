// Tuning results on disk: one file per machine and Shingle version.
#pragma once

#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "shingle/machine/machine.hpp"
#include "shingle/planner/params.hpp"

namespace shingle {

inline constexpr int tune_cache_version = 2;

/// The params found for a problem and their mechanism.
struct TuneEntry {
  Problem problem;  ///< without its routing: all routings of the same sizes share an entry
  Params params{};
  double predicted_us = 0;  ///< 0: not predicted
  double measured_us = 0;   ///< 0: not measured

  bool operator==(const TuneEntry&) const = default;
};

/// 16 hexadecimal digits. Machines with equal figures have the same fingerprint, whatever the figures'
/// sources.
std::string fingerprint(const Machine& machine);

/// $XDG_CACHE_HOME/shingle, or ~/.cache/shingle. Throws IoError if neither XDG_CACHE_HOME nor HOME is an
/// absolute path.
std::string default_cache_directory();

/// Reason why entries cannot be kept in a folder, or empty. Creates the folder if it is missing. Ask before
/// measuring anything to keep.
std::string why_not_kept(const std::string& directory);

/// Entries of one machine. Any number of threads and processes may use a file at once. A store locks the
/// file, merges what others have stored, and replaces the file atomically. No entry is lost, and nobody reads
/// half a file. A file of another version counts as absent. A file that cannot be read or parsed does too,
/// after a warning. The next store replaces either.
class TuneCache {
 public:
  /// Takes one line without a newline.
  using Warn = std::function<void(const std::string&)>;

  /// Reads the file if it exists; creates nothing. Without `warn`, warnings go to stderr.
  explicit TuneCache(const Machine& machine, const std::string& directory = default_cache_directory(),
                     Warn warn = {});

  const std::string& path() const { return path_; }

  /// Entry of exactly this problem, apart from its routing. State as of construction or this object's last
  /// store.
  std::optional<TuneEntry> find(const Problem& problem, Mechanism mechanism) const;
  /// All entries, to look for a neighbour (tune/reuse.hpp).
  std::vector<TuneEntry> entries() const;

  /// Adds an entry, or replaces the entry of the same problem and mechanism. Throws IoError if the file
  /// cannot be written, or if another process keeps it locked for ten seconds. Throws InvalidArgument if a
  /// time is negative or not finite.
  void store(TuneEntry entry);

  /// Passes a line to the warning callback.
  void warn(const std::string& line) const { warn_(line); }

 private:
  using Entries = std::map<std::string, TuneEntry>;  // by key

  Entries load() const;

  std::string fingerprint_;
  std::string path_;
  Warn warn_;
  mutable std::mutex mutex_;  // guards entries_
  Entries entries_;
};

}  // namespace shingle
