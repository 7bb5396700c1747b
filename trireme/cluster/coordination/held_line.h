#pragma once
// Lines to the members of a job with a journal: what is said waits until all that it depends on is durable.
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <trireme/base/lock.h>
#include <trireme/cluster/coordination/desk.h>

namespace trireme::cluster {

/// What lines are to be told when all that it depends on is durable, in order.
class Outbox {
 public:
  using Word = std::function<void()>;
  void add(Word word) {
    const Lock lock(mutex_);
    words_.push_back(std::move(word));
  }
  std::vector<Word> take() {
    const Lock lock(mutex_);
    return std::exchange(words_, {});
  }

 private:
  Mutex mutex_;
  std::vector<Word> words_ TRIREME_GUARDED_BY(mutex_);
};

/// A line to a member of a job with a journal.
class HeldLine final : public Line {
 public:
  HeldLine(std::shared_ptr<Line> line, std::shared_ptr<Outbox> outbox)
      : line_(std::move(line)), outbox_(std::move(outbox)) {}
  void welcome(const Welcome& welcome) override {
    outbox_->add([line = line_, welcome] { line->welcome(welcome); });
  }
  void placed(const Member& member) override {
    outbox_->add([line = line_, member] { line->placed(member); });
  }
  void heartbeat(const std::string& waiting) override { line_->heartbeat(waiting); }  // it depends on nothing
  void notice(const Failure& failure) override {
    outbox_->add([line = line_, failure] { line->notice(failure); });
  }
  void crew(const CrewChange& change) override {
    outbox_->add([line = line_, change] { line->crew(change); });
  }
  void dismissed(const std::string& reason) override {
    outbox_->add([line = line_, reason] { line->dismissed(reason); });
  }
  void more(int workers) override {
    outbox_->add([line = line_, workers] { line->more(workers); });
  }
  void farewell() override {
    outbox_->add([line = line_] { line->farewell(); });
  }
  void close(const std::optional<Refusal>& refusal) override {
    outbox_->add([line = line_, refusal] { line->close(refusal); });
  }
  const Line* origin() const override { return line_.get(); }

 private:
  const std::shared_ptr<Line> line_;
  const std::shared_ptr<Outbox> outbox_;
};

}  // namespace trireme::cluster
