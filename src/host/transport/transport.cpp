#include "transport.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

namespace shingle::host {

double wire_bytes(const Collective& step, int index, int ranks, const View& send, const View& recv) {
  const double others = ranks - 1, all = ranks;
  switch (step.kind) {
    case CollectiveKind::allreduce:
      return 2 * others / all * static_cast<double>(send.bytes());
    case CollectiveKind::reducescatter:
      return others / all * static_cast<double>(send.bytes());
    case CollectiveKind::allgather:
      return others / all * static_cast<double>(recv.bytes());
    case CollectiveKind::alltoall:
      break;
  }
  const auto self = static_cast<std::size_t>(index);
  const std::int64_t sent = send.rows - step.send_rows[self], received = recv.rows - step.recv_rows[self];
  return static_cast<double>(std::max(sent, received) * send.row_bytes());
}

std::string misfit(const Collective& step, int ranks, const View& send, const View& recv) {
  const auto total = [](const std::vector<std::int64_t>& rows) {
    return std::accumulate(rows.begin(), rows.end(), std::int64_t{0});
  };
  if (send.type != recv.type)
    return fmt::format("sends {} and receives {}", name(send.type), name(recv.type));
  if ((send.rows > 1 && send.ld != send.cols) || (recv.rows > 1 && recv.ld != recv.cols))
    return "slices must be whole rows of their buffers";
  const std::int64_t sends = send.rows * send.cols, receives = recv.rows * recv.cols;
  bool fits = true;
  switch (step.kind) {
    case CollectiveKind::allreduce:
      fits = sends == receives;
      break;
    case CollectiveKind::reducescatter:
      fits = sends == receives * ranks;
      break;
    case CollectiveKind::allgather:
      fits = sends * ranks == receives;
      break;
    case CollectiveKind::alltoall:
      if (step.send_rows.size() != static_cast<std::size_t>(ranks) ||
          step.recv_rows.size() != static_cast<std::size_t>(ranks))
        return fmt::format("has row counts for {} and {} ranks, the communicator has {}",
                           step.send_rows.size(), step.recv_rows.size(), ranks);
      fits = total(step.send_rows) == send.rows && total(step.recv_rows) == recv.rows &&
             (send.rows == 0 || recv.rows == 0 || send.cols == recv.cols);
  }
  if (fits) return {};
  return fmt::format("{}x{} elements to send do not fit {}x{} to receive among {} ranks", send.rows,
                     send.cols, recv.rows, recv.cols, ranks);
}

int index_in(const Communicator& communicator, int rank) {
  const auto at = std::ranges::find(communicator.ranks, rank);
  return at == communicator.ranks.end() ? -1 : static_cast<int>(at - communicator.ranks.begin());
}

}  // namespace shingle::host
