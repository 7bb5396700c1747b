#include <algorithm>
#include <array>
#include <cstring>

#include <trireme/base/error.h>
#include <trireme/exchange/berth.h>

namespace trireme::exchange {
namespace {

constexpr int64_t kNever = -1;  // a step
constexpr size_t kMost = 1024;  // models of a group at a time
using Mask = std::array<uint64_t, kMost / 64>;

/// The first number that no rank uses.
int free_number(comm::Communicator& all, const std::vector<bool>& used) {
  Mask mine{};
  for (size_t number = 0; number < used.size(); number++)
    if (used[number]) mine[number / 64] |= uint64_t{1} << number % 64;
  std::vector<Mask> masks(static_cast<size_t>(all.size()));
  all.all_gather(&mine, masks.data(), sizeof mine, DType::u8, "numbers of models");
  for (size_t number = 0; number < kMost; number++)
    if (std::none_of(masks.begin(), masks.end(),
                     [&](const Mask& mask) { return (mask[number / 64] >> number % 64 & 1) != 0; }))
      return static_cast<int>(number);
  fail<InvalidArgument>("a group has at most {} models at a time: destroy those that are not needed any more", kMost);
}

}  // namespace

Berth::Berth(comm::Communicator& all, comm::shm::Communicator& local, uint64_t fingerprint)
    : local_(local), berths_(local.berths()), fingerprint_(fingerprint), model_(free_number(all, *berths_)) {
  const auto number = static_cast<size_t>(model_);
  if (berths_->size() <= number) berths_->resize(number + 1);
  (*berths_)[number] = true;
}

Berth::~Berth() { (*berths_)[static_cast<size_t>(model_)] = false; }

std::byte* Berth::one(const std::string& what, size_t bytes, const char* purpose, std::vector<space::Range> touched,
                      bool sparse) {
  return local_.take({name(what), bytes, 1, fingerprint_, std::move(touched), sparse}, purpose).parts[0];
}

comm::shm::SharedBlock Berth::each(const std::string& what, size_t bytes, const char* purpose, bool sparse) {
  return local_.take({name(what), bytes, local_.size(), fingerprint_, {}, sparse}, purpose);
}

space::StateMemory Berth::state(space::Optimizer optimizer, const space::Layout& layout,
                                const std::vector<space::Bucket>& buckets, const std::vector<space::Range>& owned,
                                bool together, bool sparse) {
  constexpr const char* kPurpose = "the optimizer's state";
  const auto here = static_cast<size_t>(local_.rank());
  space::StateMemory memory;
  for (const std::string& vector : space::state_names(optimizer))
    memory.vectors.push_back(together ? one(vector, layout.bytes(), kPurpose, owned, sparse)
                                      : each(vector, layout.bytes(), kPurpose).parts[here]);
  if (!space::counts_steps(optimizer)) return memory;
  steps_ = each(state::kSteps, layout.size() * sizeof(int64_t), "the steps of parameters");
  auto* steps = reinterpret_cast<int64_t*>(steps_.parts[here]);
  for (const space::Bucket& bucket : buckets) memory.steps.push_back(steps + bucket.first);
  return memory;
}

void Berth::post(const state::About& about, const std::string& step, const std::vector<std::string>& notes,
                 const std::vector<state::Part>& parts) {
  if (notes.size() > Progress::kMostNotes)
    fail<InvalidArgument>("at most {} scalars beside the step, not {}", Progress::kMostNotes, notes.size());
  Card card{about, step, notes, {}};
  card.about.tables.clear();
  for (const state::Part& part : parts)
    if (const auto offset = local_.segment().offset_of(part.bytes.data()))
      card.locations.push_back({part.vector, part.range, *offset});
  const std::string text = packed(card);
  uint64_t bytes = sizeof(Progress) + text.size();
  local_.allreduce(&bytes, 1, DType::i64, Op::max, "the size of cards");
  std::byte* const mine =
      each("card", bytes, "what lies where in shared memory").parts[static_cast<size_t>(local_.rank())];
  progress_ = reinterpret_cast<Progress*>(mine);
  std::memcpy(mine + sizeof(Progress), text.data(), text.size());
  progress_->rank = local_.rounds().name_of(local_.rank());
  progress_->bytes = text.size();
  progress_->begun.store(0);
  progress_->ended.store(kNever);
  progress_->written.store(Progress::kWritten);
}

}  // namespace trireme::exchange
