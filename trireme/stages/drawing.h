#pragma once
// Pictures of timelines: a row for each stage, time to the right. Pure functions.
#include <string>
#include <vector>

#include <trireme/stages/timeline.h>

namespace trireme::stages {

/// For a terminal of `width` columns:
///   stage 0  F0 F1 ...... B0----
/// Dots are waits. What is too long goes on below, in up to four bands; what is longer still has letters only.
std::string draw_text(const Timeline& timeline, int width = 120);

/// One timeline of a picture; several stand above each other on one scale.
struct Panel {
  std::string title;  // such as "planned"
  Timeline timeline;
  std::string unit;  // of its times; "" if it has none
};

/// An SVG document.
std::string draw_svg(const std::string& title, const std::vector<Panel>& panels);

}  // namespace trireme::stages
