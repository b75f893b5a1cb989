// The functions of PyTorch's stable C interface that this library calls, by PyTorch's names. They are looked
// up in the libtorch of the process, so that building needs no PyTorch and one build serves each PyTorch
// from 2.11.
#pragma once

#include <dlfcn.h>

#include <cstdint>
#include <memory>

namespace shingle::torch {

using Status = std::int32_t;  ///< 0: success
using Handle = struct AtenTensor*;
using LibraryHandle = struct TorchLibrary*;
using Value = std::uint64_t;  ///< an argument or a result of an op: an integer, or an owned tensor
using Kernel = void (*)(Value* stack, std::uint64_t arguments, std::uint64_t results);

constexpr std::uint64_t version = std::uint64_t{2} << 56 | std::uint64_t{11} << 48;  // whose Values these are

/// A function of a loaded library, null until `find`.
template <typename... Parameters>
struct Function {
  const char* name;
  Status (*pointer)(Parameters...) = nullptr;

  bool find(void* library) {
    pointer = reinterpret_cast<Status (*)(Parameters...)>(::dlsym(library, name));
    return pointer != nullptr;
  }
  bool operator()(Parameters... arguments) const { return pointer(arguments...) == 0; }
};

inline Function<Handle, std::int64_t*> get_dim{"aoti_torch_get_dim"};
inline Function<Handle, std::int64_t**> get_sizes{"aoti_torch_get_sizes"};
inline Function<Handle, std::int64_t**> get_strides{"aoti_torch_get_strides"};
inline Function<Handle, std::int32_t*> get_dtype{"aoti_torch_get_dtype"};
inline Function<Handle, std::int32_t*> get_device_type{"aoti_torch_get_device_type"};
inline Function<Handle, std::int32_t*> get_device_index{"aoti_torch_get_device_index"};
inline Function<Handle, void**> get_data_ptr{"aoti_torch_get_data_ptr"};
inline Function<std::int64_t, const std::int64_t*, const std::int64_t*, std::int32_t, std::int32_t,
                std::int32_t, Handle*>
    empty_strided{"aoti_torch_empty_strided"};
inline Function<Handle*> new_undefined{"aoti_torch_new_uninitialized_tensor"};
inline Function<Handle> delete_tensor{"aoti_torch_delete_tensor_object"};
inline Function<const char*, const char*, const char*, std::uint32_t, LibraryHandle*> library_impl_of{
    "aoti_torch_library_init_impl"};
inline Function<LibraryHandle, const char*, Kernel, std::uint64_t> library_impl{"torch_library_impl"};

// Of CUDA.
inline Function<std::int32_t*> get_current_device{"aoti_torch_get_current_device_index"};
inline Function<std::int32_t, void**> get_current_stream{"aoti_torch_get_current_cuda_stream"};
inline Function<void*, std::int32_t*> stream_is_capturing{"cudaStreamIsCapturing"};

/// Finds all functions in a library that the process has loaded, and in what that library needs.
template <typename... Functions>
bool find_all(const char* loaded, Functions&... functions) {
  void* const library = ::dlopen(loaded, RTLD_NOW | RTLD_NOLOAD);
  return library != nullptr && (functions.find(library) && ...);
}

struct Delete {
  void operator()(Handle tensor) const { delete_tensor(tensor); }
};
using Tensor = std::unique_ptr<AtenTensor, Delete>;

}  // namespace shingle::torch
