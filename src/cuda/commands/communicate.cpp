// Steps that move data between ranks, or within a rank, by NCCL, copies or memsets.
#include <fmt/format.h>

#include <algorithm>

#include "command.hpp"
#include "cuda/nccl/api.hpp"
#include "cuda/nccl/communicators.hpp"
#include "cuda/nccl/group.hpp"
#include "cuda/nccl/tuner_settings.hpp"
#include "cuda/raii/check.hpp"
#include "cuda/raii/memory.hpp"
#include "cuda/runtime/world.hpp"
#include "shingle/base/error.hpp"

namespace shingle::cuda {
namespace {

ncclDataType_t nccl_type(DType type) {
  switch (type) {
    case DType::f32:
      return ncclFloat32;
    case DType::bf16:
      return ncclBfloat16;
    case DType::f16:
      return ncclFloat16;
    case DType::i32:
      break;
  }
  return ncclInt32;
}

/// A contiguous slice, as NCCL needs it.
struct Span1d {
  Address data{};
  std::size_t count = 0;  ///< elements
};

Span1d contiguous(const Context& context, const Slice& slice) {
  if (slice.rows == 0) return {};
  return {context.memory.at(slice, context.parity), static_cast<std::size_t>(slice.rows * slice.cols)};
}

DType dtype_of(const Context& context, const Slice& slice) {
  return context.plan.buffers[static_cast<std::size_t>(slice.buffer)].dtype;
}

template <class Step>
ncclComm_t communicator(const Context& context, const Step& step) {
  return context.world.communicator(comm_key(context.plan, step)).of(context.rank);
}

/// Held by an operation of a communicator. The watcher does not abort the communicator meanwhile, as NCCL
/// would free what the operation uses. Throws if the world has failed: the communicator may be aborted
/// already.
class Operation {
 public:
  explicit Operation(CudaWorld& world) : hold_(world.watcher()) { world.health().require(); }

 private:
  const Watcher::Hold hold_;
};

class NcclCollective final : public Command {
 public:
  NcclCollective(const Context& context, const Collective& step)
      : world_(context.world),
        kind_(step.kind),
        comm_(communicator(context, step)),
        send_(contiguous(context, step.send)),
        recv_(contiguous(context, step.recv)),
        type_(nccl_type(dtype_of(context, step.send))) {}

  void enqueue(cudaStream_t stream, const Shifts& shifts) override {
    const Operation operation(world_);
    void *const send = send_.data.in(shifts), *const recv = recv_.data.in(shifts);
    switch (kind_) {
      case CollectiveKind::allreduce:
        return check(nccl().ncclAllReduce(send, recv, send_.count, type_, ncclSum, comm_, stream),
                     "ncclAllReduce");
      case CollectiveKind::reducescatter:
        return check(nccl().ncclReduceScatter(send, recv, recv_.count, type_, ncclSum, comm_, stream),
                     "ncclReduceScatter");
      default:
        return check(nccl().ncclAllGather(send, recv, send_.count, type_, comm_, stream), "ncclAllGather");
    }
  }

 private:
  CudaWorld& world_;
  CollectiveKind kind_;
  ncclComm_t comm_;
  Span1d send_, recv_;
  ncclDataType_t type_;
};

/// Point-to-point messages in one NCCL group: an exchange, or an all-to-all with counts.
class NcclMessages final : public Command {
 public:
  struct Message {
    int peer = 0;  ///< rank in the communicator
    Span1d at;
  };
  NcclMessages(CudaWorld& world, ncclComm_t comm, DType type, std::vector<Message> sends,
               std::vector<Message> receives)
      : world_(world),
        comm_(comm),
        type_(nccl_type(type)),
        sends_(std::move(sends)),
        receives_(std::move(receives)) {}

  void enqueue(cudaStream_t stream, const Shifts& shifts) override {
    const Operation operation(world_);
    in_group([&] {
      for (const Message& m : sends_)
        check(nccl().ncclSend(m.at.data.in(shifts), m.at.count, type_, m.peer, comm_, stream), "ncclSend");
      for (const Message& m : receives_)
        check(nccl().ncclRecv(m.at.data.in(shifts), m.at.count, type_, m.peer, comm_, stream), "ncclRecv");
    });
  }

 private:
  CudaWorld& world_;
  ncclComm_t comm_;
  ncclDataType_t type_;
  std::vector<Message> sends_, receives_;
};

std::vector<NcclMessages::Message> parts(const Context& context, Slice slice,
                                         const std::vector<std::int64_t>& rows) {
  std::vector<NcclMessages::Message> messages;
  for (std::size_t peer = 0; peer < rows.size(); ++peer) {
    slice.rows = rows[peer];
    if (slice.rows > 0) messages.push_back({static_cast<int>(peer), contiguous(context, slice)});
    slice.row += rows[peer];
  }
  return messages;
}

class Set final : public Command {
 public:
  Set(Address to, std::int64_t pitch, std::int64_t width, std::int64_t rows)
      : to_(to), pitch_(pitch), width_(width), rows_(rows) {}
  void enqueue(cudaStream_t stream, const Shifts& shifts) override {
    check(cudaMemset2DAsync(to_.in(shifts), static_cast<std::size_t>(pitch_), 0,
                            static_cast<std::size_t>(width_), static_cast<std::size_t>(rows_), stream),
          "cudaMemset2DAsync");
  }

 private:
  Address to_;
  std::int64_t pitch_, width_, rows_;
};

/// Copies in stream order. A copy engine does copies between two devices; SMs do copies within a device. A
/// call may have bound source and target to the same memory, which needs no copy.
class CopyRows final : public Command {
 public:
  struct Part {
    Address to, from;
    std::size_t to_pitch = 0, from_pitch = 0;
    std::size_t width = 0, rows = 0;  ///< bytes of a row, and number of rows
  };
  explicit CopyRows(std::vector<Part> parts) : parts_(std::move(parts)) {}
  void enqueue(cudaStream_t stream, const Shifts& shifts) override {
    for (const Part& part : parts_) {
      void *const to = part.to.in(shifts), *const from = part.from.in(shifts);
      if (to == from && part.to_pitch == part.from_pitch) continue;
      if (part.width == part.to_pitch && part.width == part.from_pitch)
        check(cudaMemcpyAsync(to, from, part.width * part.rows, cudaMemcpyDefault, stream),
              "cudaMemcpyAsync");
      else
        check(cudaMemcpy2DAsync(to, part.to_pitch, from, part.from_pitch, part.width, part.rows,
                                cudaMemcpyDefault, stream),
              "cudaMemcpy2DAsync");
    }
  }

 private:
  std::vector<Part> parts_;
};

CopyRows::Part part_of(const Context& context, const Slice& from, const Slice& to) {
  const auto pitch = [&](const Slice& slice) {
    return static_cast<std::size_t>(context.memory.row_bytes(slice.buffer));
  };
  return {context.memory.at(to, context.parity),
          context.memory.at(from, context.parity),
          pitch(to),
          pitch(from),
          static_cast<std::size_t>(to.cols) * size_bytes(dtype_of(context, to)),
          static_cast<std::size_t>(to.rows)};
}

}  // namespace

CommKey comm_key(const Plan& plan, const Collective& step) {
  const auto& ranks = plan.communicators[static_cast<std::size_t>(step.communicator)].ranks;
  // NCCL asks no tuner about an all-to-all, which is sends and receives.
  return {ranks, step.resources.most, step.communicator,
          step.kind == CollectiveKind::alltoall ? CollectiveConfig{} : tuner_settings(step.config)};
}

CommKey comm_key(const Plan& plan, const Exchange& step) {
  return {plan.communicators[static_cast<std::size_t>(step.communicator)].ranks, step.resources.most,
          step.communicator};
}

std::unique_ptr<Command> make_command(const Context& context, const Collective& step) {
  if (step.kind != CollectiveKind::alltoall) return std::make_unique<NcclCollective>(context, step);
  return std::make_unique<NcclMessages>(
      context.world, communicator(context, step), dtype_of(context, step.send),
      parts(context, step.send, step.send_rows), parts(context, step.recv, step.recv_rows));
}

void require_served(const Plan& plan, const Exchange& step) {
  for (const auto* list : {&step.sends, &step.receives})
    for (const Exchange::Message& message : *list) {
      const Slice& at = message.slice;
      const Buffer& buffer = plan.buffers[static_cast<std::size_t>(at.buffer)];
      if (at.rows > 1 && at.cols != buffer.cols)
        throw Unsupported(fmt::format("NCCL sends whole rows; the message has {} of the {} columns of '{}'",
                                      at.cols, buffer.cols, buffer.name));
    }
}

std::unique_ptr<Command> make_command(const Context& context, const Exchange& step) {
  const auto& ranks = context.plan.communicators[static_cast<std::size_t>(step.communicator)].ranks;
  const auto messages = [&](const std::vector<Exchange::Message>& list) {
    std::vector<NcclMessages::Message> made;
    for (const Exchange::Message& message : list) {
      const auto peer = std::find(ranks.begin(), ranks.end(), message.peer) - ranks.begin();
      if (message.slice.rows > 0)
        made.push_back({static_cast<int>(peer), contiguous(context, message.slice)});
    }
    return made;
  };
  const auto& any = step.sends.empty() ? step.receives : step.sends;
  if (any.empty()) return nullptr;
  return std::make_unique<NcclMessages>(context.world, communicator(context, step),
                                        dtype_of(context, any.front().slice), messages(step.sends),
                                        messages(step.receives));
}

std::unique_ptr<Command> make_command(const Context& context, const Copy& step) {
  if (step.to.rows == 0 || step.to.cols == 0) return nullptr;
  const CopyRows::Part part = part_of(context, step.from, step.to);
  // both are bound to the same memory
  if (part.to == part.from && part.to_pitch == part.from_pitch) return nullptr;
  if (step.from.rank != context.rank) return make_fetch(context, step.from, step.to);
  return std::make_unique<CopyRows>(std::vector{part});
}

std::unique_ptr<Command> make_command(const Context& context, const Broadcast& step) {
  if (step.from.rows == 0 || step.from.cols == 0) return nullptr;
  return std::make_unique<CopyRows>(
      std::vector{part_of(context, step.from, step.to[0]), part_of(context, step.from, step.to[1])});
}

std::unique_ptr<Command> make_command(const Context& context, const Swap& step) {
  if (step.a.rows == 0 || step.a.cols == 0) return nullptr;
  const bool own_a = step.a.rank == context.rank;
  const Slice &own = own_a ? step.a : step.b, &theirs = own_a ? step.b : step.a;
  const CopyRows::Part there = part_of(context, own, theirs);
  const Address held{context.table_memory.reserve(there.width * there.rows)};
  const CopyRows::Part keep{held, there.from, there.width, there.from_pitch, there.width, there.rows},
      send{there.to, held, there.to_pitch, there.width, there.width, there.rows};
  std::vector<std::unique_ptr<Command>> parts;
  parts.push_back(std::make_unique<CopyRows>(std::vector{keep}));
  parts.push_back(make_fetch(context, theirs, own));
  parts.push_back(std::make_unique<CopyRows>(std::vector{send}));
  return std::make_unique<Sequence>(std::move(parts));
}

std::unique_ptr<Command> make_command(const Context& context, const Fill& step) {
  const Slice& to = step.slice;
  if (to.rows == 0 || to.cols == 0) return nullptr;
  return std::make_unique<Set>(context.memory.at(to, context.parity), context.memory.row_bytes(to.buffer),
                               to.cols * static_cast<std::int64_t>(size_bytes(dtype_of(context, to))),
                               to.rows);
}

}  // namespace shingle::cuda
