// Owners of memory: move-only. They hold bytes; whoever stores in them knows what.
#pragma once

#include <cstddef>
#include <utility>

namespace shingle::cuda {

/// What both owners are: bytes at an address, empty once moved from. Derived classes get and free them.
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

/// Of the device that is current when it is made; empty without bytes.
class DeviceMemory : public OwnedMemory {
 public:
  DeviceMemory() = default;
  explicit DeviceMemory(std::size_t bytes);
  ~DeviceMemory();
  DeviceMemory(DeviceMemory&&) noexcept = default;
  DeviceMemory& operator=(DeviceMemory&&) noexcept = default;

  /// Sets all bytes, and waits until they are. Its device is current.
  void fill(int value) const;
  /// Leaves it to the end of the process.
  void abandon() noexcept { data_ = nullptr; }
};

/// Of the host, page-locked, zeros at first, that all devices of the process read and write at the same
/// address.
class PinnedMemory : public OwnedMemory {
 public:
  PinnedMemory() = default;
  explicit PinnedMemory(std::size_t bytes);
  ~PinnedMemory();
  PinnedMemory(PinnedMemory&&) noexcept = default;
  PinnedMemory& operator=(PinnedMemory&&) noexcept = default;
};

}  // namespace shingle::cuda
