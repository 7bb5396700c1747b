#include <algorithm>

#include <trireme/ps/shm/parameter_files.h>

namespace trireme::ps::shm {

std::shared_ptr<Segment> ParameterFiles::segment(int model, size_t bytes) {
  const Lock lock(mutex_);
  auto& file = files_[model];
  if (!file) file = Segment::create(bytes);
  return file;
}

std::byte* ParameterFiles::take(int model, size_t bytes) {
  const size_t whole = round_up(std::max<size_t>(1, bytes), kPage);
  std::shared_ptr<Segment> file;
  if (ask_ && bytes > 0) {  // without the lock: another process answers
    file = ask_(model, whole);
    const Lock lock(mutex_);
    files_[model] = file;
  } else {
    file = segment(model, whole);
  }
  return file->map(0, whole, "the model's parameters");
}

void ParameterFiles::give_back(int model) {
  const Lock lock(mutex_);
  files_.erase(model);
}

const Segment& ParameterFiles::of(int model) const {
  const Lock lock(mutex_);
  return *files_.at(model);
}

}  // namespace trireme::ps::shm
