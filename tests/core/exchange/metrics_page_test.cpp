// label: unit
// docs/metrics.md lists what ranks, servers and launchers count: the page and the registries say the same.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <sstream>

#include <trireme/cluster/launching/launcher_metrics.h>
#include <trireme/comm/network/lane_metrics.h>
#include <trireme/comm/shm/rounds.h>
#include <trireme/comm/stream/door_metrics.h>
#include <trireme/exchange/chooser.h>
#include <trireme/exchange/coding.h>
#include <trireme/parallel/step_metrics.h>
#include <trireme/ps/service_metrics.h>
#include <trireme/train/train_metrics.h>

namespace trireme::metrics::tests {
namespace {

/// The rows of a table, as the page has them.
std::string rows_of(const Registry& registry) {
  std::string text;
  for (const auto& [kind, what] : registry.listed())
    text += fmt::format("| `{}` | {} | {} | {} |\n", what.name, name_of(kind), what.unit, what.help);
  return text;
}

std::string of_ranks() {
  Registry registry;
  const StepMetrics steps(registry);
  const train::TrainMetrics run(registry);
  const comm::shm::RoundsMetrics rounds(&registry);
  const comm::network::WireMetrics wire(&registry, "lane");
  const comm::network::CollectiveMetrics collectives(&registry, "lane");
  const exchange::CodingMetrics coding(&registry);
  const exchange::ChosenMetrics chosen(&registry, "bucket 0");
  const comm::stream::DoorMetrics door(&registry);
  return rows_of(registry);
}

std::string of_servers() {
  Registry registry;
  ps::ServiceMetrics service(&registry, "model 0");
  service.add_clocks(&registry, "model 0", 2);
  return rows_of(registry);
}

std::string of_launchers() {
  Registry registry;
  const cluster::LauncherMetrics launcher(registry);
  return rows_of(registry);
}

/// By the title of the section, the rows of its table.
std::map<std::string, std::string> page() {
  std::ifstream file(METRICS_PAGE);
  EXPECT_TRUE(file) << METRICS_PAGE;
  std::map<std::string, std::string> tables;
  std::string title;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("## ")) title = line.substr(3);
    if (line.starts_with("| `")) tables[title] += line + "\n";
  }
  return tables;
}

TEST(MetricsPage, ListsWhatThereIs) {
  const auto tables = page();
  for (const auto& [title, rows] : std::map<std::string, std::string>{
           {"Ranks", of_ranks()}, {"Servers", of_servers()}, {"Launchers", of_launchers()}}) {
    const auto found = tables.find(title);
    ASSERT_NE(found, tables.end()) << "there is no section '" << title << "'";
    EXPECT_EQ(found->second, rows) << "the table of '" << title << "' in docs/metrics.md should be:\n" << rows;
  }
}

}  // namespace
}  // namespace trireme::metrics::tests
