#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <tuple>

#include <trireme/base/error.h>
#include <trireme/base/process.h>
#include <trireme/cluster/coordination/job.h>
#include <trireme/cluster/launching/child.h>

extern char** environ;

namespace trireme::cluster {
namespace {

constexpr size_t kLastLines = 8;

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> result;
  for (std::string& text : texts) result.push_back(text.data());
  result.push_back(nullptr);
  return result;
}

std::pair<Descriptor, Descriptor> open_pipe() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) fail<IoError>("cannot open a pipe: {}", errno_text());
  return {Descriptor(ends[0]), Descriptor(ends[1])};
}

/// Between fork and exec: only calls that are safe there.
[[noreturn]] void become(char** command, char** environment, int in, int out, int error,
                         const std::array<int, 2>& inherited, pid_t parent, const sigset_t& signals,
                         const struct sigaction& broken_pipe) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);  // nobody outlives the launcher
  if (getppid() != parent) _exit(125);
  sigprocmask(SIG_SETMASK, &signals, nullptr);
  sigaction(SIGPIPE, &broken_pipe, nullptr);
  dup2(in >= 0 ? in : open("/dev/null", O_RDONLY | O_CLOEXEC), 0);
  dup2(out, 1);
  dup2(error, 2);
  for (int descriptor : inherited)
    if (descriptor >= 0) fcntl(descriptor, F_SETFD, 0);  // these stay open
  environ = environment;
  execvp(command[0], command);
  const char* text = std::strerror(errno);
  for (const char* part : {"trireme: cannot start ", static_cast<const char*>(command[0]), ": ", text, "\n"})
    if (write(2, part, std::strlen(part)) < 0) break;
  _exit(127);
}

}  // namespace

std::vector<std::string> environment_with(const std::vector<std::pair<std::string, std::string>>& set,
                                          const std::vector<std::string_view>& without) {
  std::vector<std::string> result;
  for (char** entry = environ; *entry != nullptr; entry++) {
    const std::string_view text = *entry, name = text.substr(0, text.find('='));
    const bool replaced =
        std::any_of(set.begin(), set.end(), [&](const auto& variable) { return variable.first == name; });
    if (!replaced && std::find(without.begin(), without.end(), name) == without.end()) result.emplace_back(text);
  }
  for (size_t i = 0; i < set.size(); i++) {
    const auto same = [&](const auto& later) { return later.first == set[i].first; };
    if (std::none_of(set.begin() + static_cast<ptrdiff_t>(i) + 1, set.end(), same))
      result.push_back(set[i].first + "=" + set[i].second);
  }
  return result;
}

void Uncaught::hear(std::string_view line) {
  constexpr std::string_view kThrown = "terminate called after throwing an instance of '", kWhat = "  what():  ";
  const auto begin = [&](decltype(in_) language, std::string_view text) {
    in_ = language;
    text_ = text;
    at_ = slate_now();
  };
  if (line.starts_with(kThrown)) return begin(cpp, line.substr(kThrown.size(), line.rfind('\'') - kThrown.size()));
  if (line.starts_with("terminate called ") || line.starts_with("libc++abi: terminating")) return begin(quiet, line);
  if (line == "Traceback (most recent call last):") return begin(python, "");
  if (in_ == cpp) {
    if (line.starts_with(kWhat)) text_ = line.substr(kWhat.size());
    in_ = quiet;
  } else if (in_ == python && !line.empty() && line[0] != ' ') {
    text_ = line;
    in_ = quiet;
  }
}

void Pipe::pump(Lines& lines) {
  std::array<char, 1 << 14> buffer{};
  const ssize_t got = read(source_.get(), buffer.data(), buffer.size());
  if (got < 0 && (errno == EINTR || errno == EAGAIN)) return;
  if (got <= 0) {
    if (!line_.empty()) end_line(lines, prefix_.empty() ? "" : "\n");
    source_.reset();
    return;
  }
  const std::string_view bytes(buffer.data(), static_cast<size_t>(got));
  if (prefix_.empty()) put(bytes);
  for (char c : bytes) c == '\n' ? end_line(lines, "\n") : void(line_ += c);
}

void Pipe::end_line(Lines& lines, const char* ending) {
  if (!prefix_.empty()) put(prefix_ + line_ + ending);
  const size_t shown = line_.rfind('\r');  // a progress line: only what stayed on the screen
  lines.last.push_back(shown == std::string::npos ? line_ : line_.substr(shown + 1));
  lines.uncaught.hear(lines.last.back());
  if (lines.last.size() > kLastLines) lines.last.pop_front();
  line_.clear();
}

void Pipe::put(std::string_view text) const {
  while (!text.empty() && sink_ >= 0) {
    const ssize_t done = write(sink_, text.data(), text.size());
    if (done < 0 && errno != EINTR) return;  // nobody reads us
    if (done > 0) text.remove_prefix(static_cast<size_t>(done));
  }
}

void Child::show() {
  for (size_t i = 0; i < streams.size(); i++) streams[i].set_sink(static_cast<int>(i) + 1);
}

void Child::retire() {
  process.reset();
  input.reset();
  slate.close();
}

std::string Child::uncaught() const {
  if (std::string text = slate.failure(); !text.empty()) return text;
  return lines.uncaught.text();
}

std::string Child::how_it_ended() const {
  // Python ends with 1 after a traceback, C++ with SIGABRT; who was killed otherwise died of that.
  const bool by_itself = WIFSIGNALED(*status) ? WTERMSIG(*status) == SIGABRT : WEXITSTATUS(*status) == 1;
  if (const std::string text = uncaught(); by_itself && !text.empty()) return "uncaught exception: " + text;
  if (!WIFSIGNALED(*status)) return fmt::format("exit code {}", WEXITSTATUS(*status));
  const int signal = WTERMSIG(*status);
  if (cast_off && signal == SIGKILL) return "given up, as nothing was heard of it, and ended";
  return fmt::format("killed by signal {} (SIG{}{})", signal,
                     sigabbrev_np(signal) == nullptr ? "?" : sigabbrev_np(signal),
                     signal == SIGKILL ? "; the kernel does that too when memory runs out" : "");
}

int Child::exit_code() const { return WIFSIGNALED(*status) ? 128 + WTERMSIG(*status) : WEXITSTATUS(*status); }

bool Child::killed() const { return WIFSIGNALED(*status) && WTERMSIG(*status) != SIGABRT; }

bool Child::victim() const { return exit_code() == kPeerLostExit || slate.lost_peer_at() > 0; }

double Child::failed_at() const { return slate.failed_at() > 0 ? slate.failed_at() : lines.uncaught.at(); }

Child start_child(ChildOptions options) {
  Child child;
  child.name = options.name;
  auto [out_read, out_write] = open_pipe();
  auto [error_read, error_write] = open_pipe();
  Descriptor in_read;
  if (!options.input.empty()) {
    std::tie(in_read, child.input) = open_pipe();
    if (write(child.input.get(), options.input.data(), options.input.size()) < 0)
      fail<IoError>("cannot write to {}: {}", child.name, errno_text());
  }
  const auto leave = [&](const std::string& name, const std::string& value) {
    std::erase_if(options.environment,
                  [&](const std::string& entry) { return entry.starts_with(name + "="); });  // of an outer launcher
    if (!value.empty()) options.environment.push_back(name + "=" + value);
  };
  if (options.slate) child.slate = Slate::create();
  leave("TRIREME_SLATE", options.slate ? child.slate.variable() : "");
  leave("TRIREME_DESK", options.desk);
  leave("TRIREME_SEGMENT", options.keeper != nullptr ? options.keeper->variable() : "");
  const std::array<int, 2> inherited{child.slate.descriptor(),
                                     options.keeper != nullptr ? options.keeper->descriptor() : -1};
  std::vector<char*> argv = pointers(options.command), envp = pointers(options.environment);
  const pid_t parent = getpid();
  child.pid = fork();
  if (child.pid < 0) fail<IoError>("cannot start {}: {}", child.name, errno_text());
  if (child.pid == 0)
    become(argv.data(), envp.data(), in_read.get(), out_write.get(), error_write.get(), inherited, parent,
           options.signals, options.broken_pipe);
  setpgid(child.pid, child.pid);
  child.process = open_process(child.pid);
  child.streams.emplace_back(std::move(out_read), options.shown ? 1 : -1, options.prefix);
  child.streams.emplace_back(std::move(error_read), options.shown ? 2 : -1, options.prefix);
  return child;
}

}  // namespace trireme::cluster
