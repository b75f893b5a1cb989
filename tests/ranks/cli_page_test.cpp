// A page as a browser shows it.
#include <set>

#include "cli_program.hpp"

namespace shingle::cli_page_test {
namespace {

using nlohmann::json;

/// The first browser in PATH that can be run without a screen; empty where there is none.
std::string browser() {
  for (const std::string name : {"chromium-headless-shell", "chromium", "chromium-browser", "google-chrome"})
    if (std::system(("command -v " + name + " >/dev/null").c_str()) == 0) return name;
  return "";
}

/// The colours that follow `before`, each once.
std::set<std::string> colours_after(const std::string& page, const std::string& before) {
  std::set<std::string> found;
  for (std::size_t at = page.find(before); at != std::string::npos; at = page.find(before, at + 1)) {
    const std::size_t fill = page.find("fill=\"#", at);
    if (fill != std::string::npos) found.insert(page.substr(fill + 7, 6));
  }
  return found;
}

class CliPage : public Cli {
 protected:
  /// What the picture of page.html holds of these colours, and how many there are at all.
  json look(const std::string& flags, const std::set<std::string>& colours) const {
    const std::string shown = path("page.png");
    const std::string shoot =
        "HOME=" + path("") + " timeout 120 " + browser() +
        " --headless --no-sandbox --disable-gpu --hide-scrollbars --force-color-profile=srgb "
        "--window-size=1200,2000 " +
        flags + " --screenshot=" + shown + " file://" + path("page.html") + " >" + path("log") + " 2>&1";
    EXPECT_EQ(std::system(shoot.c_str()), 0) << read_file(path("log"), 1 << 20);
    std::string count =
        SHINGLE_TEST_PYTHON " " SHINGLE_TEST_SOURCE_DIR "/tests/support/count_colours.py " + shown;
    for (const std::string& colour : colours) count += " " + colour;
    EXPECT_EQ(std::system((count + " >" + path("counts")).c_str()), 0);
    return json::parse(read_file(path("counts"), 1 << 20));
  }
};

TEST_F(CliPage, ShowsTableMapAndTimelines) {
  if (browser().empty()) GTEST_SKIP() << "no browser here: install chromium-headless-shell or chromium";
  const Outcome outcome = run(
      "simulate --op gemm+reducescatter --n 4K --world 4 --mechanism signal --sweep m=2K,8K --sweep k=2K,8K "
      "--machine " SHINGLE_TEST_SOURCE_DIR "/machines/h200x8.json --html " +
      path("page.html"));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const std::string page = read_file(path("page.html"), 1 << 26);
  const std::set<std::string> cells = colours_after(page, "<rect class=\"cell\"");
  const std::set<std::string> bars{"4e79a7", "f28e2b"};  // of the first two groups of tiles
  std::set<std::string> wanted = cells;
  wanted.insert(bars.begin(), bars.end());
  wanted.insert({"ffffff", "12161c"});  // the page's light and dark ground

  const json light = look("", wanted);
  EXPECT_EQ(light.at("width"), 1200);
  EXPECT_GT(light.at("colours"), 100) << "letters have soft edges";
  EXPECT_GT(light.at("pixels").at("ffffff"), 1200 * 2000 / 2);
  ASSERT_GE(cells.size(), 4u);
  for (const std::string& colour : cells) EXPECT_GT(light.at("pixels").at(colour), 100) << colour;
  for (const std::string& colour : bars) EXPECT_GT(light.at("pixels").at(colour), 2000) << colour;

  const json dark = look("--blink-settings=preferredColorScheme=0", wanted);
  EXPECT_GT(dark.at("pixels").at("12161c"), 1200 * 2000 / 2);
  for (const std::string& colour : cells) EXPECT_GT(dark.at("pixels").at(colour), 100) << colour;
}

}  // namespace
}  // namespace shingle::cli_page_test
