#pragma once
// What ranks must agree on to train together: not only the model, but every setting that the result depends on. Terms
// are a text of lines, one setting each; ranks compare a hash of it, and only when these differ the texts, to say which
// line it is.
//
// The first comparison is a collective of its own, before anything depends on a setting: ranks that wanted different
// things from then on would wait for each other in vain. What changes later (which parameters are frozen, where batches
// come from) has a *sign*, which travels with the step's loss and costs nothing.
#include <fmt/format.h>

#include <array>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include <trireme/comm/communicator.h>
#include <trireme/space/layout.h>
#include <trireme/space/schedule.h>
#include <trireme/space/updater.h>

namespace trireme {
class World;
}

namespace trireme::exchange {

struct Options;

/// Lines of a name and a value.
class Terms {
 public:
  template <class T>
  Terms& add(std::string_view name, const T& value) {
    text_ += fmt::format("{}\t{}\n", name, value);
    return *this;
  }
  Terms& add(const Terms& other) {
    text_ += other.text_;
    return *this;
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

Terms terms_of(const space::Layout& layout);
/// Of an optimizer only what it uses: another momentum makes no other SGD.
Terms terms_of(const std::optional<space::UpdaterOptions>& optimizer);
Terms terms_of(const space::ScheduleOptions& schedule);
/// Of an exchange all but what a rank may decide for itself, such as `overlap`, or the seed of its luck.
Terms terms_of(const Options& options);

/// The first line in which two texts differ, as a sentence; "" when there is none.
std::string first_difference(const std::string& mine, int my_rank, const std::string& theirs, int their_rank);
/// The same, of sides with these names.
std::string first_difference(const std::string& left, const std::string& left_name, const std::string& right,
                             const std::string& right_name);

/// Collective. Throws Mismatch on every rank when two of them have different texts; `what` says of what ("settings"). A
/// rank with an empty text agrees with everybody.
void agree(comm::Communicator& group, std::string_view what, const std::string& text);

/// The same of all ranks of the world, with those who come later: a newcomer compares before it enters the crew, and is
/// refused alone. Collective among the others.
void agree(World& world, std::string_view what, const std::string& text);
/// The part of it that is about newcomers, for what ranks have agreed on in another way. Returns at once in the crew.
void agree_with_newcomers(World& world, std::string_view what, const std::string& text);

/// What shows, in sums over ranks, whether all have the same text: 1, a hash and its square. Of no text: zeros.
using Sign = std::array<double, 3>;
Sign sign_of(std::string_view text);
/// From a sign's sums over all ranks. Exact for up to 256 ranks, and right but for one of four million different texts.
bool all_same(std::span<const double, 3> sums);

}  // namespace trireme::exchange
