#include "hmac.hpp"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <string>

namespace shingle::net {
namespace {

constexpr std::size_t block_bytes = 64;
using Words = std::array<std::uint32_t, 8>;

constexpr std::array<std::uint32_t, 64> round_constants{
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

constexpr Words first_words{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                            0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};

std::uint32_t big_endian(const char* at) {
  std::uint32_t word = 0;
  for (int i = 0; i < 4; ++i) word = word << 8 | static_cast<unsigned char>(at[i]);
  return word;
}

void compress(Words& state, const char* block) {
  std::array<std::uint32_t, 64> schedule;
  for (std::size_t i = 0; i < 16; ++i) schedule[i] = big_endian(block + 4 * i);
  for (std::size_t i = 16; i < schedule.size(); ++i) {
    const std::uint32_t x = schedule[i - 15], y = schedule[i - 2];
    const std::uint32_t small0 = std::rotr(x, 7) ^ std::rotr(x, 18) ^ x >> 3;
    const std::uint32_t small1 = std::rotr(y, 17) ^ std::rotr(y, 19) ^ y >> 10;
    schedule[i] = schedule[i - 16] + small0 + schedule[i - 7] + small1;
  }
  auto [a, b, c, d, e, f, g, h] = state;
  for (std::size_t i = 0; i < schedule.size(); ++i) {
    const std::uint32_t large1 = std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25);
    const std::uint32_t one = h + large1 + ((e & f) ^ (~e & g)) + round_constants[i] + schedule[i];
    const std::uint32_t large0 = std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22);
    const std::uint32_t two = large0 + ((a & b) ^ (a & c) ^ (b & c));
    h = g, g = f, f = e, e = d + one, d = c, c = b, b = a, a = one + two;
  }
  const Words worked{a, b, c, d, e, f, g, h};
  for (std::size_t i = 0; i < state.size(); ++i) state[i] += worked[i];
}

}  // namespace

Digest sha256(std::string_view bytes) {
  // Padding of the last blocks: a one bit, zeros, and the number of message bits.
  const std::size_t whole = bytes.size() / block_bytes * block_bytes;
  std::string tail(bytes.substr(whole));
  tail += '\x80';
  while (tail.size() % block_bytes != block_bytes - 8) tail += '\0';
  for (int shift = 56; shift >= 0; shift -= 8)
    tail += static_cast<char>(std::uint64_t{bytes.size()} * 8 >> shift);

  Words state = first_words;
  for (std::size_t at = 0; at < whole; at += block_bytes) compress(state, bytes.data() + at);
  for (std::size_t at = 0; at < tail.size(); at += block_bytes) compress(state, tail.data() + at);
  Digest digest;
  for (std::size_t i = 0; i < digest.size(); ++i)
    digest[i] = static_cast<std::uint8_t>(state[i / 4] >> (24 - 8 * (i % 4)));
  return digest;
}

Digest hmac_sha256(std::string_view key, std::string_view message) {
  constexpr char inner = 0x36, outer = 0x5c;
  std::string padded(key);
  if (key.size() > block_bytes) padded = bytes_of(sha256(key));
  padded.resize(block_bytes, '\0');
  const auto masked = [&](char mask) {
    std::string block = padded;
    for (char& byte : block) byte = static_cast<char>(byte ^ mask);
    return block;
  };
  const Digest hidden = sha256(masked(inner).append(message));
  return sha256(masked(outer).append(bytes_of(hidden)));
}

bool equal(std::string_view a, std::string_view b) {
  if (a.size() != b.size()) return false;
  unsigned different = 0;
  for (std::size_t i = 0; i < a.size(); ++i)
    different |= static_cast<unsigned>(static_cast<unsigned char>(a[i] ^ b[i]));
  return different == 0;
}

}  // namespace shingle::net
