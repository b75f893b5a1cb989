// The figures of the manual are what the commands beside them draw.
#include <sstream>

#include "cli_program.hpp"

namespace shingle::cli_figures_test {
namespace {

TEST_F(Cli, DrawsTheFiguresOfTheManual) {
  const std::string source = SHINGLE_TEST_SOURCE_DIR "/";
  int figures = 0;
  for (const auto& page : std::filesystem::recursive_directory_iterator(source + "docs")) {
    if (page.path().extension() != ".md") continue;
    std::string text = read_file(page.path().string(), 1 << 20);
    std::ranges::replace_if(text, [](char c) { return c == '\n' || c == '\\' || c == '`'; }, ' ');
    for (std::size_t at = 0; (at = text.find(" --svg ", at)) != std::string::npos; ++at) {
      const std::size_t command = text.rfind("shingle plan ", at);
      std::string file;
      std::istringstream(text.substr(at + 7)) >> file;
      if (command == std::string::npos || !file.starts_with("docs/")) continue;
      const std::string arguments = text.substr(command + 8, at - command - 8);
      ASSERT_EQ(run(arguments + " --svg " + path("drawn.svg")).code, 0) << arguments;
      EXPECT_TRUE(read_file(path("drawn.svg"), 1 << 20) == read_file(source + file, 1 << 20))
          << "redraw by shingle " << arguments << " --svg " << file;
      ++figures;
    }
  }
  EXPECT_GE(figures, 4);
}

}  // namespace
}  // namespace shingle::cli_figures_test
