#include "shingle/app.hpp"

int main(int argc, char** argv) {
  return shingle::cli::main(argc, argv);
}
