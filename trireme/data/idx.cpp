// IDX, the format of MNIST: two zero bytes, a type byte (8: unsigned bytes), the number of dimensions, their extents as
// big-endian 32-bit numbers, then the data. Read through zlib, which takes plain files too.
#include <zlib.h>

#include <array>
#include <cstring>
#include <filesystem>
#include <memory>

#include <trireme/base/error.h>
#include <trireme/data/dataset.h>

namespace trireme::data {
namespace {

class IdxFile {
 public:
  explicit IdxFile(const std::string& path) : path_(path), file_(gzopen(path.c_str(), "rb")) {
    if (file_ == nullptr) fail<IoError>("cannot open {}: {}", path, errno_text());
    gzbuffer(file_.get(), 1 << 18);
    std::array<unsigned char, 4> magic{};
    read(magic.data(), magic.size());
    if (magic[0] != 0 || magic[1] != 0)
      fail<Corruption>("{} is not an IDX file: it starts with bytes {} {}, not 0 0", path, magic[0], magic[1]);
    if (magic[2] != 8)
      fail<Corruption>("{}: element type {:#x} is not supported, only unsigned bytes (0x8)", path, magic[2]);
    if (magic[3] < 1 || magic[3] > 4) fail<Corruption>("{}: {} dimensions; expected 1 to 4", path, magic[3]);
    for (int i = 0; i < magic[3]; i++) {
      std::array<unsigned char, 4> extent{};
      read(extent.data(), extent.size());
      extents_.push_back(int64_t{extent[0]} << 24 | extent[1] << 16 | extent[2] << 8 | extent[3]);
    }
    check_extents();
  }

  const std::vector<int64_t>& extents() const { return extents_; }
  size_t count() const { return static_cast<size_t>(extents_[0]); }

  /// Reads records [share.begin, share.end) of `record` bytes. Whoever reads the last record also finds out whether the
  /// file is whole.
  void read_share(Share share, size_t record, std::byte* into) {
    skip(share.begin * record);
    read(into, (share.end - share.begin) * record);
    if (share.end != count()) return;
    char extra = 0;
    const int more = gzread(file_.get(), &extra, 1);
    int code = Z_OK;
    gzerror(file_.get(), &code);
    if (more < 0 || code == Z_BUF_ERROR) damaged();  // the latter: it ends before its checksum
    if (more > 0) fail<Corruption>("{}: there is more data than the header's {} records", path_, count());
  }

 private:
  /// A damaged extent must not become an allocation: the file bounds what can be in it.
  void check_extents() const {
    constexpr double kBestCompression = 1032;  // of zlib's format
    double bytes = 1;
    for (size_t i = 0; i < extents_.size(); i++) {
      if (i > 0 && extents_[i] == 0) fail<Corruption>("{}: the header has an extent of 0", path_);
      bytes *= static_cast<double>(extents_[i]);
    }
    std::error_code unknown;
    const auto size = std::filesystem::file_size(path_, unknown);
    const double most =
        unknown ? 1e12 : static_cast<double>(size) * (gzdirect(file_.get()) != 0 ? 1 : kBestCompression);
    if (bytes > most)
      fail<Corruption>(
          "{} is truncated or damaged: the header promises {:.0f} bytes of data, more than a file of {} bytes holds. "
          "Get the file again",
          path_, bytes, size);
  }

  void skip(size_t bytes) {
    std::array<std::byte, 1 << 16> nothing;
    for (; bytes > 0; bytes -= std::min(bytes, nothing.size())) read(nothing.data(), std::min(bytes, nothing.size()));
  }

  void read(void* into, size_t bytes) {
    auto* to = static_cast<char*>(into);
    while (bytes > 0) {
      const int got = gzread(file_.get(), to, static_cast<unsigned>(std::min<size_t>(bytes, 1 << 30)));
      if (got < 0) damaged();
      if (got == 0) fail<Corruption>("{} is truncated: {} more bytes expected. Get the file again", path_, bytes);
      to += got;
      bytes -= static_cast<size_t>(got);
    }
  }

  [[noreturn]] void damaged() {
    int code = 0;
    const std::string text = gzerror(file_.get(), &code);
    fail<Corruption>("{} is damaged or truncated ({}). Get the file again", path_, text);
  }

  struct Close {
    void operator()(gzFile file) const { gzclose(file); }
  };
  std::string path_;
  std::unique_ptr<gzFile_s, Close> file_;
  std::vector<int64_t> extents_;
};

Dataset read_images(comm::shm::Communicator& group, IdxFile& file, const std::string& path) {
  if (file.count() == 0) fail<Corruption>("{} holds no images", path);
  Dataset set{.name = path, .count = file.count(), .dtype = DType::u8, .scale = 1.0 / 255};
  set.shape.assign(file.extents().begin() + 1, file.extents().end());
  if (set.shape.size() == 2) set.shape.insert(set.shape.begin(), 1);  // one channel
  std::byte* inputs = allocate_shared(group, set.count * set.sample_bytes(), "inputs");
  const Share share = share_of(set.count, group.rank(), group.size());
  file.read_share(share, set.sample_bytes(), inputs + share.begin * set.sample_bytes());
  set.inputs = inputs;
  return set;
}

}  // namespace

Dataset read_idx(comm::shm::Communicator& group, const std::string& images, const std::string& labels) {
  IdxFile image_file(images), label_file(labels);
  if (label_file.extents().size() != 1)
    fail<Corruption>("{}: labels must have one dimension, not {}", labels, label_file.extents().size());
  if (image_file.count() != label_file.count())
    fail<Corruption>("{} holds {} images, but {} holds {} labels", images, image_file.count(), labels,
                     label_file.count());
  Dataset set = read_images(group, image_file, images);
  auto* numbers = reinterpret_cast<int64_t*>(allocate_shared(group, set.count * sizeof(int64_t), "labels"));
  const Share share = share_of(set.count, group.rank(), group.size());
  std::vector<unsigned char> bytes(share.end - share.begin);
  label_file.read_share(share, 1, reinterpret_cast<std::byte*>(bytes.data()));
  std::copy(bytes.begin(), bytes.end(), numbers + share.begin);
  int32_t classes = bytes.empty() ? 1 : *std::max_element(bytes.begin(), bytes.end()) + 1;
  group.allreduce(&classes, 1, DType::i32, Op::max, "number of classes");
  set.labels = numbers;
  set.classes = classes;
  return set;
}

Dataset read_idx_images(comm::shm::Communicator& group, const std::string& images) {
  IdxFile file(images);
  if (file.extents().size() < 2)
    fail<InvalidArgument>("{} has one dimension, as labels have: give the file of images", images);
  Dataset set = read_images(group, file, images);
  group.barrier("images");
  return set;
}

}  // namespace trireme::data
