#pragma once
// What `compress auto` has chosen, and why: for those who are shown it.
#include <string>
#include <vector>

#include <trireme/compress/judge.h>

namespace trireme::exchange {

/// On one machine there are no buckets in it: nothing travels there.
struct Compression {
  std::vector<std::string> candidates{};  // verdicts count them from 1
  std::vector<std::string> buckets{};     // names
  compress::Judgement judgement{};        // of the last look; its buckets are in their order
  int64_t looks = 0;                      // so far
  bool settled = false;                   // otherwise a look is under way, and codecs take turns
  /// "none" for 0.
  std::string name(size_t codec) const { return codec == 0 ? "none" : candidates[codec - 1]; }
};

}  // namespace trireme::exchange
