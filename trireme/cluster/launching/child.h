#pragma once
// A process that a launcher starts: its output, line by line, and how it ended.
#include <sys/types.h>

#include <csignal>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <trireme/base/clock.h>
#include <trireme/base/descriptor.h>
#include <trireme/cluster/launching/keeper.h>
#include <trireme/cluster/launching/slate.h>

namespace trireme::cluster {

/// This process's environment, as "NAME=value", with `set` put in: of equal names the last counts. Those of `without`
/// are left out.
std::vector<std::string> environment_with(const std::vector<std::pair<std::string, std::string>>& set,
                                          const std::vector<std::string_view>& without);

/// Finds, in a program's lines, the exception that ended it: what libstdc++ and libc++ print about one that nobody
/// caught, and the end of a Python traceback.
class Uncaught {
 public:
  void hear(std::string_view line);
  /// "" when there is none.
  const std::string& text() const { return text_; }
  /// When its first line came; 0: never. On the clock of slates.
  double at() const { return at_; }

 private:
  enum { quiet, cpp, python } in_ = quiet;
  std::string text_;
  double at_ = 0;
};

/// What a process has written.
struct Lines {
  std::deque<std::string> last;
  Uncaught uncaught;
};

/// One pipe of one process: cuts it into lines, passes them on, remembers the last ones.
class Pipe {
 public:
  /// `sink` -1 remembers only.
  Pipe(Descriptor source, int sink, std::string prefix)
      : source_(std::move(source)), sink_(sink), prefix_(std::move(prefix)) {}

  int descriptor() const { return source_.get(); }
  /// From now on lines go there.
  void set_sink(int sink) { sink_ = sink; }
  void set_prefix(std::string prefix) { prefix_ = std::move(prefix); }

  /// Reads what is there. At the end of the stream the descriptor becomes -1.
  void pump(Lines& lines);

 private:
  void end_line(Lines& lines, const char* ending);
  void put(std::string_view text) const;

  Descriptor source_;
  int sink_;
  std::string prefix_, line_;
};

/// What to start.
struct ChildOptions {
  std::string name;  // what messages call it
  std::vector<std::string> command, environment;
  std::string input;                // on its standard input, which then stays open; "": nothing
  std::string prefix;               // of every line that is shown; "": lines are passed on unchanged
  bool shown = true;                // false: output is remembered only
  bool slate = true;                // it is given one
  const Keeper* keeper = nullptr;   // whose memory it inherits; null: nobody's
  std::string desk;                 // of its job on this machine, see local_desk.h; "": none
  sigset_t signals{};               // its signal mask
  struct sigaction broken_pipe {};  // what it does on SIGPIPE
};

/// A process of its own group, which its parent's death kills. Whoever has it ends it and waits for it: destroying this
/// does neither.
struct Child {
  std::string name;
  int number = -1;         // rank or server; of an agent, its place in the list
  bool is_server = false;  // otherwise a rank, or an agent
  bool newcomer = false;   // it was started when the job was under way
  bool rowed = false;      // of an elastic job: it has been in the crew
  Clock::time_point began = Clock::now();
  pid_t pid = 0;
  Descriptor process;  // readable when it has ended
  Descriptor input;    // the other end of its standard input
  Slate slate;
  std::vector<Pipe> streams;
  Lines lines;
  std::optional<int> status;                  // of waitpid, once it ended
  double ended = 0;                           // seconds after the start
  bool pressed = false;                       // it ended after it was asked to
  bool dispensable = false;                   // it ended badly, and the others went on
  std::optional<Clock::time_point> given_up;  // of an elastic job: since when nobody waits for it any more
  bool cast_off = false;                      // and it was killed for that

  /// What it writes from now on is shown.
  void show();
  /// Gives back what is of no use once it has ended.
  void retire();
  /// The text of the exception that ended it, or "".
  std::string uncaught() const;
  /// "uncaught exception: …", "killed by signal 9 (SIGKILL; …)" or "exit code 3".
  std::string how_it_ended() const;
  /// As a shell gives it: 128 + signal for one that was killed.
  int exit_code() const;
  /// By a signal, and not by an error of its own that became one (SIGABRT).
  bool killed() const;
  /// It ended because of somebody else.
  bool victim() const;
  /// When it began to end, as far as is known, on the clock of slates; 0: nothing is known.
  double failed_at() const;
};

/// Throws IoError. A program that cannot be executed is a child that says so and ends with 127.
Child start_child(ChildOptions options);

}  // namespace trireme::cluster
