// A text as tokens in memory that the ranks of a machine share.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include <trireme/base/error.h>
#include <trireme/data/dataset.h>
#include <trireme/data/gather.h>
#include <trireme/data/text.h>

namespace trireme::data {
namespace {

constexpr size_t kTextBlock = 1 << 24;  // bytes that are read at a time

/// "1,234,567"
std::string grouped(size_t count) {
  std::string digits = std::to_string(count);
  for (auto at = static_cast<std::ptrdiff_t>(digits.size()) - 3; at > 0; at -= 3)
    digits.insert(static_cast<size_t>(at), 1, ',');
  return digits;
}

struct TokenMemory {
  const std::byte* tokens = nullptr;
  size_t count = 0;
  int bytes = 1;  // of a token
};

/// Tokens are the bytes of the file, which go where they belong.
TokenMemory read_byte_tokens(comm::shm::Communicator& group, TextFile& file) {
  const size_t size = file.size();
  std::byte* const all = allocate_shared(group, size, "tokens");
  const Share share = share_of(size, group.rank(), group.size());
  for (size_t begin = share.begin; begin < share.end; begin += kTextBlock) {
    const size_t end = std::min(share.end, begin + kTextBlock);
    const std::string part = file.read(begin, end);
    if (part.size() != end - begin) fail<Corruption>("{} became shorter while it was read", file.path());
    std::memcpy(all + begin, part.data(), part.size());
  }
  group.barrier("text");
  return {all, size, 1};
}

/// The text from the first line that begins at `begin` or behind to the last one that begins before `end`.
std::string lines_between(TextFile& file, size_t begin, size_t end) {
  constexpr size_t kLine = 1 << 12;
  const size_t before = begin == 0 ? 0 : begin - 1;  // a line begins behind the end of another
  std::string text = file.read(before, end);
  for (size_t at = end; at < file.size() && !text.empty() && text.back() != '\n'; at += kLine) {
    const std::string more = file.read(at, at + kLine);
    text += more.substr(0, std::min(more.find('\n'), more.size() - 1) + 1);
  }
  if (begin == 0) return text;
  const size_t line = text.find('\n');
  return line == std::string::npos || before + line + 1 >= end ? "" : text.substr(line + 1);
}

template <class Stored>
TokenMemory store_tokens(comm::shm::Communicator& group, const std::vector<int32_t>& mine) {
  const auto counts = gather_counts(group, {static_cast<int64_t>(mine.size())}, "tokens of the text");
  size_t all = 0, before = 0;
  for (size_t rank = 0; rank < counts.size(); rank++) {
    if (rank == static_cast<size_t>(group.rank())) before = all;
    all += static_cast<size_t>(counts[rank]);
  }
  auto* const tokens = reinterpret_cast<Stored*>(allocate_shared(group, all * sizeof(Stored), "tokens"));
  std::copy(mine.begin(), mine.end(), tokens + before);
  group.barrier("text");
  return {reinterpret_cast<const std::byte*>(tokens), all, sizeof(Stored)};
}

/// Each rank encodes whole lines.
TokenMemory read_pieces(comm::shm::Communicator& group, TextFile& file, const Tokenizer& tokenizer) {
  const Share share = share_of(file.size(), group.rank(), group.size());
  const std::vector<int32_t> mine = tokenizer.encode(lines_between(file, share.begin, share.end));
  constexpr int64_t kShort = std::numeric_limits<uint16_t>::max();
  return tokenizer.vocabulary() <= kShort ? store_tokens<uint16_t>(group, mine) : store_tokens<int32_t>(group, mine);
}

/// A sample needs one token more than the context: the target of the last one.
size_t samples_of(size_t tokens, size_t context) { return tokens == 0 ? 0 : (tokens - 1) / context; }

void check_lengths(const std::string& path, const Splits& splits, size_t trains, size_t tests, size_t context) {
  constexpr size_t kMost = std::numeric_limits<uint32_t>::max();  // what the sampler counts to
  const char* const why = "a sample needs one more than the context, whose next token is its last target";
  if (splits.train.count == 0)
    fail<InvalidArgument>(
        "a context of {} tokens is longer than the text: {} has {} tokens{}; {}. Use a smaller context "
        "(gpt:context={}) or a longer text",
        context, path, trains, tests > 0 ? " to train with" : "", why, std::max<size_t>(1, trains / 16));
  if (tests > 0 && splits.test.count == 0)
    fail<InvalidArgument>(
        "a context of {} tokens is longer than the part of the text to test with: of {} it has {}; {}. Use a larger "
        "part (--test), 0 for none, or a smaller context",
        context, path, tests, why);
  if (splits.train.count > kMost) fail<InvalidArgument>("{} has more than {} samples", path, kMost);
}

}  // namespace

Splits read_text(comm::shm::Communicator& group, const std::string& path, const Tokenizer& tokenizer,
                 const TextOptions& options) {
  TextFile file(path);
  if (file.size() == 0) fail<InvalidArgument>("{} is empty: there is nothing to learn from", path);
  const TokenMemory all = tokenizer.by_bytes() ? read_byte_tokens(group, file) : read_pieces(group, file, tokenizer);
  const auto context = static_cast<size_t>(options.context);
  const size_t tests = std::min(
      all.count,
      options.tests.value_or(static_cast<size_t>(std::llround(options.test * static_cast<double>(all.count)))));
  const size_t trains = all.count - tests;
  const auto part = [&](size_t first, size_t count) {
    return Dataset{.name = path,
                   .count = samples_of(count, context),
                   .shape = {options.context},
                   .dtype = DType::u8,
                   .inputs = all.tokens + first * static_cast<size_t>(all.bytes),
                   .task = options.masked ? Task::masked_token : Task::next_token,
                   .classes = static_cast<int>(tokenizer.vocabulary()),
                   .token_bytes = all.bytes};
  };
  Splits splits{.train = part(0, trains),
                .test = part(trains, tests),
                .tokenizer = tokenizer,
                .tokens = all.count,
                .test_tokens = tests};
  if (trains > 0) check_lengths(path, splits, trains, tests, context);
  splits.notes.push_back(fmt::format("text: {} tokens ({}), {} training and {} test samples of {}", grouped(all.count),
                                     tokenizer.describe(), grouped(splits.train.count), grouped(splits.test.count),
                                     context));
  return splits;
}

}  // namespace trireme::data
