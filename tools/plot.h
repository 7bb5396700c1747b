#pragma once
// A line plot as an SVG document. Pure functions.
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace trireme::tools {

struct Line {
  std::string name;
  std::vector<std::pair<double, double>> points;  // x, y; those that are not finite are left out
  std::string note;                               // small, below the name in the legend
};

struct Plot {
  std::string title, subtitle, x_label, y_label;
  std::vector<Line> lines;      // in the order of the legend
  std::optional<double> level;  // a dashed horizontal line, such as a target
};

/// The x axis begins at 0. One polyline per line with a dot at each point; the legend says each line's last value.
std::string to_svg(const Plot& plot);

}  // namespace trireme::tools
