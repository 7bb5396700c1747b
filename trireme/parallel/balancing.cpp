// The samples of a step by speed: what this rank tells of itself, and what a crew knows of its ranks.
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include <trireme/parallel/impl.h>

namespace trireme {
namespace {

/// What ranks tell one another before the first step of a crew.
struct Acquaintance {
  double seconds_per_sample = 0;  // 0: it does not know
  uint64_t batch = 0;             // 0: no feed has begun here
  int64_t process = 0;
  std::array<char, 64> host{};
};

std::string name_of(int rank, const Acquaintance& one) {
  return fmt::format("rank {} (host {}, process {})", rank, one.host.data(), one.process);
}

}  // namespace

/// What shows when there are ranks and a model.
void Parallel::Impl::check_balance() const {
  if (options_.balance == Balancing::even || !model_) return;
  fail<InvalidArgument>(
      "balance divides samples among ranks that have all of the model, and on a mesh of {} a step waits for the parts "
      "of it: leave out balance",
      mesh_.empty() ? "stages" : mesh_);
}

const exchange::Balance& Parallel::Impl::balance() const {
  static const exchange::Balance nothing{.reason = "samples are divided evenly: balance is off"};
  return balancer_ ? balancer_->balance() : nothing;
}

/// A crew begins: the speeds of those who were in the one before still hold. Collective.
void Parallel::Impl::meet_balanced() {
  if (options_.balance == Balancing::even) return;
  Acquaintance mine{.process = getpid()};
  gethostname(mine.host.data(), mine.host.size() - 1);
  if (balancer_) mine.seconds_per_sample = balancer_->seconds_per_sample(), mine.batch = balancer_->batch();
  std::vector<Acquaintance> all(static_cast<size_t>(group_.size()));
  group_.comm().all_gather(&mine, all.data(), sizeof mine, DType::u8, "the ranks' speeds");
  std::vector<double> speeds;
  std::vector<std::string> names;
  uint64_t batch = 0;
  for (const Acquaintance& one : all) {
    speeds.push_back(one.seconds_per_sample);
    names.push_back(name_of(group_.ranks()[names.size()], one));
    batch = std::max(batch, one.batch);
  }
  const exchange::Balancer::Settings settings{.divides = options_.balance == Balancing::automatic,
                                              .least = static_cast<size_t>(options_.accumulate),
                                              .stint = options_.balance_stint};
  if (!balancer_) balancer_.emplace(settings, group_.rank(), group_.size());
  balancer_->follow(group_.rank(), speeds, batch);
  balancer_->set_names(std::move(names));
}

/// An update is done, or was skipped.
void Parallel::Impl::count_effort(Step& done) {
  done.computing_seconds = computing_;
  count_.computing_seconds.add(computing_);
  if (!balancer_) return;
  balancer_->add({.computing = computing_, .exchanging = seconds_since(computed_)});
  const exchange::Balance& now = balancer_->balance();
  const auto rank = static_cast<size_t>(group_.rank());
  count_.share.set(now.shares.empty() ? std::nan("") : static_cast<double>(now.shares[rank]));
  if (static_cast<double>(now.changes) > count_.share_changes.value()) count_.share_changes.add();
  if (now.last.ranks.empty()) return;
  const exchange::Effort& mine = now.last.ranks[rank];
  double least = mine.exchanging;
  for (const exchange::Effort& one : now.last.ranks) least = std::min(least, one.exchanging);
  count_.waited_part.set((mine.exchanging - least) / (mine.computing + mine.exchanging));
}

}  // namespace trireme
