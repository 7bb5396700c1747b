// The engine "gloo": Gloo as libtorch brings it, met through the job's key-value store.
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <trireme/base/error.h>
#include <trireme/comm/c10d/transport.h>
#include <trireme/comm/network/engine.h>

// Whoever links the library has this symbol pulled in, and with it the engine: see trireme's link options in
// CMakeLists.txt.
extern "C" const int trireme_gloo_engine = 1;

namespace trireme::comm::c10d {
namespace {

/// What Gloo asks of a store: to set, and to wait for and get. The rest belongs to other backends.
class MeetingStore final : public ::c10d::Store {
 public:
  MeetingStore(const network::Meeting& meeting, const char* direction)
      : store_(meeting.store), prefix_(fmt::format("{}/{}/", meeting.name, direction)), limit_(meeting.timeout) {}

  void set(const std::string& key, const std::vector<uint8_t>& value) override {
    store_.put(prefix_ + key, {value.begin(), value.end()});
  }
  std::vector<uint8_t> get(const std::string& key) override {
    const std::string value = store_.get(prefix_ + key, Deadline(limit_));
    return {value.begin(), value.end()};
  }
  void wait(const std::vector<std::string>& keys) override {
    for (const std::string& key : keys) get(key);
  }
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds&) override { wait(keys); }
  int64_t add(const std::string&, int64_t) override { refuse(); }
  bool deleteKey(const std::string&) override { refuse(); }
  bool check(const std::vector<std::string>&) override { refuse(); }
  int64_t getNumKeys() override { refuse(); }

 private:
  [[noreturn]] static void refuse() { fail<Error>("Gloo asked its store for something unexpected"); }
  network::KeyValue& store_;
  std::string prefix_;
  Seconds limit_;
};

std::unique_ptr<network::Transport> connect(const network::Meeting& meeting) {
  auto options = ::c10d::ProcessGroupGloo::Options::create();
  options->timeout = std::chrono::duration_cast<std::chrono::milliseconds>(meeting.timeout);
  options->devices = {meeting.address.empty() ? ::c10d::ProcessGroupGloo::createDefaultDevice()
                                              : ::c10d::ProcessGroupGloo::createDeviceForHostname(meeting.address)};
  options->threads = 1;  // for Gloo's own collectives, which are not used here
  try {
    const auto group = [&](const char* direction) {
      return c10::make_intrusive<::c10d::ProcessGroupGloo>(c10::make_intrusive<MeetingStore>(meeting, direction),
                                                           meeting.rank, meeting.size, options);
    };
    auto up = group("up");
    return transport_over(std::move(up), group("down"));
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    const std::string text = error.what();
    fail<IoError>("Gloo cannot connect rank {} of group '{}' at {}: {}", meeting.rank, meeting.name, meeting.address,
                  text.substr(0, text.find('\n')));
  }
}

const bool added = (network::add_engine({"gloo", "Gloo of libtorch " TORCH_VERSION, connect}), true);

}  // namespace
}  // namespace trireme::comm::c10d
