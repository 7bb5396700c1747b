#include <algorithm>

#include <trireme/base/error.h>
#include <trireme/state/snapshot.h>

namespace trireme::state {
namespace {

using space::Range;

/// Smaller parts are copied at once: to follow them would take as long.
constexpr size_t kLeast = 4096;

}  // namespace

Snapshot::~Snapshot() {
  if (originals_) originals_->release_all();
}

void Snapshot::read(size_t part, size_t offset, std::span<std::byte> into) {
  if (part >= parts_.size()) fail<InvalidArgument>("a snapshot of {} parts has no part {}", parts_.size(), part);
  const Part& p = parts_[part];
  if (offset > p.range.size() || into.size() > p.range.size() - offset)
    fail<InvalidArgument>("bytes {} to {} are beyond the end of part {}, '{}' {} to {}", offset, offset + into.size(),
                          part, p.vector, p.range.begin, p.range.end);
  originals_->read(part, offset, into);
}

void Snapshot::read(const std::string& vector, Range range, std::span<std::byte> into) {
  if (into.size() != range.size()) fail<InvalidArgument>("{} bytes do not fit into {}", range.size(), into.size());
  if (const std::vector<Range> lacking = contents_.lacking(vector, range, 0); !lacking.empty())
    fail<InvalidArgument>("the snapshot lacks bytes {} to {} of '{}'", lacking[0].begin, lacking[0].end, vector);
  if (!whole_) return read_here(vector, range, into);
  whole_->each_here(vector, range, [&](const Whole::Piece& piece) {
    read_here(vector, piece.here, into.subspan(piece.whole.begin - range.begin, piece.whole.size()));
  });
}

void Snapshot::read_here(const std::string& vector, Range range, std::span<std::byte> into) {
  if (range.empty()) return;
  for (auto at = std::prev(by_begin_.at(vector).upper_bound(range.begin)); !range.empty(); ++at) {
    const Range here = intersect(range, parts_[at->second].range);
    read(at->second, here.begin - at->first, into.first(here.size()));
    into = into.subspan(here.size());
    range.begin = here.end;
  }
}

void Snapshot::place(size_t part, size_t offset, std::span<const std::byte> bytes, Visitor& to) const {
  const auto& [vector, range] = parts_.at(part);
  const Range here{range.begin + offset, range.begin + offset + bytes.size()};
  if (whole_)
    WholeVisitor(*whole_, to).part(vector, here, bytes);
  else
    to.part(vector, here, bytes);
}

void Snapshot::show_as(std::shared_ptr<const Whole> whole) {
  whole_ = std::move(whole);
  about_ = whole_->whole_of(rest_.about());
  contents_ = whole_->whole_of(contents_);
}

Snapshot::Builder::Builder(const OwnerMap& division, int owner, const space::Originals* before) : made_(new Snapshot) {
  for (const std::string& vector : division.vectors())
    for (const Holding& holding : division.of(vector))
      if (holding.owner == owner) {
        wanted_[vector].push_back(holding.range);
        missing_ += holding.range.size();
      }
  // Each part that is followed starts on a cache line.
  const size_t room = missing_ + missing_ / kLeast * space::kLine + space::kLine;
  made_->originals_ = std::make_shared<space::Originals>(room, before);
}

void Snapshot::Builder::part(const std::string& vector, Range range, std::span<const std::byte> bytes) {
  each_wanted(vector, range, [&](Range wanted) {
    keep(vector, wanted, made_->originals_->copy(bytes.subspan(wanted.begin - range.begin, wanted.size())));
  });
}

void Snapshot::Builder::live(const std::string& vector, Range range, std::span<const std::byte> bytes) {
  each_wanted(vector, range, [&](Range wanted) {
    const auto here = bytes.subspan(wanted.begin - range.begin, wanted.size());
    space::Originals& originals = *made_->originals_;
    keep(vector, wanted, here.size() < kLeast ? originals.copy(here) : originals.follow(here));
  });
}

template <class Take>
void Snapshot::Builder::each_wanted(const std::string& vector, Range range, const Take& take) const {
  const auto found = wanted_.find(vector);
  if (found == wanted_.end()) return;
  const std::vector<Range>& all = found->second;
  auto at = std::partition_point(all.begin(), all.end(), [&](const Range& r) { return r.end <= range.begin; });
  for (; at != all.end() && at->begin < range.end; ++at) take(intersect(*at, range));
}

void Snapshot::Builder::keep(const std::string& vector, Range range, size_t span) {
  if (span != made_->parts_.size()) fail<Error>("part {} of a snapshot is span {}", made_->parts_.size(), span);
  made_->by_begin_[vector][range.begin] = span;
  made_->contents_.add(vector, range, 0);
  made_->parts_.push_back({vector, range});
  missing_ -= range.size();
}

std::shared_ptr<Snapshot> Snapshot::Builder::finish() {
  for (const auto& [vector, ranges] : wanted_)
    for (const Range& range : missing_ == 0 ? std::vector<Range>{} : ranges)
      if (const std::vector<Range> lacking = made_->contents_.lacking(vector, range, 0); !lacking.empty())
        fail<InvalidArgument>(
            "a rank was asked to keep bytes {} to {} of '{}' in its snapshot, which it does not have: give it what "
            "owners() says",
            lacking[0].begin, lacking[0].end, vector);
  made_->originals_->seal();
  return std::move(made_);
}

}  // namespace trireme::state
