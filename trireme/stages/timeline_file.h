#pragma once
// What a run has recorded, as a file: one JSON object a line. The first says what it is of,
//   {"trireme-timeline":1,"name":"1f1b","stages":2,"micro":4,"chunks":1}
// each further one is a span, with times in seconds from the first computation on:
//   {"stage":0,"action":"forward","micro":0,"chunk":0,"begin":0,"end":0.0125}
#include <string>
#include <string_view>
#include <vector>

#include <trireme/stages/timeline.h>

namespace trireme::stages {

std::string to_lines(const Timeline& timeline);

/// What to_lines() has written. Throws InvalidArgument that begins with `where` and the line.
Timeline timeline_from_lines(std::string_view text, const std::string& where);

/// Throws IoError or InvalidArgument.
Timeline read_timeline(const std::string& path);

/// The spans of one step of all stages, in seconds: a picture of them below what was planned, at the costs that were
/// measured, if `path` ends in .svg, lines otherwise. Throws IoError.
void write_record(const std::string& path, const Schedule& schedule, const std::vector<Span>& spans);

}  // namespace trireme::stages
