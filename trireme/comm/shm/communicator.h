#pragma once
// Collectives inside one machine, in shared memory.
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <trireme/base/areas.h>
#include <trireme/comm/communicator.h>
#include <trireme/comm/shm/mail.h>
#include <trireme/comm/shm/rounds.h>
#include <trireme/comm/shm/sequence.h>
#include <trireme/space/range.h>

namespace trireme::comm::shm {

struct Options {
  Seconds timeout{60};                      // deadline of every wait
  std::string timeout_setting = "timeout";  // what error messages call it
  size_t stage_bytes = 1 << 17;  // of one stage, for data that is not in the segment; each rank has a few of them
  std::vector<int> names{};  // what messages call the ranks, where they have other numbers in the job; default: 0, 1, …
  Excuse excuse{};           // while ranks come to the start: see Rounds
  metrics::Registry* registry = nullptr;  // where waits are counted; null: nowhere
  std::string group{};  // what its named areas begin with: the same in all its ranks, and no other group's in its
                        // epoch. Default: by its place in the segment
  uint64_t epoch = 0;   // of the membership
  bool alone = false;   // one process that will be in other groups: what it allocates by name is its own
  std::string own{};    // what the names of its own memory (stages, mailboxes) begin with, after the group's, so that
                        // somebody can give it back; "": it has no names
};

/// Data inside the segment is used where it is, private data goes through the ranks' stages: see collectives.h.
class Communicator final : public comm::Communicator {
 public:
  /// Collective. `spot` must be the same memory and place in every rank, and nobody else's. The segment may hold other
  /// groups, and what earlier ones left.
  Communicator(Spot spot, int rank, int ranks, Options options = {});

  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int rank() const override { return rounds_.rank(); }
  int size() const override { return rounds_.ranks(); }
  void allreduce(void* data, size_t count, DType type, Op op, std::string_view name) override;
  Started start_allreduce(void* data, size_t count, DType type, Op op, std::string_view name) override;
  Started start_reduce_scatter(const void* input, void* output, const Counts& counts, DType type, Op op,
                               std::string_view name) override;
  Started start_all_gather(const void* input, void* output, const Counts& counts, DType type,
                           std::string_view name) override;
  Started start_broadcast(void* data, size_t count, DType type, int root, std::string_view name) override;
  Started start_all_to_all(const void* input, void* output, const Counts& sends, const Counts& receives, DType type,
                           std::string_view name) override;
  Started start_barrier(std::string_view name) override;
  Started start_send(const void* data, size_t count, DType type, int to, std::string_view name) override {
    return mail_->start_send(data, count, type, to, name);
  }
  Started start_receive(void* data, size_t count, DType type, int from, std::string_view name) override {
    return mail_->start_receive(data, count, type, from, name);
  }
  void send(const void* data, size_t count, DType type, int to, std::string_view name) override {
    mail_->send(data, count, type, to, name);
  }
  void receive(void* data, size_t count, DType type, int from, std::string_view name) override {
    mail_->receive(data, count, type, from, name);
  }

  /// Collective: zeroed memory, `bytes` for each rank, reachable by all. Lives as long as the segment. Completes what
  /// was started. Who comes later finds it under "GROUP/`what`/NUMBER", if that is given and the directory has room for
  /// it; numbers are from 0, in the order of the calls.
  SharedBlock allocate(size_t bytes, const char* purpose, const std::string& what = "");
  /// Collective: zeroed memory under the name "GROUP/`what`", for what is made again and again in a job. What this
  /// group had there before must be in use no more, and its memory is used again where it is as large. `touched` are
  /// the bytes of the area, all parts one after another, that this rank uses most: they are taken from the memory that
  /// is near to it. The fingerprint is for whoever finds it later.
  struct Wish {
    std::string what;
    size_t bytes = 0;  // of a part
    int parts = 1;
    uint64_t fingerprint = 0;
    std::vector<space::Range> touched{};  // without any: part number rank(), if there is one for each rank
    bool sparse = false;  // only what is touched is reserved. The rest has memory from when it is written to until it
                          // is given back, page by page (Segment::give_back)
  };
  SharedBlock take(const Wish& wish, const char* purpose);
  /// Collective: the area of that name (areas.h), as an earlier group left it or zeroed, with as many parts as it is
  /// asked for. Throws Mismatch when it is there with another size.
  SharedBlock keep(const char* name, size_t bytes, int parts);

  /// The mechanisms below, for exchanges that do their own work in a round, and for collectives that span machines.
  Rounds& rounds() { return rounds_; }
  Sequence& sequence() { return *sequence_; }
  Segment& segment() { return *segment_; }
  /// What this crew has in the segment is whole: the next one goes on with it, and what earlier ones left is not needed
  /// any more. And whether somebody of the machine has said so.
  void keep_areas() { areas_.need_from(options_.epoch); }
  bool kept_areas() const { return areas_.needed_from() >= options_.epoch; }
  const std::shared_ptr<Segment>& memory() const { return segment_; }
  const std::string& group() const { return options_.group; }
  uint64_t epoch() const { return options_.epoch; }
  /// The models of this process whose memory is here, by number: see exchange/berth.h. They may outlive this.
  const std::shared_ptr<std::vector<bool>>& berths() const { return berths_; }
  /// Collective, once: sequence() takes collectives that come down.
  void allow_down();

 private:
  template <class Claim>
  uint64_t agree_on_place(const Fingerprint& what, size_t bytes, const char* purpose, const Claim& claim);
  SharedBlock map_parts(const Area& area, const char* purpose, Segment::Pages pages = Segment::Pages::at_once);
  void reserve_touched(const Area& area, const Wish& wish, const char* purpose);
  void zero_share(const SharedBlock& block);

  std::shared_ptr<Segment> segment_;
  Options options_;
  Areas areas_;
  Rounds rounds_;
  std::optional<Sequence> sequence_;
  std::optional<Mail> mail_;
  std::shared_ptr<std::vector<bool>> berths_ = std::make_shared<std::vector<bool>>();
};

}  // namespace trireme::comm::shm
