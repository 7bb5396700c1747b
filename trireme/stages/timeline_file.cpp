#include <nlohmann/json.hpp>

#include <cmath>

#include <trireme/base/error.h>
#include <trireme/stages/drawing.h>
#include <trireme/stages/schedule_file.h>
#include <trireme/stages/timeline_file.h>

namespace trireme::stages {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMostRecorded = size_t{1} << 30;
constexpr int kTimelineVersion = 1;

/// One line of a record, with errors that say which one.
class RecordLine {
 public:
  RecordLine(std::string_view text, const std::string& where, int line)
      : json_(Json::parse(text, nullptr, false)), where_(where), line_(line) {
    if (!json_.is_object()) wrong("this is no JSON object");
  }

  [[noreturn]] void wrong(const std::string& text) const {
    fail<InvalidArgument>("{}, line {}: {}", where_, line_, text);
  }

  int whole(const char* key, int64_t least, int64_t most) const {
    const auto found = json_.find(key);
    if (found == json_.end() || !found->is_number_integer() ||
        (found->is_number_unsigned() && found->get<uint64_t>() > INT32_MAX) || found->get<int64_t>() < least ||
        found->get<int64_t>() > most)
      wrong(fmt::format("'{}' is a whole number from {} to {}", key, least, most));
    return found->get<int>();
  }

  double time(const char* key) const {
    const auto found = json_.find(key);
    if (found == json_.end() || !found->is_number() || !std::isfinite(found->get<double>()))
      wrong(fmt::format("'{}' is a number of seconds", key));
    return found->get<double>();
  }

  std::string word(const char* key) const {
    const auto found = json_.find(key);
    if (found == json_.end() || !found->is_string()) wrong(fmt::format("'{}' is a text", key));
    return found->get<std::string>();
  }

  Kind kind() const {
    const std::string name = word("action");
    for (int i = 0; i < kKinds; i++)
      if (name == kind_name(static_cast<Kind>(i))) return static_cast<Kind>(i);
    wrong("there is no such action");
  }

 private:
  Json json_;
  const std::string& where_;
  int line_;
};

Schedule read_head(const RecordLine& line) {
  line.whole("trireme-timeline", kTimelineVersion, kTimelineVersion);
  Schedule head{line.word("name"),
                line.whole("stages", 1, kMostStages),
                line.whole("micro", 1, kMostMicro),
                line.whole("chunks", 1, kMostChunks),
                {}};
  return head;
}

Span read_span(const RecordLine& line, const Schedule& head) {
  const Span span{line.whole("stage", 0, head.stages - 1),
                  {line.kind(), line.whole("micro", 0, head.micro - 1), line.whole("chunk", 0, head.chunks - 1)},
                  line.time("begin"),
                  line.time("end")};
  if (span.end < span.begin) line.wrong("it ends before it begins");
  return span;
}

}  // namespace

std::string to_lines(const Timeline& timeline) {
  const Json head = {{"trireme-timeline", kTimelineVersion},
                     {"name", timeline.name},
                     {"stages", timeline.stages},
                     {"micro", timeline.micro},
                     {"chunks", timeline.chunks}};
  std::string out = head.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
  for (const Span& span : timeline.spans)
    out += Json{{"stage", span.stage},        {"action", kind_name(span.action.kind)},
                {"micro", span.action.micro}, {"chunk", span.action.chunk},
                {"begin", span.begin},        {"end", span.end}}
               .dump() +
           "\n";
  return out;
}

Timeline timeline_from_lines(std::string_view text, const std::string& where) {
  Schedule head;
  std::vector<Span> spans;
  int number = 0;
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    const RecordLine parsed(line, where, ++number);
    if (number == 1)
      head = read_head(parsed);
    else
      spans.push_back(read_span(parsed, head));
  }
  if (number == 0) fail<InvalidArgument>("{} is empty: it is no record of a schedule", where);
  return recorded(head, std::move(spans));
}

Timeline read_timeline(const std::string& path) {
  return timeline_from_lines(read_text_file(path, kMostRecorded), path);
}

void write_record(const std::string& path, const Schedule& schedule, const std::vector<Span>& spans) {
  const Timeline happened = recorded(schedule, spans);
  if (!path.ends_with(".svg")) return write_text_file(path, to_lines(happened));
  const Timeline planned = simulate(schedule, measured_costs(happened));
  const std::string title =
      fmt::format("{}: {} stages, {} micro-batches", schedule.name, schedule.stages, schedule.micro);
  write_text_file(path, draw_svg(title, {{"planned, at the median costs", planned, "s"}, {"happened", happened, "s"}}));
}

}  // namespace trireme::stages
