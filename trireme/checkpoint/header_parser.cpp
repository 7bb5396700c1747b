#include <nlohmann/json.hpp>

#include <set>

#include <trireme/base/error.h>
#include <trireme/checkpoint/header_parser.h>

namespace trireme::checkpoint {
namespace {

/// Takes the events of a header in the one order that they may have; each returns false where it is not allowed, and
/// says why.
class HeaderEvents final : public nlohmann::json_sax<nlohmann::json> {
 public:
  std::string why;
  Header header;

  bool null() override { return refuse("null"); }
  bool boolean(bool) override { return refuse("true or false"); }
  bool number_integer(number_integer_t) override { return refuse("a negative number"); }
  bool number_float(number_float_t, const string_t&) override { return refuse("a number that is not whole"); }
  bool binary(binary_t&) override { return refuse("binary data"); }

  bool number_unsigned(number_unsigned_t value) override {
    if (place_ == Place::shape) {
      if (value > static_cast<uint64_t>(INT64_MAX)) return refuse("an extent that large");
      return tensor().shape.push_back(static_cast<int64_t>(value)), true;
    }
    if (place_ != Place::offsets) return refuse("a number");
    if (offsets_ >= 2) return refuse("a third offset");
    return (offsets_++ == 0 ? tensor().begin : tensor().end) = value, true;
  }

  bool string(string_t& text) override {
    if (place_ == Place::metadata) return header.metadata[key_] = std::move(text), true;
    if (place_ == Place::tensor && key_ == "dtype") return tensor().type = std::move(text), true;
    return refuse("a text");
  }

  bool start_object(std::size_t) override {
    if (place_ == Place::outside && !begun_) return begun_ = true, place_ = Place::top, true;
    if (place_ != Place::top) return refuse("an object");
    return place_ = key_ == "__metadata__" ? Place::metadata : begin_tensor(), true;
  }
  bool end_object() override {
    if (place_ == Place::tensor && fields_.size() != 3) return refuse("a tensor without dtype, shape or data_offsets");
    return place_ = place_ == Place::top ? Place::outside : Place::top, true;
  }

  bool start_array(std::size_t) override {
    if (place_ == Place::tensor && key_ == "shape") return place_ = Place::shape, true;
    if (place_ == Place::tensor && key_ == "data_offsets") return place_ = Place::offsets, true;
    return refuse("an array");
  }
  bool end_array() override {
    if (place_ == Place::offsets && offsets_ != 2) return refuse("data_offsets that are not two numbers");
    return place_ = Place::tensor, true;
  }

  bool key(string_t& text) override {
    key_ = std::move(text);
    if (place_ == Place::top) return names_.insert(key_).second || refuse("a name that was there before");
    if (place_ == Place::metadata) return !header.metadata.contains(key_) || refuse("an entry that was there before");
    const bool known = key_ == "dtype" || key_ == "shape" || key_ == "data_offsets";
    return (known || refuse("a field that the format does not have")) &&
           (fields_.insert(key_).second || refuse("a field that was there before"));
  }

  bool parse_error(std::size_t, const std::string&, const nlohmann::detail::exception& error) override {
    return why = error.what(), false;
  }

 private:
  enum class Place { outside, top, metadata, tensor, shape, offsets };

  StoredTensor& tensor() { return header.tensors.back(); }
  Place begin_tensor() {
    header.tensors.emplace_back().name = key_;
    fields_.clear();
    offsets_ = 0;
    return Place::tensor;
  }
  bool refuse(const char* what) {
    constexpr size_t kShown = 100;  // of a name that may be anything
    why = fmt::format("there is {} at '{}'", what, key_.substr(0, kShown));
    return false;
  }

  Place place_ = Place::outside;
  bool begun_ = false;
  std::string key_;
  std::set<std::string> names_, fields_;
  int offsets_ = 0;
};

}  // namespace

Header parse_header(std::string_view text, const std::string& where) {
  if (!text.starts_with('{')) fail<Corruption>("{} is no safetensors file: its header does not begin with '{{'", where);
  HeaderEvents events;
  if (!nlohmann::json::sax_parse(text.begin(), text.end(), &events))
    fail<Corruption>("{} is no safetensors file, or damaged: in its header, {}", where, events.why);
  return std::move(events.header);
}

}  // namespace trireme::checkpoint
