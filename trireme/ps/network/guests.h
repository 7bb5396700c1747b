#pragma once
// Who of the workers on other machines is here, who has said goodbye, who is missing: without threads or sockets, the
// clock passed in.
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <trireme/base/clock.h>
#include <trireme/ps/lane.h>

namespace trireme::ps::network {

/// One thread at a time. A worker has several lines to each of the models that it is in. A worker that died cannot be
/// told from one whose connections broke, which comes back: one without any line is missed for `patience` before it
/// counts as gone.
class Guests {
 public:
  using Place = std::pair<int, int>;  // model, worker

  explicit Guests(Seconds patience) : patience_(patience) {}

  /// Why this one cannot come in, or "": another process has that worker's place.
  std::string refusal(Place place, uint64_t visit) const;
  /// A line of an admitted worker begins.
  void enter(Place place, uint64_t visit, size_t channels, const std::string& address, Service* service = nullptr);
  /// It ends. Returns the goodbye that had come on other lines only, if this was the last one: nothing more will come.
  std::optional<Incoming> exit(Place place, Clock::time_point now);
  /// A goodbye has come on a line. True when it has come on all: everything before it has been handled.
  bool goodbye(int model, const Incoming& leave, size_t channel);

  struct Lost {
    int worker = -1;
    std::string why;
    Service* service = nullptr;  // as it was given to enter()
  };
  /// Who has been missed for too long; each is told once.
  std::vector<Lost> lost(Clock::time_point now);
  /// When lost() may have news.
  std::optional<Clock::time_point> due() const;

 private:
  struct Guest {
    uint64_t visit = 0;
    size_t lines = 0, channels = 1;
    uint32_t goodbyes = 0;  // a bit per channel
    std::string address;
    Service* service = nullptr;
    std::optional<Incoming> leave;
    std::optional<Clock::time_point> gone_at;  // unless it comes back
    bool over = false;                         // it left, or is lost
  };
  Seconds patience_;
  std::map<Place, Guest> guests_;
};

}  // namespace trireme::ps::network
