#include "check/npy.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>

#include "base/file.hpp"
#include "shingle/base/error.hpp"

namespace shingle::npy_test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::ThrowsMessage;

/// An .npy file with the given dictionary; `length` overrides what the file says of the dictionary's length.
std::string file_of(const std::string& dictionary, const std::string& data, int major = 1,
                    std::int64_t length = -1) {
  std::string file = "\x93NUMPY";
  file += static_cast<char>(major);
  file += '\0';
  const auto bytes =
      static_cast<std::uint64_t>(length < 0 ? static_cast<std::int64_t>(dictionary.size()) : length);
  for (int i = 0; i < (major == 1 ? 2 : 4); ++i) file += static_cast<char>(bytes >> (8 * i) & 0xff);
  return file + dictionary + data;
}

std::string dictionary(const std::string& descr, const std::string& shape,
                       const std::string& order = "False") {
  return "{'descr': '" + descr + "', 'fortran_order': " + order + ", 'shape': " + shape + ", }\n";
}

NpyArray parse(const std::string& file) {
  return parse_npy(std::as_bytes(std::span(file)), "x.npy");
}

template <class T>
std::string bytes_of(std::initializer_list<T> values) {
  return std::string(reinterpret_cast<const char*>(values.begin()), values.size() * sizeof(T));
}

std::vector<float> floats(const NpyArray& array) {
  std::vector<float> values(array.data.size() / size_bytes(array.dtype));
  widen(array.dtype, array.data.data(), values.data(), values.size());
  return values;
}

class NpyFileTest : public ::testing::Test {
 protected:
  NpyFileTest() { fs::create_directory(dir_); }
  ~NpyFileTest() override { fs::remove_all(dir_); }
  std::string path(const std::string& name) const { return (dir_ / name).string(); }

 private:
  fs::path dir_ = fs::path(::testing::TempDir()) / ("shingle_npy_" + std::to_string(::getpid()));
};

TEST(Npy, ReadsEveryDtypeVersionAndOrder) {
  const std::string six = bytes_of<float>({1, 2, 3, 4, 5, 6});
  for (const int major : {1, 2, 3}) {
    const NpyArray array = parse(file_of(dictionary("<f4", "(2, 3)"), six, major));
    EXPECT_EQ(array.dtype, DType::f32);
    EXPECT_EQ(array.rows, 2);
    EXPECT_EQ(array.cols, 3);
    EXPECT_THAT(floats(array), ElementsAre(1, 2, 3, 4, 5, 6));
  }
  EXPECT_THAT(floats(parse(file_of(dictionary("<f4", "(2, 3)", "True"), six))),
              ElementsAre(1, 3, 5, 2, 4, 6));
  const std::string half = bytes_of<std::uint16_t>({to_f16(0.5f), to_f16(-3)});
  EXPECT_THAT(floats(parse(file_of(dictionary("<f2", "(2, 1)", "True"), half))), ElementsAre(0.5f, -3));
  const std::string brain = bytes_of<std::uint16_t>({to_bf16(0.5f), to_bf16(-3), to_bf16(7), to_bf16(8)});
  const NpyArray bf16 = parse(file_of(dictionary("<u2", "(2, 2)", "True"), brain));
  EXPECT_EQ(bf16.dtype, DType::bf16);
  EXPECT_THAT(floats(bf16), ElementsAre(0.5f, 7, -3, 8));
}

TEST(Npy, AVectorIsARow) {
  for (const char* shape : {"(3,)", "(1, 3)", "(1,3,)", "( 1 , 3 )"})
    for (const char* order : {"False", "True"}) {
      const NpyArray array = parse(file_of(dictionary("<f4", shape, order), bytes_of<float>({1, 2, 3})));
      EXPECT_EQ(array.rows, 1);
      EXPECT_EQ(array.cols, 3);
      EXPECT_THAT(floats(array), ElementsAre(1, 2, 3));
    }
}

TEST(Npy, EmptyMatricesHaveNoData) {
  const NpyArray array = parse(file_of(dictionary("<f4", "(0, 5)"), ""));
  EXPECT_EQ(array.rows, 0);
  EXPECT_EQ(array.cols, 5);
  EXPECT_TRUE(array.data.empty());
}

TEST(Npy, HeadersMayBeWrittenDifferently) {
  const std::string one = bytes_of<float>({1});
  for (const char* header : {"{'shape': (1, 1), 'fortran_order': False, 'descr': '<f4'}",
                             "{\"descr\":\"<f4\",\"fortran_order\":True,\"shape\":(1,)}",
                             "  {'descr' : '<f4' , 'fortran_order' : False , 'shape' : ( 1 , 1 ) , }   \n"})
    EXPECT_THAT(floats(parse(file_of(header, one))), ElementsAre(1)) << header;
}

TEST(Npy, RefusesWithOneLineThatNamesTheFile) {
  const std::string one = bytes_of<float>({1});
  const std::string good = file_of(dictionary("<f4", "(1, 1)"), one);
  const std::pair<std::string, const char*> cases[] = {
      {"", "not an .npy file"},
      {"\x93NUMPY", "not an .npy file"},
      {"PK\x03\x04 an archive, not a matrix", "not an .npy file"},
      {good.substr(0, 9), "not an .npy file"},
      {good.substr(0, 20), "ends within its header"},
      {file_of(dictionary("<f4", "(1, 1)"), one, 4), "version 4"},
      {file_of(dictionary("<f4", "(1, 1)"), one, 2, 0xffffffff), "a header of 4294967295 bytes"},
      {file_of(dictionary("<f4", "(1, 1)"), one, 1, 500), "ends within its header"},
      {file_of(dictionary("<f8", "(1, 1)"), one + one), "dtype '<f8' is not supported"},
      {file_of(dictionary(">f4", "(1, 1)"), one), "dtype '>f4'"},
      {file_of(dictionary("|V2", "(1, 1)"), "xx"), "viewed as uint16"},
      {file_of(dictionary("\n\x1b[31m", "(1, 1)"), one), "dtype '??[31m'"},
      {file_of("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,), }", one),
       "dtype is not a plain string"},
      {file_of(dictionary("<f4", "()"), one), "no dimensions"},
      {file_of(dictionary("<f4", "(1, 1, 1)"), one), "more than two dimensions"},
      {file_of(dictionary("<f4", "(-1, 1)"), one), "not a tuple of sizes"},
      {file_of(dictionary("<f4", "1"), one), "expected '('"},
      {file_of(dictionary("<f4", "(1, 2)"), one),
       "1x2 matrix of f32 needs 2 elements, but the file holds 4 bytes"},
      {file_of(dictionary("<f4", "(1, 1)"), one + one), "8 bytes"},
      {file_of(dictionary("<f4", "(1, 1)"), one + "x"), "5 bytes"},
      {file_of(dictionary("<f4", "(2147483647, 2147483647)"), one), "needs 4611686014132420609 elements"},
      {file_of(dictionary("<f4", "(2147483647, 2147483647)"), ""), "needs 4611686014132420609 elements"},
      {file_of(dictionary("<f4", "(99999999999999999999, 1)"), one), "above"},
      {file_of(dictionary("<f4", "(4294967296, 4294967296)"), ""), "above"},
      {file_of(dictionary("<f4", "(1, 1)", "0"), one), "fortran_order"},
      {file_of("{'descr': '<f4', 'shape': (1, 1)}", one), "must hold descr, fortran_order and shape"},
      {file_of("{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (1,)}", one),
       "unknown or repeated key"},
      {file_of("{'descr': '<f4', 'fortran_order': False, 'shape': (1,), 'x': 1}", one), "unknown"},
      {file_of(dictionary("<f4", "(1, 1)") + "more", one), "must hold descr"},
      {file_of("{'descr", one), "not a plain string"},
  };
  for (const auto& [file, text] : cases)
    EXPECT_THAT([&] { parse(file); }, ThrowsMessage<InvalidArgument>(
                                          AllOf(HasSubstr("x.npy: "), HasSubstr(text), Not(HasSubstr("\n")))))
        << text;
}

TEST_F(NpyFileTest, WhatIsWrittenReadsBack) {
  std::mt19937 random(1);
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16})
    for (const auto& [rows, cols] : {std::pair{1, 1}, {3, 5}, {40, 70}, {0, 4}, {129, 1}}) {
      NpyArray array{dtype, rows, cols, {}};
      array.data.resize(static_cast<std::size_t>(rows * cols) * size_bytes(dtype));
      for (auto& byte : array.data) byte = static_cast<std::byte>(random());
      write_npy(path("x.npy"), array);
      const NpyHeader header = read_npy_header(path("x.npy"));
      EXPECT_EQ(header.data_offset % 64, 0u);
      EXPECT_EQ(header.bytes(), array.data.size());
      EXPECT_FALSE(header.fortran_order);
      const NpyArray back = read_npy(path("x.npy"));
      EXPECT_EQ(back.dtype, dtype);
      EXPECT_EQ(back.rows, rows);
      EXPECT_EQ(back.cols, cols);
      EXPECT_EQ(back.data, array.data);
      const std::string bytes = read_file(path("x.npy"), 1 << 20);
      EXPECT_EQ(parse(bytes).data, array.data);
    }
}

TEST_F(NpyFileTest, FortranOrderOfAnyShapeIsTransposed) {
  for (const auto& [rows, cols] : {std::pair{1, 7}, {7, 1}, {33, 65}, {100, 3}}) {
    std::string data;
    for (int col = 0; col < cols; ++col)
      for (int row = 0; row < rows; ++row)
        data += bytes_of<std::uint16_t>({static_cast<std::uint16_t>(row * 256 + col)});
    const auto shape = "(" + std::to_string(rows) + ", " + std::to_string(cols) + ")";
    write_file_atomically(path("x.npy"), file_of(dictionary("<u2", shape, "True"), data));
    const NpyArray array = read_npy(path("x.npy"));
    for (int row = 0; row < rows; ++row)
      for (int col = 0; col < cols; ++col) {
        std::uint16_t value;
        std::memcpy(&value, array.data.data() + 2 * (row * cols + col), 2);
        ASSERT_EQ(value, row * 256 + col);
      }
  }
}

TEST_F(NpyFileTest, ChecksTheLengthBeforeItAllocates) {
  // A header that promises 16 EiB in a file of a few bytes, and a hole in a file in place of data.
  write_file_atomically(path("x.npy"), file_of(dictionary("<f4", "(2147483647, 2147483647)"), "data"));
  EXPECT_THAT([&] { read_npy(path("x.npy")); },
              ThrowsMessage<InvalidArgument>(HasSubstr(path("x.npy") + ": ")));
  EXPECT_THROW(read_npy_header(path("x.npy")), InvalidArgument);
}

TEST_F(NpyFileTest, WhatIsNoFileIsAnIoError) {
  EXPECT_THAT([&] { read_npy(path("none.npy")); },
              ThrowsMessage<IoError>(HasSubstr("none.npy: No such file")));
  EXPECT_THAT([&] { read_npy(path("")); }, ThrowsMessage<IoError>(HasSubstr("not a regular file")));
  EXPECT_THROW(read_npy("/dev/zero"), IoError);
  ASSERT_EQ(::mkfifo(path("pipe").c_str(), 0600), 0);
  EXPECT_THROW(read_npy(path("pipe")), IoError);  // and does not wait for a writer
}

TEST_F(NpyFileTest, WritesNothingOfTheWrongSize) {
  const std::vector<std::byte> data(12);
  EXPECT_THROW(write_npy(path("x.npy"), DType::f32, 2, 2, data), InvalidArgument);
  EXPECT_THROW(write_npy(path("x.npy"), DType::f32, -1, -3, data), InvalidArgument);
  // 2^31 · 2^31 · 4 bytes overflow to none.
  EXPECT_THROW(write_npy(path("x.npy"), DType::f32, std::int64_t{1} << 31, std::int64_t{1} << 31, {}),
               InvalidArgument);
  EXPECT_FALSE(fs::exists(path("x.npy")));
  EXPECT_THROW(write_npy(path("no/x.npy"), DType::f32, 1, 3, data), IoError);
}

class NumpyTest : public NpyFileTest {
 protected:
  void SetUp() override {
    ::setenv("PYTHONPATH", SHINGLE_TEST_SOURCE_DIR "/build/python/test", 0);
    if (python("pass") != 0) GTEST_SKIP() << "numpy cannot be imported";
  }
  int python(const std::string& program) const {
    std::ofstream(path("program.py")) << "import sys, numpy as np\n" << program << "\n";
    const std::string command =
        "cd '" + path("") + "' && " SHINGLE_TEST_PYTHON " program.py >" + path("log") + " 2>&1";
    return std::system(command.c_str());
  }
  std::string log() const { return read_file(path("log"), 1 << 20); }
};

TEST_F(NumpyTest, ReadsWhatWeWrite) {
  const float values[] = {1.5f, -2, 3, 4, 5, 65504};
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    std::vector<std::byte> data(6 * size_bytes(dtype));
    narrow(dtype, values, data.data(), 6);
    write_npy(path(std::string(name(dtype)) + ".npy"), dtype, 2, 3, data);
  }
  ASSERT_EQ(python(R"(
want = np.array([[1.5, -2, 3], [4, 5, 65504]], np.float32)
for name, dtype in ('f32', np.float32), ('f16', np.float16):
    got = np.load(name + '.npy', allow_pickle=False)
    assert got.dtype == dtype and got.flags.c_contiguous and np.array_equal(got, want), (name, got)
got = np.load('bf16.npy', allow_pickle=False)
assert got.dtype == np.uint16 and got.shape == (2, 3)
wide = (got.astype(np.uint32) << 16).view(np.float32)
assert np.array_equal(wide[0], want[0]) and wide[1, 2] == 65536, wide)"),
            0)
      << log();
}

TEST_F(NumpyTest, IsReadByUs) {
  ASSERT_EQ(python(R"(
for dtype in np.float32, np.float16, np.uint16:
    for order in 'CF':
        a = np.arange(12, dtype=dtype).reshape(3, 4)
        np.save('%s_%s.npy' % (np.dtype(dtype).name, order), np.array(a, order=order))
np.save('vector.npy', np.arange(5, dtype=np.float32))
np.save('double.npy', np.zeros((2, 2)))
np.save('big.npy', np.zeros((2, 2), '>f4'))
np.save('bool.npy', np.zeros((2, 2), bool))
np.save('object.npy', np.array([{}, None], object), allow_pickle=True)
np.savez('archive.npy.npz', x=np.zeros(3))
from numpy.lib import format
for version in (1, 0), (2, 0), (3, 0):
    with open('version%d.npy' % version[0], 'wb') as f:
        format.write_array(f, np.arange(12, dtype=np.float32).reshape(3, 4), version=version))"),
            0)
      << log();
  std::vector<std::string> same{"version1", "version2", "version3"};
  for (const char* dtype : {"float32", "float16"})
    for (const char* order : {"C", "F"}) same.push_back(std::string(dtype) + "_" + order);
  for (const std::string& stem : same) {
    const NpyArray array = read_npy(path(stem + ".npy"));
    EXPECT_EQ(array.rows, 3);
    EXPECT_EQ(array.cols, 4);
    EXPECT_THAT(floats(array), ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11)) << stem;
  }
  EXPECT_EQ(read_npy(path("uint16_F.npy")).data, read_npy(path("uint16_C.npy")).data);
  EXPECT_TRUE(read_npy_header(path("float32_F.npy")).fortran_order);
  EXPECT_EQ(read_npy(path("vector.npy")).rows, 1);
  for (const char* name : {"double.npy", "big.npy", "bool.npy", "object.npy", "archive.npy.npz"})
    EXPECT_THROW(read_npy(path(name)), InvalidArgument) << name;
}

}  // namespace
}  // namespace shingle::npy_test
