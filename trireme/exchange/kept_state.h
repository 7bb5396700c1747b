#pragma once
// A model's state as it lies in a machine's segment, whoever put it there: what a process that comes later, or those
// who are left after a death, go on with.
//
//   const auto segment = world.local().memory();
//   exchange::KeptState kept(segment, "all/0");      // of the latest crew that had it
//   if (kept.whole()) train.restore(kept);           // a Source: no copy was made before this
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <trireme/base/areas.h>
#include <trireme/state/visitor.h>

namespace trireme::exchange {

/// Views of the memory itself, valid as long as this lives. It is at rest when nobody trains: when its crew has ended,
/// or between two steps. Parameters, optimizer state and step counts are here; a module's buffers and what servers keep
/// are not. One thread.
class KeptState final : public state::Source {
 public:
  /// The models in a segment: "all/0", … (GROUP/MODEL), in the order of their names.
  static std::vector<std::string> models(Segment& segment);

  /// Maps the memory of the model's latest crew, or of the crew of `epoch`. Throws InvalidArgument that says which
  /// models there are when this is none of them, or when a rank died before it had written what it holds.
  KeptState(std::shared_ptr<Segment> segment, const std::string& model, std::optional<uint64_t> epoch = {});

  /// Of the crew that trained it.
  uint64_t epoch() const { return epoch_; }
  /// No update was under way, and no rank is a step ahead of another: the state is that of one moment. Where ranks go
  /// at their own pace, they need not be at the same step.
  bool whole() const;
  /// Which of the machine's ranks, by its number in the world, had which range of which vector.
  const state::OwnerMap& owners() const { return owners_; }
  /// Where it lies. Copies of the same bytes, one for each rank that has them.
  const std::vector<state::Part>& parts() const { return parts_; }
  /// Of the layout: see space::Layout::fingerprint().
  uint64_t fingerprint() const { return fingerprint_; }

  const state::About& about() const override { return about_; }
  const state::OwnerMap& contents() const override { return contents_; }
  std::optional<int64_t> scalar(const std::string& name) const override;
  bool has_extras() const override { return false; }
  /// Also into the memory that it shows.
  void read(const std::string& vector, space::Range range, std::span<std::byte> into) override;
  void rows(const std::string& /*table*/, const std::function<void(const state::Row&)>& /*take*/) override {}

 private:
  void read_card(const std::byte* card, size_t room, size_t limit, const std::string& model);

  std::shared_ptr<Segment> segment_;
  uint64_t epoch_ = 0, fingerprint_ = 0;
  state::About about_;
  state::OwnerMap owners_, contents_;
  std::vector<state::Part> parts_;
  std::map<std::string, std::map<size_t, std::span<const std::byte>>> pieces_;  // contents(), by vector and begin
  std::map<std::string, const std::atomic<int64_t>*> scalars_;
  std::vector<const std::byte*> cards_;
};

}  // namespace trireme::exchange
