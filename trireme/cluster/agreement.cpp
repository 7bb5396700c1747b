#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <string_view>

#include <trireme/base/error.h>
#include <trireme/base/sha256.h>
#include <trireme/cluster/agreement.h>

namespace trireme::cluster {
namespace {

using Sorted = std::map<std::string, std::string>;

// Between and within terms, on their way: characters that a command line does not have.
constexpr char kEnd = '\0', kBetween = '\1';

std::string packed(const Sorted& terms) {
  std::string text;
  for (const auto& [name, value] : terms) text += name + kBetween + value + kEnd;
  return text;
}

Sorted unpacked(std::string_view text) {
  Sorted terms;
  while (!text.empty()) {
    const std::string_view term = text.substr(0, text.find(kEnd));
    const size_t between = term.find(kBetween);
    if (between == std::string_view::npos) break;  // what fills a block up
    terms.emplace(term.substr(0, between), term.substr(between + 1));
    text.remove_prefix(term.size() + 1);
  }
  return terms;
}

bool all_same(comm::Communicator& ranks, const std::string& text) {
  Sha256 hash;
  hash.add(text.data(), text.size());
  const std::string mine = hash.finish();
  std::string all(mine.size() * static_cast<size_t>(ranks.size()), '\0');
  ranks.all_gather(mine.data(), all.data(), mine.size(), DType::u8, "what ranks were asked to do");
  for (size_t rank = 0; rank < static_cast<size_t>(ranks.size()); rank++)
    if (all.compare(rank * mine.size(), mine.size(), all, 0, mine.size()) != 0) return false;
  return true;
}

std::vector<Sorted> gather(comm::Communicator& ranks, std::string text) {
  uint64_t longest = text.size();
  ranks.allreduce(&longest, 1, DType::i64, Op::max, "length of what ranks were asked to do");
  text.resize(longest, kEnd);
  std::string all(longest * static_cast<size_t>(ranks.size()), kEnd);
  ranks.all_gather(text.data(), all.data(), longest, DType::u8, "what differs");
  std::vector<Sorted> result;
  for (size_t rank = 0; rank < static_cast<size_t>(ranks.size()); rank++)
    result.push_back(unpacked(std::string_view(all).substr(rank * longest, longest)));
  return result;
}

std::string described(const Sorted& terms, const std::string& name) {
  const auto found = terms.find(name);
  return found == terms.end() ? "no " + name : found->second.empty() ? name : fmt::format("{} {}", name, found->second);
}

}  // namespace

void compare_terms(comm::Communicator& ranks, const Terms& terms, const std::string& advice) {
  const std::string mine = packed(Sorted(terms.begin(), terms.end()));
  if (all_same(ranks, mine)) return;
  const std::vector<Sorted> all = gather(ranks, mine);
  const auto other = std::find_if(all.begin(), all.end(), [&](const Sorted& theirs) { return theirs != all[0]; });
  std::set<std::string> names;
  for (const Sorted* side : std::initializer_list<const Sorted*>{&all[0], &*other})
    for (const auto& [name, value] : *side) names.insert(name);
  const auto differs = [&](const std::string& name) { return described(all[0], name) != described(*other, name); };
  const std::string& first = *std::find_if(names.begin(), names.end(), differs);
  fail<Mismatch>("rank 0 was started with {}, rank {} with {}: {}", described(all[0], first), other - all.begin(),
                 described(*other, first), advice);
}

void share(comm::Communicator& ranks, std::string& text, std::string_view name) {
  auto size = static_cast<int64_t>(text.size());
  ranks.broadcast(&size, 1, DType::i64, 0, name);
  text.resize(static_cast<size_t>(size));
  if (size > 0) ranks.broadcast(text.data(), text.size(), DType::u8, 0, name);
}

std::string on_first(comm::Communicator& ranks, const std::function<std::string()>& act, std::string_view name) {
  std::string answer, problem;
  std::exception_ptr error;
  if (ranks.rank() == 0) {
    try {
      answer = act();
    } catch (const std::exception& thrown) {
      problem = thrown.what();
      error = std::current_exception();
    }
  }
  share(ranks, problem, name);
  if (error) std::rethrow_exception(error);
  if (!problem.empty()) fail<InvalidArgument>("rank 0: {}", problem);
  share(ranks, answer, name);
  return answer;
}

}  // namespace trireme::cluster
