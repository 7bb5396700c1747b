#pragma once
// Which tokens of a sample are masked, for models that learn to find them again: a pure function of a seed.
//
// Of a sample exactly masked_of(context) positions are chosen, the same number in all samples, so that means over
// workers, micro-batches and samples weigh every token alike. A chosen token becomes the mask token in 8 of 10 cases,
// any token in 1, and stays in 1. The mask token is one more than the text has: its number is the vocabulary.
#include <cstdint>
#include <span>

namespace trireme::data {

/// What targets are where nothing is to be found.
constexpr int64_t kNoTarget = -100;

/// 15 % of the positions, rounded, and at least one.
size_t masked_of(size_t context);

/// Masks the tokens in place; `targets` gets what they were, and kNoTarget where they were not chosen.
void mask_tokens(std::span<int64_t> tokens, std::span<int64_t> targets, int64_t vocabulary, uint64_t seed);

}  // namespace trireme::data
