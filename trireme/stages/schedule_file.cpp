#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <fstream>
#include <optional>

#include <trireme/base/error.h>
#include <trireme/base/nearest.h>
#include <trireme/stages/schedule_file.h>
#include <trireme/stages/transfers.h>

namespace trireme::stages {
namespace {

constexpr std::string_view kMagic = "trireme-schedule";
constexpr int kVersion = 1;
constexpr size_t kMostBytes = size_t{256} << 20;
constexpr size_t kRowWidth = 110;  // of what is written
constexpr std::string_view kBlank = " \t\r";

std::string_view next_word(std::string_view& text) {
  text.remove_prefix(std::min(text.find_first_not_of(kBlank), text.size()));
  const std::string_view word = text.substr(0, text.find_first_of(kBlank));
  text.remove_prefix(word.size());
  return word;
}

std::optional<int> number_of(std::string_view text) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || text[0] == '-' || error != std::errc{} || end != text.data() + text.size()) return {};
  return value;
}

std::optional<Kind> kind_of(std::string_view word) {
  constexpr std::array<std::string_view, kKinds> kWords = {"F", "B", "I", "W", "sa", "ra", "sg", "rg"};
  for (size_t i = 0; i < kWords.size(); i++)
    if (word == kWords[i]) return static_cast<Kind>(i);
  return {};
}

/// As much of a word as a message shows: nothing that a terminal would take for a command.
std::string shown(std::string_view word) {
  constexpr size_t kMost = 40;
  std::string text(word.substr(0, kMost));
  for (char& c : text)
    if (static_cast<unsigned char>(c) < 0x20 || static_cast<unsigned char>(c) >= 0x7f) c = '?';
  return word.size() > kMost ? text + "…" : text;
}

class Reading {
 public:
  Reading(std::string_view text, const std::string& where) : text_(text), where_(where) {}

  Schedule schedule() {
    for (std::string_view line; next_line(line);) {
      const std::string_view word = next_word(line);
      if (!begun_)
        begin(word, line);
      else if (word == "stage")
        read_row(line);
      else
        read_setting(word, line);
    }
    if (!begun_) wrong("this is no schedule: it is empty");
    begin_rows();
    for (int s = 0; s < out_.stages; s++)
      if (out_.rows[s].empty()) wrong("there is no line 'stage {}: …'", s);
    return automatic_ ? complete() : out_;
  }

 private:
  template <class... Args>
  [[noreturn]] void wrong(fmt::format_string<Args...> text, Args&&... args) const {
    fail<InvalidArgument>("{}, line {}: {}", where_, line_, fmt::format(text, std::forward<Args>(args)...));
  }

  /// The next one that has anything, without its comment.
  bool next_line(std::string_view& line) {
    while (!text_.empty()) {
      line = text_.substr(0, text_.find('\n'));
      text_.remove_prefix(std::min(line.size() + 1, text_.size()));
      line_++;
      line = line.substr(0, line.find('#'));
      if (line.find_first_not_of(kBlank) != std::string_view::npos) return true;
    }
    return false;
  }

  void begin(std::string_view word, std::string_view rest) {
    const std::string_view version = next_word(rest);
    if (word != kMagic || number_of(version) != kVersion || !next_word(rest).empty())
      wrong("a schedule begins with the line '{} {}'", kMagic, kVersion);
    begun_ = true;
  }

  void read_setting(std::string_view word, std::string_view rest) {
    const std::string_view value = next_word(rest);
    if (value.empty()) wrong("after '{}' comes its value", shown(word));
    if (word == "name") {
      out_.name = shown(value);
    } else if (word == "transfers") {
      if (value != "auto") wrong("'transfers' is followed by 'auto', not by '{}'", shown(value));
      automatic_ = true;
    } else {
      read_size(word, value);
    }
    if (const std::string_view more = next_word(rest); !more.empty())
      wrong("'{} {}' is the whole line, not '{}' behind it", shown(word), shown(value), shown(more));
  }

  void read_size(std::string_view word, std::string_view value) {
    int* size = word == "stages" ? &stages_ : word == "micro" ? &micro_ : word == "chunks" ? &chunks_ : nullptr;
    if (size == nullptr)
      wrong("'{}' is no setting{}: there are name, stages, micro, chunks, transfers, and rows 'stage 0: …'",
            shown(word), did_you_mean(word, {"name", "stages", "micro", "chunks", "transfers", "stage"}));
    if (!out_.rows.empty()) wrong("'{}' comes before the rows", word);
    const auto number = number_of(value);
    if (!number || *number < 1) wrong("'{}' is a number from 1 on, not '{}'", word, shown(value));
    if (*size != 0) wrong("'{}' stands there twice", word);
    *size = *number;
  }

  void begin_rows() {
    if (!out_.rows.empty()) return;
    if (stages_ == 0 || micro_ == 0) wrong("'{}' is missing, before the rows", stages_ == 0 ? "stages" : "micro");
    out_.stages = stages_, out_.micro = micro_, out_.chunks = std::max(1, chunks_);
    try {
      check_sizes(out_.stages, out_.micro, out_.chunks);
    } catch (const InvalidArgument& error) {
      wrong("{}", error.what());
    }
    out_.rows.resize(out_.stages);
  }

  void read_row(std::string_view rest) {
    begin_rows();
    const size_t colon = rest.find(':');
    if (colon == std::string_view::npos) wrong("after the number of the stage comes a colon: 'stage 0: …'");
    std::string_view head = rest.substr(0, colon);
    const auto stage = number_of(next_word(head));
    if (!stage || !next_word(head).empty() || *stage >= out_.stages)
      wrong("stages are 0 to {}, not '{}'", out_.stages - 1, shown(rest.substr(0, colon)));
    rest.remove_prefix(colon + 1);
    for (std::string_view word = next_word(rest); !word.empty(); word = next_word(rest)) {
      if (++actions_ > kKinds * kMostPasses) wrong("there are more actions than any schedule has");
      out_.rows[*stage].push_back(read_action(word));
    }
  }

  Action read_action(std::string_view word) const {
    const size_t digits = std::min(word.find_first_of("0123456789"), word.size()), point = word.find('.');
    const auto kind = kind_of(word.substr(0, digits));
    if (!kind)
      wrong("'{}' is no action: those are F, B, I, W, sa, ra, sg or rg and a micro-batch, such as F0", shown(word));
    if (automatic_ && !is_compute(*kind))
      wrong("'{}': with 'transfers auto' rows have no sends and receives of their own", shown(word));
    const auto micro = number_of(word.substr(digits, point == std::string_view::npos ? point : point - digits));
    const auto chunk = point == std::string_view::npos ? std::optional<int>(0) : number_of(word.substr(point + 1));
    if (!micro || *micro >= out_.micro) wrong("'{}': micro-batches are 0 to {}", shown(word), out_.micro - 1);
    if (!chunk || *chunk >= out_.chunks) wrong("'{}': chunks are 0 to {}", shown(word), out_.chunks - 1);
    if (out_.chunks > 1 && point == std::string_view::npos)
      wrong("'{}': a stage has {} chunks; say which one, such as {}.0", shown(word), out_.chunks, shown(word));
    return {*kind, *micro, *chunk};
  }

  Schedule complete() const {
    try {
      return with_transfers(out_);
    } catch (const InvalidArgument& error) {
      fail<InvalidArgument>("{}: {}", where_, error.what());
    }
  }

  std::string_view text_;
  const std::string& where_;
  int line_ = 0, stages_ = 0, micro_ = 0, chunks_ = 0;
  int64_t actions_ = 0;
  bool begun_ = false, automatic_ = false;
  Schedule out_;
};

}  // namespace

Schedule schedule_from_text(std::string_view text, const std::string& where) { return Reading(text, where).schedule(); }

Schedule read_schedule(const std::string& path) {
  std::string text;
  try {
    text = read_text_file(path, kMostBytes);
  } catch (const IoError& error) {  // the caller has named it
    fail<InvalidArgument>(
        "{}. A schedule file:PATH is one of yours: `trireme schedule 1f1b --stages 2 --micro 8 --save PATH` writes one "
        "to begin with",
        error.what());
  }
  return schedule_from_text(text, path);
}

std::string to_text(const Schedule& schedule) {
  std::string out = fmt::format("{} {}\n", kMagic, kVersion);
  if (!schedule.name.empty()) out += fmt::format("name {}\n", schedule.name);
  out += fmt::format("stages {}\nmicro {}\nchunks {}\n", schedule.stages, schedule.micro, schedule.chunks);
  for (int s = 0; s < schedule.stages; s++) {
    std::string line = fmt::format("stage {}:", s);
    for (const Action& action : schedule.rows[s]) {
      const std::string word = " " + brief(action, schedule.chunks);
      if (line.size() + word.size() > kRowWidth) out += line + "\n", line = fmt::format("stage {}:", s);
      line += word;
    }
    out += line + "\n";
  }
  return out;
}

std::string read_text_file(const std::string& path, size_t most) {
  errno = 0;
  std::ifstream in(path, std::ios::binary);
  if (!in) fail<IoError>("cannot open {}: {}", path, errno_text());
  std::string text;
  std::array<char, 1 << 16> buffer;
  while (in.read(buffer.data(), buffer.size()), in.gcount() > 0) {
    text.append(buffer.data(), static_cast<size_t>(in.gcount()));
    if (text.size() > most) fail<IoError>("{} has more than {} bytes", path, most);
  }
  if (in.bad()) fail<IoError>("cannot read {}: {}", path, errno_text());
  return text;
}

void write_text_file(const std::string& path, const std::string& text) {
  errno = 0;
  std::ofstream out(path, std::ios::binary);
  out << text;
  out.close();
  if (!out) fail<IoError>("cannot write {}: {}", path, errno_text());
}

}  // namespace trireme::stages
