#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>

#include "plot.h"

namespace trireme::tools {
namespace {

constexpr double kWidth = 960, kHeight = 560, kLeft = 76, kTop = 74, kBottom = 62;
constexpr double kCharacter = 7.4;  // pixels, about, of a letter of the legend

// Told apart by colour-blind eyes too, and dark enough for white paper. Further lines take them again, dashed.
constexpr std::array kColours = {"#0072b2", "#d55e00", "#009e73", "#b5508f",
                                 "#1f1f1f", "#c99700", "#3fa7dd", "#7a4fbf"};
constexpr std::array kDashes = {"", "7 4", "2 4"};

struct Axis {
  double begin = 0, end = 1, step = 0.2;
};

/// 1, 2 or 5 times a power of ten: `count` of them cover the range, or one or two more.
double nice_step(double range, int count) {
  const double rough = range / count, power = std::pow(10, std::floor(std::log10(rough)));
  for (double factor : {1.0, 2.0, 5.0})
    if (rough <= factor * power * (1 + 1e-9)) return factor * power;
  return 10 * power;
}

std::string tick_text(double value, double step) {
  if (step >= 1e6 || step < 1e-6) return fmt::format("{:g}", value);
  const int decimals = std::max(0, static_cast<int>(std::ceil(-std::log10(step) - 1e-9)));
  return fmt::format("{:.{}f}", std::abs(value) < step / 2 ? 0.0 : value, decimals);
}

std::vector<double> ticks(const Axis& axis) {
  std::vector<double> values;
  for (double k = std::ceil(axis.begin / axis.step - 1e-9); k * axis.step <= axis.end + axis.step * 1e-9; k++)
    values.push_back(k * axis.step);
  return values;
}

std::string escaped(const std::string& text) {
  std::string out;
  for (char c : text) {
    if (c == '<')
      out += "&lt;";
    else if (c == '>')
      out += "&gt;";
    else if (c == '&')
      out += "&amp;";
    else if (c == '"')
      out += "&quot;";
    else if (static_cast<unsigned char>(c) >= 0x20)  // XML has no other control characters that a label could mean
      out += c;
  }
  return out;
}

class Drawing {
 public:
  explicit Drawing(const Plot& plot) : plot_(plot) {
    for (Line& line : plot_.lines)
      std::erase_if(line.points, [](const auto& p) { return !std::isfinite(p.first) || !std::isfinite(p.second); });
    size_t longest = 0;
    for (const Line& line : plot_.lines) longest = std::max(longest, line.name.size());
    for (const Line& line : plot_.lines)
      longest = std::max(longest, line.note.size() > 8 ? line.note.size() - 8 : 0);  // it may go on below the value
    right_ = kWidth - 118 - kCharacter * static_cast<double>(std::min<size_t>(longest, 40));
    choose_axes();
  }

  std::string svg() {
    put(R"(<svg xmlns="http://www.w3.org/2000/svg" width="{0}" height="{1}" viewBox="0 0 {0} {1}")"
        R"( font-family="DejaVu Sans, Helvetica, Arial, sans-serif">)",
        kWidth, kHeight);
    put(R"(<title>{}</title>)", escaped(plot_.title));
    put(R"(<rect width="{}" height="{}" fill="#ffffff"/>)", kWidth, kHeight);
    text(kLeft, 32, "start", 18, "#1f1f1f", plot_.title);
    text(kLeft, 53, "start", 13, "#666666", plot_.subtitle);
    draw_axes();
    for (size_t i = 0; i < plot_.lines.size(); i++) draw_line(i);
    draw_level();
    double below = kTop + 10;
    for (size_t i = 0; i < plot_.lines.size(); i++) below = draw_legend(i, below);
    put("</svg>");
    return std::move(out_);
  }

 private:
  template <class... Args>
  void put(fmt::format_string<Args...> text, Args&&... args) {
    fmt::format_to(std::back_inserter(out_), text, std::forward<Args>(args)...);
    out_ += '\n';
  }

  void text(double x, double y, const char* anchor, int size, const char* colour, const std::string& what) {
    put(R"(<text x="{:.1f}" y="{:.1f}" text-anchor="{}" font-size="{}" fill="{}">{}</text>)", x, y, anchor, size,
        colour, escaped(what));
  }

  void choose_axes() {
    double low = INFINITY, high = -INFINITY, last = 0;
    const auto see = [&](double y) { low = std::min(low, y), high = std::max(high, y); };
    for (const Line& line : plot_.lines)
      for (const auto& [x, y] : line.points) see(y), last = std::max(last, x);
    if (plot_.level) see(*plot_.level);
    if (low > high) low = 0, high = 1;
    const double room = high > low ? (high - low) * 0.03 : std::max(std::abs(high) * 0.1, 1e-3);
    y_.step = nice_step(high - low + 2 * room, 7);
    y_.begin = std::floor((low - room) / y_.step) * y_.step;
    if (low >= 0) y_.begin = std::max(0.0, y_.begin);
    y_.end = high + room;
    x_.end = last > 0 ? last * 1.02 : 1;
    x_.step = nice_step(x_.end, 8);
  }

  double across(double x) const { return kLeft + (right_ - kLeft) * (x - x_.begin) / (x_.end - x_.begin); }
  double down(double y) const {
    return kHeight - kBottom - (kHeight - kBottom - kTop) * (y - y_.begin) / (y_.end - y_.begin);
  }

  void draw_axes() {
    const double floor = kHeight - kBottom;
    for (double y : ticks(y_)) {
      put(R"(<line x1="{0}" y1="{2:.1f}" x2="{1:.1f}" y2="{2:.1f}" stroke="#e4e4e4"/>)", kLeft, right_, down(y));
      text(kLeft - 9, down(y) + 4.5, "end", 13, "#444444", tick_text(y, y_.step));
    }
    for (double x : ticks(x_)) {
      put(R"(<line x1="{0:.1f}" y1="{1}" x2="{0:.1f}" y2="{2}" stroke="#1f1f1f"/>)", across(x), floor, floor + 5);
      text(across(x), floor + 21, "middle", 13, "#444444", tick_text(x, x_.step));
    }
    put(R"(<path d="M{0} {1} V{2} H{3:.1f}" fill="none" stroke="#1f1f1f"/>)", kLeft, kTop, floor, right_);
    text((kLeft + right_) / 2, kHeight - 16, "middle", 14, "#1f1f1f", plot_.x_label);
    put(R"svg(<text transform="translate(22 {:.1f}) rotate(-90)" text-anchor="middle" )svg"
        R"svg(font-size="14" fill="#1f1f1f">{}</text>)svg",
        (kTop + floor) / 2, escaped(plot_.y_label));
  }

  void draw_level() {
    if (!plot_.level) return;
    put(R"(<line x1="{0}" y1="{2:.1f}" x2="{1:.1f}" y2="{2:.1f}" stroke="#888888" stroke-dasharray="3 3"/>)", kLeft,
        right_, down(*plot_.level));
    put(R"(<text x="{}" y="{:.1f}" font-size="12" fill="#666666" stroke="#ffffff" )"
        R"(stroke-width="4" paint-order="stroke">target {:g}</text>)",
        kLeft + 8, down(*plot_.level) - 6, *plot_.level);  // training begins below it
  }

  const char* colour(size_t i) const { return kColours[i % kColours.size()]; }
  std::string dash(size_t i) const {
    const char* dashes = kDashes[i / kColours.size() % kDashes.size()];
    return *dashes == 0 ? "" : fmt::format(R"( stroke-dasharray="{}")", dashes);
  }

  void draw_line(size_t i) {
    std::string points, dots;
    for (const auto& [x, y] : plot_.lines[i].points) {
      fmt::format_to(std::back_inserter(points), "{}{:.1f},{:.1f}", points.empty() ? "" : " ", across(x), down(y));
      fmt::format_to(std::back_inserter(dots), R"(<circle cx="{:.1f}" cy="{:.1f}" r="3"/>)", across(x), down(y));
    }
    put(R"(<polyline points="{}" fill="none" stroke="{}" stroke-width="2" stroke-linejoin="round")"
        R"({}><title>{}</title></polyline>)",
        points, colour(i), dash(i), escaped(plot_.lines[i].name));
    put(R"(<g fill="{}">{}</g>)", colour(i), dots);
  }

  /// Returns where the next entry begins.
  double draw_legend(size_t i, double y) {
    const Line& line = plot_.lines[i];
    const double x = right_ + 18;
    put(R"(<line x1="{0:.1f}" y1="{2:.1f}" x2="{1:.1f}" y2="{2:.1f}" stroke="{3}" stroke-width="3"{4}/>)", x, x + 20,
        y - 4.5, colour(i), dash(i));
    text(x + 27, y, "start", 13, "#1f1f1f", line.name);
    if (!line.points.empty())
      text(kWidth - 14, y, "end", 13, "#666666", fmt::format("{:.4f}", line.points.back().second));
    if (!line.note.empty()) text(x + 27, y += 15, "start", 11, "#666666", line.note);
    return y + 22;
  }

  Plot plot_;
  Axis x_, y_;
  double right_ = 0;  // where the plot ends and the legend begins
  std::string out_;
};

}  // namespace

std::string to_svg(const Plot& plot) { return Drawing(plot).svg(); }

}  // namespace trireme::tools
