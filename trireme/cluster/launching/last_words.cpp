#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <future>
#include <memory>
#include <mutex>
#include <thread>

#include <trireme/base/clock.h>
#include <trireme/base/error.h>
#include <trireme/base/process.h>
#include <trireme/cluster/launching/last_words.h>
#include <trireme/cluster/launching/slate.h>

namespace trireme::cluster {
namespace {

constexpr Seconds kForLastWords{1};

std::atomic<LastWords*> keeper{nullptr};
std::terminate_handler before = nullptr;  // written once, before ours is installed

Ending ending() {
  const std::exception_ptr exception = std::current_exception();
  if (!exception) return {"std::terminate was called, and there is no exception"};
  try {
    std::rethrow_exception(exception);
  } catch (const PeerLost& error) {
    return {without_stack(error.what()), true};
  } catch (const std::exception& error) {
    return {without_stack(error.what())};
  } catch (...) {
    return {"an exception that is no std::exception"};
  }
}

}  // namespace

std::string without_stack(const std::string& text) {
  return text.substr(0, std::min(text.find("\nException raised from"), text.find("\nframe #0:")));
}

void tell_last_words() {
  const Ending end = ending();
  note_failure(end.text);
  const LastWords* listener = keeper.load();
  if (listener == nullptr) return;
  // In a thread of its own: this one may hold a lock that it needs.
  auto told = std::make_shared<std::promise<void>>();
  std::thread([listener, end, told] {
    name_thread("trireme-lastword");
    listener->tell_(end);
    told->set_value();
  }).detach();  // the process ends with or without it
  told->get_future().wait_for(kForLastWords);
}

namespace {

/// Who is not needed any more ends in peace, also in a program that knows nothing of it.
void leave_if_dismissed() {
  const std::exception_ptr exception = std::current_exception();
  if (!exception) return;
  try {
    std::rethrow_exception(exception);
  } catch (const Dismissed& dismissed) {
    std::fprintf(stderr, "%s\n", dismissed.what());
    std::_Exit(0);
  } catch (...) {
  }
}

[[noreturn]] void on_terminate() {
  leave_if_dismissed();
  static std::atomic<bool> dying{false};
  if (!dying.exchange(true)) tell_last_words();
  if (before != nullptr) before();
  std::abort();
}

}  // namespace

LastWords::LastWords(std::function<void(const Ending&)> tell) : tell_(std::move(tell)) { keeper.store(this); }

LastWords::~LastWords() {
  LastWords* self = this;
  keeper.compare_exchange_strong(self, nullptr);
}

void keep_last_words() {
  static std::once_flag once;
  std::call_once(once, [] {
    before = std::get_terminate();
    std::set_terminate(&on_terminate);
  });
}

}  // namespace trireme::cluster
