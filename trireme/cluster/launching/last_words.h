#pragma once
// What a process says before an exception that nobody caught ends it: to its launcher (slate.h), and to whoever keeps
// one of these. The handler of std::terminate is the process's own; the one that was there before is called afterwards,
// prints and aborts as ever.
#include <functional>
#include <string>

namespace trireme::cluster {

struct Ending {
  std::string text;        // of the exception, in one paragraph
  bool lost_peer = false;  // it is a PeerLost: somebody else is the cause
};

/// While this lives, `tell` hears of the end. It runs in a dying process, beside the thread that dies, which waits a
/// second for it at most: it may block, and may find locks that are never released.
class LastWords {
 public:
  explicit LastWords(std::function<void(const Ending&)> tell);
  ~LastWords();
  LastWords(const LastWords&) = delete;
  LastWords& operator=(const LastWords&) = delete;

 private:
  friend void tell_last_words();
  std::function<void(const Ending&)> tell_;
};

/// libtorch appends a stack of addresses to some of its messages, in two forms: the text before it.
std::string without_stack(const std::string& text);

/// Installs the handler, once per process. Thread-safe.
void keep_last_words();

}  // namespace trireme::cluster
