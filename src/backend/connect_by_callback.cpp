// Connects processes through an all-gather of the host program: rank 0 tells the others where it listens.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "base/file.hpp"
#include "net/rendezvous.hpp"
#include "shingle/base/error.hpp"
#include "star.hpp"

namespace shingle {
namespace {

constexpr std::size_t token_bytes = 32;

/// What each rank tells the others. All of one size.
struct Record {
  char boot_id[64] = {};  ///< identifies the running host
  char host[256] = {};
  std::int32_t size = 0;  ///< of the group
  std::int32_t port = 0;  ///< of rank 0
  char token[token_bytes] = {};
};

std::vector<Record> gather(const Bootstrap& bootstrap, const Record& own) {
  const std::string all = bootstrap.allgather({reinterpret_cast<const char*>(&own), sizeof own});
  const auto size = static_cast<std::size_t>(bootstrap.size);
  if (all.size() != size * sizeof own)
    throw InvalidArgument(fmt::format("allgather of {} bytes on {} ranks returned {} bytes; expected {}",
                                      sizeof own, size, all.size(), size * sizeof own));
  std::vector<Record> records(size);
  std::memcpy(records.data(), all.data(), all.size());
  const auto at = static_cast<std::size_t>(bootstrap.rank);
  if (std::memcmp(&records[at], &own, sizeof own) != 0)
    throw InvalidArgument(fmt::format("allgather: entry {} is not what rank {} gave", at, bootstrap.rank));
  for (const Record& record : records)
    if (record.size != bootstrap.size)
      throw InvalidArgument(fmt::format("allgather: rank {} is in a group of {} ranks, rank {} in one of {}",
                                        bootstrap.rank, bootstrap.size, &record - records.data(),
                                        record.size));
  return records;
}

}  // namespace

std::unique_ptr<Processes> connect(const Bootstrap& bootstrap, double timeout_us) {
  if (bootstrap.size < 1 || bootstrap.rank < 0 || bootstrap.rank >= bootstrap.size)
    throw InvalidArgument(fmt::format("rank {} of {} ranks is outside [0, {})", bootstrap.rank,
                                      bootstrap.size, bootstrap.size));
  if (bootstrap.size == 1) return alone();
  if (!bootstrap.allgather) throw InvalidArgument("allgather is null: processes need it to find each other");
  Record own;
  own.size = bootstrap.size;
  read_file("/proc/sys/kernel/random/boot_id", sizeof own.boot_id - 1)
      .copy(own.boot_id, sizeof own.boot_id - 1);
  if (::gethostname(own.host, sizeof own.host - 1) != 0) throw Error("the name of this host is unknown");
  std::vector<Record> all = gather(bootstrap, own);
  const bool one_host = std::ranges::all_of(
      all, [&](const Record& record) { return std::strcmp(record.boot_id, own.boot_id) == 0; });
  net::Address at{one_host ? "127.0.0.1" : all[0].host, 0};
  net::Socket listener;
  std::string why = "cannot listen: see its own message";
  if (bootstrap.rank == 0) {
    try {
      listener = net::listen_on(at);
      own.port = net::port_of(listener);
      net::random_bytes(token_bytes).copy(own.token, token_bytes);
    } catch (const std::exception& error) {  // the others wait in the second all-gather
      own.port = 0;
      why = error.what();
    }
  }
  all = gather(bootstrap, own);
  if (all[0].port == 0) throw Error(fmt::format("rank 0 {}", why), 0);
  at.port = all[0].port;
  const net::Token token{std::string(all[0].token, token_bytes), "allgather", true};
  return std::make_unique<Star>(bootstrap.rank, bootstrap.size, std::move(listener), at, timeout_us, token);
}

}  // namespace shingle
