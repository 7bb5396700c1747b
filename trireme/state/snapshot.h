#pragma once
// One rank's part of the job's state as of one step, to be read in another thread while training goes on.
//
// What is large lies where training works on it, and is copied aside only when it is about to change before it was read
// (space/originals.h); the rest, and all of exchanges that are not in lockstep, was copied when the snapshot was taken.
// A reader goes through parts(), read()s each in chunks and release()s what it has:
//   for (size_t part = 0; part < snapshot.parts().size(); part++)
//     for (size_t at = 0, size = …; at < snapshot.parts()[part].range.size(); at += size) {
//       snapshot.read(part, at, {buffer, size = …});
//       snapshot.release(part, at + size);
//     }
// It outlives the exchange that it is of. What was aside is kept for the exchange's next snapshot, whose updates find
// pages that are there. A reader of low priority calls prepare() before it lowers it: nobody else does that in time.
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <trireme/space/originals.h>
#include <trireme/state/image.h>
#include <trireme/state/visitor.h>
#include <trireme/state/whole.h>

namespace trireme::state {

/// Any thread may read; several may at a time. A source, to restore from as well.
class Snapshot final : public Source {
 public:
  /// Reading in multiples of this from a part's begin on is quickest.
  static constexpr size_t kChunk = space::Originals::kChunk;

  struct Part {
    std::string vector;
    space::Range range{};  // in bytes of this rank's vector; never empty, and within one slot for what is shown slot by
                           // slot. Where the rank has a part of a larger model, place() says what they are of that
  };

  /// Releases all.
  ~Snapshot() override;
  Snapshot(const Snapshot&) = delete;
  Snapshot& operator=(const Snapshot&) = delete;

  // ---- what is here; always the same ----

  const About& about() const override { return whole_ ? about_ : rest_.about(); }
  const std::vector<Part>& parts() const { return parts_; }
  /// The parts' ranges, as those of owner 0; of the whole model.
  const OwnerMap& contents() const override { return contents_; }
  const std::map<std::string, int64_t>& scalars() const { return rest_.scalars(); }
  std::optional<int64_t> scalar(const std::string& name) const override { return rest_.scalar(name); }
  void rows(const std::string& table, const std::function<void(const Row&)>& take) override { rest_.rows(table, take); }

  // ---- bytes ----

  /// Gets memory for what may have to be copied aside: the first read() does it as well, but the earlier in a reader's
  /// thread the better, since otherwise the training thread has to. Takes about 0.1 s for a GB.
  void prepare() { originals_->prepare(); }
  /// Bytes of a part, from `offset` on, as of the snapshot's step. As often as one likes until they are released, in
  /// any order. Throws InvalidArgument when they were, or are beyond the part's end.
  void read(size_t part, size_t offset, std::span<std::byte> into);
  /// The same by range of contents(), which may go across parts.
  void read(const std::string& vector, space::Range range, std::span<std::byte> into) override;
  /// Shows bytes of a part, from `offset` on, as the ranges of contents() that they are.
  void place(size_t part, size_t offset, std::span<const std::byte> bytes, Visitor& to) const;
  /// The first `end` bytes of a part will not be read again: the sooner this is said, the less training has to save,
  /// and the sooner the next snapshot has its memory. In whole chunks; the last one with the end of the part.
  void release(size_t part, size_t end) { originals_->release(part, end); }
  void release() { originals_->release_all(); }
  /// All of it was released.
  bool released() const { return originals_->released(); }
  /// How much training had to copy aside so far.
  size_t saved_bytes() const { return originals_->saved_bytes(); }

  /// Makes one; for exchanges.
  class Builder;
  /// For who has made it: these are parts of a larger model. What is live stays where it is, however its tensors are
  /// cut.
  void show_as(std::shared_ptr<const Whole> whole);

 private:
  Snapshot() = default;
  void read_here(const std::string& vector, space::Range range, std::span<std::byte> into);

  Image rest_;                          // about, scalars, rows
  std::shared_ptr<const Whole> whole_;  // null: the rank has all of the model
  About about_;                         // of that
  std::vector<Part> parts_;
  OwnerMap contents_;
  std::map<std::string, std::map<size_t, size_t>> by_begin_;  // by vector and begin: number of the part
  std::shared_ptr<space::Originals> originals_;               // span by span, the parts
};

/// A visitor that keeps what an owner of `division` shall keep of what it is shown. Copies, but for what is live().
class Snapshot::Builder final : public Visitor {
 public:
  /// Memory of the snapshot before is taken over if nobody reads that any more; null: there was none.
  Builder(const OwnerMap& division, int owner, const space::Originals* before = nullptr);

  void about(const About& about) override { made_->rest_.about(about); }
  void part(const std::string& vector, space::Range range, std::span<const std::byte> bytes) override;
  void scalar(const std::string& name, int64_t value) override { made_->rest_.scalar(name, value); }
  void row(const std::string& table, const Row& row) override { made_->rest_.row(table, row); }
  /// A part whose owner will say before it writes to it.
  void live(const std::string& vector, space::Range range, std::span<const std::byte> bytes);

  /// Whom to tell before a live part is written to. Before finish().
  std::shared_ptr<space::Originals> originals() const { return made_->originals_; }
  /// Throws InvalidArgument that names what the owner should keep and was not shown.
  std::shared_ptr<Snapshot> finish();

 private:
  template <class Take>
  void each_wanted(const std::string& vector, space::Range range, const Take& take) const;
  void keep(const std::string& vector, space::Range range, size_t span);

  std::map<std::string, std::vector<space::Range>> wanted_;  // by vector, in their order
  size_t missing_ = 0;                                       // bytes of it that were not shown yet
  std::shared_ptr<Snapshot> made_;
};

}  // namespace trireme::state
