#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>

#include <trireme/stages/drawing.h>

namespace trireme::stages {
namespace {

// ---- text ----

/// How wide a picture is, and what of a name fits in it.
struct Scale {
  double columns = 0;  // for a unit of time
  bool named = false;  // the shortest computation has room for its name and a blank
  size_t unit = 1;     // columns of the shortest computation; bands are cut between such
};

/// As wide as names need if a few bands have room for that, or else a letter; and otherwise one band that shows little.
Scale scale_of(const Timeline& timeline, int room) {
  constexpr double kMostColumns = 6, kMostBands = 4;
  double shortest = INFINITY;
  size_t name = 1;
  for (const Span& span : timeline.spans) {
    if (!is_compute(span.action.kind) || !(span.end > span.begin)) continue;
    shortest = std::min(shortest, span.end - span.begin);
    name = std::max(name, brief(span.action, timeline.chunks).size());
  }
  if (!(timeline.total > 0) || !std::isfinite(shortest)) return {};
  const double fits = room / timeline.total, need = static_cast<double>(name) + 1;
  const auto units_of = [&](double columns) {
    return Scale{columns / shortest, columns >= need, static_cast<size_t>(columns)};
  };
  const double whole = std::floor(fits * shortest + 1e-9);
  if (whole >= need) return units_of(std::min(whole, std::max(need, kMostColumns)));
  for (double columns : {need, 1.0})
    if (fits * kMostBands * shortest >= columns) return units_of(columns);
  return {fits, false, 1};
}

/// A row as one long line.
std::vector<std::string> rows_of(const Timeline& timeline, const Scale& scale) {
  const auto column = [&](double time) { return static_cast<size_t>(std::lround(time * scale.columns)); };
  std::vector<std::string> rows(timeline.stages, std::string(column(timeline.total), '.'));
  for (const Span& span : timeline.spans) {
    if (!is_compute(span.action.kind)) continue;
    std::string& row = rows[span.stage];
    const size_t begin = std::min(column(span.begin), row.size()), end = std::min(column(span.end), row.size());
    if (begin >= end) continue;
    const std::string name = brief(span.action, timeline.chunks).substr(0, scale.named ? end - begin : 1);
    row.replace(begin, end - begin, name + std::string(end - begin - name.size(), '-'));
    if (end - begin > name.size()) row[end - 1] = ' ';
  }
  return rows;
}

// ---- SVG ----

constexpr double kPageLeft = 78, kPageRight = 24, kRow = 30, kBar = 24, kPageWidth = 1180;

// Told apart by colour-blind eyes too: forwards blue, backwards orange, their weight parts green.
struct Colour {
  int red, green, blue;
};
constexpr std::array<Colour, 4> kBars = {
    {{0x56, 0x9b, 0xd6}, {0xe6, 0x9f, 0x45}, {0xe6, 0x9f, 0x45}, {0x5f, 0xb4, 0x8a}}};
constexpr std::array<const char*, 4> kLegend = {"forward", "backward", "backward: inputs", "backward: weights"};

/// Later chunks are lighter.
std::string fill(const Action& action, int chunks) {
  const double light = chunks == 1 ? 0 : 0.6 * action.chunk / (chunks - 1);
  const Colour& bar = kBars[static_cast<size_t>(action.kind)];
  const auto mix = [&](int part) { return static_cast<int>(part + (255 - part) * light); };
  return fmt::format("#{:02x}{:02x}{:02x}", mix(bar.red), mix(bar.green), mix(bar.blue));
}

std::string for_xml(const std::string& text) {
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
    else if (static_cast<unsigned char>(c) >= 0x20)
      out += c;
  }
  return out;
}

/// 1, 2 or 5 times a power of ten, about eight of which make up the range.
double tick_step(double range) {
  const double rough = range / 8, power = std::pow(10, std::floor(std::log10(rough)));
  for (double factor : {1.0, 2.0, 5.0})
    if (rough <= factor * power * (1 + 1e-9)) return factor * power;
  return 10 * power;
}

class Page {
 public:
  Page(const std::string& title, const std::vector<Panel>& panels) : title_(title), panels_(panels) {
    for (const Panel& panel : panels) longest_ = std::max(longest_, panel.timeline.total);
    if (!(longest_ > 0)) longest_ = 1;
  }

  std::string svg() {
    double below = 78;
    for (const Panel& panel : panels_) below = draw(panel, below);
    const std::string body = std::move(out_);
    out_.clear();
    put(R"(<svg xmlns="http://www.w3.org/2000/svg" width="{0}" height="{1:.0f}" viewBox="0 0 {0} {1:.0f}")"
        R"( font-family="DejaVu Sans, Helvetica, Arial, sans-serif">)",
        kPageWidth, below);
    put(R"(<title>{}</title>)", for_xml(title_));
    put(R"(<rect width="{}" height="{:.0f}" fill="#ffffff"/>)", kPageWidth, below);
    text(kPageLeft, 30, "start", 18, "#1f1f1f", title_);
    draw_legend();
    return out_ + body + "</svg>\n";
  }

 private:
  template <class... Args>
  void put(fmt::format_string<Args...> text, Args&&... args) {
    fmt::format_to(std::back_inserter(out_), text, std::forward<Args>(args)...);
    out_ += '\n';
  }

  void text(double x, double y, const char* anchor, int size, const char* colour, const std::string& what) {
    put(R"(<text x="{:.1f}" y="{:.1f}" text-anchor="{}" font-size="{}" fill="{}">{}</text>)", x, y, anchor, size,
        colour, for_xml(what));
  }

  double across(double time) const { return kPageLeft + (kPageWidth - kPageLeft - kPageRight) * time / longest_; }

  void draw_legend() {
    std::array<bool, kBars.size()> used{};
    for (const Panel& panel : panels_)
      for (const Span& span : panel.timeline.spans)
        if (is_compute(span.action.kind)) used[static_cast<size_t>(span.action.kind)] = true;
    double x = kPageLeft;
    for (size_t i = 0; i < kBars.size(); i++) {
      if (!used[i]) continue;
      put(R"(<rect x="{:.1f}" y="43" width="14" height="14" fill="{}"/>)", x, fill({static_cast<Kind>(i)}, 1));
      text(x + 20, 55, "start", 13, "#444444", kLegend[i]);
      x += 42 + 7.6 * static_cast<double>(std::string(kLegend[i]).size());
    }
    text(x, 55, "start", 13, "#444444", chunks() > 1 ? "lighter: later chunks of a stage" : "");
  }

  int chunks() const {
    int most = 1;
    for (const Panel& panel : panels_) most = std::max(most, panel.timeline.chunks);
    return most;
  }

  /// Returns where the next panel begins.
  double draw(const Panel& panel, double top) {
    const Timeline& timeline = panel.timeline;
    text(kPageLeft, top + 10, "start", 14, "#1f1f1f",
         fmt::format("{}{}bubble {:.1f} % of {:.4g}{}{}", panel.title, panel.title.empty() ? "" : ": ",
                     100 * timeline.bubble, timeline.total, panel.unit.empty() ? "" : " ", panel.unit));
    const double rows = top + 22;
    for (int s = 0; s < timeline.stages; s++) {
      const double y = rows + kRow * s;
      text(kPageLeft - 10, y + kBar / 2 + 4.5, "end", 13, "#444444", fmt::format("stage {}", s));
      put(R"(<rect x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{}" fill="#f1f1f1"/>)", kPageLeft, y,
          across(timeline.total) - kPageLeft, kBar);
    }
    for (const Span& span : timeline.spans) bar(panel, span, rows + kRow * span.stage);
    return axis(panel, rows + kRow * timeline.stages);
  }

  void bar(const Panel& panel, const Span& span, double y) {
    const double x = across(span.begin), width = across(span.end) - x;
    if (!is_compute(span.action.kind)) {  // a wait that was for somebody
      if (width > 0.5)
        put(R"(<rect x="{:.1f}" y="{:.1f}" width="{:.1f}" height="3" fill="#9a9a9a"/>)", x, y + kBar / 2 - 1.5, width);
      return;
    }
    put(R"(<rect x="{:.2f}" y="{:.1f}" width="{:.2f}" height="{}" fill="{}" stroke="#ffffff" )"
        R"(stroke-width="{}"><title>{}: {:.4g} to {:.4g}</title></rect>)",
        x, y, width, kBar, fill(span.action, panel.timeline.chunks), width > 4 ? 1 : 0, describe(span.action),
        span.begin, span.end);
    const std::string number = std::to_string(span.action.micro);
    if (width >= 8.0 * static_cast<double>(number.size()))
      text(x + width / 2, y + kBar / 2 + 4.5, "middle", 12, "#1f1f1f", number);
  }

  double axis(const Panel& panel, double y) {
    if (!(panel.timeline.total > 0)) return y + 30;
    const double step = tick_step(longest_);
    put(R"(<path d="M{0} {2:.1f} H{1:.1f}" fill="none" stroke="#1f1f1f"/>)", kPageLeft, across(panel.timeline.total),
        y);
    for (double k = 0; k * step <= panel.timeline.total * (1 + 1e-9); k++) {
      put(R"(<line x1="{0:.1f}" y1="{1:.1f}" x2="{0:.1f}" y2="{2:.1f}" stroke="#1f1f1f"/>)", across(k * step), y,
          y + 5);
      text(across(k * step), y + 19, "middle", 12, "#444444", fmt::format("{:.6g}", k * step));
    }
    return y + 50;
  }

  const std::string& title_;
  const std::vector<Panel>& panels_;
  double longest_ = 0;
  std::string out_;
};

}  // namespace

std::string draw_text(const Timeline& timeline, int width) {
  const size_t head = fmt::format("stage {}  ", timeline.stages - 1).size();
  const int room = std::max(20, width - static_cast<int>(head));
  const Scale scale = scale_of(timeline, room);
  const std::vector<std::string> rows = rows_of(timeline, scale);
  const size_t band = room / scale.unit * scale.unit;
  std::string out;
  for (size_t begin = 0; begin == 0 || begin < rows[0].size(); begin += band) {
    if (begin > 0) out += '\n';
    for (int s = 0; s < timeline.stages; s++)
      out += fmt::format("{:<{}}{}\n", fmt::format("stage {}", s), head, rows[s].substr(begin, band));
  }
  return out;
}

std::string draw_svg(const std::string& title, const std::vector<Panel>& panels) { return Page(title, panels).svg(); }

}  // namespace trireme::stages
