#include "npy_header.hpp"

#include <fmt/format.h>

#include <charconv>
#include <optional>

#include "shingle/base/error.hpp"
#include "shingle/plan/problem.hpp"

namespace shingle::npy {
namespace {

constexpr std::string_view magic{"\x93NUMPY", 6};
/// Plain dtypes need about 120 bytes; NumPy itself warns about headers beyond 10,000.
constexpr std::size_t most_header_bytes = 65536;

std::size_t little_endian(std::string_view bytes) {
  std::size_t value = 0;
  for (std::size_t i = bytes.size(); i-- > 0;) value = value << 8 | static_cast<unsigned char>(bytes[i]);
  return value;
}

/// A cursor over the few Python literals of a header.
class Literal {
 public:
  explicit Literal(std::string_view text) : rest_(text) {}

  bool take(char c) {
    skip_space();
    if (rest_.empty() || rest_.front() != c) return false;
    rest_.remove_prefix(1);
    return true;
  }
  void expect(char c) {
    if (!take(c)) throw InvalidArgument(fmt::format("malformed header: expected '{}'", c));
  }
  bool at_end() {
    skip_space();
    return rest_.empty();
  }

  std::string_view string(std::string_view what) {
    skip_space();
    const char quote = rest_.empty() ? '\0' : rest_.front();
    const auto end = quote == '\'' || quote == '"' ? rest_.find(quote, 1) : std::string_view::npos;
    if (end == std::string_view::npos)
      throw InvalidArgument(fmt::format("the header's {} is not a plain string", what));
    const std::string_view text = rest_.substr(1, end - 1);
    rest_.remove_prefix(end + 1);
    return text;
  }

  bool boolean() {
    skip_space();
    for (const std::string_view word : {"False", "True"}) {
      if (!rest_.starts_with(word)) continue;
      rest_.remove_prefix(word.size());
      return word == "True";
    }
    throw InvalidArgument("the header's fortran_order is neither True nor False");
  }

  std::int64_t extent() {
    skip_space();
    std::uint64_t value = 0;
    const auto [end, error] = std::from_chars(rest_.data(), rest_.data() + rest_.size(), value);
    if (error == std::errc::invalid_argument)
      throw InvalidArgument("the header's shape is not a tuple of sizes");
    if (error != std::errc{} || value > static_cast<std::uint64_t>(max_extent))
      throw InvalidArgument(fmt::format("a size in the header's shape is above {}", max_extent));
    rest_.remove_prefix(static_cast<std::size_t>(end - rest_.data()));
    return static_cast<std::int64_t>(value);
  }

 private:
  void skip_space() {
    while (!rest_.empty() && (rest_.front() == ' ' || rest_.front() == '\n' || rest_.front() == '\t'))
      rest_.remove_prefix(1);
  }
  std::string_view rest_;
};

DType parse_descr(std::string_view descr) {
  if (descr == "<f4") return DType::f32;
  if (descr == "<f2") return DType::f16;
  if (descr == "<u2") return DType::bf16;
  std::string shown;
  for (const char c : descr.substr(0, 16)) shown += c >= ' ' && c <= '~' ? c : '?';
  throw InvalidArgument(fmt::format(
      "dtype '{}' is not supported: save float32, float16, or bfloat16 viewed as uint16 (little endian)",
      shown));
}

struct Shape {
  std::int64_t rows, cols;
};

Shape parse_shape(Literal& literal) {
  std::int64_t sizes[2] = {1, 1};
  int count = 0;
  literal.expect('(');
  while (!literal.take(')')) {
    if (count == 2) throw InvalidArgument("the array has more than two dimensions");
    sizes[count++] = literal.extent();
    if (!literal.take(',')) {
      literal.expect(')');
      break;
    }
  }
  if (count == 0) throw InvalidArgument("the array has no dimensions; a matrix or a vector is needed");
  return count == 1 ? Shape{1, sizes[0]} : Shape{sizes[0], sizes[1]};
}

}  // namespace

std::size_t data_offset(std::string_view prelude, std::size_t file_bytes) {
  if (!prelude.starts_with(magic) || prelude.size() < 10) throw InvalidArgument("not an .npy file");
  const int major = static_cast<unsigned char>(prelude[6]);
  if (major < 1 || major > 3) throw InvalidArgument(fmt::format("unknown .npy version {}", major));
  const std::size_t length_bytes = major == 1 ? 2 : 4;
  if (prelude.size() < 8 + length_bytes) throw InvalidArgument("the file ends within its header");
  const std::size_t length = little_endian(prelude.substr(8, length_bytes));
  if (length > most_header_bytes)
    throw InvalidArgument(fmt::format("a header of {} bytes; at most {}", length, most_header_bytes));
  const std::size_t offset = 8 + length_bytes + length;
  if (offset > file_bytes) throw InvalidArgument("the file ends within its header");
  return offset;
}

NpyHeader parse_header(std::string_view header, std::size_t file_bytes) {
  const std::size_t offset = data_offset(header.substr(0, prelude_bytes), file_bytes);
  Literal literal(header.substr(header[6] == 1 ? 10 : 12));
  std::optional<DType> dtype;
  std::optional<bool> fortran;
  std::optional<Shape> shape;
  literal.expect('{');
  while (!literal.take('}')) {
    const std::string_view key = literal.string("key");
    literal.expect(':');
    if (key == "descr" && !dtype) {
      dtype = parse_descr(literal.string("dtype"));
    } else if (key == "fortran_order" && !fortran) {
      fortran = literal.boolean();
    } else if (key == "shape" && !shape) {
      shape = parse_shape(literal);
    } else {
      throw InvalidArgument("the header has an unknown or repeated key");
    }
    if (!literal.take(',')) {
      literal.expect('}');
      break;
    }
  }
  if (!dtype || !fortran || !shape || !literal.at_end())
    throw InvalidArgument("the header must hold descr, fortran_order and shape, and nothing else");
  // Cannot overflow: both extents are at most 2^31, so there are at most 2^62 elements. Bytes need a
  // division.
  const auto elements = static_cast<std::uint64_t>(shape->rows) * static_cast<std::uint64_t>(shape->cols);
  const std::uint64_t present = file_bytes - offset;
  if (present % size_bytes(*dtype) != 0 || elements != present / size_bytes(*dtype))
    throw InvalidArgument(
        fmt::format("a {}x{} matrix of {} needs {} elements, but the file holds {} bytes of data",
                    shape->rows, shape->cols, name(*dtype), elements, present));
  return {*dtype, shape->rows, shape->cols, *fortran, offset};
}

std::string format_header(DType dtype, std::int64_t rows, std::int64_t cols) {
  const char* descr = dtype == DType::f32 ? "<f4" : dtype == DType::f16 ? "<f2" : "<u2";
  std::string dictionary =
      fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': ({}, {}), }}", descr, rows, cols);
  const std::size_t unpadded = 10 + dictionary.size() + 1;
  dictionary.append((64 - unpadded % 64) % 64, ' ');
  dictionary += '\n';
  std::string header(magic);
  header += {'\x01', '\x00', static_cast<char>(dictionary.size() & 0xff),
             static_cast<char>(dictionary.size() >> 8)};
  return header + dictionary;
}

}  // namespace shingle::npy
