#pragma once
// Ranks as processes: forks, so that a test can kill one. The parent must have no threads when it makes them.
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <functional>
#include <stdexcept>
#include <string>

#include <trireme/base/clock.h>
#include <trireme/base/descriptor.h>
#include <trireme/base/error.h>

namespace trireme::tests {

/// A forked process that runs `body` and says in its last line how it ended: "ok", or the error's type and message.
class Process {
 public:
  /// `say` writes a line that next_line() of the parent reads.
  using Say = std::function<void(const std::string&)>;

  explicit Process(const std::function<void(const Say&)>& body) {
    int ends[2];
    if (pipe(ends) != 0) throw std::runtime_error("no pipe");
    std::fflush(nullptr);  // or the child would write it again
    pid_ = fork();
    if (pid_ != 0) {
      close(ends[1]);
      output_ = Descriptor(ends[0]);
      return;
    }
    const auto say = [&](const std::string& line) {
      const std::string text = line + "\n";
      if (write(ends[1], text.data(), text.size()) < 0) _exit(1);
    };
    say(ending_of([&] { body(say); }));
    _exit(0);
  }
  ~Process() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  pid_t pid() const { return pid_; }

  /// "" when the process ended without a further word, "silence" when it said nothing for `limit`.
  std::string next_line(Seconds limit = Seconds(30)) {
    const Deadline deadline(limit);
    while (true) {
      if (const size_t end = text_.find('\n'); end != std::string::npos) {
        const std::string line = text_.substr(0, end);
        text_.erase(0, end + 1);
        return line;
      }
      pollfd waiting{output_.get(), POLLIN, 0};
      if (poll(&waiting, 1, static_cast<int>(deadline.left().count() * 1e3)) == 0) return "silence";
      char buffer[4096];
      const ssize_t got = read(output_.get(), buffer, sizeof buffer);
      if (got <= 0) return "";
      text_.append(buffer, static_cast<size_t>(got));
    }
  }

 private:
  static std::string ending_of(const std::function<void()>& body) {
    try {
      body();
      return "ok";
    } catch (const Timeout& e) {
      return std::string("Timeout: ") + e.what();
    } catch (const PeerLost& e) {
      return std::string("PeerLost: ") + e.what();
    } catch (const Mismatch& e) {
      return std::string("Mismatch: ") + e.what();
    } catch (const std::exception& e) {
      return std::string("error: ") + e.what();
    }
  }

  pid_t pid_ = -1;
  Descriptor output_;
  std::string text_;
};

}  // namespace trireme::tests
