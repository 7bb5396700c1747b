// label: unit
// Which rank has which place: no table of cases, but what holds for every one of them.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <regex>
#include <set>

#include <trireme/base/error.h>
#include <trireme/cluster/mesh_plan.h>

namespace trireme::cluster {
namespace {

/// Consecutive places of a plan, `size` at a time, that are on one machine.
int inside(const MeshPlan& plan, const std::vector<int>& machine_of, int size) {
  int count = 0;
  for (size_t begin = 0; begin < plan.order.size(); begin += static_cast<size_t>(size)) {
    std::set<int> machines;
    for (size_t i = begin; i < begin + static_cast<size_t>(size); i++)
      machines.insert(machine_of[static_cast<size_t>(plan.order[i])]);
    count += machines.size() == 1;
  }
  return count;
}

void check_plan(const std::vector<int>& machine_of, const Degrees& degrees) {
  SCOPED_TRACE(fmt::format("{} on machines {}", degrees.describe(), fmt::join(machine_of, " ")));
  const MeshPlan plan = plan_mesh(machine_of, degrees);
  std::vector<int> sorted = plan.order;
  std::sort(sorted.begin(), sorted.end());
  for (size_t i = 0; i < sorted.size(); i++) ASSERT_EQ(sorted[i], static_cast<int>(i));
  ASSERT_EQ(sorted.size(), machine_of.size());
  ASSERT_EQ(plan.order[0], 0);

  std::map<int, int> ranks;
  for (int machine : machine_of) ranks[machine]++;
  int groups = 0, pipelines = 0;  // that fit inside machines at all
  for (const auto& [machine, count] : ranks) {
    groups += count / degrees.tensor;
    pipelines += count / degrees.tensor / degrees.pipeline;
  }
  ASSERT_EQ(inside(plan, machine_of, degrees.tensor), groups);
  ASSERT_EQ(inside(plan, machine_of, degrees.tensor * degrees.pipeline), pipelines);
  ASSERT_EQ(plan.crosses, pipelines < degrees.data);
  ASSERT_EQ(plan.reason.find("will be slow") != std::string::npos, groups < degrees.data * degrees.pipeline)
      << plan.reason;
  ASSERT_EQ(plan.reason.find("one machine") != std::string::npos && ranks.size() == 1, ranks.size() == 1);
}

TEST(MeshPlan, puts_as_many_groups_inside_machines_as_fit) {
  std::mt19937 random(1);
  for (int trial = 0; trial < 300; trial++) {
    const int size = 1 + static_cast<int>(random() % 16), machines = 1 + static_cast<int>(random() % 4);
    std::vector<int> machine_of;
    for (int rank = 0; rank < size; rank++)
      machine_of.push_back(trial % 3 == 0   ? rank % machines                              // dealt out in turn
                           : trial % 3 == 1 ? rank * machines / size                       // one after the other
                                            : static_cast<int>(random()) % machines & 3);  // anyhow
    for (int tensor = 1; tensor <= size; tensor++)
      for (int pipeline = 1; tensor * pipeline <= size; pipeline++)
        if (size % (tensor * pipeline) == 0)
          check_plan(machine_of, degrees_of(size, {.pipeline = pipeline, .tensor = tensor}));
  }
}

TEST(MeshPlan, keeps_the_order_of_ranks_where_that_is_good) {
  EXPECT_EQ(plan_mesh({0, 0, 1, 1}, {.data = 2, .tensor = 2}).order, (std::vector<int>{0, 1, 2, 3}));
  EXPECT_EQ(plan_mesh({0, 0, 0, 0}, {.data = 4}).order, (std::vector<int>{0, 1, 2, 3}));
  EXPECT_EQ(plan_mesh({0, 1, 0, 1}, {.data = 2, .tensor = 2}).order, (std::vector<int>{0, 2, 1, 3}));
}

TEST(MeshPlan, says_why) {
  EXPECT_EQ(plan_mesh({0, 0, 0, 0}, {.data = 2, .tensor = 2}).reason, "data 2 × tensor 2, all on one machine");
  EXPECT_EQ(plan_mesh({0, 0, 1, 1}, {.data = 2, .tensor = 2}).reason,
            "data 2 × tensor 2: each copy of the model is inside one machine; gradients go over 2 machines once per "
            "step");
  EXPECT_EQ(plan_mesh({0, 0, 1, 1}, {.data = 4}).reason, "data 4: gradients go over 2 machines once per step");
  EXPECT_EQ(plan_mesh({0, 0, 1, 1}, {.pipeline = 2, .tensor = 2}).reason,
            "data 1 × pipeline 2 × tensor 2: tensor groups are inside machines; the pipeline of ranks 0, 1, 2, 3 "
            "crosses machines 0 and 1, between stages alone");
  EXPECT_EQ(plan_mesh({0, 0, 0, 1, 1, 1}, {.data = 3, .tensor = 2}).reason,
            "data 3 × tensor 2: the tensor group of ranks 2, 5 crosses machines 0 and 1, because not every machine has "
            "a multiple of 2 ranks; its ranks add up in every layer, which will be slow over a network. Give every "
            "machine a multiple of 2 workers, or use a smaller --tensor");
}

std::string refusal(int workers, const Degrees& degrees) {
  try {
    degrees_of(workers, degrees);
    return "";
  } catch (const InvalidArgument& error) {
    return error.what();
  }
}

TEST(MeshPlan, refuses_with_what_would_do) {
  EXPECT_EQ(refusal(6, {.tensor = 4}), "6 workers do not divide by tensor 4: use tensor 2, 3 or 6, or 4 or 8 workers");
  EXPECT_EQ(refusal(1, {.tensor = 2}), "1 worker does not divide by tensor 2: use 2 workers");
  EXPECT_EQ(refusal(2, {.tensor = 3}), "2 workers do not divide by tensor 3: use tensor 2, or 3 workers");
  EXPECT_EQ(refusal(6, {.pipeline = 2, .tensor = 2}),
            "6 workers do not divide by pipeline 2 × tensor 2: use 4 or 8 workers");
  EXPECT_NE(refusal(4, {.tensor = 0}), "");
  for (int workers = 1; workers <= 40; workers++)
    for (int tensor = 1; tensor <= 40; tensor++) {
      const std::string text = refusal(workers, {.tensor = tensor});
      ASSERT_EQ(text.empty(), workers % tensor == 0);
      if (text.empty()) continue;
      const std::string advice = text.substr(text.find("use "));
      const size_t number_of_workers = advice.find(", or ") == std::string::npos ? 0 : advice.find(", or ");
      const std::regex number("[0-9]+");
      for (std::sregex_iterator it(advice.begin(), advice.end(), number), end; it != end; ++it) {
        const int value = std::stoi(it->str());
        const bool workers_instead = static_cast<size_t>(it->position()) > number_of_workers &&
                                     (number_of_workers > 0 || advice.find("tensor") == std::string::npos);
        ASSERT_EQ(workers_instead ? value % tensor : workers % value, 0) << text;
      }
    }
}

TEST(MeshPlan, gets_smaller_by_copies_first_and_then_by_what_divides) {
  const auto within = [](int workers, Degrees before, bool fixed = false) {
    return degrees_within(workers, before, fixed).value_or(Degrees{0, 0, 0});
  };
  EXPECT_EQ(within(7, {2, 2, 2}), (Degrees{1, 2, 2}));
  EXPECT_EQ(within(5, {3, 1, 2}), (Degrees{2, 1, 2}));
  EXPECT_EQ(within(3, {4, 1, 1}), (Degrees{3, 1, 1}));
  EXPECT_EQ(within(3, {1, 2, 2}), (Degrees{1, 2, 1}));
  EXPECT_EQ(within(5, {1, 6, 1}), (Degrees{1, 3, 1}));
  EXPECT_EQ(within(1, {1, 2, 1}), (Degrees{1, 1, 1}));
  EXPECT_EQ(within(3, {1, 2, 2}, true), (Degrees{1, 2, 1}));
  EXPECT_EQ(degrees_within(1, {1, 2, 2}, true), std::nullopt);
  EXPECT_EQ(degrees_within(0, {2, 1, 1}, false), std::nullopt);
  for (int data = 1; data <= 4; data++)
    for (int pipeline = 1; pipeline <= 6; pipeline++)
      for (int tensor = 1; tensor <= 6; tensor++)
        for (int workers = 1; workers <= data * pipeline * tensor; workers++) {
          const Degrees found = within(workers, {data, pipeline, tensor});
          ASSERT_GE(found.ranks(), 1);  // one worker has the whole model
          ASSERT_LE(found.ranks(), workers);
          ASSERT_EQ(pipeline % found.pipeline, 0);
          ASSERT_EQ(tensor % found.tensor, 0);
          if (workers >= pipeline * tensor) {
            ASSERT_EQ(found.data, std::min(data, workers / (pipeline * tensor)));
          }
        }
}

TEST(MeshPlan, refuses_degrees_that_do_not_multiply) {
  EXPECT_THROW(plan_mesh({0, 0, 0}, {.data = 2, .tensor = 2}), InvalidArgument);
}

}  // namespace
}  // namespace trireme::cluster
