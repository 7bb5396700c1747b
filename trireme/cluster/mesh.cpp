#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>

#include <trireme/base/error.h>
#include <trireme/base/nearest.h>
#include <trireme/cluster/mesh.h>

namespace trireme {
namespace {

using Text = std::array<char, 512>;

/// "data 2 × pipeline 2"
std::string text_of(const std::vector<Axis>& axes) {
  std::string text;
  for (const Axis& axis : axes) text += fmt::format("{}{} {}", text.empty() ? "" : " × ", axis.name, axis.size);
  return axes.empty() ? "no axes" : text;
}

std::vector<std::string> names_of(const std::vector<Axis>& axes) {
  std::vector<std::string> names;
  for (const Axis& axis : axes) names.push_back(axis.name);
  return names;
}

/// Before anything that depends on them: all ranks find the same.
void compare(const Group& whole, const std::vector<Axis>& axes) {
  const std::string mine = text_of(axes);
  Text text{};
  std::memcpy(text.data(), mine.data(), std::min(mine.size(), text.size() - 1));
  std::vector<Text> all(static_cast<size_t>(whole.size()));
  whole.comm().all_gather(text.data(), all.data(), text.size(), DType::u8, "axes of a mesh");
  const auto other = std::find_if(all.begin(), all.end(), [&](const Text& theirs) { return theirs != all[0]; });
  if (other != all.end())
    fail<Mismatch>(
        "rank {} makes a mesh of {}, rank {} one of {}: every rank must give the same axes in the same order",
        whole.ranks()[0], all[0].data(), whole.ranks()[static_cast<size_t>(other - all.begin())], other->data());
}

void check(const Group& whole, const std::vector<Axis>& axes) {
  int64_t product = 1;
  for (size_t i = 0; i < axes.size(); i++) {
    const Axis& axis = axes[i];
    if (axis.name.empty()) fail<InvalidArgument>("an axis of a mesh needs a name: {}", text_of(axes));
    const auto same = [&](const Axis& earlier) { return earlier.name == axis.name; };
    if (std::any_of(axes.begin(), axes.begin() + static_cast<ptrdiff_t>(i), same))
      fail<InvalidArgument>("a mesh of {} has the axis '{}' twice", text_of(axes), axis.name);
    if (axis.size < 1) fail<InvalidArgument>("the axis '{}' of a mesh has {} ranks; at least 1", axis.name, axis.size);
    product = std::min<int64_t>(product * axis.size, int64_t{1} << 31);
  }
  if (product != whole.size())
    fail<InvalidArgument>("a mesh of {} has {} ranks, the group {}: choose axes that multiply to it", text_of(axes),
                          product, whole.size());
}

}  // namespace

Mesh::Mesh(const Group& whole, std::vector<Axis> axes) : axes_(std::move(axes)), whole_(whole) {
  compare(whole, axes_);
  check(whole, axes_);
  int stride = whole.size();
  for (const Axis& axis : axes_) {
    const int block = stride;  // ranks that have the coordinates of earlier axes in common
    stride /= axis.size;
    const int coordinate = whole.rank() / stride % axis.size;
    groups_.push_back(whole.split(whole.rank() / block * stride + whole.rank() % stride, coordinate));
  }
  for (size_t axis = 0; axis < axes_.size(); axis++) across_.push_back(make_across(axis));
}

/// A group of its own only where no other has just these ranks: each takes memory until the job ends.
Group Mesh::make_across(size_t axis) const {
  if (axes_[axis].size == 1) return whole_;
  const int others = whole_.size() / axes_[axis].size;
  for (size_t other = 0; other < axes_.size(); other++)
    if (other != axis && axes_[other].size == others) return groups_[other];
  return whole_.split(groups_[axis].rank(), whole_.rank());
}

std::string Mesh::describe() const { return text_of(axes_); }

bool Mesh::has(const std::string& axis) const {
  return std::any_of(axes_.begin(), axes_.end(), [&](const Axis& one) { return one.name == axis; });
}

size_t Mesh::index_of(const std::string& axis) const {
  const auto place = std::find_if(axes_.begin(), axes_.end(), [&](const Axis& one) { return one.name == axis; });
  if (place == axes_.end())
    fail<InvalidArgument>("there is no axis '{}' in a mesh of {}{}", axis, text_of(axes_),
                          did_you_mean(axis, names_of(axes_)));
  return static_cast<size_t>(place - axes_.begin());
}

const Group& Mesh::group(const std::string& axis) const { return groups_[index_of(axis)]; }
const Group& Mesh::across(const std::string& axis) const { return across_[index_of(axis)]; }
int Mesh::coordinate(const std::string& axis) const { return group(axis).rank(); }
int Mesh::size(const std::string& axis) const { return axes_[index_of(axis)].size; }

}  // namespace trireme
