// Matrix products of one tile through oneDNN: primitives by shape, each run on one thread.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "host/executor/memory.hpp"
#include "shingle/base/dtype.hpp"

namespace shingle::host {

/// C[rows×cols] = A[rows×k] · B[k×cols], any strides. Ordered, so that it can key a map.
struct ProductShape {
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::int64_t k = 0;
  std::int64_t a_row = 0, a_col = 0;  ///< elements to the next row and column
  std::int64_t b_row = 0, b_col = 0;
  std::int64_t c_row = 0;
  DType in = DType::f32;
  DType out = DType::f32;
  auto operator<=>(const ProductShape&) const = default;
};

/// oneDNN's matmul for one shape. Immutable: any number of threads may run it.
class Product {
 public:
  virtual ~Product() = default;
  virtual std::size_t scratch_bytes() const = 0;
  /// `scratch` holds scratch_bytes() and belongs to the calling thread.
  virtual void run(const std::byte* a, const std::byte* b, std::byte* c, void* scratch) const = 0;
};

/// True if oneDNN multiplies this type on this processor with fp32 accumulation and an optimised kernel.
bool multiplies_natively(DType type);

/// oneDNN's version and the newest instruction set that it uses on this processor.
std::string onednn_version();

/// Makes oneDNN use only the calling thread for that thread's products: each worker is one thread.
void compute_on_this_thread_only();

/// Cache of the products made so far, shared by all threads of an executable.
class Products {
 public:
  /// Throws Error if oneDNN has no such product.
  const Product& get(const ProductShape& shape);

 private:
  std::mutex mutex_;
  std::map<ProductShape, std::unique_ptr<Product>> made_;
};

}  // namespace shingle::host
