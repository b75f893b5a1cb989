// The command line: parsing, dispatch and errors.
#pragma once

namespace shingle::cli {

/// Returns the exit code: 0; 1 after a failure; 2 for a usage error. Never throws.
int main(int argc, const char* const* argv);

}  // namespace shingle::cli
