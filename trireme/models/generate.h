#pragma once
// Text from a language model that says what comes next, token by token.
#include <cstdint>
#include <functional>
#include <string>

#include <trireme/models/load.h>

namespace trireme::models {

struct GenerateOptions {
  int64_t tokens = 200;      // to add
  double temperature = 0.8;  // 0: always the likeliest token; 1: as likely as the model says; above: bolder
  int64_t top = 0;           // choose among so many of the likeliest; 0: among all
  uint64_t seed = 1;         // the same one gives the same text
};

/// Throws InvalidArgument for numbers that cannot be.
void check(const GenerateOptions& options);
/// Throws InvalidArgument unless the model says what comes next.
void check_generates(const About& about);

/// Calls say() with the text that follows `prompt`, piece by piece as it is made: whole characters of UTF-8, with
/// U+FFFD for bytes that are none. The model sees as many of the last tokens as its context has. An empty prompt is the
/// beginning of a line. Stops when say() returns false. One thread; blocks. Throws as the
/// checks do.
void generate(Loaded& model, const std::string& prompt, const GenerateOptions& options,
              const std::function<bool(const std::string&)>& say);

}  // namespace trireme::models
