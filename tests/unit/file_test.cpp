#include "base/file.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <thread>

#include "shingle/base/error.hpp"

namespace shingle::file_test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

class FileTest : public ::testing::Test {
 protected:
  FileTest() { fs::create_directory(dir_); }
  ~FileTest() override { fs::remove_all(dir_); }

  std::string path(const std::string& name) const { return (dir_ / name).string(); }
  std::size_t entries() const {
    return static_cast<std::size_t>(std::distance(fs::directory_iterator(dir_), fs::directory_iterator()));
  }

 private:
  fs::path dir_ = fs::path(::testing::TempDir()) / ("shingle_file_" + std::to_string(::getpid()));
};

TEST_F(FileTest, ReadsBackWhatWasWritten) {
  for (const std::size_t size : {0, 1, 4095, 4096, 4097, 1'000'000}) {
    std::string bytes(size, '\0');
    for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<char>(i * 31 % 251);
    write_file_atomically(path("x"), bytes);
    EXPECT_EQ(read_file(path("x"), size), bytes) << size;
  }
  EXPECT_EQ(entries(), 1u);
}

TEST_F(FileTest, PiecesFollowEachOther) {
  const std::string_view pieces[] = {"head", "", "er and data"};
  write_file_atomically(path("x"), pieces);
  EXPECT_EQ(read_file(path("x"), 100), "header and data");
}

TEST_F(FileTest, ReadingIsBounded) {
  write_file_atomically(path("x"), "12345");
  EXPECT_EQ(read_file(path("x"), 5), "12345");
  EXPECT_THAT([&] { read_file(path("x"), 4); },
              ThrowsMessage<IoError>(HasSubstr("larger than the limit of 4 B")));
  EXPECT_THROW(read_file("/dev/zero", 1 << 20), IoError);
}

TEST_F(FileTest, ErrorsNamePathAndReason) {
  EXPECT_THAT([&] { read_file(path("none"), 9); },
              ThrowsMessage<IoError>(AllOf(HasSubstr(path("none") + ": "), HasSubstr("No such file"))));
  EXPECT_THAT([&] { read_file(path(""), 9); }, ThrowsMessage<IoError>(HasSubstr("Is a directory")));
  EXPECT_THAT([&] { write_file_atomically(path("no/such"), "x"); },
              ThrowsMessage<IoError>(HasSubstr(path("no/such") + ": No such file")));
  EXPECT_THAT([&] { write_file_atomically(path(""), "x"); },
              ThrowsMessage<IoError>(HasSubstr("Is a directory")));
  EXPECT_THROW(write_file_atomically(std::string("a\0b", 3), "x"), IoError);
  EXPECT_EQ(entries(), 0u);
}

TEST_F(FileTest, ReadsPipes) {
  ASSERT_EQ(::mkfifo(path("pipe").c_str(), 0600), 0);
  // A pipe is written to, not renamed over.
  std::thread writer([&] { write_file_atomically(path("pipe"), std::string(100'000, 'p')); });
  EXPECT_EQ(read_file(path("pipe"), 100'000), std::string(100'000, 'p'));
  writer.join();
  EXPECT_TRUE(fs::is_fifo(path("pipe")));
}

TEST_F(FileTest, DevicesSurvive) {
  write_file_atomically("/dev/null", "gone");
  EXPECT_TRUE(fs::is_character_file("/dev/null"));
  if (fs::exists("/dev/full")) {
    EXPECT_THAT([] { write_file_atomically("/dev/full", "x"); },
                ThrowsMessage<IoError>(HasSubstr("No space left")));
  }
}

TEST_F(FileTest, FailedWriteLeavesTheOldFileAndNoTemporary) {
  write_file_atomically(path("x"), "old");
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit tight{4096, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &tight), 0);
  EXPECT_THAT([&] { write_file_atomically(path("x"), std::string(10'000, 'n')); },
              ThrowsMessage<IoError>(HasSubstr(path("x") + ": File too large")));
  EXPECT_THROW(write_file_atomically(path("y"), std::string(10'000, 'n')), IoError);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(read_file(path("x"), 100), "old");
  EXPECT_EQ(entries(), 1u);
}

TEST_F(FileTest, LinksAndModesStay) {
  write_file_atomically(path("x"), "old");
  fs::permissions(path("x"), fs::perms::owner_read | fs::perms::owner_write);
  fs::create_symlink("x", path("link"));
  write_file_atomically(path("link"), "new");
  EXPECT_TRUE(fs::is_symlink(path("link")));
  EXPECT_EQ(read_file(path("x"), 100), "new");
  EXPECT_EQ(fs::status(path("x")).permissions(), fs::perms::owner_read | fs::perms::owner_write);
}

TEST_F(FileTest, WritersDoNotMix) {
  std::vector<std::thread> writers;
  for (int i = 0; i < 8; ++i)
    writers.emplace_back([&, i] {
      for (int round = 0; round < 10; ++round)
        write_file_atomically(path("x"), std::string(50'000, static_cast<char>('a' + i)));
    });
  for (auto& writer : writers) writer.join();
  const std::string bytes = read_file(path("x"), 50'000);
  EXPECT_EQ(bytes, std::string(50'000, bytes[0]));
  EXPECT_EQ(entries(), 1u);
}

}  // namespace
}  // namespace shingle::file_test
