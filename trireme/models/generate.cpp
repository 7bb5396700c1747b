#include <torch/types.h>
#include <torch/utils.h>

#include <algorithm>
#include <cmath>

#include <trireme/base/error.h>
#include <trireme/data/random.h>
#include <trireme/models/generate.h>

namespace trireme::models {
void check_generates(const About& about) {
  if (about.task == data::Task::masked_token)
    fail<InvalidArgument>("{} finds masked tokens and does not say what comes next: gpt generates text", about.model);
  if (about.task != data::Task::next_token)
    fail<InvalidArgument>("{} is no language model: gpt generates text. `trireme predict` has its answers",
                          about.model);
}

namespace {

/// By the softmax of `logits` / temperature, among the `top` likeliest.
int32_t drawn(const torch::Tensor& logits, const GenerateOptions& options, data::Random& random) {
  if (options.temperature == 0) return static_cast<int32_t>(logits.argmax().item<int64_t>());
  torch::Tensor scaled = logits.to(torch::kFloat64) / options.temperature;
  if (options.top > 0 && options.top < scaled.size(0)) {
    const torch::Tensor least = std::get<0>(scaled.topk(options.top)).min();
    scaled = scaled.masked_fill(scaled.lt(least), -std::numeric_limits<double>::infinity());
  }
  const torch::Tensor sums = scaled.softmax(0).cumsum(0);
  const auto* begin = sums.data_ptr<double>();
  const auto* end = begin + sums.size(0);
  const auto* at = std::upper_bound(begin, end, random.uniform() * *(end - 1));
  return static_cast<int32_t>(std::min(at, end - 1) - begin);
}

}  // namespace

void check(const GenerateOptions& options) {
  if (options.tokens < 0) fail<InvalidArgument>("a number of tokens is at least 0, not {}", options.tokens);
  if (!(options.temperature >= 0 && std::isfinite(options.temperature)))
    fail<InvalidArgument>("a temperature is a number from 0 (always the likeliest), not {:g}", options.temperature);
  if (options.top < 0)
    fail<InvalidArgument>("top is a number of tokens to choose among, 0 for all, not {}", options.top);
}

void generate(Loaded& model, const std::string& prompt, const GenerateOptions& options,
              const std::function<bool(const std::string&)>& say) {
  check(options);
  check_generates(model.about);
  const torch::NoGradGuard no_grad;
  model.net.eval();
  const data::Tokenizer& tokenizer = *model.about.tokenizer;
  std::vector<int32_t> tokens = tokenizer.encode(prompt.empty() ? "\n" : prompt);
  if (tokens.empty()) tokens.push_back(0);  // a tokenizer that knows no ends of lines
  data::Random random(options.seed);
  data::Utf8Stream characters;
  bool line_begins = prompt.empty() || prompt.back() == '\n';
  for (int64_t i = 0; i < options.tokens; i++) {
    const auto seen = std::min<size_t>(tokens.size(), static_cast<size_t>(model.about.shape[0]));
    const std::vector<int64_t> last(tokens.end() - static_cast<std::ptrdiff_t>(seen), tokens.end());
    const torch::Tensor logits = model.net.forward(torch::tensor(last).unsqueeze(0))[0][-1];
    tokens.push_back(drawn(logits.narrow(0, 0, model.about.outputs), options, random));  // not those that no text has
    const std::string text = tokenizer.text_of(tokens.back(), line_begins);
    if (!text.empty()) line_begins = text.back() == '\n';
    if (const std::string whole = characters.add(text); !whole.empty() && !say(whole)) return;
  }
  if (const std::string rest = characters.finish(); !rest.empty()) say(rest);
}

}  // namespace trireme::models
