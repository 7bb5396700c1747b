// label: unit
#include <gtest/gtest.h>

#include <map>

#include <trireme/base/error.h>
#include <trireme/cluster/environment.h>
#include <trireme/cluster/world.h>

namespace trireme::cluster::tests {
namespace {

using Variables = std::map<std::string, std::string>;

Place place(const Variables& variables) {
  return place_from([&](const char* name) -> const char* {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

void expect_refused(const Variables& variables, const std::vector<std::string>& parts) {
  try {
    place(variables);
    FAIL() << "taken";
  } catch (const InvalidArgument& error) {
    for (const std::string& part : parts) EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << "no \"" << part << "\" in: " << error.what();
  }
}

TEST(Place, AloneWithoutALauncher) {
  const Place here = place({{"HOME", "/root"}});
  EXPECT_EQ(here.rank, 0);
  EXPECT_EQ(here.size, 1);
  EXPECT_EQ(here.launcher, "alone");
}

TEST(Place, OfTriremeLaunch) {
  const Place here = place({{"TRIREME_RANK", "3"}, {"TRIREME_SIZE", "8"}, {"TRIREME_JOB", "abc"}});
  EXPECT_EQ(here.rank, 3);
  EXPECT_EQ(here.size, 8);
  EXPECT_EQ(here.job, "abc");
  EXPECT_EQ(here.launcher, "trireme launch");
}

TEST(Place, OfTorchrun) {
  const Place here = place({{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "10.0.0.1"}, {"MASTER_PORT", "29500"}});
  EXPECT_EQ(here.rank, 1);
  EXPECT_EQ(here.size, 2);
  EXPECT_EQ(here.job, "10.0.0.1:29500");
  EXPECT_EQ(here.launcher, "torchrun-style variables");
}

TEST(Place, OwnVariablesGoFirst) { EXPECT_EQ(place({{"TRIREME_RANK", "1"}, {"TRIREME_SIZE", "2"}, {"RANK", "5"}, {"WORLD_SIZE", "6"}}).rank, 1); }

TEST(Place, BadValuesAreRefusedByName) {
  expect_refused({{"RANK", "0"}}, {"no WORLD_SIZE"});
  expect_refused({{"TRIREME_RANK", "0"}}, {"no TRIREME_SIZE"});
  for (const char* text : {"", "one", "-1", "1x", " 1", "1.5", "99999999999"}) {
    expect_refused({{"RANK", text}, {"WORLD_SIZE", "2"}}, {"RANK='" + std::string(text) + "'", "whole number"});
    expect_refused({{"RANK", "0"}, {"WORLD_SIZE", text}}, {"WORLD_SIZE='" + std::string(text) + "'", "whole number"});
  }
  expect_refused({{"RANK", "0"}, {"WORLD_SIZE", "0"}}, {"WORLD_SIZE='0'", "at least 1"});
  expect_refused({{"RANK", "2"}, {"WORLD_SIZE", "2"}}, {"RANK=2", "WORLD_SIZE=2", "0 to 1"});
}

TEST(World, OfOne) {
  World world({0, 1, "", "alone"}, {});
  EXPECT_TRUE(world.first());
  EXPECT_EQ(world.size(), 1);
  EXPECT_EQ(world.launcher(), "alone");
  float x = 3;
  world.comm().allreduce(&x, 1, DType::f32, Op::mean, "x");
  EXPECT_EQ(x, 3);
}

}  // namespace
}  // namespace trireme::cluster::tests
