#pragma once
// State of one crew for another: where each worker had something of its own and the next crew shares it, or the other
// way round, or there are more or fewer of them.
//
// What all have in common becomes each worker's own as a copy. What each worker had of its own becomes the mean over
// them, where it is parameters or an optimizer's vectors; of counts the largest is taken. The centre that parameter
// servers keep for `elastic`, and parameters that `hogwild` shares, are what they are. Of a module's buffers a rank
// goes on with its own, if there are as many ranks as there were, and with their mean otherwise.
//
// What codecs have kept of gradients for later is of machines or workers, and their sum is what counts: who is there as
// before goes on with its own, and what the others kept is added to that of those who are there.
#include <map>
#include <string>
#include <vector>

#include <trireme/state/visitor.h>

namespace trireme::state {

/// `kept`, as a crew of `ranks` with `workers` states of their own (0: none) wants it. A view: `kept` and `layout`
/// outlive it. `keepers`: who of the crew keeps something of gradients for later. Not thread-safe.
class Adapted final : public Source {
 public:
  Adapted(Source& kept, const space::Layout& layout, int workers, int ranks, std::vector<int> keepers = {});

  const About& about() const override { return about_; }
  const OwnerMap& contents() const override { return contents_; }
  std::optional<int64_t> scalar(const std::string& name) const override;
  void read(const std::string& vector, space::Range range, std::span<std::byte> into) override;
  void rows(const std::string& table, const std::function<void(const Row&)>& take) override { kept_.rows(table, take); }

  /// What had to be changed, as a sentence; "" when nothing had.
  const std::string& remark() const { return remark_; }

 private:
  /// The kept vectors of which one is the mean, or the sum.
  std::vector<std::string> origins_of(const std::string& vector) const;
  int keeper_of(int kept) const;
  std::string compared() const;
  void add_all(const std::vector<std::string>& origins, space::Range range, DType dtype, double divisor,
               std::span<std::byte> into);
  void read_largest(const std::vector<std::string>& origins, space::Range range, std::span<std::byte> into);

  Source& kept_;
  const space::Layout& layout_;
  int workers_, ranks_;
  std::vector<int> keepers_, kept_keepers_;
  About about_;
  OwnerMap contents_;
  std::string remark_;
};

/// The worker and the name of "worker/2/NAME"; nothing for names that all have in common.
std::optional<std::pair<int, std::string>> worker_of(const std::string& name);

}  // namespace trireme::state
