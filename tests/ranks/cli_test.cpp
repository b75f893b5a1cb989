// The program as its users meet it: exit codes, one line a failure, the shape of what it prints, and what it writes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "shingle/api/npy.hpp"
#include "shingle/base/file.hpp"

namespace shingle {
namespace {

using nlohmann::json;
using testing::HasSubstr;

struct Outcome {
  int code = -1;
  std::string out, err;
};

class Cli : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() / ("shingle_cli_" + std::to_string(getpid()));
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string path(const std::string& name) const { return (folder_ / name).string(); }

  /// Runs `shingle ARGUMENTS`, behind `launcher` if there is one.
  Outcome run(const std::string& arguments, const std::string& launcher = "") const {
    const std::string command =
        launcher + " " SHINGLE_TEST_PROGRAM " " + arguments + " >" + path("stdout") + " 2>" + path("stderr") + " </dev/null";
    const int status = std::system(command.c_str());
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, read_file(path("stdout"), 1 << 28), read_file(path("stderr"), 1 << 28)};
  }
  Outcome mpirun(int processes, const std::string& arguments) const {
    return run(arguments, SHINGLE_TEST_MPIEXEC " --oversubscribe -n " + std::to_string(processes));
  }

  /// Exit code 2 and one line that says why, with nothing printed.
  void expect_refused(const std::string& arguments, const std::string& why) const {
    const Outcome outcome = run(arguments);
    EXPECT_EQ(outcome.code, 2) << arguments << "\n" << outcome.err;
    EXPECT_EQ(outcome.out, "") << arguments;
    EXPECT_TRUE(outcome.err.starts_with("shingle: ")) << arguments << "\n" << outcome.err;
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr(why)) << arguments;
  }

  json rows(const std::string& arguments, int code = 0) const {
    const Outcome outcome = run("run --format json --repeat 1 " + arguments);
    EXPECT_EQ(outcome.code, code) << arguments << "\n" << outcome.err;
    return json::parse(outcome.out);
  }

  void write(const std::string& name, const std::string& text) const { std::ofstream(path(name)) << text; }

 private:
  std::filesystem::path folder_;
};

const std::string small = "--m 96 --n 80 --k 64 --world 2 ";

TEST_F(Cli, HelpAndVersionSucceed) {
  for (const char* arguments : {"--help", "run --help", "plan --help", "verify --help", "info --help"}) {
    const Outcome outcome = run(arguments);
    EXPECT_EQ(outcome.code, 0) << arguments;
    EXPECT_THAT(outcome.out, HasSubstr("Usage"));
    EXPECT_EQ(outcome.err, "");
  }
  EXPECT_THAT(run("--help").out, HasSubstr("shingle run --model"));
  EXPECT_THAT(run("--version").out, HasSubstr("shingle 0."));
}

TEST_F(Cli, RefusesBadUsageInOneLine) {
  expect_refused("", "subcommand");
  expect_refused("fly", "fly");
  expect_refused("run", "--op");
  expect_refused("run --op gemm+allreduce", "--m");
  expect_refused("run --op gemm+allreduce --m 8 --n 8", "--k");
  expect_refused("run --op gemm+sort --m 8 --n 8 --k 8", "gemm+sort");
  expect_refused("run --op gemm " + small + "--wings 2", "--wings");
  expect_refused("run --op gemm " + small + "--mechanism magic", "magic");
  expect_refused("run --op gemm " + small + "--dtype f8", "f8");
  expect_refused("run --op gemm " + small + "--epilogue relu,gelu", "more than one activation");
  expect_refused("run --op gemm " + small + "--epilogue tanh", "tanh");
  expect_refused("run --op gemm " + small + "--residual", "norm");
  expect_refused("run --op gemm " + small + "--tile 256", "256");
  expect_refused("run --op gemm " + small + "--groups 1,,2", "--groups");
  expect_refused("run --op gemm " + small + "--link fast", "--link");
  expect_refused("run --op gemm " + small + "--timeout 0s", "--timeout");
  expect_refused("run --op gemm " + small + "--format xml", "xml");
  expect_refused("run --op gemm " + small + "--backend abacus", "abacus");
  expect_refused("run --op gemm " + small + "--repeat 0", "--repeat");
  expect_refused("run --op gemm " + small + "--seed -1", "--seed");
  expect_refused("run --op gemm " + small + "--tokens 8", "--model");
  expect_refused("run --op gemm " + small + "--m 8", "--m");
  expect_refused("run --op gemm+allreduce " + small + "--row-order block-cyclic --row-block 4", "block-cyclic");
  expect_refused("plan --op gemm " + small + "--rank 2", "--rank");
}

TEST_F(Cli, RefusesAbsurdSizesAndWorlds) {
  expect_refused("run --op gemm --m 0 --n 8 --k 8", "--m");
  expect_refused("run --op gemm --m -4 --n 8 --k 8", "--m");
  expect_refused("run --op gemm --m 8x --n 8 --k 8", "8x");
  expect_refused("run --op gemm --m 99999999999999999999999 --n 8 --k 8", "--m");
  expect_refused("run --op gemm --m 9999999T --n 8 --k 8", "--m");
  expect_refused("run --op gemm --m 4G --n 8 --k 8", "--m");
  expect_refused("run --op gemm --m 8 --n 8 --k 8 --world 65", "--world");
  expect_refused("run --op gemm --m 8 --n 8 --k 8 --world 0", "--world");
  expect_refused("run --op gemm --m 1G --n 1G --k 1G", "of memory");
  expect_refused("run --op gemm+allreduce --m 2147483647 --n 2147483647 --k 2147483647 --world 64", "of memory");
  expect_refused("run --op gemm+alltoall --m 128M --n 128M --k 8", "");
}

TEST_F(Cli, RefusesBadFiles) {
  expect_refused("run --model nowhere.json --tokens 8 --tp 2", "nowhere.json");
  expect_refused("run --model " + path("") + " --tokens 8 --tp 2", path(""));
  write("broken.json", "{\"hidden_size\": 12,");
  expect_refused("run --model " + path("broken.json") + " --tokens 8 --tp 2", "broken.json");
  expect_refused("verify " + path("broken.json"), "broken.json");
  expect_refused("verify nowhere.json", "nowhere.json");
  write("broken.npy", "this is no array");
  expect_refused("run --op gemm --a " + path("broken.npy") + " --b " + path("broken.npy") + " --out " + path("y.npy"), "broken.npy");
  expect_refused("run --op gemm --a nowhere.npy --b nowhere.npy", "nowhere.npy");
  expect_refused("run --op gemm+alltoall " + small + "--routing nowhere.json", "nowhere.json");
  expect_refused("run --op gemm+alltoall " + small + "--routing sideways", "sideways");
  write("routing.json", R"({"dest": [[0, 5], [1]]})");
  expect_refused("run --op gemm+alltoall --n 8 --k 8 --world 2 --routing " + path("routing.json"), "routing.json");
  expect_refused("run --op gemm " + small + "--trace " + path("no/such/folder/t.json"), "--trace");
  EXPECT_FALSE(std::filesystem::exists(path("y.npy")));
}

TEST_F(Cli, PrintsRowsWithTheKeysOfTheManual) {
  const json all = rows("--op gemm+allreduce --mechanism all " + small);
  ASSERT_EQ(all.size(), 3u);
  const std::set<std::string> keys{"op",            "m",        "n",                  "k",         "world",     "dtype",    "backend", "mechanism", "params",
                                   "sequential_us", "overlapped_us", "speedup", "overlap_efficiency", "max_error", "tolerance", "verified", "reason"};
  for (const json& row : all) {
    std::set<std::string> found;
    for (const auto& [key, value] : row.items()) found.insert(key);
    EXPECT_EQ(found, keys);
    EXPECT_EQ(row.at("op"), "gemm+allreduce");
    EXPECT_EQ(row.at("m"), 96);
    EXPECT_EQ(row.at("world"), 2);
    EXPECT_EQ(row.at("dtype"), "f32");
    EXPECT_EQ(row.at("backend"), "host");
    EXPECT_EQ(row.at("verified"), true);
    EXPECT_TRUE(row.at("reason").is_null());
    EXPECT_LE(row.at("max_error").get<double>(), row.at("tolerance").get<double>());
    EXPECT_NEAR(row.at("speedup").get<double>(), row.at("sequential_us").get<double>() / row.at("overlapped_us").get<double>(), 1e-9);
  }
  EXPECT_EQ(all[2].at("mechanism"), "signal");
}

TEST_F(Cli, RunsWhatTheFlagsSay) {
  EXPECT_EQ(rows("--op gemm --mechanism sequential " + small)[0].at("verified"), true);
  const json tiled = rows("--op gemm+allreduce --mechanism signal --tile 32x16 --groups 3,7,8 --raster m --swizzle 2 --rotation 1 --workers 1 " + small);
  EXPECT_EQ(tiled[0].at("params").at("group_waves"), json({3, 7, 8}));  // 15 tiles, and 3 phantoms of the swizzle
  EXPECT_EQ(tiled[0].at("params").at("tile_rows"), 32);
  EXPECT_EQ(rows("--op gemm+reducescatter --mechanism chunked --chunks 3 " + small)[0].at("params").at("chunks"), 3);
  EXPECT_EQ(rows("--op allgather+gemm " + small)[0].at("mechanism"), "chunked");
  for (const std::string routing : {"random", "skewed", "all-to-one", "balanced", "empty-rank"})
    EXPECT_EQ(rows("--op gemm+alltoall --routing " + routing + " " + small)[0].at("verified"), true) << routing;
  for (const std::string flags : {"--dtype bf16 --epilogue bias,gelu --transpose-b", "--dtype f16 --norm --residual",
                                  "--transpose-a --epilogue swiglu", "--row-order block-cyclic --row-block 8 --seed 99"})
    EXPECT_EQ(rows("--op gemm+reducescatter --mechanism all " + flags + " " + small)[2].at("verified"), true) << flags;
}

TEST_F(Cli, ReadsARoutingFile) {
  write("routing.json", R"({"dest": [[0, 1, 1], [1], []]})");
  const json row = rows("--op gemm+alltoall --n 16 --k 8 --world 3 --routing " + path("routing.json"))[0];
  EXPECT_EQ(row.at("m"), 3);
  EXPECT_EQ(row.at("verified"), true);
}

TEST_F(Cli, TellsWhyAMechanismCannotServe) {
  const json none = rows("--op allgather+gemm --mechanism signal " + small, 1);
  EXPECT_TRUE(none[0].at("sequential_us").is_null());
  EXPECT_EQ(none[0].at("verified"), false);
  EXPECT_THAT(none[0].at("reason").get<std::string>(), HasSubstr("chunked"));
  const json some = rows("--op allgather+gemm --mechanism all " + small);
  EXPECT_EQ(some.size(), 3u);
  const Outcome outcome = run("run --op allgather+gemm --mechanism signal --repeat 1 " + small);
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.out, HasSubstr("use chunked"));
}

TEST_F(Cli, RunsALayerOfAModel) {
  const std::string model = "--model " SHINGLE_TEST_SOURCE_DIR "/models/llama-3-8b.json --tp 4 --tokens 16 --layer-ops";
  const Outcome table = run("run --repeat 1 " + model);
  EXPECT_EQ(table.code, 0) << table.err;
  EXPECT_THAT(table.out, HasSubstr("attn_out"));
  EXPECT_THAT(table.out, HasSubstr("speedup"));
  EXPECT_EQ(rows(model + "=ffn_down").size(), 1u);
  expect_refused("run " + model + "=nose", "nose");
  expect_refused("run --model " SHINGLE_TEST_SOURCE_DIR "/models/llama-3-8b.json --tp 3 --tokens 16 --layer-ops", "");
}

TEST_F(Cli, ShowsInfo) {
  const Outcome text = run("info");
  EXPECT_EQ(text.code, 0);
  EXPECT_THAT(text.out, HasSubstr("oneDNN"));
  const json info = json::parse(run("info --format json").out);
  EXPECT_GE(info.at("cores"), 1);
  EXPECT_THAT(info.at("libraries").at("blas").get<std::string>(), HasSubstr("OpenBLAS"));
}

TEST_F(Cli, PlansAndProvesThem) {
  const std::string problem = "--op gemm+reducescatter " + small;
  EXPECT_THAT(run("plan " + problem).out, HasSubstr("reducescatter"));
  const Outcome written = run("plan --format json --out " + path("plan.json") + " " + problem);
  EXPECT_EQ(written.code, 0);
  EXPECT_EQ(written.out, "");
  const Outcome proven = run("verify " + path("plan.json"));
  EXPECT_EQ(proven.code, 0) << proven.out << proven.err;
  EXPECT_THAT(proven.out, HasSubstr("proven"));
  EXPECT_EQ(run("verify --mechanism all " + problem).code, 0);

  // A plan that awaits what nobody adds is refuted, with the place.
  std::string text = read_file(path("plan.json"), 1 << 20);
  json plan = json::parse(text);
  for (json& step : plan.at("ranks").at(0).at("lanes").at(1).at("steps"))
    if (step.contains("target")) step["target"] = 1000;
  write("stuck.json", plan.dump());
  if (plan.dump() != json::parse(text).dump()) {
    const Outcome stuck = run("verify " + path("stuck.json"));
    EXPECT_EQ(stuck.code, 1) << stuck.out << stuck.err;
    EXPECT_THAT(stuck.out, HasSubstr("rank"));
  }
  const Outcome none = run("plan --op allgather+gemm --mechanism signal " + small);
  EXPECT_EQ(none.code, 1);
  EXPECT_EQ(none.out, "");
  EXPECT_THAT(none.err, HasSubstr("use chunked"));
}

TEST_F(Cli, WritesTracesAndPictures) {
  const std::string files = "--trace " + path("t.json") + " --svg " + path("t.svg") + " ";
  EXPECT_EQ(run("run --repeat 1 --op gemm+allreduce " + files + small).code, 0);
  EXPECT_GT(json::parse(read_file(path("t.json"), 1 << 26)).at("traceEvents").size(), 4u);
  EXPECT_THAT(read_file(path("t.svg"), 1 << 26), HasSubstr("</svg>"));
  EXPECT_EQ(run("plan --op gemm+allreduce " + files + small).code, 0);
  EXPECT_GT(json::parse(read_file(path("t.json"), 1 << 26)).at("traceEvents").size(), 4u);
}

/// M×K times K×N of small integers, as files.
struct Product {
  std::int64_t m, n, k;
  float a(std::int64_t i, std::int64_t j) const { return static_cast<float>((i * 3 + j * 5) % 7 - 3); }
  float b(std::int64_t i, std::int64_t j) const { return static_cast<float>((i * 2 + j * 11) % 5 - 2); }
  float c(std::int64_t i, std::int64_t j) const {
    float sum = 0;
    for (std::int64_t x = 0; x < k; ++x) sum += a(i, x) * b(x, j);
    return sum;
  }
  template <class Element>
  static void save(const std::string& path, DType dtype, std::int64_t rows, std::int64_t cols, Element element) {
    NpyArray array{dtype, rows, cols, std::vector<std::byte>(static_cast<std::size_t>(rows * cols) * size_bytes(dtype))};
    for (std::int64_t i = 0; i < rows; ++i)
      for (std::int64_t j = 0; j < cols; ++j)
        store_element(dtype, array.data.data(), static_cast<std::size_t>(i * cols + j), element(i, j));
    write_npy(path, array);
  }
};

TEST_F(Cli, MultipliesTheUsersMatrices) {
  const Product whole{37, 29, 23};  // divides among no number of ranks
  Product::save(path("a.npy"), DType::f32, 37, 23, [&](auto i, auto j) { return whole.a(i, j); });
  Product::save(path("b.npy"), DType::f32, 23, 29, [&](auto i, auto j) { return whole.b(i, j); });
  Product::save(path("bt.npy"), DType::f32, 29, 23, [&](auto i, auto j) { return whole.b(j, i); });
  const std::string files = "--a " + path("a.npy") + " --out " + path("y.npy") + " ";
  const auto expect_product = [&](const std::string& flags) {
    std::filesystem::remove(path("y.npy"));
    EXPECT_EQ(rows(files + flags)[0].at("verified"), true) << flags;
    const NpyArray y = read_npy(path("y.npy"));
    ASSERT_EQ(y.rows, 37) << flags;
    ASSERT_EQ(y.cols, 29) << flags;
    for (std::int64_t i = 0; i < 37; ++i)
      for (std::int64_t j = 0; j < 29; ++j)
        ASSERT_EQ(load_element(y.dtype, y.data.data(), static_cast<std::size_t>(i * 29 + j)), whole.c(i, j)) << flags << i << "," << j;
  };
  for (const std::string op : {"gemm", "gemm+allreduce", "gemm+reducescatter", "allgather+gemm", "gemm+alltoall"}) {
    expect_product("--world 4 --b " + path("b.npy") + " --op " + op);
    expect_product("--world 3 --transpose-b --b " + path("bt.npy") + " --op " + op);
  }
  expect_refused("run --op gemm " + files + "--b " + path("bt.npy"), "cannot be multiplied");
  expect_refused("run --op gemm " + files, "--b");
  expect_refused("run --op gemm --m 8 " + files + "--b " + path("b.npy"), "--m");
  expect_refused("run --op gemm --epilogue bias " + files + "--b " + path("b.npy"), "bias");
}

TEST_F(Cli, MultipliesTheUsersMatricesInBf16) {
  Product::save(path("a.npy"), DType::bf16, 16, 8, [](auto i, auto j) { return static_cast<float>(i == j); });
  Product::save(path("b.npy"), DType::bf16, 8, 12, [](auto i, auto j) { return static_cast<float>(i + 8 * j); });
  EXPECT_EQ(rows("--op gemm+allreduce --world 2 --epilogue relu --a " + path("a.npy") + " --b " + path("b.npy") + " --out " + path("y.npy"))[0].at("dtype"), "bf16");
  const NpyArray y = read_npy(path("y.npy"));
  EXPECT_EQ(y.dtype, DType::bf16);
  EXPECT_EQ(load_element(y.dtype, y.data.data(), 5 * 12 + 3), 29.0f);
}

TEST_F(Cli, RunsUnderMpirun) {
  const Outcome outcome = mpirun(3, "run --format json --repeat 1 --mechanism all --op gemm+reducescatter --m 90 --n 40 --k 32");
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const json all = json::parse(outcome.out);  // of rank 0 alone
  ASSERT_EQ(all.size(), 3u);
  for (const json& row : all) {
    EXPECT_EQ(row.at("world"), 3);
    EXPECT_EQ(row.at("backend"), "mpi");
    EXPECT_EQ(row.at("verified"), true) << row;
  }
  EXPECT_EQ(mpirun(2, "run --op gemm --m 8 --n 8 --k 8 --world 5").code, 2);
}

TEST_F(Cli, SavesTheUsersResultUnderMpirun) {
  const Product whole{20, 12, 9};
  Product::save(path("a.npy"), DType::f32, 20, 9, [&](auto i, auto j) { return whole.a(i, j); });
  Product::save(path("b.npy"), DType::f32, 9, 12, [&](auto i, auto j) { return whole.b(i, j); });
  const Outcome outcome = mpirun(2, "run --repeat 1 --op gemm+reducescatter --a " + path("a.npy") + " --b " + path("b.npy") + " --out " + path("y.npy"));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const NpyArray y = read_npy(path("y.npy"));
  for (std::int64_t i = 0; i < 20; ++i)
    EXPECT_EQ(load_element(y.dtype, y.data.data(), static_cast<std::size_t>(i * 12 + 7)), whole.c(i, 7));
}

}  // namespace
}  // namespace shingle
