#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <set>

#include <trireme/base/error.h>
#include <trireme/exchange/card.h>
#include <trireme/exchange/kept_state.h>

namespace trireme::exchange {
namespace {

constexpr std::string_view kCard = "/card";

const Progress& progress_of(const std::byte* card) { return *reinterpret_cast<const Progress*>(card); }

}  // namespace

std::vector<std::string> KeptState::models(Segment& segment) {
  std::set<std::string> models;
  for (const auto& [name, area] : Areas(segment).all(""))
    if (name.ends_with(kCard)) models.insert(name.substr(0, name.size() - kCard.size()));
  return {models.begin(), models.end()};
}

KeptState::KeptState(std::shared_ptr<Segment> segment, const std::string& model, std::optional<uint64_t> epoch)
    : segment_(std::move(segment)) {
  const Areas areas(*segment_);
  const std::string name = model + std::string(kCard);
  const std::optional<Area> cards = epoch ? areas.find(name, *epoch) : areas.find(name);
  if (!cards) {
    const std::vector<std::string> known = models(*segment_);
    fail<InvalidArgument>("shared memory has no model '{}'{}; it has {}", model,
                          epoch ? fmt::format(" of epoch {}", *epoch) : "",
                          known.empty() ? "none" : fmt::format("'{}'", fmt::join(known, "', '")));
  }
  epoch_ = cards->epoch;
  fingerprint_ = cards->fingerprint;
  size_t limit = 0;
  for (const auto& [other, area] : areas.all(model + "/"))
    if (area.epoch == epoch_) {
      segment_->attach(area.offset, area.total(), "what was kept of a model", Segment::Pages::when_touched);
      limit = std::max(limit, area.offset + area.total());
    }
  for (int part = 0; part < cards->parts; part++)
    read_card(segment_->at(cards->offset) + cards->stride() * static_cast<size_t>(part), cards->bytes, limit, model);
}

void KeptState::read_card(const std::byte* at, size_t room, size_t limit, const std::string& model) {
  const Progress& progress = progress_of(at);
  const bool written = progress.written.load() == Progress::kWritten && progress.bytes <= room - sizeof(Progress);
  const auto card =
      written ? unpacked({reinterpret_cast<const char*>(at + sizeof(Progress)), progress.bytes}, limit) : std::nullopt;
  if (!card)
    fail<InvalidArgument>(
        "a rank of epoch {} has not written what it holds of model '{}': it died while the model was made. Nothing can "
        "be read",
        epoch_, model);
  about_ = card->about;
  cards_.push_back(at);
  if (!card->step.empty()) scalars_.emplace(card->step, &progress.ended);
  for (size_t i = 0; i < card->notes.size(); i++) scalars_.emplace(card->notes[i], &progress.notes[i]);
  for (const Location& location : card->locations) {
    owners_.add(location.vector, location.range, static_cast<int>(progress.rank));
    const std::span<std::byte> bytes(segment_->at(location.offset), location.range.size());
    parts_.push_back({location.vector, location.range, bytes});
    for (const space::Range& missing : contents_.lacking(location.vector, location.range, 0)) {
      contents_.add(location.vector, missing, 0);
      pieces_[location.vector][missing.begin] = bytes.subspan(missing.begin - location.range.begin, missing.size());
    }
  }
}

bool KeptState::whole() const {
  const auto at_rest = [](const std::byte* card) {
    return progress_of(card).begun.load() == progress_of(card).ended.load();
  };
  const auto with_first = [&](const std::byte* card) {
    return about_.workers > 0 || progress_of(card).ended.load() == progress_of(cards_.front()).ended.load();
  };
  return std::all_of(cards_.begin(), cards_.end(), at_rest) && std::all_of(cards_.begin(), cards_.end(), with_first);
}

std::optional<int64_t> KeptState::scalar(const std::string& name) const {
  const auto found = scalars_.find(name);
  return found == scalars_.end() ? std::nullopt : std::optional(found->second->load());
}

void KeptState::read(const std::string& vector, space::Range range, std::span<std::byte> into) {
  const auto& pieces = pieces_[vector];
  auto piece = pieces.upper_bound(range.begin);
  if (piece != pieces.begin()) --piece;
  for (; piece != pieces.end() && piece->first < range.end; ++piece) {
    const space::Range here = space::intersect({piece->first, piece->first + piece->second.size()}, range);
    if (!here.empty())
      std::memmove(into.data() + (here.begin - range.begin), piece->second.data() + (here.begin - piece->first),
                   here.size());
  }
}

}  // namespace trireme::exchange
