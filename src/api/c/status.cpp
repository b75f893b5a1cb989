#include "status.hpp"

#include <array>
#include <exception>
#include <new>

namespace {

constexpr const char* out_of_memory = "host memory is exhausted";

thread_local std::string last_error_text;
/// Replaces the text above if there is no memory for it.
thread_local bool had_no_memory = false;

void keep(const char* text) noexcept try {
  had_no_memory = false;
  last_error_text = text;
} catch (...) {
  had_no_memory = true;
}

shingle_status status_of(const shingle::Error& error) noexcept {
  if (dynamic_cast<const shingle::InvalidArgument*>(&error)) return SHINGLE_INVALID_ARGUMENT;
  if (dynamic_cast<const shingle::Unsupported*>(&error)) return SHINGLE_UNSUPPORTED;
  if (dynamic_cast<const shingle::Timeout*>(&error)) return SHINGLE_TIMEOUT;
  if (dynamic_cast<const shingle::IoError*>(&error)) return SHINGLE_IO_ERROR;
  if (dynamic_cast<const shingle::CudaError*>(&error)) return SHINGLE_CUDA_ERROR;
  if (dynamic_cast<const shingle::NcclError*>(&error)) return SHINGLE_NCCL_ERROR;
  if (dynamic_cast<const shingle::MpiError*>(&error)) return SHINGLE_MPI_ERROR;
  return SHINGLE_INTERNAL_ERROR;
}

}  // namespace

shingle_status shingle::c::keep_error() noexcept {
  try {
    throw;
  } catch (const Error& error) {
    keep(error.what());
    return status_of(error);
  } catch (const std::bad_alloc&) {
    had_no_memory = true;
    return SHINGLE_OUT_OF_MEMORY;
  } catch (const std::exception& error) {
    keep(error.what());
  } catch (...) {
    keep("unknown exception");
  }
  return SHINGLE_INTERNAL_ERROR;
}

const char* shingle_last_error(void) noexcept {
  return had_no_memory ? out_of_memory : last_error_text.c_str();
}

const char* shingle_status_name(int32_t status) noexcept {
  static constexpr std::array names{
      "ok",         "invalid argument", "unsupported", "timeout",       "I/O error",
      "CUDA error", "NCCL error",       "MPI error",   "out of memory", "internal error"};
  const auto index = static_cast<std::size_t>(status);
  return status >= 0 && index < names.size() ? names[index] : "unknown status";
}
