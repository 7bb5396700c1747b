#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <ctime>

#include <trireme/base/error.h>
#include <trireme/base/inherited.h>
#include <trireme/cluster/launching/slate.h>

namespace trireme::cluster {
namespace {

constexpr uint64_t kMagic = 0x31306574616c73;  // "slate01"
constexpr size_t kBytes = 4096;
static_assert(sizeof(SlatePage) <= kBytes);

std::atomic<SlatePage*> own_page{nullptr};  // never unmapped: the process may die at any time

int64_t nanoseconds() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1'000'000'000 + now.tv_nsec;
}

template <size_t N>
void write_text(SlatePage::Text<N>& text, std::string_view value) {
  const size_t length = std::min(value.size(), N);
  text.length.store(0);
  std::memcpy(text.bytes, value.data(), length);
  text.length.store(static_cast<uint32_t>(length));
}

template <size_t N>
std::string read_text(const SlatePage::Text<N>& text) {
  return {text.bytes, std::min<size_t>(text.length.load(), N)};
}

SlatePage* map_page(int descriptor) {
  void* page = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  return page == MAP_FAILED ? nullptr : static_cast<SlatePage*>(page);
}

void note_lost_peer() noexcept {
  SlatePage* page = own_page.load();
  int64_t never = 0;
  if (page != nullptr) page->lost_peer_at.compare_exchange_strong(never, nanoseconds());
}

}  // namespace

Slate Slate::create() {
  Slate slate;
  slate.file_ = Descriptor(memfd_create("trireme-slate", MFD_CLOEXEC));
  if (!slate.file_ || ftruncate(slate.file_.get(), kBytes) != 0)
    fail<IoError>("cannot make a slate for a process: {}", errno_text());
  slate.page_ = map_page(slate.file_.get());
  if (slate.page_ == nullptr) fail<IoError>("cannot map a process's slate: {}", errno_text());
  slate.page_->magic.store(kMagic);
  return slate;
}

Slate::~Slate() {
  if (page_ != nullptr) munmap(page_, kBytes);
}

std::string Slate::variable() const { return inheritance_of(file_.get()); }

std::string Slate::failure() const { return page_ == nullptr ? "" : read_text(page_->failure); }
std::string Slate::saved() const { return page_ == nullptr ? "" : read_text(page_->saved); }

double slate_now() { return static_cast<double>(nanoseconds()) * 1e-9; }

void take_slate(const std::string& variable) {
  if (variable.empty() || own_page.load() != nullptr) return;
  const auto descriptor = inherited(variable);
  struct stat facts {};
  if (!descriptor || fstat(*descriptor, &facts) != 0 || facts.st_size != static_cast<off_t>(kBytes)) return;
  SlatePage* page = map_page(*descriptor);
  if (page == nullptr) return;
  SlatePage* none = nullptr;
  if (page->magic.load() != kMagic || !own_page.compare_exchange_strong(none, page)) {
    munmap(page, kBytes);
    return;
  }
  PeerLost::on_construction(&note_lost_peer);
}

void note_rank(int rank) {
  if (SlatePage* page = own_page.load()) page->numbered.store(rank + 1);
}

void note_beat() {
  if (SlatePage* page = own_page.load(std::memory_order_relaxed)) page->beats.fetch_add(1, std::memory_order_relaxed);
}

void note_update() {
  SlatePage* page = own_page.load(std::memory_order_relaxed);
  if (page == nullptr) return;
  page->updates.fetch_add(1, std::memory_order_relaxed);
  note_beat();
}

void note_saved(std::string_view path) {
  SlatePage* page = own_page.load();
  if (page == nullptr) return;
  write_text(page->saved, path);
  page->saved_updates.store(page->updates.load());
  page->saved_at.store(nanoseconds());
}

void note_patience(double seconds) {
  if (SlatePage* page = own_page.load()) page->patience.store(seconds);
}

void note_failure(std::string_view text) {
  SlatePage* page = own_page.load();
  if (page == nullptr) return;
  write_text(page->failure, text);
  page->failed_at.store(nanoseconds());
}

}  // namespace trireme::cluster
