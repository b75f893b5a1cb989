// libshingle_torch.so: serves calls of the ops of shingle.torch that differ from an earlier call in addresses
// alone. Python has checked and chosen that call. python/shingle/torch/native.py uses this file and has its
// other half.
#include <algorithm>
#include <array>
#include <span>
#include <string_view>
#include <unordered_map>

#include "shingle/shingle.h"
#include "torch_abi.hpp"

namespace shingle::torch {
namespace {

constexpr std::size_t most_inputs = 5, most_outputs = 2;
constexpr std::size_t most_calls = 256;
constexpr std::int64_t unknown_call = -1;

/// What the choice of a call and its arguments depend on: whether a CUDA graph is captured; then of each
/// input its dtype, device and dimension in one word, its sizes and its strides.
using Key = std::array<std::int64_t, 1 + 5 * most_inputs>;

struct Hash {
  std::size_t operator()(const Key& key) const {
    std::uint64_t hash = 0;
    for (const std::int64_t word : key) {
      hash = (hash ^ static_cast<std::uint64_t>(word)) * 0x9e3779b97f4a7c15;
      hash ^= hash >> 32;
    }
    return hash;
  }
};

/// A call of a context without its addresses. The matrices are the inputs, then outputs. Outputs that are no
/// matrix of the call follow. native.py has the same struct.
struct Call {
  decltype(&shingle_context_call) function;  ///< of the libshingle.so that Python has loaded
  std::int64_t op;
  std::int64_t m;
  std::int64_t matrix_count;
  std::int64_t output_count;
  std::int64_t output_sizes[most_outputs][2];
  shingle_matrix matrices[most_inputs + most_outputs];
};

/// Earlier calls of native.py's Calls. The lock of their context guards them.
using Calls = std::unordered_map<Key, Call, Hash>;

using Inputs = std::span<Tensor>;

/// Where a call runs.
struct Place {
  std::int32_t dtype, device_type, device;
  void* stream = nullptr;
};

/// Fills the key and the place. False for tensors that Python must look at.
bool describe(Inputs inputs, Key& key, Place& place) {
  std::int64_t* word = key.data() + 1;
  for (const Tensor& input : inputs) {
    std::int64_t dim = 0, *sizes = nullptr, *strides = nullptr;
    Place of{};
    if (!get_dim(input.get(), &dim) || dim > 2 || !get_sizes(input.get(), &sizes) ||
        !get_strides(input.get(), &strides) || !get_dtype(input.get(), &of.dtype) ||
        !get_device_type(input.get(), &of.device_type) || !get_device_index(input.get(), &of.device))
      return false;
    if (&input == &inputs.front()) place = of;
    word[0] = dim | of.dtype << 8 | of.device_type << 16 | std::int64_t{of.device} << 32;
    std::copy_n(sizes, dim, word + 1);
    std::copy_n(strides, dim, word + 3);
    word += 5;
  }
  if (place.device < 0) return true;  // the host has no streams
  std::int32_t current = 0, capturing = 0;
  if (!get_current_device(&current) || current != place.device ||
      !get_current_stream(current, &place.stream) || !stream_is_capturing(place.stream, &capturing))
    return false;
  key[0] = capturing;
  return true;
}

/// Makes the outputs and the call. Returns a shingle_status, or unknown_call; then nothing was called.
/// context: null if it is closed.
std::int64_t serve(const Calls& calls, shingle_context* context, Inputs inputs, std::span<Tensor> outputs) {
  Key key{};
  Place place{};
  if (context == nullptr || !describe(inputs, key, place)) return unknown_call;
  const auto found = calls.find(key);
  if (found == calls.end()) return unknown_call;
  Call call = found->second;
  const auto bind = [&, matrix = call.matrices](const Tensor& tensor) mutable {
    return get_data_ptr(tensor.get(), &matrix++->data);
  };
  if (!std::ranges::all_of(inputs, bind)) return unknown_call;
  shingle_matrix* matrix = call.matrices + inputs.size();
  for (std::int64_t i = 0; i < call.output_count; ++i) {
    const std::int64_t strides[] = {call.output_sizes[i][1], 1};
    Handle made = nullptr;
    if (!empty_strided(2, call.output_sizes[i], strides, place.dtype, place.device_type, place.device, &made))
      return unknown_call;
    outputs[i].reset(made);
    if (matrix < call.matrices + call.matrix_count && !get_data_ptr(made, &matrix++->data))
      return unknown_call;
  }
  const shingle_arguments arguments{sizeof arguments,
                                    call.matrices,
                                    &place.stream,
                                    nullptr,
                                    static_cast<std::int32_t>(call.matrix_count),
                                    1,
                                    nullptr,
                                    0};
  return call.function(context, static_cast<std::int32_t>(call.op), call.m, &arguments);
}

/// The tensors among an op's arguments, which follow two integers.
class Arguments {
 public:
  Arguments(const Value* stack, std::uint64_t count) : count_(count - 2) {
    for (std::size_t i = 0; i < count_; ++i) tensors_[i].reset(reinterpret_cast<Handle>(stack[2 + i]));
  }
  Inputs inputs() { return {tensors_.data(), count_}; }

 private:
  std::array<Tensor, most_inputs> tensors_;
  std::size_t count_;
};

/// (int calls, int context, Tensor, …) -> (Tensor, Tensor, int): outputs or undefined tensors, and what
/// `serve` returns.
void call(Value* stack, std::uint64_t arguments, std::uint64_t) {
  Arguments tensors(stack, arguments);
  std::array<Tensor, most_outputs> outputs;
  const std::int64_t status = serve(*reinterpret_cast<const Calls*>(stack[0]),
                                    reinterpret_cast<shingle_context*>(stack[1]), tensors.inputs(), outputs);
  for (std::size_t i = 0; i < most_outputs; ++i) {
    Handle result = outputs[i].release();
    if (result == nullptr) new_undefined(&result);
    stack[i] = reinterpret_cast<Value>(result);
  }
  stack[most_outputs] = static_cast<Value>(status);
}

/// (int calls, int call, Tensor, …) -> (): later calls of such tensors are as the Call at this address.
void remember(Value* stack, std::uint64_t arguments, std::uint64_t) {
  Arguments tensors(stack, arguments);
  Calls& calls = *reinterpret_cast<Calls*>(stack[0]);
  Key key{};
  Place place{};
  if (!describe(tensors.inputs(), key, place)) return;
  if (calls.size() == most_calls) calls.clear();
  calls.insert_or_assign(key, *reinterpret_cast<const Call*>(stack[1]));
}

}  // namespace
}  // namespace shingle::torch

extern "C" {

using namespace shingle::torch;

/// Registers the kernels of native.py's ops for the dispatch key "CPU" or "CUDA". call_bytes: size of
/// native.py's Call. False if it is that of another build, or if this process lacks a function.
SHINGLE_API bool shingle_torch_register(const char* key, std::size_t call_bytes) {
  if (call_bytes != sizeof(Call) || !find_all("libtorch_cpu.so", get_dim, get_sizes, get_strides, get_dtype,
                                              get_device_type, get_device_index, get_data_ptr, empty_strided,
                                              new_undefined, delete_tensor, library_impl_of, library_impl))
    return false;
  if (std::string_view(key) == "CUDA" &&
      !find_all("libtorch_cuda.so", get_current_device, get_current_stream, stream_is_capturing))
    return false;
  LibraryHandle library = nullptr;
  if (!library_impl_of("shingle_native", key, __FILE__, __LINE__, &library)) return false;
  for (const char* name : {"call.of2", "call.of3", "call.of4", "call.of5"})
    if (!library_impl(library, name, call, version)) return false;
  for (const char* name : {"remember.of2", "remember.of3", "remember.of4", "remember.of5"})
    if (!library_impl(library, name, remember, version)) return false;
  return true;
}

SHINGLE_API Calls* shingle_torch_calls_create() {
  return new Calls;
}
SHINGLE_API void shingle_torch_calls_destroy(Calls* calls) {
  delete calls;
}

}  // extern "C"
