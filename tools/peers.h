#pragma once
// The systems that `trireme bench` compares with, when they are installed.
#include <string>
#include <vector>

namespace trireme::tools {

struct Peer {
  const char* title;
  const char* purpose;
  const char* remedy;  // how to get it
  bool (*available)();
};

const std::vector<Peer>& peers();
bool has_python_torch();
bool has_open_mpi();

/// Where a program of bench/peers is.
std::string peer_program(const std::string& file);

/// Debian's interpreter, the one that has Debian's torch.
constexpr const char* kPython = "/usr/bin/python3";

}  // namespace trireme::tools
