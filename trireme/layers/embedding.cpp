#include <trireme/layers/collectives.h>
#include <trireme/layers/embedding.h>
#include <trireme/layers/vocabulary.h>

namespace trireme::layers {
namespace {

using torch::Tensor;

}  // namespace

VocabEmbeddingImpl::VocabEmbeddingImpl(int64_t vocabulary, int64_t width, const TensorGroup& group,
                                       const EmbeddingOptions& options)
    : torch::nn::Module("VocabEmbedding"), group_(group), options_(options), vocabulary_(vocabulary) {
  group_.share_of("vocabulary", vocabulary);
  const Tensor whole = torch::empty({vocabulary, width}).normal_(0, options.deviation);
  weight = register_parameter("weight", group_.alone() ? whole : group_.part_of(whole, 0).clone());
}

torch::Tensor VocabEmbeddingImpl::forward(const Tensor& tokens) {
  check_tokens(tokens, vocabulary_);
  if (group_.alone()) return torch::embedding(weight, tokens);
  const auto [place, mine] = places_in(tokens, group_.rank() * weight.size(0), weight.size(0));
  const Tensor vectors = torch::embedding(weight, place) * mine.unsqueeze(-1);
  return leave(vectors, group_, options_.sequence);
}

std::vector<Division> VocabEmbeddingImpl::divisions() const {
  if (group_.alone()) return {};
  return {{"weight", 0, group_.rank(), group_.size()}};
}

}  // namespace trireme::layers
