#pragma once
// Which launcher started this process, and as what. A pure function of environment variables.
#include <functional>
#include <string>

namespace trireme::cluster {

struct Place {
  int rank = 0;
  int size = 1;
  std::string job;       // the same in all ranks of a job, different between jobs
  std::string launcher;  // "alone", "trireme launch", "torchrun-style variables"
};

/// The value of a variable, or nullptr.
using Lookup = std::function<const char*(const char* name)>;

/// Understands TRIREME_RANK, TRIREME_SIZE, TRIREME_JOB, and torchrun's RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT.
/// Throws InvalidArgument that names the variable when one is missing, not a number or out of range.
Place place_from(const Lookup& lookup);

/// From this process's environment.
Place place_here();

}  // namespace trireme::cluster
