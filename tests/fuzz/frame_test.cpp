// Fuzz of what comes over the wire: whatever the bytes, they are taken for what they are or refused, with no
// more memory than they justify, and no state machine behind them ends up where it cannot be.
//
// SHINGLE_FUZZ_FRAMES=1000000 sets how many frames there are; without, as many as a test suite has time for.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>

#include "cuda/peer/exported.hpp"
#include "nccl_tuner/remote_proposals.hpp"
#include "net/rendezvous.hpp"
#include "net/wire.hpp"

namespace shingle {
namespace {

using nccl_tuner::Change;
using nccl_tuner::Message;
using net::Frame;
using net::Kind;

constexpr std::size_t most_bytes = 4096;
constexpr std::uint64_t signature = 7;

std::size_t frames_wanted() {
  constexpr std::size_t usual = 40'000;
  const char* set = std::getenv("SHINGLE_FUZZ_FRAMES");
  return set == nullptr ? usual : std::strtoull(set, nullptr, 10);
}

std::uint64_t hash_of_calls(std::uint64_t count) {
  nccl_tuner::CallHistory history;
  for (std::uint64_t i = 0; i < count; ++i) history.push(signature);
  return *history.hash(count - 1);
}

class FrameFuzz : public testing::Test {
 protected:
  std::size_t below(std::size_t bound) { return static_cast<std::size_t>(random_() % bound); }
  bool once_in(std::size_t times) { return below(times) == 0; }

  /// Of all frames there are to be, this test's share.
  static std::size_t share(std::size_t of_hundred) { return frames_wanted() * of_hundred / 100; }

  /// What a tuner's ranks say: the corpus of messages.
  std::string message(std::uint64_t number) {
    Message one{.kind = static_cast<Message::Kind>(below(5)), .number = number};
    if (one.kind == Message::Kind::propose) {
      one.seen_call = below(4);
      one.seen_hash = hashes_[one.seen_call];
      one.effective_call = one.seen_call + 1 + below(20);
      one.changes = static_cast<std::uint32_t>(below(nccl_tuner::most_changes + 1));
      for (std::uint32_t i = 0; i < one.changes; ++i)
        one.change[i] = {{static_cast<std::uint8_t>(below(5)), static_cast<std::uint8_t>(below(64))},
                         {static_cast<std::int8_t>(below(7)), static_cast<std::int8_t>(below(3)),
                          static_cast<std::uint8_t>(below(65))}};
    }
    return packed(one);
  }
  /// What processes say to each other: the corpus of payloads.
  std::string payload() {
    switch (below(6)) {
      case 0:
        return {};
      case 1: {
        std::vector<std::string> all(1 + below(5));
        for (std::string& one : all) one.assign(below(100), 'x');
        return net::packed(all);
      }
      case 2: {
        std::vector<cuda::Exported> all(below(4));
        for (cuda::Exported& one : all) one.any = below(2) == 0;
        return cuda::packed(all);
      }
      case 3:
        return net::Packer().number(static_cast<std::int32_t>(below(8))).number(std::int32_t{8}).take();
      case 4:
        return message(below(3));
      default:
        return std::string(below(600), static_cast<char>(random_()));
    }
  }
  static std::string frame(Kind kind, const std::string& payload) {
    return net::header_of(kind, payload.size()) + payload;
  }
  std::string any_frame() {
    return frame(static_cast<Kind>(below(static_cast<std::uint32_t>(net::last_kind) + 1)), payload());
  }

  std::string mutated(std::string bytes) {
    static constexpr std::uint64_t numbers[] = {0,
                                                1,
                                                7,
                                                255,
                                                std::uint64_t{1} << 30,
                                                std::uint64_t{1} << 32,
                                                std::uint64_t{1} << 63,
                                                ~std::uint64_t{0},
                                                ~std::uint64_t{7}};
    for (std::size_t i = below(4); i > 0 && !bytes.empty(); --i) {
      const std::size_t at = below(bytes.size());
      switch (below(6)) {
        case 0:
          bytes[at] = static_cast<char>(random_());
          break;
        case 1:
          bytes[at] = static_cast<char>(bytes[at] ^ 1 << below(8));
          break;
        case 2:
          bytes.erase(at, 1 + below(8));
          break;
        case 3:
          bytes.insert(at, bytes.substr(below(bytes.size()), below(16)));
          break;
        case 4: {
          const std::string number = net::Packer().number(numbers[below(std::size(numbers))]).take();
          bytes.replace(at, 8, number.substr(0, once_in(2) ? 8 : 4));
          break;
        }
        default:
          bytes.resize(at);
          break;
      }
    }
    return bytes;
  }
  void report(const char* what) const {
    std::printf("[%zu frames to %s; %zu were accepted]\n", fed_, what, accepted_);
    EXPECT_GT(accepted_, fed_ / 100) << "else the fuzz would only ever see the first check";
    EXPECT_LT(accepted_, fed_);
  }

  std::mt19937_64 random_{11};
  std::size_t fed_ = 0, accepted_ = 0;
  const std::uint64_t hashes_[4] = {hash_of_calls(1), hash_of_calls(2), hash_of_calls(3), hash_of_calls(4)};
};

std::pair<net::Connection, net::Connection> connected() {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends) != 0) std::abort();
  return {net::Connection(net::Socket(ends[0])), net::Connection(net::Socket(ends[1]))};
}

/// Sends what the system takes at once.
void push(const net::Connection& to, const std::string& bytes) {
  ::send(to.fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
}

/// Everything that reads a payload.
void read_all(const Frame& frame, std::size_t count) {
  if (const auto list = net::unpacked(frame.payload, count)) {
    ASSERT_EQ(list->size(), count);
    ASSERT_EQ(net::packed(*list), frame.payload);
  }
  if (const auto exported = cuda::parse_exported(frame.payload, count)) {
    ASSERT_EQ(exported->size(), count);
  }
  if (const auto message = nccl_tuner::parse_message(frame.payload)) {
    ASSERT_EQ(packed(*message), frame.payload);
    for (std::uint32_t i = 0; i < message->changes; ++i) ASSERT_TRUE(valid(message->change[i]));
  }
}

TEST_F(FrameFuzz, ReaderAndWhatReadsPayloads) {
  const std::size_t wanted = share(60);
  while (fed_ < wanted) {
    net::FrameReader reader;
    std::string stream;
    for (std::size_t i = 1 + below(4); i > 0; --i, ++fed_)
      stream += once_in(3) ? any_frame() : mutated(any_frame());
    std::size_t arrived = 0;
    try {
      for (std::string_view rest = stream; !rest.empty();) {
        const std::size_t some = std::min({rest.size(), reader.wanted(), 1 + below(200)});
        reader.feed(rest.substr(0, some), most_bytes);
        rest.remove_prefix(some);
        arrived += some;
        if (!reader.complete()) continue;
        const Frame frame = reader.take();
        ++accepted_;
        ASSERT_LE(frame.payload.size(), most_bytes);
        ASSERT_LE(frame.payload.capacity(), 2 * arrived + 64);
        read_all(frame, below(6));
      }
    } catch (const net::Broken&) {
    }
    if (HasFatalFailure()) return;
  }
  report("the reader");
}

/// Through a socket, in pieces.
TEST_F(FrameFuzz, Connection) {
  const std::size_t wanted = share(15);
  while (fed_ < wanted) {
    auto [here, there] = connected();
    try {
      for (int i = 0; i < 8; ++i, ++fed_) {
        const std::string bytes = once_in(2) ? any_frame() : mutated(any_frame());
        const std::size_t cut = below(bytes.size() + 1);
        for (const std::string& piece : {bytes.substr(0, cut), bytes.substr(cut)}) {
          push(there, piece);
          here.next_kind();
          while (const auto frame = here.try_receive(most_bytes)) {
            ++accepted_;
            read_all(*frame, below(6));
          }
        }
      }
    } catch (const net::NetError&) {
      ++fed_;
    }
    if (HasFatalFailure()) return;
  }
  report("connections");
}

/// A leader that says anything: whatever is taken can be looked up, and the calls go on.
TEST_F(FrameFuzz, Follower) {
  const std::size_t wanted = share(12);
  while (fed_ < wanted) {
    auto [here, there] = connected();
    nccl_tuner::RemoteFollower follower(std::move(here), {.decide_us = 0, .wait_us = 0});
    nccl_tuner::CallHistory history;
    nccl_tuner::Choices choices;
    for (std::uint64_t number = 1; follower.trouble().empty() && number < 8; ++fed_) {
      if (once_in(2)) ++number;
      const std::string said = message(number);
      push(there, once_in(3) ? mutated(frame(Kind::data, said)) : frame(Kind::data, said));
      if (once_in(3))
        push(there, frame(Kind::data, packed(Message{.kind = Message::Kind::commit, .number = number})));
      for (int i = 0; i < 8; ++i) {
        history.push(signature);
        for (const Change& change : follower.poll(history)) {
          ++accepted_;
          ASSERT_TRUE(valid(change));
          choices.at(change.kind) = change.choice;
        }
      }
    }
  }
  report("followers");
}

/// Ranks that say anything: no commit without each of them.
TEST_F(FrameFuzz, Leader) {
  const std::size_t wanted = share(12);
  const Change change{{4, 20}, {1, 2, 8}};
  while (fed_ < wanted) {
    auto [here, there] = connected();
    auto [other_here, other_there] = connected();
    std::vector<net::Connection> peers;
    peers.push_back(std::move(here));
    peers.push_back(std::move(other_here));
    nccl_tuner::RemoteLeader leader(std::move(peers));
    nccl_tuner::CallHistory history;
    history.push(signature);
    for (std::uint64_t number = 1; number < 6 && leader.free(); ++number) {
      leader.propose({&change, 1}, history, 24);
      const bool heard = once_in(2);  // without the other's word nothing is agreed on
      if (heard)
        push(other_there,
             frame(Kind::data, packed(Message{.kind = Message::Kind::acknowledge, .number = number})));
      for (int i = 0; i < 32; ++i) {
        if (i % 8 == 0) {
          const Message said{.kind = i == 0 ? Message::Kind::acknowledge : Message::Kind::done,
                             .number = number};
          const std::string bytes = frame(Kind::data, once_in(4) ? message(number) : packed(said));
          if (i == 0 || i == 24) push(there, once_in(4) ? mutated(bytes) : bytes), ++fed_;
          if (i == 24) push(other_there, frame(Kind::data, packed(said)));
        }
        history.push(signature);
        const std::size_t agreed = leader.poll(history).size();
        accepted_ += agreed;
        ASSERT_TRUE(heard || agreed == 0);
      }
    }
  }
  report("leaders");
}

/// Who connects and says anything: only who knows the token is a guest.
TEST_F(FrameFuzz, Acceptor) {
  const std::size_t wanted = share(1);
  const net::Token token{"of the fuzz", "SHINGLE_TOKEN", true};
  sockaddr_un address{};
  address.sun_family = AF_UNIX;  // an abstract name: TCP would run out of ports
  std::snprintf(address.sun_path + 1, sizeof address.sun_path - 1, "shingle-fuzz-%d", ::getpid());
  net::Socket listener(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0));
  ASSERT_EQ(::bind(listener.fd(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  ASSERT_EQ(::listen(listener.fd(), 64), 0);
  net::Acceptor acceptor(std::move(listener), {"fuzz", token});
  std::vector<net::Connection> open;
  while (fed_++ < wanted) {
    net::Connection peer(net::Socket(::socket(AF_UNIX, SOCK_STREAM, 0)));
    ASSERT_EQ(::connect(peer.fd(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    ASSERT_FALSE(acceptor.next({})) << "who has said nothing";
    const Frame challenge = peer.receive(net::nonce_bytes, net::deadline_in(5e6));
    const std::string nonce(net::nonce_bytes, 'n'), hello(below(net::most_hello_bytes + 1), 'h');
    const bool knows = !once_in(4);
    const std::string own = net::proof(knows ? token : net::Token{},
                                       net::hello_transcript("fuzz", challenge.payload, nonce, hello));
    const std::string sound = frame(Kind::hello, nonce + own + hello);
    const std::string said = once_in(2) ? sound : once_in(2) ? any_frame() : mutated(sound);
    push(peer, said);
    if (auto guest = acceptor.next({})) {
      ++accepted_;
      ASSERT_TRUE(knows && said.starts_with(sound));
      ASSERT_EQ(guest->hello(), hello);
      std::move(*guest).admit("reply");
      ASSERT_EQ(peer.receive(100, net::deadline_in(5e6)).payload.substr(net::proof_bytes), "reply");
    } else if (once_in(2)) {
      open.push_back(std::move(peer));  // and stays
      if (open.size() > 200) open.erase(open.begin(), open.begin() + 100);
    }
  }
  report("acceptors");
}

}  // namespace
}  // namespace shingle
