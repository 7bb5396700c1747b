// label: unit
// Language models by name.
#include <gtest/gtest.h>

#include <trireme/base/error.h>
#include <trireme/models/catalogue.h>
#include <trireme/models/language.h>

namespace trireme::models {
namespace {

void refused(const std::string& model, const std::vector<std::string>& parts) {
  try {
    check_name(model);
    ADD_FAILURE() << model << " is accepted";
  } catch (const InvalidArgument& error) {
    for (const std::string& part : parts)
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << part << ": " << error.what();
  }
}

TEST(LanguageSpec, Names) {
  EXPECT_FALSE(language_spec("lenet"));
  EXPECT_FALSE(language_spec("mlp:512"));
  const LanguageSpec small = *language_spec("gpt"),
                     settings = *language_spec("gpt:layers=3,width=96,heads=3,context=7"),
                     bert = *language_spec("bert:tiny,dropout=0.25");
  EXPECT_EQ(small.width, language_spec("gpt:small")->width);
  EXPECT_EQ(small.context, 128);
  EXPECT_EQ(settings.layers, 3);
  EXPECT_EQ(settings.width, 96);
  EXPECT_EQ(settings.heads, 3);
  EXPECT_EQ(settings.context, 7);
  EXPECT_FALSE(settings.masked);
  EXPECT_TRUE(bert.masked);
  EXPECT_EQ(bert.layers, 2);
  EXPECT_EQ(bert.dropout, 0.25);
}

TEST(LanguageSpec, Refusals) {
  refused("gpt:", {"tiny, small, medium"});
  refused("gpt:smal", {"unknown 'smal'", "did you mean 'small'"});
  refused("gpt:layer=2", {"unknown 'layer'", "layers"});
  refused("gpt:layers=two", {"'layers=two' is not NAME=NUMBER"});
  refused("gpt:layers", {"'layers' is not NAME=NUMBER"});
  refused("gpt:layers=0", {"layers is a number from 1"});
  refused("gpt:width=100,heads=3", {"width of 100", "3 heads", "nearest that can is 102"});
  refused("bert:dropout=1", {"dropout"});
  refused("gtp", {"did you mean 'gpt'"});
}

TEST(LanguageSpec, EmbeddingsAreRoundedUp) {
  EXPECT_EQ(embedded(*language_spec("gpt"), 256), 256);
  EXPECT_EQ(embedded(*language_spec("bert"), 256), 320);  // the mask token is one more
  EXPECT_EQ(embedded(*language_spec("gpt"), 1000), 1024);
}

TEST(LanguageSpec, FitsTextAlone) {
  EXPECT_NO_THROW(check_fits("gpt:tiny", "text:a"));
  EXPECT_NO_THROW(check_fits("lenet", "fashion-mnist"));
  EXPECT_THROW(check_fits("gpt:tiny", "fashion-mnist"), InvalidArgument);
  EXPECT_THROW(check_fits("lenet", "text:a"), InvalidArgument);
}

}  // namespace
}  // namespace trireme::models
