#pragma once
// Tokens, and the ranks' stretches of a vocabulary.
#include <torch/types.h>

#include <cstdint>

#include <trireme/base/error.h>

namespace trireme::layers {

/// Throws InvalidArgument for tokens that are not in it: where a vocabulary is divided, nobody would miss them.
inline void check_tokens(const torch::Tensor& tokens, int64_t vocabulary) {
  if (tokens.numel() == 0) return;
  const auto least = tokens.min().item<int64_t>(), most = tokens.max().item<int64_t>();
  if (least < 0 || most >= vocabulary)
    fail<InvalidArgument>("token {} is not in a vocabulary of {}: tokens are 0 to {}", least < 0 ? least : most,
                          vocabulary, vocabulary - 1);
}

/// Where each token is in a stretch of `count` from `begin`, and whether it is there at all; of others, some place.
struct Places {
  torch::Tensor place, mine;
};

inline Places places_in(const torch::Tensor& tokens, int64_t begin, int64_t count) {
  const torch::Tensor shifted = tokens - begin;
  const torch::Tensor place = shifted.clamp(0, count - 1);
  return {place, place.eq(shifted)};
}

}  // namespace trireme::layers
