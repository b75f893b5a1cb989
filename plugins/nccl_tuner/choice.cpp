#include "choice.hpp"

#include <algorithm>

#include "abi.hpp"

namespace shingle::nccl_tuner {
namespace {

std::int8_t number(Algorithm algorithm) {
  switch (algorithm) {
    case Algorithm::tree:
      return abi::tree;
    case Algorithm::ring:
      return abi::ring;
    case Algorithm::pat:
      return abi::pat;
    case Algorithm::automatic:
      break;
  }
  return -1;
}

std::int8_t number(Protocol protocol) {
  switch (protocol) {
    case Protocol::ll:
      return abi::ll;
    case Protocol::ll128:
      return abi::ll128;
    case Protocol::simple:
      return abi::simple;
    case Protocol::automatic:
      break;
  }
  return -1;
}

/// With CollNet, NCCL does not cap channels to those of the communicator.
bool may_take_collnet(const CostTable& table) {
  for (const int algorithm : {abi::collnet_direct, abi::collnet_chain})
    for (int protocol = 0; algorithm < table.algorithms && protocol < table.protocols; ++protocol)
      if (table.costs[algorithm * table.protocols + protocol] >= 0) return true;
  return false;
}

}  // namespace

Choice choice_of(const CollectiveConfig& config) {
  Choice choice{
      number(config.algorithm), number(config.protocol),
      static_cast<std::uint8_t>(std::clamp(config.channels, 0, abi::most_channels)),
      static_cast<std::uint32_t>(std::clamp<std::int64_t>(config.chunk_bytes, 0, most_chunk_bytes))};
  if (choice.algorithm < 0 || choice.protocol < 0) choice.algorithm = choice.protocol = -1;
  return choice;
}

bool valid(CallKind kind) {
  return kind.collective < nccl_collectives && kind.size_class < size_classes;
}

bool valid(const Choice& choice) {
  const bool own = choice.algorithm >= 0 && choice.algorithm < abi::algorithms && choice.protocol >= 0 &&
                   choice.protocol < abi::protocols;
  const bool nccls = choice.algorithm == -1 && choice.protocol == -1;
  const bool chunk = choice.chunk_bytes == 0 ||
                     (choice.chunk_bytes >= least_chunk_bytes && choice.chunk_bytes <= most_chunk_bytes);
  return (own || nccls) && chunk && choice.channels <= abi::most_channels;
}

bool available(const Choice& choice, const CostTable& table) {
  if (choice.algorithm < 0) return choice.channels == 0 || !may_take_collnet(table);
  const float* cost = table.find(choice);
  return cost != nullptr && *cost >= 0;
}

bool apply(const Choice& choice, const CostTable& table, int* channels) {
  if (!available(choice, table)) return false;
  if (choice.algorithm >= 0) *table.find(choice) = abi::chosen;
  if (choice.channels > 0) *channels = choice.channels;
  return true;
}

}  // namespace shingle::nccl_tuner
