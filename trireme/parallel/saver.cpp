#include <ATen/CPUGeneratorImpl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <optional>
#include <thread>
#include <utility>

#include <trireme/base/clock.h>
#include <trireme/base/error.h>
#include <trireme/base/lock.h>
#include <trireme/base/process.h>
#include <trireme/checkpoint/reader.h>
#include <trireme/cluster/agreement.h>
#include <trireme/cluster/launching/slate.h>
#include <trireme/parallel/saver.h>
#include <trireme/parallel/strays.h>
#include <trireme/state/image.h>
#include <trireme/state/snapshot.h>

namespace trireme {
namespace {

using cluster::on_first;
using state::OwnerMap;

constexpr int kNice = 19;                 // of the thread that writes: training comes first
constexpr Seconds kAfterFailure{2};       // for what is nearly complete
constexpr Seconds kBetweenLooks{0.25};    // for somebody who is gone, while a checkpoint is waited for
constexpr Seconds kBetweenMeetings{0.5};  // of ranks that wait for each other's writing
constexpr int kChoices = 3;               // of a checkpoint to load, where another job removes those that were chosen
const std::string kMesh = "mesh";         // among a manifest's options: the axes of who wrote it
constexpr size_t kAtATime = 4 * state::Snapshot::kChunk;

/// By rank.
std::vector<uint8_t> gather_flags(comm::Communicator& group, uint8_t mine, std::string_view name) {
  std::vector<uint8_t> all(static_cast<size_t>(group.size()));
  group.all_gather(&mine, all.data(), 1, DType::u8, name);
  return all;
}

std::vector<std::byte> random_state() {
  const torch::Tensor state = at::detail::getDefaultCPUGenerator().get_state();
  const auto* begin = static_cast<const std::byte*>(state.data_ptr());
  return {begin, begin + state.nbytes()};
}

void set_random_state(const std::vector<std::byte>& bytes) {
  torch::Tensor state = at::detail::getDefaultCPUGenerator().get_state().clone();
  if (state.nbytes() != bytes.size()) return;  // of another libtorch
  std::memcpy(state.data_ptr(), bytes.data(), bytes.size());
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  generator.set_state(state);
}

std::string random_name(int rank) { return state::of_worker(rank, "rng"); }

}  // namespace

class Saver::Impl {
 public:
  Impl(Parallel& train, const SaverOptions& options)
      : train_(train),
        options_(options),
        ranks_(train.whole()),
        group_(ranks_.comm()),
        files_(options.files != nullptr ? *options.files : checkpoint::system_files()),
        folder_(files_, options.dir),
        plan_(contents()) {
    const std::string id = on_first(
        group_,
        [&] {
          lock_.emplace(options_.dir);
          remarks_ = folder_.clean();
          return fmt::format("{}-{}", getpid(), std::chrono::system_clock::now().time_since_epoch().count());
        },
        "the folder of checkpoints");
    find_writers(id);
    divide();
    const std::shared_ptr<state::Snapshot> first = train_.snapshot(division_);
    if (writer_ >= 0) first->prepare();  // the memory that snapshots need, before training begins
  }

  /// After an error of this rank the others may have gone, and nobody has told.
  ~Impl() {
    const bool failed = std::uncaught_exceptions() > exceptions_;
    if (!over_) wait(failed ? std::min(kAfterFailure, options_.limit) : options_.limit);
    given_up_.store(true);
    if (thread_.joinable()) thread_.join();
  }

  bool save(const SaveNote& note, Seconds limit) {
    const bool free = settle(limit);
    const auto start = Clock::now();
    const std::string text = on_first(
        group_, [&] { return begin(note.step, free, limit); }, "the next checkpoint");
    if (text.empty()) return false;
    if (thread_.joinable()) thread_.join();
    untold_.store(false);
    given_up_.store(over_);
    Job job{.attempt = checkpoint::Attempt::parse(text), .note = note, .start = start, .crew = train_.crew()};
    job.snapshot = train_.snapshot(division_);
    job.random = random_state();
    job.strays = collect_strays(group_, sees_, division_, *job.snapshot, job.random);
    if (averages_) add_mean(job.strays.state);
    if (writer_ < 0) return true;
    busy_.store(true);
    thread_ = std::thread([this, job = std::move(job)]() mutable { work(job); });
    return true;
  }

  /// Ranks meet all the while, so that nobody waits for another one longer than a collective may. Whose part failed,
  /// and who could not write even that, is heard of here: rank 0 would wait for its notice in vain.
  bool settle(Seconds limit) {
    constexpr uint8_t kWrites = 1, kLate = 2, kUntold = 4;
    const Deadline deadline(limit);
    while (true) {
      const bool idle = wait(std::min(kBetweenMeetings, deadline.left()));
      const int mine = (idle ? 0 : kWrites) | (deadline.passed() ? kLate : 0) | (untold_.load() ? kUntold : 0);
      const auto all = gather_flags(group_, static_cast<uint8_t>(mine), "who still writes a checkpoint");
      const auto any = [&](uint8_t flag) {
        return std::any_of(all.begin(), all.end(), [&](uint8_t one) { return (one & flag) != 0; });
      };
      if (!any(kWrites)) return true;
      if ((all[0] & kLate) != 0) return false;
      if (any(kUntold)) given_up_.store(true);
      cluster::note_beat();
    }
  }

  bool busy() const { return busy_.load(); }
  Seconds limit() const { return options_.limit; }

  void give_up() {
    over_ = true;
    given_up_.store(true);
    lock_.reset();
  }

  /// Where somebody is gone a part may never come: it is given up soon, unless all parts are there.
  bool wait(Seconds limit) {
    const Deadline deadline(limit);
    Lock lock(mutex_);
    while (busy_.load()) {
      if (!gone_ && !ranks_.intact()) gone_.emplace(kAfterFailure);
      if (gone_ && gone_->passed()) given_up_.store(true);
      if (deadline.passed()) return false;
      changed_.wait_for(lock, std::min(kBetweenLooks, deadline.left()), [this] { return !busy_.load(); });
    }
    return true;
  }

  std::vector<Saved> news() {
    const Lock lock(mutex_);
    return std::exchange(news_, {});
  }

  Saved complete() {
    Saved saved;
    const bool done = settle(options_.limit);
    const std::string path = on_first(
        group_,
        [&] {
          if (!done) fail<IoError>("the checkpoint is not complete after {:g} s", options_.limit.count());
          const Lock lock(mutex_);
          saved = last_;
          if (!saved.error.empty()) fail<IoError>("{}", saved.error);
          return saved.path;
        },
        "the last checkpoint");
    saved.path = path;
    return saved;
  }

  const std::vector<std::string>& remarks() const { return remarks_; }

 private:
  struct Job {
    checkpoint::Attempt attempt;
    SaveNote note;
    Clock::time_point start;
    checkpoint::CrewNote crew;
    std::shared_ptr<state::Snapshot> snapshot{};
    Strays strays{};  // on rank 0
    std::vector<std::byte> random{};
  };

  checkpoint::Contents contents() const {
    checkpoint::Contents contents = train_.contents();
    contents.metadata = options_.metadata;
    if (!has_model(contents)) contents.vectors.push_back(state::kParameters);
    return contents;
  }

  static bool has_model(const checkpoint::Contents& contents) {
    return std::find(contents.vectors.begin(), contents.vectors.end(), state::kParameters) != contents.vectors.end();
  }

  /// Where each worker has parameters of its own, their mean is the model that anybody can load. Collective.
  void add_mean(state::Image& to) {
    const space::Layout& layout = train_.exchange().flat().layout();
    for (const space::Slot& slot : layout.slots()) {
      if (slot.range.empty()) continue;
      const std::byte* const own = train_.exchange().flat().parameters() + slot.range.begin;
      std::vector<std::byte> mean(own, own + slot.range.size());
      group_.allreduce(mean.data(), slot.elements(), slot.dtype, Op::mean, slot.name);
      if (group_.rank() == 0) to.part(state::kParameters, slot.range, mean);
    }
  }

  /// Whoever sees a file that rank 0 has put there.
  void find_writers(const std::string& id) {
    const std::string sign = options_.dir + "/.seen-" + id;
    on_first(
        group_,
        [&] {
          checkpoint::replace_file(files_, sign, std::string_view());
          return std::string();
        },
        "a sign in the folder");
    const bool sees = access(sign.c_str(), F_OK) == 0;
    sees_ = gather_flags(group_, sees, "who sees the folder");
    if (group_.rank() == 0) unlink(sign.c_str());
    for (int rank = 0; rank < group_.size(); rank++) {
      if (sees_[static_cast<size_t>(rank)] != 0 && rank == group_.rank()) writer_ = writers_;
      writers_ += sees_[static_cast<size_t>(rank)];
    }
    if (writers_ < group_.size())
      remarks_.push_back(
          fmt::format("{} of {} ranks do not see {}: what only they have goes to rank 0, which writes it",
                      group_.size() - writers_, group_.size(), options_.dir));
  }

  /// Who keeps what of a snapshot (by rank), and who writes it (by number of the writer). Ranks that do not see the
  /// folder keep only what nobody else has.
  void divide() {
    OwnerMap owners = train_.owners();
    averages_ = owners.of(state::kParameters).empty();
    OwnerMap able, covered;  // `covered`: by anybody of them, as owner 0
    for (const bool seeing : {true, false})
      for (const std::string& vector : owners.vectors())
        for (const state::Holding& holding : owners.of(vector)) {
          if ((sees_[static_cast<size_t>(holding.owner)] != 0) != seeing) continue;
          if (seeing) able.add(vector, holding.range, holding.owner);
          for (const space::Range& rest : covered.lacking(vector, holding.range, 0)) {
            covered.add(vector, rest, 0);
            if (!seeing) able.add(vector, rest, holding.owner);
          }
        }
    if (averages_)
      for (const space::Slot& slot : train_.exchange().flat().layout().slots())
        able.add(state::kParameters, slot.range, 0);
    division_ = checkpoint::divide(able, plan_);
    std::vector<int> number(sees_.size(), 0);
    for (size_t rank = 0, next = 0; rank < sees_.size(); rank++)
      if (sees_[rank] != 0) number[rank] = static_cast<int>(next++);
    for (const std::string& vector : division_.vectors())
      for (const state::Holding& holding : division_.of(vector))
        written_by_.add(vector, holding.range, number[static_cast<size_t>(holding.owner)]);
    if (!averages_) return;
    OwnerMap kept;  // the mean is in no snapshot
    for (const std::string& vector : division_.vectors())
      for (const state::Holding& holding : division_.of(vector))
        if (vector != state::kParameters) kept.add(vector, holding.range, holding.owner);
    division_ = kept;
  }

  /// On rank 0: where to write to. "" and a word to the listeners where that cannot be: training goes on.
  std::string begin(int64_t step, bool free, Seconds limit) {
    try {
      if (over_) fail<Error>("the ones before it were given up");
      if (!free) fail<Timeout>("the one before it is still being written, {:g} s after it was due", limit.count());
      return folder_.attempt(step).text();
    } catch (const std::exception& error) {
      tell({.path = options_.dir, .step = step, .error = error.what()});
      return "";
    }
  }

  void tell(Saved saved) {
    const Lock lock(mutex_);
    news_.push_back(last_ = std::move(saved));
  }

  /// The thread: this rank's part, and on rank 0 the whole.
  void work(Job& job) {
    name_thread("trireme-save");
    Saved saved{.path = job.attempt.path, .step = job.note.step};
    try {
      write(job);
      if (group_.rank() == 0) complete(job, saved);
    } catch (const std::exception& error) {
      saved.error = error.what();
      saved.seconds = seconds_since(job.start);
      if (group_.rank() == 0) checkpoint::abandon(files_, job.attempt);
    }
    job.snapshot.reset();
    if (group_.rank() == 0) tell(std::move(saved));
    const Lock lock(mutex_);
    busy_.store(false);
    changed_.notify_all();
  }

  void write(Job& job) {
    std::optional<checkpoint::Writer> writer;
    try {
      state::Snapshot& snapshot = *job.snapshot;
      snapshot.prepare();  // the next update waits for it: before the priority is lowered
      setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), kNice);
      writer.emplace(files_, job.attempt, plan_, checkpoint::Writer::Options{.rank = writer_, .mine = &written_by_});
      write_parts(snapshot, *writer);
      for (const auto& [name, value] : snapshot.scalars())
        if (!is_of_work(name)) writer->scalar(name, value);
      for (const state::Table& table : snapshot.about().tables)
        snapshot.rows(table.name, [&](const state::Row& row) { writer->row(table.name, row); });
      writer->blob(random_name(group_.rank()), job.random);
      if (group_.rank() == 0) write_strays(job, *writer);
      writer->finish();
    } catch (const std::exception& error) {
      const bool told =
          writer ? writer->give_up(error.what()) : checkpoint::give_up(files_, job.attempt, writer_, error.what());
      untold_.store(!told);
      throw;
    }
  }

  void write_parts(state::Snapshot& snapshot, checkpoint::Writer& writer) {
    std::vector<std::byte> buffer(kAtATime);
    for (size_t part = 0; part < snapshot.parts().size(); part++) {
      const space::Range range = snapshot.parts()[part].range;
      for (size_t at = 0; at < range.size(); at += kAtATime) {
        if (given_up_.load()) fail<Error>("it was given up before this rank's part was written");
        const size_t size = std::min(kAtATime, range.size() - at);
        snapshot.read(part, at, std::span(buffer).first(size));
        snapshot.release(part, at + size);
        snapshot.place(part, at, std::span(buffer).first(size), writer);
        cluster::note_beat();
      }
    }
  }

  static void write_strays(Job& job, checkpoint::Writer& writer) {
    state::Image& strays = job.strays.state;
    for (const std::string& vector : strays.contents().vectors())
      for (const state::Holding& holding : strays.contents().of(vector))
        writer.part(vector, holding.range, strays.bytes_of(vector, holding.range));
    for (const auto& [name, value] : strays.scalars()) {
      const std::optional<int64_t> own = job.snapshot->scalar(name);
      if (own && *own != value)
        fail<Mismatch>("'{}' is {} on rank 0, and {} elsewhere: the ranks are not at the same step", name, *own, value);
      if (!own) writer.scalar(name, value);
    }
    for (const state::Table& table : strays.about().tables)
      strays.rows(table.name, [&](const state::Row& row) { writer.row(table.name, row); });
    for (const auto& [rank, random] : job.strays.random) writer.blob(random_name(rank), random);
  }

  void complete(const Job& job, Saved& saved) {
    checkpoint::Manifest manifest;
    manifest.library = checkpoint::library_version();
    manifest.step = job.note.step;
    manifest.epoch = job.note.epoch;
    manifest.time = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
    manifest.about = job.snapshot->about();
    manifest.options = options_.options;
    for (const auto& [name, value] : job.note.more) manifest.options[name] = value;
    if (!train_.mesh().empty()) manifest.options[kMesh] = train_.mesh();
    manifest.metadata = options_.metadata;
    manifest.metrics = job.note.metrics;
    manifest.crew = job.crew;
    manifest = checkpoint::commit(files_, job.attempt, plan_, std::move(manifest),
                                  {.writers = writers_, .limit = options_.limit, .given_up = &given_up_});
    saved.seconds = seconds_since(job.start);
    saved.bytes = manifest.bytes();
    cluster::note_beat();
    for (const checkpoint::Retired& old : checkpoint::retire(folder_.list(), options_.keep)) {
      if (old.entry.path == job.attempt.path) continue;  // of an earlier step than others that are there
      folder_.remove(old.entry);
      saved.removed.push_back(fmt::format("{} is removed: {}", old.entry.name, old.reason));
    }
  }

  Parallel& train_;
  const SaverOptions options_;
  const Group ranks_;  // the crew may change while the last one is written
  comm::Communicator& group_;
  checkpoint::Files& files_;
  checkpoint::Folder folder_;
  const checkpoint::Plan plan_;
  std::optional<checkpoint::FolderLock> lock_;  // rank 0
  std::vector<std::string> remarks_;
  std::vector<uint8_t> sees_;       // by rank
  int writer_ = -1, writers_ = 0;   // this rank's number among those who see the folder
  bool averages_ = false;           // the model is the mean over workers
  OwnerMap division_, written_by_;  // by rank; by writer
  std::thread thread_;
  const int exceptions_ = std::uncaught_exceptions();  // on their way when this was made
  std::optional<Deadline> gone_;                       // somebody is: for what is nearly complete
  std::atomic<bool> busy_{false}, given_up_{false};    // what is under way
  std::atomic<bool> untold_{false};                    // this rank's part of it failed, and no notice says so
  bool over_ = false;                                  // nothing is saved any more
  Mutex mutex_;
  Condition changed_;
  std::vector<Saved> news_ TRIREME_GUARDED_BY(mutex_);
  Saved last_ TRIREME_GUARDED_BY(mutex_);
};

Saver::Saver(Parallel& train, const SaverOptions& options) : impl_(std::make_unique<Impl>(train, options)) {}
Saver::~Saver() = default;
void Saver::give_up() { impl_->give_up(); }
bool Saver::save(const SaveNote& note) { return impl_->save(note, impl_->limit()); }
bool Saver::save(const SaveNote& note, Seconds limit) { return impl_->save(note, limit); }
bool Saver::settle(Seconds limit) { return impl_->settle(limit); }
bool Saver::busy() const { return impl_->busy(); }
bool Saver::wait(Seconds limit) { return impl_->wait(limit); }
Saved Saver::complete() { return impl_->complete(); }
std::vector<Saved> Saver::news() { return impl_->news(); }
const std::vector<std::string>& Saver::remarks() const { return impl_->remarks(); }

namespace {

/// Opened on this rank, and the same that rank 0 has.
std::unique_ptr<checkpoint::Checkpoint> open_here(const Group& group, const std::string& path,
                                                  const std::string& manifest) {
  auto found = std::make_unique<checkpoint::Checkpoint>(checkpoint::system_files(), path);
  if (found->manifest().encode() != manifest)
    fail<InvalidArgument>("{} on this machine (rank {}) is another checkpoint than on rank 0's: copy the folder there",
                          path, group.rank());
  if (group.machine_of(group.rank()) != group.machine_of(0))  // rank 0 has checked its machine's files
    found->verify(1, group.local().rank(), group.local().size());
  return found;
}

/// A checkpoint that all ranks have open: from here on nobody can take it away.
struct Opened {
  std::unique_ptr<checkpoint::Checkpoint> checkpoint{};
  std::unique_ptr<checkpoint::Reader> reader{};
};

/// Rank 0 chooses, and all open it. Nothing where another job removed it in between. Collective.
std::optional<Opened> open_newest(Parallel& train, const std::string& path, Loaded& loaded) {
  const Group& group = train.whole();
  std::string manifest;
  loaded.skipped.clear();
  loaded.path = on_first(
      group.comm(),
      [&] {
        const auto usable = checkpoint::Folder(checkpoint::system_files(), path).newest(true);
        loaded.skipped = usable.skipped;
        manifest = usable.entry.manifest->encode();
        return usable.entry.path;
      },
      "what to go on with");
  cluster::share(group.comm(), manifest, "its manifest");
  Opened opened;
  std::string problem;
  try {
    opened.checkpoint = open_here(group, loaded.path, manifest);
    const checkpoint::Contents contents = train.contents();
    opened.reader = std::make_unique<checkpoint::Reader>(*opened.checkpoint, contents.layout, contents.buffers);
  } catch (const std::exception& error) {
    problem = error.what();
  }
  const auto fine = gather_flags(group.comm(), problem.empty() ? 1 : 0, "who can read it");
  const auto other = std::find(fine.begin(), fine.end(), uint8_t{0});
  if (other == fine.end()) return opened;
  const std::string gone = on_first(
      group.comm(),
      [&] { return checkpoint::is_there(checkpoint::system_files(), loaded.path) ? std::string() : loaded.path; },
      "whether it is gone");
  if (!gone.empty()) return std::nullopt;
  if (!problem.empty()) fail<InvalidArgument>("{}", problem);
  fail<Mismatch>("rank {} cannot read {}: see its error. Nothing changed", other - fine.begin(), loaded.path);
}

}  // namespace

Loaded load_state(Parallel& train, const std::string& path,
                  const std::function<void(const checkpoint::Manifest&)>& accept) {
  const Group& group = train.whole();
  Loaded loaded;
  std::optional<Opened> opened;
  for (int choice = 0; choice < kChoices && !opened; choice++) opened = open_newest(train, path, loaded);
  if (!opened)
    fail<IoError>("another job removes the checkpoints of {} sooner than they are read: have it keep more (--keep)",
                  path);
  loaded.manifest = opened->checkpoint->manifest();
  if (accept) accept(loaded.manifest);
  try {
    loaded.remark = train.restore(*opened->reader);
  } catch (const InvalidArgument& error) {
    fail<InvalidArgument>("{}: {}", loaded.path, error.what());
  }
  const auto mesh = loaded.manifest.options.find(kMesh);
  const bool same_mesh = (mesh == loaded.manifest.options.end() ? "" : mesh->second) == train.mesh();
  if (same_mesh && loaded.manifest.crew.workers == group.size())
    if (const auto random = opened->checkpoint->blob(random_name(group.rank()))) set_random_state(*random);
  return loaded;
}

}  // namespace trireme
