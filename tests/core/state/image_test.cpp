// label: unit
// State in plain memory, and what a restore refuses.
#include <gtest/gtest.h>

#include <numeric>

#include <trireme/base/error.h>
#include <trireme/state/image.h>

#include "../comm/ranks.h"

namespace trireme::state {
namespace {

using space::Range;
using trireme::tests::expect_error;

std::vector<std::byte> counted(size_t from, size_t to) {
  std::vector<std::byte> bytes;
  for (size_t i = from; i < to; i++) bytes.push_back(static_cast<std::byte>(i % 251));
  return bytes;
}

Image image_of(const std::vector<Range>& ranges) {
  Image image;
  image.about({.layout = "w f32[100]\n", .optimizer = "momentum"});
  for (const Range& range : ranges) image.part("optimizer/momentum", range, counted(range.begin, range.end));
  image.scalar("step", 12);
  return image;
}

template <class Body>
std::exception_ptr error_of(const Body& body) {
  try {
    body();
  } catch (...) {
    return std::current_exception();
  }
  return nullptr;
}

TEST(Image, GivesBackWhatItSawHoweverItIsCut) {
  Image image = image_of({{0, 10}, {30, 400}, {10, 30}});
  for (const Range& range : std::vector<Range>{{0, 400}, {5, 12}, {10, 30}, {29, 31}, {399, 400}, {7, 7}}) {
    std::vector<std::byte> got(range.size());
    image.read("optimizer/momentum", range, got);
    EXPECT_EQ(got, counted(range.begin, range.end));
  }
  EXPECT_EQ(image.scalar("step"), 12);
  EXPECT_EQ(image.scalar("epoch"), std::nullopt);
  EXPECT_TRUE(image == image_of({{0, 400}}));
  EXPECT_FALSE(image == image_of({{0, 399}}));
}

TEST(Image, RefusesWhatIsHereAlready) {
  Image image = image_of({{0, 10}, {20, 30}});
  expect_error<InvalidArgument>(error_of([&] {
                                  image.part("optimizer/momentum", {5, 25}, counted(5, 25));
                                }),
                                {"0 to 10", "5 to 25", "optimizer/momentum"});
  expect_error<InvalidArgument>(error_of([&] { image.scalar("step", 13); }), {"step", "12", "13"});
  const std::vector<float> values = {1, 2};
  image.row("words", {.key = 7, .values = values});
  expect_error<InvalidArgument>(error_of([&] { image.row("words", {.key = 7, .values = values}); }),
                                {"row 7", "words"});
  std::vector<std::byte> room(10);
  expect_error<InvalidArgument>(error_of([&] { image.read("optimizer/momentum", {5, 15}, room); }), {"5 to 15", "10"});
  expect_error<InvalidArgument>(error_of([&] { image.about({.layout = "w f32[100]\n", .optimizer = "adam"}); }),
                                {"momentum", "adam"});
}

TEST(Image, TakesCopiesOnce) {
  Image image = image_of({{0, 100}, {200, 300}});
  image.add(image_of({{50, 250}, {260, 270}, {300, 400}}));
  EXPECT_TRUE(image == image_of({{0, 400}}));
}

TEST(Image, KeepsRows) {
  Image image;
  std::vector<float> values(3), moment(6);
  std::iota(values.begin(), values.end(), 1.f);
  std::iota(moment.begin(), moment.end(), 10.f);
  image.row("words", {.key = 5, .values = values, .state = moment, .steps = 4, .age = 2});
  int seen = 0;
  image.rows("words", [&](const Row& row) {
    seen++;
    EXPECT_EQ(row.key, 5u);
    EXPECT_EQ(std::vector<float>(row.values.begin(), row.values.end()), values);
    EXPECT_EQ(std::vector<float>(row.state.begin(), row.state.end()), moment);
    EXPECT_EQ(row.steps, 4u);
    EXPECT_EQ(row.age, 2u);
  });
  EXPECT_EQ(seen, 1);
  image.rows("other", [](const Row&) { FAIL(); });
}

Wanted wanted() {
  Wanted wanted{.who = "rank 3", .about = {.layout = "w f32[100]\n", .optimizer = "momentum"}, .owner = 3};
  wanted.parts.add("optimizer/momentum", {100, 300}, 3);
  wanted.parts.add("optimizer/momentum", {300, 400}, 4);
  wanted.scalars = {"step"};
  return wanted;
}

TEST(Check, TakesWhatHasMoreThanIsNeeded) { check(image_of({{0, 200}, {200, 310}}), wanted()); }

TEST(Check, NamesBothSides) {
  const Image image = image_of({{0, 150}, {200, 310}});
  expect_error<InvalidArgument>(error_of([&] { check(image, wanted()); }),
                                {"lacks bytes 150 to 200", "rank 3 needs 100 to 300", "0 to 150, 200 to 310"});
  Wanted other = wanted();
  other.about.layout = "w f32[10,10]\n";
  expect_error<InvalidArgument>(error_of([&] { check(image, other); }),
                                {"parameter 0", "'w f32[100]'", "rank 3", "'w f32[10,10]'"});
  other = wanted();
  other.about.optimizer = "adam";
  expect_error<InvalidArgument>(error_of([&] { check(image, other); }), {"'momentum'", "rank 3", "'adam'"});
  other = wanted();
  other.about.tables = {{"words", 8, "sgd"}};
  expect_error<InvalidArgument>(error_of([&] { check(image, other); }), {"table 0", "none", "'words'", "8"});
  other = wanted();
  other.scalars = {"epoch"};
  expect_error<InvalidArgument>(error_of([&] { check(image_of({{0, 400}}), other); }), {"no 'epoch'", "rank 3"});
}

}  // namespace
}  // namespace trireme::state
