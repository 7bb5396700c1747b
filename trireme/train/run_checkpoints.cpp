// What a run keeps, and what it goes on with.
#include <trireme/checkpoint/reader.h>
#include <trireme/cluster/agreement.h>
#include <trireme/cluster/launching/slate.h>
#include <trireme/models/load.h>
#include <trireme/train/run.h>

namespace trireme::train {
namespace {

constexpr double kLongestCheckpoint = 300;  // seconds, in the end

}  // namespace

/// Ranks begin with the parameters and buffers of a checkpoint, and with nothing else of it.
void Run::take_weights() {
  cluster::on_first(
      world_.comm(),
      [&] {
        const auto from = checkpoint::Tensors::open(checkpoint::system_files(), options_.keeping.from(), true);
        for (const std::string& skipped : from.skipped) listener_.note("warning: " + skipped);
        models::fill(*net_, from);
        listener_.note(fmt::format("begins with the weights of {}; optimizer and data begin anew", from.path));
        return std::string();
      },
      "the weights to begin with");
}

/// By what the best one is told.
std::string Run::best_figure(const data::Splits& splits) const {
  if (splits.test.count == 0) return "loss";
  return mse_ || net_.is_language() ? "test_loss" : "test_accuracy";
}

void Run::keep_checkpoints(Parallel& train, data::Feed& feed, const data::Splits& splits, bool channels_last,
                           bool joins) {
  const KeepOptions& k = options_.keeping;
  if (!k.dir.empty()) {
    const std::string figure = best_figure(splits);
    std::map<std::string, std::string> options = settings();
    options.insert({{"model", options_.model},
                    {"data", options_.data},
                    {"seed", fmt::format("{}", options_.seed)},
                    {"lr", fmt::format("{:.17g}", options_.optimizer.lr)},
                    {"virtual", fmt::format("{}", asked().virtual_workers)},
                    {"memory_format", channels_last ? "channels-last" : "default"}});
    checkpoints_.emplace(train, feed,
                         CheckpointsOptions{.dir = k.dir,
                                            .every = k.every,
                                            .keep = k.keep,
                                            .keep_best = k.best ? figure : "",
                                            .higher_is_better = figure == "test_accuracy",
                                            .metadata = metadata(splits),
                                            .options = std::move(options),
                                            .describe = [this](SaveNote& note) { describe(note); }});
    guard_.set_roll_back({.can = [this] { return checkpoints_->any(); },
                          .go =
                              [this, k] {
                                take_up(checkpoints_->resume(k.dir));
                                return position_;
                              }});
    for (const std::string& remark : checkpoints_->remarks())
      if (world_.first()) listener_.note(remark);
  }
  if (k.resume.empty() || k.weights_only || joins) return;
  Place place;
  take_up(checkpoints_ ? checkpoints_->resume(k.from()) : go_on_from(train, feed, k.from(), place));
  if (position_ >= static_cast<int64_t>(feed.steps_per_epoch()) * epochs_ && world_.first())
    listener_.note(fmt::format("all {} epochs were trained already: --epochs says how many there are to be", epochs_));
}

/// The run is where the checkpoint was made.
void Run::take_up(const Loaded& loaded) {
  result_.resumed = loaded.path;
  position_ = loaded.manifest.step;
  if (const auto updates = loaded.manifest.scalars.find(state::kStep); updates != loaded.manifest.scalars.end())
    result_.updates = updates->second;
  const auto found = loaded.manifest.options.find("history");
  history_ = History::parse(found == loaded.manifest.options.end() ? "" : found->second);
  result_.epochs = history_.epochs;
  result_.seconds = history_.seconds;
  if (!world_.first()) return;
  for (const std::string& sentence : loaded.skipped) listener_.note("warning: " + sentence);
  listener_.note(
      fmt::format("goes on with {}: step {}, epoch {}", loaded.path, loaded.manifest.step, loaded.manifest.epoch + 1));
  if (!loaded.remark.empty()) listener_.note(loaded.remark);
  std::string saved, now;
  for (const auto& [name, value] : settings()) {
    const auto kept = loaded.manifest.options.find(name);
    if (kept == loaded.manifest.options.end() || kept->second == value) continue;
    saved += fmt::format("{}{} {}", saved.empty() ? "" : ", ", name, kept->second);
    now += fmt::format("{}{}", now.empty() ? "" : ", ", value);
  }
  if (!now.empty()) listener_.note(fmt::format("warning: it was saved with {}, and goes on with {}", saved, now));
  const auto pieces = loaded.manifest.options.find("virtual");
  const std::string before = pieces == loaded.manifest.options.end() ? "0" : pieces->second;
  if (asked().virtual_workers > 0 && before != fmt::format("{}", asked().virtual_workers))
    listener_.note(fmt::format("warning: it was saved {}, so that the bits are not those of one run with --virtual {}",
                               before == "0" ? "without --virtual" : "with --virtual " + before,
                               asked().virtual_workers));
}

bool Run::owes_evaluation(const data::Splits& splits, int64_t steps) const {
  return splits.test.count > 0 && !result_.resumed.empty() && position_ % steps == 0 && !result_.epochs.empty() &&
         !result_.epochs.back().has_test;
}

void Run::describe(SaveNote& note) const {
  History now = history_;
  now.epochs = result_.epochs;
  now.seconds = result_.seconds;
  now.time = guard_.seconds();
  now.partial_steps = pace_ != nullptr     ? pace_->steps
                      : stopped_steps_ > 0 ? stopped_steps_
                                           : history_.partial_steps;  // it was left where ranks met
  if (now.partial_steps == 0) now.partial = {};
  if (stopped_steps_ > 0) {  // the last one has not ended
    now.partial = now.epochs.back();
    now.epochs.pop_back();
  }
  note.more["history"] = now.json();
  if (pace_ != nullptr) note.metrics["loss"] = history_.partial.loss;
}

/// Of the last epoch.
std::map<std::string, double> Run::figures() const {
  std::map<std::string, double> all;
  if (result_.epochs.empty()) return all;
  const EpochResult& last = result_.epochs.back();
  all["loss"] = last.loss;
  if (last.has_test) all["test_loss"] = last.test_loss;
  if (last.test_accuracy >= 0) all["test_accuracy"] = last.test_accuracy;
  return all;
}

void Run::tell_of_checkpoints() {
  if (!checkpoints_ || !world_.first()) return;
  for (const Saved& saved : checkpoints_->news()) {
    if (!saved.error.empty())
      listener_.note(fmt::format("warning: there is no checkpoint of step {}: {}", saved.step, saved.error));
    else
      listener_.note(fmt::format("checkpoint {}: {:.1f} MB in {:.2f} s", saved.path,
                                 static_cast<double>(saved.bytes) / 1e6, saved.seconds));
  }
}

/// The last one, where the run ends. Of a run that somebody has stopped it has the grace, from here until it is
/// complete, and what is still being written has no more.
void Run::keep_last() {
  if (!checkpoints_) return;
  if (!last_) last_.emplace(Seconds(result_.stopped ? options_.keeping.grace : kLongestCheckpoint));
  checkpoints_->save_at(position_, figures(), last_->left());
}

/// Until it is complete, or time is up.
void Run::finish_checkpoints() {
  if (!checkpoints_) return;
  const bool done = checkpoints_->settle(last_->left()) && checkpoints_->finish(Seconds(0));
  tell_of_checkpoints();
  if (!done) checkpoints_->give_up();  // nobody would wait for it any more
  if (!world_.first()) return;
  result_.checkpoint = checkpoints_->newest();
  if (done && options_.save.empty()) cluster::note_saved(result_.checkpoint);  // nothing is lost
  if (!done)
    listener_.note(fmt::format("warning: the last checkpoint is not complete{}",
                               result_.checkpoint.empty() ? "" : "; the newest that is, is " + result_.checkpoint));
}

}  // namespace trireme::train
