// label: unit
// Files of schedules and of what happened: what is written is read back, and what is damaged is refused with its line.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <random>

#include <trireme/base/error.h>
#include <trireme/stages/check.h>
#include <trireme/stages/drawing.h>
#include <trireme/stages/schedule_file.h>
#include <trireme/stages/timeline_file.h>

namespace trireme::stages {
namespace {

class Folder {
 public:
  Folder() {
    char name[] = "/tmp/trireme-pipeline-XXXXXX";
    path_ = mkdtemp(name);
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  std::string file(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

template <class F>
std::string error_of(F&& f) {
  try {
    f();
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing was thrown";
}

std::string error_of_text(const std::string& text) {
  return error_of([&] { schedule_from_text(text, "my.schedule"); });
}

TEST(ScheduleFile, IsReadAsItWasWritten) {
  const Folder folder;
  for (const char* name : {"gpipe", "1f1b", "interleaved:3", "zero-bubble"}) {
    const Schedule schedule = make_schedule(parse_schedule(name), 3, 5);
    write_text_file(folder.file("s"), to_text(schedule));
    EXPECT_EQ(read_schedule(folder.file("s")), schedule);
    EXPECT_EQ(make_schedule(parse_schedule("file:" + folder.file("s")), 3, 5), schedule);
  }
}

TEST(ScheduleFile, HasCommentsAndLongRows) {
  const Schedule schedule = schedule_from_text(
      "# mine\n\ntrireme-schedule 1 # version\r\n  stages\t2\nmicro 1\nstage 1: ra0 F0\nstage 0:F0 sa0 # on\n"
      "stage 0 : rg0\nstage 1: B0 sg0\nstage 0: B0",
      "x");
  EXPECT_EQ(to_text(schedule),
            "trireme-schedule 1\nstages 2\nmicro 1\nchunks 1\nstage 0: F0 sa0 rg0 B0\nstage 1: ra0 F0 B0 sg0\n");
  EXPECT_TRUE(check(schedule).ok);
}

TEST(ScheduleFile, PutsTransfersWhereTheyHaveToBe) {
  for (const char* name : {"1f1b", "interleaved:2", "zero-bubble"}) {
    Schedule schedule = make_schedule(parse_schedule(name), 3, 4);
    Schedule bare = schedule;
    for (auto& row : bare.rows) std::erase_if(row, [](const Action& a) { return !is_compute(a.kind); });
    std::string text = to_text(bare);
    text.insert(text.find("stages"), "transfers auto\n");
    EXPECT_EQ(schedule_from_text(text, "x"), schedule);
  }
  EXPECT_EQ(
      error_of_text("trireme-schedule 1\ntransfers auto\nstages 2\nmicro 1\nstage 0: B0 F0\nstage 1: F0 B0\n"),
      "my.schedule: stage 0 waits for ever before the backward of micro-batch 0, chunk 0: what it needs comes later "
      "in a row that waits, too");
}

TEST(ScheduleFile, SaysWhichLineIsWrong) {
  const std::string head = "trireme-schedule 1\nstages 2\nmicro 4\n";
  const auto says = [](const std::string& text, const std::string& message) {
    EXPECT_EQ(error_of_text(text), "my.schedule, line " + message);
  };
  says("", "0: this is no schedule: it is empty");
  says("stages 2\n", "1: a schedule begins with the line 'trireme-schedule 1'");
  says("trireme-schedule 2\n", "1: a schedule begins with the line 'trireme-schedule 1'");
  says("trireme-schedule 1\nmicro 4\nstage 0: F0\n", "3: 'stages' is missing, before the rows");
  says("trireme-schedule 1\nstages 4\n", "2: 'micro' is missing, before the rows");
  says(head + "stages 3\n", "4: 'stages' stands there twice");
  says(head + "stage 0: F0\nchunks 2\n", "5: 'chunks' comes before the rows");
  says(head + "chunk 2\n",
       "4: 'chunk' is no setting (did you mean 'chunks'?): there are name, stages, micro, chunks, transfers, and rows "
       "'stage 0: …'");
  says(head + "chunks two\n", "4: 'chunks' is a number from 1 on, not 'two'");
  says(head + "name a b\n", "4: 'name a' is the whole line, not 'b' behind it");
  says(head + "name\n", "4: after 'name' comes its value");
  says(head + "transfers no\n", "4: 'transfers' is followed by 'auto', not by 'no'");
  says(head + "transfers auto\nstage 0: F0 sa0\n",
       "5: 'sa0': with 'transfers auto' rows have no sends and receives of their own");
  says(head + "stage 0 F0\n", "4: after the number of the stage comes a colon: 'stage 0: …'");
  says(head + "stage 2: F0\n", "4: stages are 0 to 1, not ' 2'");
  says(head + "stage 0: F0\n\nstage 0: X1\n",
       "6: 'X1' is no action: those are F, B, I, W, sa, ra, sg or rg and a micro-batch, such as F0");
  says(head + "stage 0: F4\n", "4: 'F4': micro-batches are 0 to 3");
  says(head + "stage 0: F\n", "4: 'F': micro-batches are 0 to 3");
  says(head + "stage 0: F1.1\n", "4: 'F1.1': chunks are 0 to 0");
  says(head + "chunks 2\nstage 0: F1\n", "5: 'F1': a stage has 2 chunks; say which one, such as F1.0");
  says(head + "stage 0: F0\n", "4: there is no line 'stage 1: …'");
  says("trireme-schedule 1\nstages 4096\nmicro 65536\nstage 0: F0\n",
       "4: a schedule of 4096 stages, 65536 micro-batches and 1 chunks is too large: their product is at most 1048576");
}

TEST(ScheduleFile, IsRefusedForOtherNumbersOrIfItDoesNotWorkOut) {
  const Folder folder;
  const std::string path = folder.file("s");
  write_text_file(path, to_text(make_schedule(parse_schedule("1f1b"), 2, 4)));
  EXPECT_EQ(error_of([&] { make_schedule(parse_schedule("file:" + path), 2, 8); }),
            "the schedule of " + path + " is for 2 stages and 4 micro-batches, not for 2 and 8");
  write_text_file(path, to_text(early_sends(make_schedule(parse_schedule("1f1b"), 2, 4))));
  EXPECT_NE(
      error_of([&] { make_schedule(parse_schedule("file:" + path), 2, 4); }).find("does not work out: a deadlock"),
      std::string::npos);
  EXPECT_THROW(read_schedule(folder.file("none")), InvalidArgument);
  EXPECT_NE(error_of([&] {
              read_schedule(folder.file("none"));
            }).find("cannot open " + folder.file("none") + ": No such file or directory. A schedule file:PATH"),
            std::string::npos);
  EXPECT_NE(error_of([&] { read_schedule(folder.file("")); }), "nothing was thrown");  // a folder
  EXPECT_EQ(error_of([&] { read_text_file(path, 10); }), path + " has more than 10 bytes");
  EXPECT_EQ(error_of([&] { write_text_file(folder.file("no/such"), ""); }),
            "cannot write " + folder.file("no/such") + ": No such file or directory");
}

/// Bytes changed, cut out, doubled and put elsewhere.
std::string damaged(std::string text, std::mt19937& random) {
  const auto below = [&](size_t count) { return count == 0 ? 0 : random() % count; };
  for (int times = 1 + static_cast<int>(below(3)); times > 0; times--) {
    const size_t at = below(text.size()), length = below(20);
    constexpr std::string_view kLikely = "0123456789.:#\n FBIWsarg-autoxyz\0\xff";
    switch (below(7)) {
      case 0:
        if (!text.empty()) text[at] = static_cast<char>(random());
        break;
      case 1:
        if (!text.empty()) text[at] = kLikely[below(kLikely.size())];
        break;
      case 2:
        text.erase(at, length);
        break;
      case 3:
        text.insert(below(text.size()), text.substr(at, length));
        break;
      case 4:
      case 5:  // what can still be read
        if (const size_t digit = text.find_first_of("0123456789", at); digit != std::string::npos)
          text[digit] = static_cast<char>('0' + below(3));
        break;
      default:
        text.insert(at, 1, kLikely[below(kLikely.size())]);
    }
  }
  return text;
}

TEST(ScheduleFile, NeverCrashesWhenItIsDamaged) {
  std::mt19937 random(11);
  const char* names[] = {"gpipe", "1f1b", "interleaved:2", "zero-bubble"};
  int read = 0, refused = 0, sound = 0;
  for (int round = 0; round < 100'000; round++) {
    Schedule schedule = make_schedule(parse_schedule(names[round % 4]), 1 + round % 3, 1 + round % 5);
    const bool automatic = round % 7 == 0;
    if (automatic)
      for (auto& row : schedule.rows) std::erase_if(row, [](const Action& a) { return !is_compute(a.kind); });
    std::string text = to_text(schedule);
    if (automatic) text.insert(text.find("stages"), "transfers auto\n");
    try {
      const Schedule found = schedule_from_text(damaged(text, random), "damaged");
      read++;
      if (round % 5 == 0) sound += check(found).ok;  // which takes longer than all else
    } catch (const InvalidArgument& error) {
      refused++;
      ASSERT_EQ(std::string(error.what()).rfind("damaged", 0), 0u) << error.what();
    }
  }
  EXPECT_GT(read, 5000);
  EXPECT_GT(refused, 5000);
  EXPECT_GT(sound, 100);
}

TEST(Record, IsReadAsItWasWritten) {
  const Folder folder;
  const Schedule schedule = make_schedule(parse_schedule("interleaved:2"), 2, 4);
  std::vector<Span> spans = simulate(schedule, {0.25, 0.5, 0.25, 0.25, 0.125}).spans;
  for (Span& span : spans) span.begin += 100, span.end += 100;  // clocks do not begin at 0
  write_record(folder.file("run.jsonl"), schedule, spans);
  const Timeline found = read_timeline(folder.file("run.jsonl"));
  const Timeline expected = recorded(schedule, spans);
  EXPECT_EQ(found.spans, expected.spans);
  EXPECT_EQ(found.total, expected.total);
  EXPECT_EQ(found.bubble, expected.bubble);
  EXPECT_EQ(std::tie(found.name, found.stages, found.micro, found.chunks), std::make_tuple("interleaved:2", 2, 4, 2));
  EXPECT_DOUBLE_EQ(measured_costs(found).forward, 0.25);
  EXPECT_DOUBLE_EQ(measured_costs(found).backward, 0.5);
  EXPECT_DOUBLE_EQ(measured_costs(found).weight, 1);  // there is none
  write_record(folder.file("run.svg"), schedule, spans);
  const std::string svg = read_text_file(folder.file("run.svg"), 1 << 20);
  EXPECT_NE(svg.find(">planned, at the median costs: bubble"), std::string::npos);
  EXPECT_NE(svg.find(">happened: bubble"), std::string::npos);
}

TEST(Record, SaysWhichLineIsWrong) {
  const std::string head = R"({"trireme-timeline":1,"name":"x","stages":2,"micro":3,"chunks":1})"
                           "\n";
  const auto says = [](const std::string& text, const std::string& part) {
    const std::string message = error_of([&] { timeline_from_lines(text, "run"); });
    EXPECT_NE(message.find(part), std::string::npos) << message;
  };
  const auto span = [](const std::string& stage, const std::string& action, const std::string& end) {
    return R"({"stage":)" + stage + R"(,"action":")" + action + R"(","micro":0,"chunk":0,"begin":1,"end":)" + end +
           "}\n";
  };
  EXPECT_EQ(timeline_from_lines(head + span("1", "forward", "2"), "run").total, 1);
  says("", "run is empty");
  says("[]\n", "run, line 1: this is no JSON object");
  says("{\"trireme-timeline\":2}\n", "run, line 1: 'trireme-timeline' is a whole number from 1 to 1");
  says(head + "\n", "run, line 2: this is no JSON object");
  says(head + span("2", "forward", "2"), "run, line 2: 'stage' is a whole number from 0 to 1");
  says(head + span("18446744073709551615", "forward", "2"), "run, line 2: 'stage' is a whole number");
  says(head + span("0", "march", "2"), "run, line 2: there is no such action");
  says(head + span("0", "forward", "0.5"), "run, line 2: it ends before it begins");
  says(head + span("0", "forward", "\"2\""), "run, line 2: 'end' is a number of seconds");
}

TEST(Record, NeverCrashesWhenItIsDamaged) {
  std::mt19937 random(12);
  const std::string text = to_lines(simulate(make_schedule(parse_schedule("zero-bubble"), 2, 2)));
  int read = 0;
  for (int round = 0; round < 100'000; round++) {
    try {
      const Timeline found = timeline_from_lines(damaged(text, random), "damaged");
      if (read++ % 20 != 0) continue;
      EXPECT_FALSE(draw_text(found).empty());
      EXPECT_FALSE(draw_svg("", {{"", found, "s"}}).empty());
    } catch (const InvalidArgument& error) {
      ASSERT_EQ(std::string(error.what()).rfind("damaged", 0), 0u) << error.what();
    }
  }
  EXPECT_GT(read, 1000);
}

}  // namespace
}  // namespace trireme::stages
