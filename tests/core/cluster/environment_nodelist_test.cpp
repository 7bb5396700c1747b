// label: unit
#include <gtest/gtest.h>

#include <trireme/base/error.h>
#include <trireme/cluster/environment/nodelist.h>

namespace trireme::cluster::tests {
namespace {

using Names = std::vector<std::string>;

TEST(Nodelist, Expands) {
  const std::vector<std::pair<const char*, Names>> cases = {
      {"a", {"a"}},
      {"a,b", {"a", "b"}},
      {"node[01-03,7],x2", {"node01", "node02", "node03", "node7", "x2"}},
      {"n[8-11]", {"n8", "n9", "n10", "n11"}},
      {"n[08-11]", {"n08", "n09", "n10", "n11"}},
      {"n[098-101].cluster", {"n098.cluster", "n099.cluster", "n100.cluster", "n101.cluster"}},
      {"r[1-2]n[3-4]", {"r1n3", "r1n4", "r2n3", "r2n4"}},
      {"r[1-2]-n[3,5]-x,login-1", {"r1-n3-x", "r1-n5-x", "r2-n3-x", "r2-n5-x", "login-1"}},
      {"[1-3]", {"1", "2", "3"}},
      {"gpu_a100.example.org", {"gpu_a100.example.org"}},
      {"n[5-5]", {"n5"}},
  };
  for (const auto& [text, expected] : cases) EXPECT_EQ(expand_nodelist(text, 100), expected) << text;
}

TEST(Nodelist, StopsWhereItIsTold) {
  EXPECT_EQ(expand_nodelist("a[0-999999999]b[0-999999999],c[0-999999999]", 3), (Names{"a0b0", "a0b1", "a0b2"}));
  EXPECT_EQ(expand_nodelist("a[0-999999999999999]", 1), Names{"a0"});
  EXPECT_EQ(expand_nodelist("a,b", 0), Names{});
  EXPECT_EQ(expand_nodelist("a[999999999999998-999999999999999]", 9), (Names{"a999999999999998", "a999999999999999"}));
}

TEST(Nodelist, RefusesTheRest) {
  const std::vector<std::pair<std::string, const char*>> cases = {
      {"", "name is missing at character 1"},
      {",a", "name is missing at character 1"},
      {"a,", "name is missing at character 3"},
      {"a,,b", "name is missing at character 3"},
      {"a[", "number is missing"},
      {"a[]", "number is missing"},
      {"a[1", "not closed"},
      {"a[1-", "number is missing"},
      {"a[1-2", "not closed"},
      {"a[1,]", "number is missing"},
      {"a[3-1]", "backwards"},
      {"a[1-2]]", "unexpected character"},
      {"a]", "unexpected character"},
      {"a b", "unexpected character"},
      {"a[x]", "number is missing"},
      {"a[1[2]]", "not closed"},
      {"a[-1]", "number is missing"},
      {"a[1234567890123456]", "too long"},
      {"a[1]b[1]c[1]d[1]e[1]f[1]g[1]h[1]i[1]", "too many brackets"},
      {std::string(300, 'a'), "too long"},
      {"good,good[1-2],bad[", "number is missing"},
  };
  for (const auto& [text, part] : cases) try {
      expand_nodelist(text, 1);
      ADD_FAILURE() << "taken: " << text;
    } catch (const InvalidArgument& error) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos)
          << "no \"" << part << "\" in: " << error.what();
    }
}

}  // namespace
}  // namespace trireme::cluster::tests
