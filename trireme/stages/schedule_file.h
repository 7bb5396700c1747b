#pragma once
// Schedules as text files, to be read, changed and written by hand:
//
//   trireme-schedule 1           # always the first line; 1 is the version of this format
//   name my-own                  # optional
//   stages 2
//   micro 2                      # micro-batches
//   chunks 1                     # of each stage; 1 if it is not said
//   stage 0: F0 sa0 F1 sa1 rg0 B0 rg1 B1
//   stage 1: ra0 F0 B0 sg0 ra1 F1 B1 sg1
//
// An action is its kind, the micro-batch and, where stages have several chunks, a point and the chunk: F3, I3.1.
//   F  forward      B  backward      I  its part for inputs      W  its part for weights
//   sa, ra  send, receive an activation         sg, rg  send, receive a gradient
// Both ends of a transfer have the number of their own chunk. Rows may go on in further lines "stage 0: …"; what stands
// behind a # is a comment. With a line "transfers auto" the rows have F, B, I and W only, and sends and receives are
// put where they have to be.
#include <string>
#include <string_view>

#include <trireme/stages/schedule.h>

namespace trireme::stages {

/// Throws InvalidArgument with path and line if the text is no schedule, IoError if there is no such file. Numbers are
/// within their ranges; whether the schedule works out is for check() to say.
Schedule read_schedule(const std::string& path);

/// `where` begins messages: a path.
Schedule schedule_from_text(std::string_view text, const std::string& where);

/// What schedule_from_text() reads.
std::string to_text(const Schedule& schedule);

/// The whole of a file. Throws IoError, also if it has more than `most` bytes.
std::string read_text_file(const std::string& path, size_t most);
/// Throws IoError.
void write_text_file(const std::string& path, const std::string& text);

}  // namespace trireme::stages
