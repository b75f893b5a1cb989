// What must hold of every page that stands alone.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>

#include "base/file.hpp"

namespace shingle::test {

inline std::size_t count_of(std::string_view text, std::string_view word) {
  std::size_t found = 0;
  for (std::size_t at = text.find(word); at != std::string_view::npos; at = text.find(word, at + 1)) ++found;
  return found;
}

/// Well-formed, from end to end, and refers to nothing outside of itself. `scratch` is a file to be written.
inline void expect_stands_alone(const std::string& page, const std::string& scratch) {
  EXPECT_TRUE(page.starts_with("<!DOCTYPE html>\n"));
  EXPECT_TRUE(page.ends_with("</html>\n"));
  for (const char* outside : {"http:", "https:", "src=", "href=", "url(", "@import", "<script", "<link"})
    EXPECT_EQ(count_of(page, outside), 0u) << outside;
  for (const char* broken : {"nan", "inf\"", "inf "}) EXPECT_EQ(count_of(page, broken), 0u) << broken;
  write_file_atomically(scratch, page);
  const std::string parse = SHINGLE_TEST_PYTHON
                            " -c 'import sys, xml.etree.ElementTree as tree; tree.parse(sys.argv[1])' " +
                            scratch;
  EXPECT_EQ(std::system(parse.c_str()), 0) << "not well-formed";
}

}  // namespace shingle::test
