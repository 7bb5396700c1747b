#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include <trireme/ps/network/guests.h>

namespace trireme::ps::network {

std::string Guests::refusal(Place place, uint64_t visit) const {
  const auto found = guests_.find(place);
  if (found == guests_.end() || found->second.visit == visit || found->second.over)
    return "";  // the service knows who has left
  return fmt::format("worker {} is here already, from {}: do two processes have the same rank?", place.second,
                     found->second.address);
}

void Guests::enter(Place place, uint64_t visit, size_t channels, const std::string& address, Service* service) {
  Guest& guest = guests_[place];
  guest.visit = visit;
  guest.channels = channels;
  guest.address = address;
  guest.service = service;
  guest.lines++;
  guest.gone_at.reset();
}

std::optional<Incoming> Guests::exit(Place place, Clock::time_point now) {
  const auto found = guests_.find(place);
  if (found == guests_.end() || found->second.lines == 0) return std::nullopt;
  Guest& guest = found->second;
  if (--guest.lines > 0 || guest.over) return std::nullopt;
  if (guest.leave) {
    guest.over = true;
    return std::exchange(guest.leave, std::nullopt);
  }
  guest.gone_at = now + std::chrono::duration_cast<Clock::duration>(patience_);
  return std::nullopt;
}

bool Guests::goodbye(int model, const Incoming& leave, size_t channel) {
  const auto found = guests_.find({model, leave.from->worker});
  if (found == guests_.end() || found->second.over) return true;
  Guest& guest = found->second;
  guest.leave = leave;
  guest.goodbyes |= uint32_t{1} << channel;
  if (guest.goodbyes != (uint32_t{1} << guest.channels) - 1) return false;
  guest.over = true;
  guest.leave.reset();
  return true;
}

std::vector<Guests::Lost> Guests::lost(Clock::time_point now) {
  std::vector<Lost> all;
  for (auto& [place, guest] : guests_) {
    if (!guest.gone_at || *guest.gone_at > now) continue;
    guest.gone_at.reset();
    guest.over = true;
    all.push_back(
        {place.second,
         fmt::format("worker {} at {} is gone: its connection ended without a goodbye", place.second, guest.address),
         guest.service});
  }
  return all;
}

std::optional<Clock::time_point> Guests::due() const {
  std::optional<Clock::time_point> due;
  for (const auto& [place, guest] : guests_)
    if (guest.gone_at && (!due || *guest.gone_at < *due)) due = guest.gone_at;
  return due;
}

}  // namespace trireme::ps::network
