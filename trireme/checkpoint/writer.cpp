#include <fcntl.h>

#include <algorithm>
#include <charconv>
#include <cstring>

#include <trireme/base/error.h>
#include <trireme/checkpoint/notice.h>
#include <trireme/checkpoint/rows.h>
#include <trireme/checkpoint/writer.h>

namespace trireme::checkpoint {
namespace {

using space::Range;

/// Sorted, and neighbours made one. What overlaps stays apart: who reads it can see that.
std::vector<FileRange> sorted_parts(std::vector<FileRange> parts) {
  std::sort(parts.begin(), parts.end(), [](FileRange a, FileRange b) { return a.begin < b.begin; });
  std::vector<FileRange> result;
  for (const FileRange& part : parts) {
    if (!result.empty() && result.back().end == part.begin)
      result.back().end = part.end;
    else
      result.push_back(part);
  }
  return result;
}

/// A file that several ranks write, as one of them has it.
class SharedFile {
 public:
  SharedFile(Files& files, const std::string& path) : file_(files, path, O_WRONLY | O_CREAT) {}

  void reserve(uint64_t bytes) const { file_.reserve(bytes); }
  void write(uint64_t at, std::span<const std::byte> bytes) {
    if (bytes.empty()) return;
    file_.write_at(at, bytes);
    const uint64_t end = at + bytes.size();
    if (!parts_.empty() && parts_.back().end == at)
      parts_.back().end = end;
    else
      parts_.push_back({at, end});
    if ((fresh_ += bytes.size()) >= kAhead) file_.start_writing(0, 0), fresh_ = 0;
  }
  void sync() const { file_.sync(); }
  std::vector<FileRange> parts() const { return sorted_parts(parts_); }

 private:
  static constexpr uint64_t kAhead = uint64_t{16} << 20;  // so that the disk is busy before the fsync

  File file_;
  std::vector<FileRange> parts_;
  uint64_t fresh_ = 0;
};

/// A row of a tensor whose order in memory is another, while parts of it are missing.
struct PendingRow {
  std::vector<std::byte> memory;
  std::vector<Range> there;  // parts of it, in no order; few
  size_t count = 0;          // bytes that are there

  void take(size_t at, std::span<const std::byte> bytes) {
    const Range fresh{at, at + bytes.size()};
    for (const Range& part : there)
      if (!intersect(part, fresh).empty()) fail<InvalidArgument>("bytes of a tensor were shown to a checkpoint twice");
    std::memcpy(memory.data() + at, bytes.data(), bytes.size());
    if (!there.empty() && there.back().end == at)
      there.back().end = fresh.end;
    else
      there.push_back(fresh);
    count += bytes.size();
  }
};

}  // namespace

class Writer::Impl {
 public:
  Impl(Files& files, const Attempt& attempt, const Plan& plan, const Options& options)
      : files_(files), attempt_(attempt), plan_(plan), options_(options), open_(plan.files().size()) {
    make_folder(files, attempt.path);
    const auto names = names_in(files, attempt.path).value_or(std::vector<std::string>{});
    if (std::binary_search(names.begin(), names.end(), std::string(kManifestName)))
      fail<InvalidArgument>("{} is a complete checkpoint already: nothing is written over it", attempt.path);
    if (options.mine != nullptr) note_mine();
    if (options.rank == 0) begin_files();
  }

  void part(const std::string& vector, Range range, std::span<const std::byte> bytes) {
    if (range.size() != bytes.size())
      fail<InvalidArgument>("{} bytes for {} to {} of '{}'", bytes.size(), range.begin, range.end, vector);
    if (plan_.of(vector).empty())
      fail<InvalidArgument>("the vector '{}' is not in the plan of this checkpoint", vector);
    if (options_.mine == nullptr) return chosen(vector, range, bytes);
    const std::vector<Range>& mine = mine_[vector];
    auto own = std::partition_point(mine.begin(), mine.end(), [&](const Range& one) { return one.end <= range.begin; });
    for (; own != mine.end() && own->begin < range.end; ++own) {
      const Range here = intersect(*own, range);
      chosen(vector, here, bytes.subspan(here.begin - range.begin, here.size()));
    }
  }

  void scalar(const std::string& name, int64_t value) {
    const auto [found, added] = notice_.scalars.emplace(name, value);
    if (!added && found->second != value)
      fail<InvalidArgument>("'{}' was shown as {} and as {}", name, found->second, value);
  }

  void row(const std::string& table, const state::Row& row) {
    rows_.add(table, row);
    if (rows_.bytes() >= options_.row_bytes) write_rows();
  }

  void blob(const std::string& name, std::span<const std::byte> bytes) {
    if (!blobs_.emplace(name, std::vector<std::byte>(bytes.begin(), bytes.end())).second)
      fail<InvalidArgument>("'{}' was shown to a checkpoint twice", name);
  }

  void finish() {
    for (auto& [where, row] : pending_) write_pieces(*where.first, where.second, row);
    pending_.clear();
    if (rows_.bytes() > 0) write_rows();
    if (!blobs_.empty()) write_blobs();
    for (size_t i = 0; i < open_.size(); i++) {
      if (!open_[i]) continue;
      open_[i]->sync();
      notice_.files.push_back({plan_.files()[i].name, plan_.files()[i].bytes, open_[i]->parts()});
    }
    sync_folder(files_, attempt_.path);
    notice_.rank = options_.rank;
    notice_.write(files_, attempt_);
  }

  uint64_t written() const { return written_; }
  bool give_up(const std::string& why) const noexcept {
    return checkpoint::give_up(files_, attempt_, options_.rank, why);
  }

 private:
  using Where = std::pair<const PlannedTensor*, size_t>;  // and a row of it

  void note_mine() {
    for (const std::string& vector : options_.mine->vectors())
      for (const state::Holding& holding : options_.mine->of(vector))
        if (holding.owner == options_.rank) mine_[vector].push_back(holding.range);
  }

  /// A full disk is found before anything is written to it.
  void begin_files() {
    for (size_t i = 0; i < open_.size(); i++) {
      file(i).reserve(plan_.files()[i].bytes);
      write(i, 0, std::as_bytes(std::span(plan_.files()[i].header)));
    }
  }

  SharedFile& file(size_t index) {
    if (!open_[index])
      open_[index] = std::make_unique<SharedFile>(files_, attempt_.path + "/" + plan_.files()[index].name);
    return *open_[index];
  }

  void write(size_t index, uint64_t at, std::span<const std::byte> bytes) {
    file(index).write(at, bytes);
    written_ += bytes.size();
  }

  /// Tensor by tensor.
  void chosen(const std::string& vector, Range range, std::span<const std::byte> bytes) {
    const std::span<const PlannedTensor> tensors = plan_.of(vector);
    auto tensor = std::partition_point(tensors.begin(), tensors.end(),
                                       [&](const PlannedTensor& t) { return t.range.end <= range.begin; });
    for (; tensor != tensors.end() && tensor->range.begin < range.end; ++tensor) {
      const Range here = intersect(tensor->range, range);
      if (here.empty()) continue;
      const std::span<const std::byte> some = bytes.subspan(here.begin - range.begin, here.size());
      const size_t at = here.begin - tensor->range.begin;
      if (tensor->order.same())
        write(tensor->file, tensor->begin + at, some);
      else
        reorder(*tensor, at, some);
    }
  }

  /// Whole rows go to the file at once; ends wait for the rest of their row.
  void reorder(const PlannedTensor& tensor, size_t at, std::span<const std::byte> bytes) {
    const size_t row_bytes = tensor.order.row_bytes();
    while (!bytes.empty()) {
      const size_t row = at / row_bytes, within = at % row_bytes, rows = bytes.size() / row_bytes;
      if (within == 0 && rows > 0) {
        constexpr size_t kMost = size_t{1} << 20;
        const size_t some = std::min(rows, std::max<size_t>(1, kMost / row_bytes));
        write_rows_of(tensor, row, some, bytes.data());
        bytes = bytes.subspan(some * row_bytes), at += some * row_bytes;
        continue;
      }
      const size_t some = std::min(bytes.size(), row_bytes - within);
      add_to_row(tensor, row, within, bytes.first(some));
      bytes = bytes.subspan(some), at += some;
    }
  }

  void write_rows_of(const PlannedTensor& tensor, size_t first, size_t rows, const std::byte* memory) {
    const size_t row_bytes = tensor.order.row_bytes();
    turned_.resize(rows * row_bytes);
    for (size_t i = 0; i < rows; i++) tensor.order.to_file(memory + i * row_bytes, turned_.data() + i * row_bytes);
    write(tensor.file, tensor.begin + first * row_bytes, turned_);
  }

  void add_to_row(const PlannedTensor& tensor, size_t row, size_t at, std::span<const std::byte> bytes) {
    PendingRow& pending = pending_[{&tensor, row}];
    pending.memory.resize(tensor.order.row_bytes());
    pending.take(at, bytes);
    if (pending.count < pending.memory.size()) return;
    write_rows_of(tensor, row, 1, pending.memory.data());
    pending_.erase({&tensor, row});
  }

  /// Of a row that somebody else has the rest of.
  void write_pieces(const PlannedTensor& tensor, size_t row, const PendingRow& pending) {
    const Order& order = tensor.order;
    std::vector<bool> there(order.row_bytes());
    for (const Range& part : pending.there)
      for (size_t i = part.begin; i < part.end; i++) there[order.in_file(i)] = true;
    turned_.resize(order.row_bytes());
    order.to_file(pending.memory.data(), turned_.data());
    for (auto begin = there.begin(); (begin = std::find(begin, there.end(), true)) != there.end();) {
      const auto end = std::find(begin, there.end(), false);
      const auto at = static_cast<size_t>(begin - there.begin());
      write(tensor.file, tensor.begin + row * order.row_bytes() + at,
            std::span(turned_).subspan(at, static_cast<size_t>(end - begin)));
      begin = end;
    }
  }

  void own_file(const std::string& name, const std::function<void(const std::string&)>& write) {
    const std::string path = attempt_.path + "/" + name;
    write(path);
    const uint64_t bytes = File(files_, path, O_RDONLY).size();
    notice_.files.push_back({name, bytes, {}});
    written_ += bytes;
  }

  void write_rows() {
    own_file(fmt::format("{}{:05}-{:05}{}", kRowsPrefix, options_.rank, ++row_files_, kSuffix),
             [&](const std::string& path) { rows_.write(files_, path); });
    rows_ = {};
  }

  void write_blobs() {
    std::vector<NamedTensor> tensors;
    for (const auto& [name, bytes] : blobs_)
      tensors.push_back({name, "U8", {static_cast<int64_t>(bytes.size())}, bytes.data(), bytes.size()});
    own_file(fmt::format("{}{:05}{}", kExtraPrefix, options_.rank, kSuffix),
             [&](const std::string& path) { write_safetensors(files_, path, tensors, {}); });
  }

  Files& files_;
  const Attempt attempt_;
  const Plan& plan_;
  const Options options_;
  std::map<std::string, std::vector<Range>> mine_;
  std::vector<std::unique_ptr<SharedFile>> open_;  // by number of the plan; those that it writes to
  std::map<Where, PendingRow> pending_;
  std::vector<std::byte> turned_;
  RowBlock rows_;
  int row_files_ = 0;
  std::map<std::string, std::vector<std::byte>> blobs_;
  Notice notice_;
  uint64_t written_ = 0;
};

Writer::Writer(Files& files, const Attempt& attempt, const Plan& plan, const Options& options)
    : impl_(std::make_unique<Impl>(files, attempt, plan, options)) {}
Writer::~Writer() = default;
void Writer::part(const std::string& vector, Range range, std::span<const std::byte> bytes) {
  impl_->part(vector, range, bytes);
}
void Writer::scalar(const std::string& name, int64_t value) { impl_->scalar(name, value); }
void Writer::row(const std::string& table, const state::Row& row) { impl_->row(table, row); }
void Writer::blob(const std::string& name, std::span<const std::byte> bytes) { impl_->blob(name, bytes); }
void Writer::finish() { impl_->finish(); }
bool Writer::give_up(const std::string& why) noexcept { return impl_->give_up(why); }
uint64_t Writer::written() const { return impl_->written(); }

bool give_up(Files& files, const Attempt& attempt, int rank, const std::string& why) noexcept try {
  Notice{.rank = rank, .error = why.empty() ? "it did not say why" : why}.write(files, attempt);
  return true;
} catch (const std::exception&) {
  return false;
}

std::string Attempt::text() const { return fmt::format("{} {} {}", step, id, path); }

Attempt Attempt::parse(const std::string& text) {
  const size_t one = text.find(' '), two = one == std::string::npos ? one : text.find(' ', one + 1);
  Attempt attempt;
  if (two == std::string::npos ||
      std::from_chars(text.data(), text.data() + one, attempt.step).ptr != text.data() + one)
    fail<InvalidArgument>("'{}' is no attempt at a checkpoint", text);
  attempt.id = text.substr(one + 1, two - one - 1);
  attempt.path = text.substr(two + 1);
  return attempt;
}

}  // namespace trireme::checkpoint
