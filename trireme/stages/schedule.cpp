#include <array>
#include <charconv>
#include <utility>

#include <trireme/base/error.h>
#include <trireme/base/nearest.h>
#include <trireme/stages/check.h>
#include <trireme/stages/orders.h>
#include <trireme/stages/schedule.h>
#include <trireme/stages/schedule_file.h>
#include <trireme/stages/transfers.h>

namespace trireme::stages {
namespace {

using Name = ScheduleSpec::Name;

constexpr const char* kChoices = "gpipe, 1f1b, interleaved:V, zero-bubble or file:PATH";
constexpr std::array<std::pair<const char*, Name>, 3> kPlain = {
    {{"gpipe", Name::gpipe}, {"1f1b", Name::one_f_one_b}, {"zero-bubble", Name::zero_bubble}}};
constexpr std::array<const char*, kKinds> kKindNames = {"forward",         "backward",        "backward-input",
                                                        "backward-weight", "send-activation", "receive-activation",
                                                        "send-gradient",   "receive-gradient"};
constexpr std::array<const char*, kKinds> kBrief = {"F", "B", "I", "W", "sa", "ra", "sg", "rg"};

ScheduleSpec parse_interleaved(const std::string& text, const std::string& count) {
  int chunks = 0;
  const auto [end, error] = std::from_chars(count.data(), count.data() + count.size(), chunks);
  if (error != std::errc{} || end != count.data() + count.size() || chunks < 1 || chunks > kMostChunks)
    fail<InvalidArgument>(
        "schedule '{}': the number of chunks that each stage has comes after the colon, from 1 to {}, "
        "such as interleaved:2",
        text, kMostChunks);
  return {Name::interleaved, chunks, ""};
}

Row order_of(const ScheduleSpec& spec, int stage, int stages, int micro) {
  switch (spec.name) {
    case Name::gpipe:
      return gpipe_order(micro, spec.chunks);
    case Name::interleaved:
      return interleaved_order(stage, stages, micro, spec.chunks);
    case Name::zero_bubble:
      return zero_bubble_order(stage, stages, micro);
    default:
      return one_f_one_b_order(stage, stages, micro);
  }
}

Schedule from_file(const std::string& path, int stages, int micro) {
  Schedule schedule = read_schedule(path);
  if (schedule.stages != stages || schedule.micro != micro)
    fail<InvalidArgument>("the schedule of {} is for {} stages and {} micro-batches, not for {} and {}", path,
                          schedule.stages, schedule.micro, stages, micro);
  if (const Verdict verdict = check(schedule); !verdict.ok)
    fail<InvalidArgument>("the schedule of {} does not work out: {}", path, verdict.reason);
  return schedule;
}

}  // namespace

ScheduleSpec parse_schedule(const std::string& text) {
  for (const auto& [word, name] : kPlain)
    if (text == word) return {name, 1, ""};
  const size_t colon = text.find(':');
  const std::string head = text.substr(0, colon), tail = colon == std::string::npos ? "" : text.substr(colon + 1);
  if (head == "interleaved") return parse_interleaved(text, tail);
  if (head == "file") {
    if (tail.empty())
      fail<InvalidArgument>("schedule '{}': a path comes after the colon, such as file:my.schedule", text);
    return {Name::file, 1, tail};
  }
  for (const auto& [word, name] : kPlain)
    if (head == word) fail<InvalidArgument>("schedule '{}': nothing comes after '{}'", text, word);
  fail<InvalidArgument>("unknown schedule '{}'{}: it is {}", text,
                        did_you_mean(head, {"gpipe", "1f1b", "interleaved", "zero-bubble", "file"}), kChoices);
}

std::string describe(const ScheduleSpec& spec) {
  if (spec.name == Name::interleaved) return fmt::format("interleaved:{}", spec.chunks);
  if (spec.name == Name::file) return "file:" + spec.path;
  for (const auto& [word, name] : kPlain)
    if (spec.name == name) return word;
  return "";
}

void check_sizes(int64_t stages, int64_t micro, int64_t chunks) {
  const auto within = [](const char* what, int64_t value, int64_t most) {
    if (value < 1 || value > most) fail<InvalidArgument>("a schedule has 1 to {} {}, not {}", most, what, value);
  };
  within("stages", stages, kMostStages);
  within("micro-batches", micro, kMostMicro);
  within("chunks in a stage", chunks, kMostChunks);
  if (stages * micro * chunks > kMostPasses)
    fail<InvalidArgument>(
        "a schedule of {} stages, {} micro-batches and {} chunks is too large: their product is at most {}", stages,
        micro, chunks, kMostPasses);
}

Schedule make_schedule(const ScheduleSpec& spec, int stages, int micro) {
  check_sizes(stages, micro, spec.chunks);
  if (spec.name == Name::file) return from_file(spec.path, stages, micro);
  if (spec.chunks != 1 && spec.name != Name::interleaved && spec.name != Name::gpipe)
    fail<InvalidArgument>("schedule {} has one chunk in each stage, not {}; interleaved:{} has several", describe(spec),
                          spec.chunks, spec.chunks);
  Schedule schedule{describe(spec), stages, micro, spec.chunks, {}};
  for (int stage = 0; stage < stages; stage++) schedule.rows.push_back(order_of(spec, stage, stages, micro));
  return with_transfers(schedule);
}

Schedule early_sends(const Schedule& schedule) {
  Schedule out = schedule;
  if (schedule.stages == 1) return out;
  for (int stage = 0; stage < schedule.stages; stage++) {
    Row& row = out.rows[stage];
    const Row before = std::exchange(row, {});
    for (const Action& a : before) {
      if (is_send(a.kind)) continue;
      row.push_back(a);
      if (!is_compute(a.kind) || a.kind == Kind::backward_weight) continue;
      const bool gradient = a.kind != Kind::forward;
      if (!(gradient ? is_first(stage, a.chunk) : is_last(schedule, stage, a.chunk)))
        row.push_back({gradient ? Kind::send_gradient : Kind::send_activation, a.micro, a.chunk});
    }
  }
  return out;
}

bool is_compute(Kind kind) { return kind <= Kind::backward_weight; }
bool is_send(Kind kind) { return kind == Kind::send_activation || kind == Kind::send_gradient; }
bool is_receive(Kind kind) { return kind == Kind::receive_activation || kind == Kind::receive_gradient; }

bool is_first(int stage, int chunk) { return stage == 0 && chunk == 0; }
bool is_last(const Schedule& schedule, int stage, int chunk) {
  return stage == schedule.stages - 1 && chunk == schedule.chunks - 1;
}

Partner partner(const Schedule& schedule, int stage, const Action& action) {
  const bool on = action.kind == Kind::send_activation || action.kind == Kind::receive_gradient;  // towards the last
  const int position = action.chunk * schedule.stages + stage + (on ? 1 : -1);
  const auto kind = [&] {
    if (action.kind == Kind::send_activation) return Kind::receive_activation;
    if (action.kind == Kind::receive_activation) return Kind::send_activation;
    return action.kind == Kind::send_gradient ? Kind::receive_gradient : Kind::send_gradient;
  };
  return {position % schedule.stages, {kind(), action.micro, position / schedule.stages}};
}

std::string_view kind_name(Kind kind) { return kKindNames[static_cast<size_t>(kind)]; }

std::string describe(const Action& action) {
  return fmt::format("{} of micro-batch {}, chunk {}", kind_name(action.kind), action.micro, action.chunk);
}

std::string brief(const Action& action, int chunks) {
  const char* kind = kBrief[static_cast<size_t>(action.kind)];
  return chunks == 1 ? fmt::format("{}{}", kind, action.micro)
                     : fmt::format("{}{}.{}", kind, action.micro, action.chunk);
}

}  // namespace trireme::stages
