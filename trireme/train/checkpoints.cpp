#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <utility>

#include <trireme/base/error.h>
#include <trireme/cluster/agreement.h>
#include <trireme/train/checkpoints.h>

namespace trireme {
namespace {

constexpr int64_t kFirstLook = 8;     // steps until the speed is known
constexpr double kNearEnough = 0.98;  // of the time between two checkpoints
constexpr const char *kEpochStep = "epoch_step", *kSamples = "samples", *kBatch = "batch", *kOrder = "order",
                     *kLedger = "ledger";

SaverOptions saver_options(const CheckpointsOptions& options, const data::Feed& feed) {
  SaverOptions made{
      .dir = options.dir,
      .keep = {.keep = options.keep, .best = options.keep_best, .higher_is_better = options.higher_is_better},
      .metadata = options.metadata,
      .options = options.options,
      .limit = options.limit};
  made.options[kBatch] = fmt::format("{}", feed.options().batch);
  made.options[kSamples] = fmt::format("{}", feed.dataset().count);
  made.options[kOrder] = feed.options().shuffle ? fmt::format("seed {}", feed.options().seed) : "not shuffled";
  return made;
}

int64_t number_in(const checkpoint::Manifest& manifest, const char* name) {
  const auto found = manifest.options.find(name);
  return found == manifest.options.end() ? -1 : std::atoll(found->second.c_str());
}

std::string text_in(const checkpoint::Manifest& manifest, const char* name) {
  const auto found = manifest.options.find(name);
  return found == manifest.options.end() ? "" : found->second;
}

/// Steps of the epoch that are done.
size_t place_in(const checkpoint::Manifest& manifest, const data::Feed& feed) {
  const int64_t steps = number_in(manifest, kEpochStep);
  if (steps < 0)
    fail<InvalidArgument>(
        "the checkpoint does not say where in the data it was: it was saved without Checkpoints. Load it with "
        "load_state(), or resume its weights only");
  const auto samples = static_cast<int64_t>(feed.dataset().count), batch = static_cast<int64_t>(feed.options().batch);
  if (number_in(manifest, kSamples) != samples || number_in(manifest, kBatch) != batch)
    fail<InvalidArgument>(
        "the checkpoint was made with {} training samples in batches of {}, and here are {} in batches of {}: what was "
        "a "
        "step is none here. Go on with the same data and batch, or begin anew with its weights (resume-weights-only)",
        text_in(manifest, kSamples), text_in(manifest, kBatch), samples, batch);
  const std::string order = feed.options().shuffle ? fmt::format("seed {}", feed.options().seed) : "not shuffled";
  if (steps > 0 && text_in(manifest, kOrder) != order)
    fail<InvalidArgument>(
        "the checkpoint was made in the middle of an epoch whose samples were ordered by '{}', here by '{}': go on "
        "with the same seed, or with a checkpoint of an epoch's end",
        text_in(manifest, kOrder), order);
  return static_cast<size_t>(steps);
}

}  // namespace

Checkpoints::Checkpoints(Parallel& train, data::Feed& feed, const CheckpointsOptions& options)
    : train_(train), feed_(feed), options_(options) {
  feed_.meet_at(this);
  if (!train_.elastic()) follow_crew();
}

/// Who comes to a crew that trains already makes a saver when all others do.
void Checkpoints::follow_crew() {
  if (crew_ == train_.group().epoch()) return;
  hear();
  std::erase_if(leaving_, [](const auto& saver) { return !saver->busy(); });
  if (saver_) {
    saver_->give_up();
    leaving_.push_back(std::move(saver_));
    saved_step_ = -1;
  }
  crew_ = train_.group().epoch();
  folder_is_ours_ = folder_is_ours_ || *crew_ > 0;  // the first crew has looked
  saver_ = std::make_unique<Saver>(train_, saver_options(options_, feed_));
}

Checkpoints::~Checkpoints() { feed_.meet_at(nullptr); }

/// What is damaged counts unless only complete ones do: it is an error, not a new run.
bool Checkpoints::has(bool complete) {
  return !cluster::on_first(
              train_.whole().comm(),
              [&] {
                for (const auto& entry : checkpoint::Folder(checkpoint::system_files(), options_.dir).list())
                  if (!complete || entry.condition == checkpoint::Condition::complete) return entry.name;
                return std::string();
              },
              "whether there is a checkpoint")
              .empty();
}

bool Checkpoints::resume() {
  follow_crew();
  if (!has(false)) return false;
  resume(options_.dir);
  return true;
}

bool Checkpoints::any() {
  settle(options_.limit);
  return has(true);
}

Loaded go_on_from(Parallel& train, data::Feed& feed, const std::string& from, Place& place) {
  size_t step = 0;
  Loaded loaded = load_state(train, from, [&](const checkpoint::Manifest& kept) { step = place_in(kept, feed); });
  place = {.epoch = loaded.manifest.epoch, .step = step};
  feed.go_on(place.epoch, place.step);
  const std::string ledger = text_in(loaded.manifest, kLedger);
  constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();
  if (!ledger.empty())
    train.take_up(exchange::Ledger::parse(ledger));
  else if (step > 0)
    train.take_up({.epoch = place.epoch, .samples = kUnknown, .signs = kUnknown});
  return loaded;
}

Loaded Checkpoints::resume(const std::string& from) {
  follow_crew();
  saver_->settle(options_.limit);
  Loaded loaded = go_on_from(train_, feed_, from, place_);
  newest_ = loaded.path;
  folder_is_ours_ = folder_is_ours_ || from == options_.dir;
  if (std::filesystem::path(loaded.path).parent_path() == std::filesystem::path(options_.dir))
    saved_step_ = loaded.manifest.step;  // it is there already
  if (const auto best = loaded.manifest.options.find("best"); best != loaded.manifest.options.end())
    best_ = std::atof(best->second.c_str());
  return loaded;
}

/// Rank 0's number becomes everybody's.
int64_t Checkpoints::decide(int64_t mine, const char* what) {
  train_.whole().comm().broadcast(&mine, 1, DType::i64, 0, what);
  return mine;
}

/// By their steps, checkpoints of this run would count as older than those of another one, and go first.
void Checkpoints::refuse_another_run(int64_t done) {
  if (std::exchange(folder_is_ours_, true)) return;
  cluster::on_first(
      train_.whole().comm(),
      [&] {
        for (const auto& entry : checkpoint::Folder(checkpoint::system_files(), options_.dir).list())
          if (entry.condition == checkpoint::Condition::complete && entry.step > done)
            fail<InvalidArgument>(
                "{} has checkpoints of another run, up to step {}, and this one begins with step {}: go on with the "
                "newest (--resume latest), or choose another folder for --checkpoint",
                options_.dir, entry.step, done);
        return std::string();
      },
      "whose checkpoints there are");
}

int64_t Checkpoints::until_next(int64_t done) {
  follow_crew();
  refuse_another_run(done);
  const int64_t by_steps = options_.every.steps > 0 ? options_.every.steps - done % options_.every.steps : 0;
  if (options_.every.seconds <= 0) return by_steps;
  const auto now = Clock::now();
  if (asked_at_ >= 0 && done > asked_at_) {
    const double measured = Seconds(now - asked_).count() / static_cast<double>(done - asked_at_);
    step_seconds_ = step_seconds_ == 0 ? measured : (step_seconds_ + measured) / 2;
  }
  asked_ = now;
  asked_at_ = done;
  const double left = options_.every.seconds - Seconds(now - saved_).count();
  const double steps = step_seconds_ == 0 ? static_cast<double>(kFirstLook) : left / step_seconds_;
  const int64_t by_time = decide(static_cast<int64_t>(std::clamp(std::ceil(steps), 1.0, 1e9)), "when to meet");
  return by_steps > 0 ? std::min(by_steps, by_time) : by_time;
}

void Checkpoints::meet(int64_t done) {
  follow_crew();
  bool due = options_.every.steps > 0 && done % options_.every.steps == 0;
  if (options_.every.seconds > 0 && seconds_since(saved_) >= kNearEnough * options_.every.seconds)
    due =
        due || !saver_->busy();  // what is due by the clock may wait until the one before is written; training may not
  if (decide(due ? 1 : 0, "whether to save") == 0) return;
  const auto steps = static_cast<int64_t>(feed_.steps_per_epoch());
  save(done / steps, static_cast<size_t>(done % steps), {});
}

void Checkpoints::save(int64_t epoch, size_t step, const std::map<std::string, double>& metrics,
                       std::optional<Seconds> limit) {
  SaveNote note{.step = epoch * static_cast<int64_t>(feed_.steps_per_epoch()) + static_cast<int64_t>(step),
                .epoch = epoch,
                .metrics = metrics};
  note.more[kEpochStep] = fmt::format("{}", step);
  if (train_.lockstep()) note.more[kLedger] = train_.ledger().text();
  if (best_) note.more["best"] = fmt::format("{:.17g}", *best_);
  if (options_.describe) options_.describe(note);
  const bool saving = saver_->save(note, limit.value_or(options_.limit));
  saved_ = Clock::now();
  if (saving) saved_step_ = note.step;
}

bool Checkpoints::best_so_far(const std::map<std::string, double>& metrics) {
  const auto found = metrics.find(options_.keep_best);
  if (options_.keep_best.empty() || found == metrics.end() || std::isnan(found->second)) return false;
  const bool better = !best_ || (options_.higher_is_better ? found->second > *best_ : found->second < *best_);
  if (better) best_ = found->second;
  return better;
}

void Checkpoints::epoch_ended(int64_t epoch, const std::map<std::string, double>& metrics) {
  const int64_t done = (epoch + 1) * static_cast<int64_t>(feed_.steps_per_epoch());
  const bool by_epochs = options_.every.epochs > 0 && (epoch + 1) % options_.every.epochs == 0;
  const bool by_steps = options_.every.steps > 0 && done % options_.every.steps == 0;
  const bool by_time = options_.every.seconds > 0 && seconds_since(saved_) >= kNearEnough * options_.every.seconds;
  const bool best = best_so_far(metrics);
  follow_crew();
  if (decide(by_epochs || by_steps || by_time || best ? 1 : 0, "whether to save") != 0) save(epoch + 1, 0, metrics);
}

void Checkpoints::save_stopped(const data::Epoch& epoch) {
  follow_crew();
  auto reached = static_cast<int64_t>(epoch.reached());
  train_.whole().comm().allreduce(&reached, 1, DType::i64, Op::max, "where they stopped");
  const auto steps = static_cast<int64_t>(feed_.steps_per_epoch());
  save(epoch.number() + reached / steps, static_cast<size_t>(reached % steps), {});
}

void Checkpoints::save_at(int64_t done, const std::map<std::string, double>& metrics, std::optional<Seconds> limit) {
  follow_crew();
  if (done == saved_step_) return;
  const auto steps = static_cast<int64_t>(feed_.steps_per_epoch());
  save(done / steps, static_cast<size_t>(done % steps), metrics, limit);
}

bool Checkpoints::settle(Seconds limit) {
  follow_crew();
  const bool done = saver_->settle(limit);
  hear();
  return done;
}

bool Checkpoints::finish(Seconds limit) {
  const bool done = !saver_ || saver_->wait(limit);
  hear();
  return done && failed_.empty();
}

void Checkpoints::give_up() {
  if (saver_) saver_->give_up();
}

void Checkpoints::hear() {
  for (Saved& saved : saver_ ? saver_->news() : std::vector<Saved>()) {
    failed_ = saved.error;
    if (saved.error.empty()) newest_ = saved.path;
    news_.push_back(std::move(saved));
  }
}

std::vector<Saved> Checkpoints::news() {
  hear();
  return std::exchange(news_, {});
}

}  // namespace trireme
