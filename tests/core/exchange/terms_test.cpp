// label: unit
// What ranks agree on, line by line.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <trireme/exchange/exchange.h>

#include "../comm/machines.h"

namespace trireme::exchange::tests {
namespace {

using space::Layout;
using trireme::tests::expect_all_well;
using trireme::tests::expect_error;
using trireme::tests::OnMachine;
using trireme::tests::run_machines;
using trireme::tests::run_ranks;

std::string text_of(const space::UpdaterOptions& optimizer) { return terms_of(std::optional(optimizer)).text(); }

TEST(Terms, NameTheFirstLineThatDiffers) {
  Terms a, b;
  EXPECT_EQ(first_difference(a.text(), 0, b.text(), 1), "");
  a.add("colour", "red").add("size", 3);
  b.add("colour", "red").add("size", 4);
  EXPECT_EQ(first_difference(a.text(), 0, a.text(), 1), "");
  EXPECT_EQ(first_difference(a.text(), 0, b.text(), 7), "size: rank 0 has '3', rank 7 has '4'");
  b = {};
  b.add("size", 3);
  EXPECT_EQ(first_difference(a.text(), 0, b.text(), 1), "colour: rank 0 has 'red', rank 1 has none");
  EXPECT_EQ(first_difference(b.text(), 0, a.text(), 1), "colour: rank 0 has none, rank 1 has 'red'");
  b.add("weight", 0.1);
  EXPECT_EQ(first_difference(Terms().add("size", 3).text(), 2, b.text(), 1),
            "weight: rank 2 has none, rank 1 has '0.1'");
}

TEST(Terms, NameTheSides) {
  EXPECT_EQ(first_difference(Terms().add("size", 3).text(), "the job", Terms().add("size", 4).text(), "rank 7"),
            "size: the job has '3', rank 7 has '4'");
}

TEST(Terms, OfAnOptimizerWhatItUses) {
  EXPECT_EQ(text_of(space::sgd({.momentum = 0.5})), text_of(space::sgd({.beta1 = 0.5})));
  EXPECT_EQ(text_of(space::adam({.momentum = 0.5})), text_of(space::adam({.epsilon = 1e-8})));
  const space::UpdaterOptions base = space::adamw();
  const auto differs = [&](space::UpdaterOptions other) { EXPECT_NE(text_of(base), text_of(other)); };
  differs(space::adam()), differs(space::adamw({.lr = 0.0100000001})), differs(space::adamw({.beta1 = 0.8})),
      differs(space::adamw({.beta2 = 0.9}));
  differs(space::adamw({.epsilon = 1e-7})), differs(space::adamw({.weight_decay = 0.1}));
  EXPECT_NE(text_of(space::momentum()), text_of(space::momentum({.nesterov = true})));
  EXPECT_NE(text_of(space::momentum()), text_of(space::momentum({.momentum = 0.8})));
}

TEST(Terms, OfAnExchangeAllButARanksOwn) {
  const auto text = [](const Options& options) { return terms_of(options).text(); };
  EXPECT_EQ(text({.overlap = false, .seed = 3}), text({.lambda = 7}));
  EXPECT_NE(text({.sync = Sync::async, .stale = ps::Stale::compensated}),
            text({.sync = Sync::async, .stale = ps::Stale::compensated, .lambda = 7}));
  EXPECT_NE(text({.sync = Sync::stale_by(2)}), text({.sync = Sync::stale_by(3)}));
  const auto table = [](uint64_t seed) {
    return Options{.sync = Sync::async, .tables = {{.name = "words", .seed = seed}}};
  };
  EXPECT_EQ(text(table(1)), text(table(1)));
  EXPECT_NE(text(table(1)), text(table(2)));
}

TEST(Terms, SignsShowWhetherAllAreTheSame) {
  const auto sums = [](const std::vector<std::string>& texts) {
    Sign sum{};
    for (const std::string& text : texts)
      for (size_t i = 0; i < sum.size(); i++) sum[i] += sign_of(text)[i];
    return sum;
  };
  for (const char* text : {"a", "b", "something longer"}) {
    EXPECT_TRUE(all_same(sums(std::vector<std::string>(256, text))));
    std::vector<std::string> one(256, text);
    one[100] = "another";
    EXPECT_FALSE(all_same(sums(one)));
    one[100] = "";
    EXPECT_TRUE(all_same(sums(one))) << "no text agrees with all";
  }
  for (int seed = 1; seed < 1000; seed++)
    EXPECT_FALSE(all_same(sums({fmt::format("seed\t{}\n", seed), fmt::format("seed\t{}\n", seed - 1)}))) << seed;
  EXPECT_TRUE(all_same(sums({})));
  EXPECT_TRUE(all_same(sums({"", "x", ""})));
  EXPECT_FALSE(all_same(sums({"x", "", "y"})));
}

TEST(Terms, AgreementIsCollective) {
  expect_all_well(run_ranks(
      3, [](comm::shm::Communicator& group) { agree(group, "settings", group.rank() == 1 ? "" : "a\t1\n"); }));
  for (const auto& outcome : run_ranks(4, [](comm::shm::Communicator& group) {
         agree(group, "settings", group.rank() == 0 ? "" : group.rank() < 3 ? "a\t1\n" : "a\t2\n");
       }))
    expect_error<Mismatch>(outcome, {"the ranks' settings differ. a: rank 1 has '1', rank 3 has '2'"});
}

/// Over machines, in every mode, whatever differs: each rank hears it, and before any of the modes has begun.
TEST(Terms, RanksOfSeveralMachinesHearIt) {
  const Layout layout({{"a", DType::f64, {3000}}, {"b", DType::f64, {7}}});
  for (const Sync& sync : {Sync(Sync::shared), Sync(Sync::allreduce), Sync(Sync::central), Sync::local_for(2)})
    for (const auto& outcome : run_machines({0, 0, 1, 1}, [&](const OnMachine& rank) {
           const int me = rank.all.rank();
           const Sync other = sync == Sync::shared ? Sync::allreduce : Sync::shared;
           make_exchange(Group(rank.all, rank.here, rank.lane, rank.all.topology().lanes()), layout, space::sgd(),
                         {.sync = me == 3 ? other : sync});
         }))
      expect_error<Mismatch>(outcome, {"settings differ", "sync: rank 0 has", "rank 3 has"});
}

}  // namespace
}  // namespace trireme::exchange::tests
