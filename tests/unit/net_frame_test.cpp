// Frames and values from the wire: what is too long, too short or of no kind is refused before it is used.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <thread>

#include "net/connection.hpp"
#include "net/wire.hpp"

namespace shingle::net::net_frame_test {
namespace {

using testing::ElementsAre, testing::HasSubstr;

constexpr std::size_t mib = 1 << 20;

struct Ends {
  Ends() {
    int fds[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds), 0);
    here = Connection(Socket(fds[0]));
    there = Connection(Socket(fds[1]));
  }
  Connection here, there;
};

std::string broken_by(const std::string& bytes, std::size_t most_bytes) {
  FrameReader reader;
  try {
    for (const char byte : bytes) reader.feed({&byte, 1}, most_bytes);
  } catch (const Broken& error) {
    return error.what();
  }
  return "nothing";
}

TEST(FrameReader, TakesAFrameByteByByte) {
  FrameReader reader;
  const std::string bytes = header_of(Kind::data, 3) + "abc";
  for (const char byte : bytes) {
    EXPECT_FALSE(reader.complete());
    reader.feed({&byte, 1}, 3);
  }
  ASSERT_TRUE(reader.complete());
  const Frame frame = reader.take();
  EXPECT_EQ(frame.kind, Kind::data);
  EXPECT_EQ(frame.payload, "abc");
  EXPECT_TRUE(reader.empty());
  reader.feed(header_of(Kind::summons, 0), 0);
  EXPECT_EQ(reader.take().kind, Kind::summons);
}

TEST(FrameReader, RefusesMoreThanIsExpectedByTheHeaderAlone) {
  EXPECT_THAT(broken_by(header_of(Kind::data, std::uint64_t{1} << 30), mib), HasSubstr("a frame of 1.0 GiB"));
  EXPECT_THAT(broken_by(header_of(Kind::data, ~std::uint64_t{0}), mib), HasSubstr("at most 1.0 MiB"));
  EXPECT_THAT(broken_by(header_of(Kind::data, 1), 0), HasSubstr("a frame of"));
  EXPECT_EQ(broken_by(header_of(Kind::data, mib), mib), "nothing");
}

TEST(FrameReader, TakesMemoryForWhatIsThere) {
  FrameReader reader;
  reader.feed(header_of(Kind::data, std::uint64_t{1} << 40), std::size_t{1} << 40);
  reader.feed(std::string(1000, 'x'), std::size_t{1} << 40);
  EXPECT_LT(reader.take().payload.capacity(), 4000u);
}

TEST(FrameReader, RefusesAnotherProtocolByItsFirstByte) {
  EXPECT_THAT(broken_by("G", mib), HasSubstr("another protocol"));
  EXPECT_THAT(broken_by(header_of(Kind::data, 0).substr(0, 3) + "!", mib), HasSubstr("another protocol"));
  std::string kindless = header_of(Kind::data, 0);
  kindless[4] = static_cast<char>(static_cast<int>(last_kind) + 1);
  EXPECT_THAT(broken_by(kindless, mib), HasSubstr("kind 7"));
}

TEST(Connection, ReadsWhatHasArrivedAndNeverWaits) {
  Ends ends;
  const std::string bytes = header_of(Kind::data, 5) + "hello";
  EXPECT_FALSE(ends.here.try_receive(5));
  for (const char byte : bytes) {
    EXPECT_FALSE(ends.here.try_receive(5));
    ASSERT_EQ(::send(ends.there.fd(), &byte, 1, 0), 1);
  }
  EXPECT_EQ(ends.here.try_receive(5)->payload, "hello");
  EXPECT_FALSE(ends.here.next_kind());
  ends.there.send(Kind::failure, "why", deadline_in(1e6));
  EXPECT_EQ(ends.here.next_kind(), Kind::failure);
  EXPECT_EQ(ends.here.receive(5, deadline_in(1e6)).payload, "why");
}

TEST(Connection, AFrameThatDripsIsLate) {
  Ends ends;
  std::thread dripping([&] {
    const std::string bytes = header_of(Kind::data, 1000);
    for (std::size_t i = 0; i < 60; ++i, std::this_thread::sleep_for(std::chrono::milliseconds(10)))
      if (::send(ends.there.fd(), i < bytes.size() ? &bytes[i] : "x", 1, MSG_NOSIGNAL) < 0) return;
  });
  const auto begin = Clock::now();
  EXPECT_THROW(ends.here.receive(1000, deadline_in(0.2e6)), Late);
  EXPECT_LT(Clock::now() - begin, std::chrono::milliseconds(500));
  dripping.join();
}

TEST(Connection, WhoTakesNothingMakesASendLate) {
  Ends ends;
  EXPECT_THROW(ends.here.send(Kind::data, std::string(64 * mib, 'x'), deadline_in(0.05e6)), Late);
}

TEST(Connection, FramesOfSeveralThreadsDoNotMix) {
  Ends ends;
  constexpr int frames = 40;
  const auto send_all = [&](char letter) {
    try {
      for (int i = 0; i < frames; ++i)
        ends.there.send(Kind::data, std::string(mib, letter), deadline_in(20e6));
    } catch (const NetError& error) {
      ADD_FAILURE() << error.what();
    }
  };
  std::thread a(send_all, 'a'), b(send_all, 'b');
  int whole = 0;
  try {
    for (int i = 0; i < 2 * frames; ++i) {
      const std::string payload = ends.here.receive(mib, deadline_in(20e6)).payload;
      if (payload == std::string(mib, payload.front())) ++whole;
    }
  } catch (const NetError& error) {
    ADD_FAILURE() << error.what();
  }
  EXPECT_EQ(whole, 2 * frames);
  a.join();
  b.join();
}

TEST(Connection, NothingFollowsAFrameThatWasCutShort) {
  Ends ends;
  EXPECT_THROW(ends.there.send(Kind::data, std::string(64 * mib, 'x'), deadline_in(0.05e6)), Late);
  std::thread reading([&] { EXPECT_THROW(ends.here.receive(64 * mib, deadline_in(0.5e6)), Late); });
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  EXPECT_THROW(ends.there.send(Kind::goodbye, {}, deadline_in(0.1e6)), Lost);
  reading.join();
}

TEST(Connection, ReadsAheadWithoutTakingAnything) {
  Ends ends;
  ends.there.send(Kind::data, "one", deadline_in(1e6));
  ends.there.send(Kind::failure, "two", deadline_in(1e6));
  const std::string part = header_of(Kind::summons, 5) + "th";
  ASSERT_EQ(::send(ends.there.fd(), part.data(), part.size(), 0), static_cast<ssize_t>(part.size()));
  for (int i = 0; i < 2; ++i) {
    ASSERT_EQ(ends.here.arrived().size(), 2u);
    EXPECT_EQ(ends.here.next_kind(), Kind::data);
  }
  EXPECT_TRUE(ends.here.holds_frame());
  EXPECT_THROW(ends.here.try_receive(2), Broken) << "the bound is that of the call";
  EXPECT_EQ(ends.here.try_receive(3)->payload, "one");
  EXPECT_EQ(ends.here.try_receive(3)->payload, "two");
  EXPECT_EQ(ends.here.next_kind(), Kind::summons) << "its header has arrived";
  EXPECT_THROW(ends.here.try_receive(3), Broken);
  EXPECT_FALSE(ends.here.try_receive(5));
  ASSERT_EQ(::send(ends.there.fd(), "ree", 3, 0), 3);
  ends.there = {};
  ASSERT_EQ(ends.here.arrived().size(), 1u);
  EXPECT_TRUE(ends.here.ended());
  EXPECT_EQ(ends.here.try_receive(5)->payload, "three");
  for (int i = 0; i < 2; ++i) EXPECT_THROW(ends.here.try_receive(5), Lost);
}

TEST(Connection, ReadsAheadWithinABound) {
  Ends ends;
  std::thread sending([&] {
    try {
      for (int i = 0; i < 80; ++i) ends.there.send(Kind::data, std::string(mib, 'x'), deadline_in(0.5e6));
      ADD_FAILURE() << "all were read";
    } catch (const Late&) {
    }
  });
  for (int i = 0; i < 100; ++i, std::this_thread::sleep_for(std::chrono::milliseconds(10)))
    EXPECT_LE(ends.here.arrived().size() * mib, Connection::most_held + mib);
  sending.join();
  EXPECT_FALSE(ends.here.ended());
}

TEST(Connection, WhoHangsUpIsLost) {
  Ends ends;
  ends.there = {};
  EXPECT_THROW(ends.here.try_receive(1), Lost);
  EXPECT_THROW(ends.here.next_kind(), Lost);
  EXPECT_THROW(ends.here.send(Kind::data, "x", deadline_in(1e6)), Lost);
}

TEST(Wire, NumbersComeBack) {
  const std::string bytes = Packer()
                                .number(std::uint8_t{200})
                                .number(std::int8_t{-7})
                                .number(std::int32_t{-123456})
                                .number(~std::uint64_t{5})
                                .bytes("abc")
                                .take();
  EXPECT_EQ(bytes.size(), 1u + 1 + 4 + 8 + 3);
  Parser parser(bytes);
  EXPECT_EQ(parser.number<std::uint8_t>(), 200);
  EXPECT_EQ(parser.number<std::int8_t>(), -7);
  EXPECT_EQ(parser.number<std::int32_t>(), -123456);
  EXPECT_EQ(parser.number<std::uint64_t>(), ~std::uint64_t{5});
  EXPECT_FALSE(parser.complete());
  EXPECT_EQ(parser.bytes(3), "abc");
  EXPECT_TRUE(parser.complete());
}

TEST(Wire, WhatIsNotThereIsZeroAndSaidSo) {
  Parser parser("abc");
  EXPECT_EQ(parser.number<std::uint64_t>(), 0u);
  EXPECT_EQ(parser.bytes(1), "") << "nothing after the first that was short";
  EXPECT_FALSE(parser.complete());
}

TEST(Wire, ListsComeBackAndOnlyWhole) {
  const std::vector<std::string> all{"", "one", std::string(300, 'x')};
  const std::string bytes = packed(all);
  EXPECT_EQ(unpacked(bytes, 3), all);
  EXPECT_EQ(unpacked(bytes, 2), std::nullopt);
  EXPECT_EQ(unpacked(bytes, 4), std::nullopt);
  for (std::size_t length = 0; length < bytes.size(); ++length)
    EXPECT_EQ(unpacked(bytes.substr(0, length), 3), std::nullopt) << length;
  // Lengths that reach beyond the end, and around the address space.
  for (const std::uint64_t length :
       {std::uint64_t{4}, std::uint64_t{1} << 40, ~std::uint64_t{0}, ~std::uint64_t{7}})
    EXPECT_EQ(unpacked(Packer().number(length).bytes("abc").take(), 1), std::nullopt);
}

}  // namespace
}  // namespace shingle::net::net_frame_test
