#include <fmt/format.h>

#include <cmath>

#include <trireme/models/language_script.h>

namespace trireme::models {
namespace {

std::string function(const std::string& body) { return "def forward(self, x: Tensor) -> Tensor:\n" + body; }

std::string call(const char* child, const std::string& x) {
  return fmt::format("self.{}.forward({})", script_name(child), x);
}

std::string attention(const LanguageSpec& spec) {
  const int64_t d = spec.width / spec.heads;
  std::string body = "    n = x.size(0)\n    t = x.size(1)\n";
  for (const char* name : {"query", "key", "value"})
    body += fmt::format("    {0} = {1}.view([n, t, {2}, {3}]).transpose(1, 2).reshape([n * {2}, t, {3}])\n", name,
                        call(name, "x"), spec.heads, d);
  body += fmt::format(
      "    m = {0}\n"
      "    mask = torch.triu(torch.full([m, m], float(\"-inf\"), dtype=x.dtype, device=x.device), 1)\n"
      "    s = torch.softmax(torch.baddbmm(mask, query, key.transpose(1, 2), beta={1}, alpha={2:.17g}), -1)\n"
      "    y = torch.bmm(s, value).view([n, {3}, t, {4}]).transpose(1, 2).reshape([n, t, {5}])\n"
      "    return {6}\n",
      spec.masked ? "1" : "t", spec.masked ? 0 : 1, 1 / std::sqrt(static_cast<double>(d)), spec.heads, d, spec.width,
      call("out", "y"));
  return body;
}

std::string block() {
  return fmt::format("    x = x + {}\n    return x + {}\n", call("attention", call("attention_norm", "x")),
                     call("mlp", call("mlp_norm", "x")));
}

std::string whole(const LanguageSpec& spec) {
  std::string body = fmt::format("    x = {} + self.positions.weight[:x.size(1)]\n", call("tokens", "x"));
  for (int64_t i = 0; i < spec.layers; i++) body += fmt::format("    x = getattr(self.blocks, \"{}\").forward(x)\n", i);
  body += fmt::format("    x = {}\n", call("norm", "x"));
  if (spec.masked)
    body += fmt::format("    x = {}\n", call("transform_norm", "torch.gelu(" + call("transform", "x") + ")"));
  return body + fmt::format("    return torch.linear(x, self.tokens.weight, {})\n", spec.masked ? "self.bias" : "None");
}

}  // namespace

std::string script_name(const std::string& child) { return child == "in" ? "in_" : child; }

std::string language_script(const std::string& kind, const LanguageSpec& spec) {
  if (kind == "VocabEmbedding") return function("    return torch.embedding(self.weight, x)\n");
  if (kind == "ColumnLinear" || kind == "RowLinear")
    return function("    return torch.linear(x, self.weight, self.bias)\n");
  if (kind == "LayerNorm")
    return function(fmt::format("    return torch.layer_norm(x, [{}], self.weight, self.bias)\n", spec.width));
  if (kind == "Mlp") return function("    return " + call("out", "torch.gelu(" + call("in", "x") + ")") + "\n");
  if (kind == "ParallelAttention") return function(attention(spec));
  if (kind == "Block") return function(block());
  if (kind == "Gpt" || kind == "Bert") return function(whole(spec));
  return "";
}

}  // namespace trireme::models
