#pragma once
// Schedules of a pipeline are data: for each stage a row of actions, which its rank carries out one after another.
//
// A model is cut into `stages * chunks` pieces. Piece number `chunk * stages + stage` is its *position* in the model;
// a stage has `chunks` of them. Activations go from a position to the next, that is from stage s to s + 1, and from the
// last stage to the next chunk of stage 0; gradients go back. Position 0 receives no activation and sends no gradient,
// the last one sends no activation and receives no gradient. With one stage nothing is sent: chunks hand over inside.
//
// Sends and receives are actions of the rows. They stand so that nobody waits in a circle even if a send ends only when
// its receive is reached (check.h proves it). Who carries out a row does well to *begin* a send as soon as what it
// sends is there, before its turn, which is where a sender can wait without harm: early_sends() moves them there. All
// here are pure functions of values, but for schedules that are files.
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::stages {

enum class Kind : uint8_t {
  forward,
  backward,         // all of it
  backward_input,   // of what came in, which the stage before waits for
  backward_weight,  // of the parameters, which nobody waits for
  send_activation,  // what this chunk's forward gave
  receive_activation,
  send_gradient,  // of what this chunk's forward was given
  receive_gradient,
};
inline constexpr int kKinds = 8;

struct Action {
  Kind kind = Kind::forward;
  int micro = 0;
  int chunk = 0;  // of this stage
  bool operator==(const Action&) const = default;
};

struct Schedule {
  std::string name;
  int stages = 1, micro = 1, chunks = 1;
  std::vector<std::vector<Action>> rows;  // by stage
  bool operator==(const Schedule&) const = default;
};

/// What no schedule goes beyond, so that numbers of a file or of a flag never take all memory.
inline constexpr int kMostStages = 4096, kMostMicro = 1 << 16, kMostChunks = 256;
inline constexpr int64_t kMostPasses = 1 << 20;  // stages * micro-batches * chunks

struct ScheduleSpec {
  enum class Name : uint8_t { gpipe, one_f_one_b, interleaved, zero_bubble, file };
  Name name = Name::one_f_one_b;
  int chunks = 1;    // of interleaved, and of gpipe; the others have one, a file says it itself
  std::string path;  // of a file
  bool operator==(const ScheduleSpec&) const = default;
};

/// Of "gpipe", "1f1b", "interleaved:V", "zero-bubble" or "file:PATH"; throws InvalidArgument.
ScheduleSpec parse_schedule(const std::string& text);

/// What parse_schedule() takes.
std::string describe(const ScheduleSpec& spec);

/// All rows. In each schedule every chunk sees the micro-batches in their order, so that sums of gradients do not
/// depend on it. A file is read, and refused (InvalidArgument with the checker's reason) if it is not for these numbers
/// or does not work out.
Schedule make_schedule(const ScheduleSpec& spec, int stages, int micro);

/// For ways on which a sender never waits for its receiver: every send right behind what it sends, all else as it was.
/// In this order stages wait for nothing but what they need, whatever things cost.
Schedule early_sends(const Schedule& schedule);

/// Throws InvalidArgument if a number is below 1 or beyond what there is (kMost…).
void check_sizes(int64_t stages, int64_t micro, int64_t chunks);

/// Neither a send nor a receive.
bool is_compute(Kind kind);
bool is_send(Kind kind);
bool is_receive(Kind kind);

/// Of the model: the first position has no predecessor, the last no successor.
bool is_first(int stage, int chunk);
bool is_last(const Schedule& schedule, int stage, int chunk);

/// Of a send its receive, of a receive its send, and the stage that has it. Not of other actions, and not of sends and
/// receives for which there is no such neighbour.
struct Partner {
  int stage = 0;
  Action action;
};
Partner partner(const Schedule& schedule, int stage, const Action& action);

/// "backward-input of micro-batch 3, chunk 1"; for messages.
std::string describe(const Action& action);
std::string_view kind_name(Kind kind);

/// "F3" or "I3.1": what files and pictures say (schedule_file.h).
std::string brief(const Action& action, int chunks);

}  // namespace trireme::stages
