// Chunk sizes of the calls of one NCCL group, for version 6 of NCCL's interface.
//
// NCCL names the collective of a chunk, but not the call (abi.hpp). The chunk is that of the group's calls of
// this collective. If their choices differ, NCCL's own chunk size stays. All ranks of a communicator ask in
// the same order, so they get the same answers.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "abi.hpp"
#include "choice.hpp"

namespace shingle::nccl_tuner {

class GroupChunks {
 public:
  /// Takes a call and the choice that NCCL was given for it; {}: none.
  void on_call(std::uint8_t collective, const Choice& choice) {
    if (asked_) *this = {};  // the first call of another group
    if (collective >= nccl_collectives) return;
    Known& known = known_[collective];
    if (known.seen && known.choice != choice) known.choice.chunk_bytes = 0;
    if (!known.seen) known = {true, choice};
  }

  /// The chunk size of a part of such a call in bytes; 0: NCCL's own.
  std::uint32_t of(int collective, int algorithm, int protocol) {
    asked_ = true;
    if (collective < 0 || collective >= nccl_collectives) return 0;
    const Choice& choice = known_[static_cast<std::size_t>(collective)].choice;
    const bool chosen = choice.algorithm < 0
                            ? algorithm == abi::ring || algorithm == abi::tree || algorithm == abi::pat
                            : choice.algorithm == algorithm && choice.protocol == protocol;
    return chosen && choice.chunk_bytes > 0 ? std::max(choice.chunk_bytes, abi::chunk_grain) : 0;
  }

 private:
  struct Known {
    bool seen = false;
    Choice choice;
  };
  std::array<Known, nccl_collectives> known_{};
  bool asked_ = false;
};

}  // namespace shingle::nccl_tuner
