// The command line: parsing, dispatch, and what becomes of errors.
#pragma once

namespace shingle::cli {

/// Returns the exit code: 0; 1 where something failed; 2 where the user asked wrongly. Never throws.
int main(int argc, const char* const* argv);

}  // namespace shingle::cli
