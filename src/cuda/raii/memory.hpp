// Move-only owners of untyped memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

namespace shingle::cuda {

/// The number of the allocation that memory belongs to, unique over the life of the process; 0 if it is not
/// known. Graphs and mappings of other processes are bound to allocations, and not to addresses, which
/// return.
std::uint64_t allocation_of(const void* memory);

/// Base of both owners: bytes at an address, empty after a move. Derived classes allocate and free.
class OwnedMemory {
 public:
  template <class T = void>
  T* get() const noexcept {
    return static_cast<T*>(data_);
  }
  std::size_t bytes() const noexcept { return bytes_; }

 protected:
  OwnedMemory() = default;
  explicit OwnedMemory(std::size_t bytes) : bytes_(bytes) {}
  ~OwnedMemory() = default;
  OwnedMemory(OwnedMemory&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  OwnedMemory& operator=(OwnedMemory&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }

  void* data_ = nullptr;
  std::size_t bytes_ = 0;
};

/// Memory of the device that is current at construction; empty if `bytes` is 0.
class DeviceMemory : public OwnedMemory {
 public:
  DeviceMemory() = default;
  explicit DeviceMemory(std::size_t bytes);
  ~DeviceMemory();
  DeviceMemory(DeviceMemory&&) noexcept = default;
  DeviceMemory& operator=(DeviceMemory&&) noexcept = default;

  /// Sets all bytes, and waits for the device. The owning device must be current.
  void fill(int value) const;
  /// Gives up ownership: the memory stays until the end of the process.
  void abandon() noexcept { data_ = nullptr; }
};

/// Page-locked host memory, initially zero. All devices of the process access it at the same address.
class PinnedMemory : public OwnedMemory {
 public:
  PinnedMemory() = default;
  explicit PinnedMemory(std::size_t bytes);
  ~PinnedMemory();
  PinnedMemory(PinnedMemory&&) noexcept = default;
  PinnedMemory& operator=(PinnedMemory&&) noexcept = default;
};

}  // namespace shingle::cuda
