#include <fmt/format.h>

#include <trireme/base/unix_socket.h>
#include <trireme/ps/shm/memory.h>
#include <trireme/space/layout.h>

namespace trireme::ps::shm {

Plot Plot::plan(size_t servers, size_t job_bytes, size_t flat_bytes, size_t slots, size_t staging_bytes) {
  Plot plot{.lines = servers,
            .job_bytes = job_bytes,
            .flat_bytes = flat_bytes,
            .slots = slots,
            .staging_bytes = staging_bytes};
  size_t at = sizeof(Bell) + servers * sizeof(Line);
  const auto place = [&](size_t bytes) {
    const size_t begin = round_up(at, kPage);
    at = begin + bytes;
    return begin;
  };
  plot.job = place(job_bytes);
  plot.gradients = place(flat_bytes);
  plot.parameters = place(flat_bytes);
  plot.present = place(slots);
  plot.staging = place(staging_bytes);
  plot.total = round_up(at, kPage);
  return plot;
}

bool Plot::fits(uint64_t size) const {
  constexpr uint64_t kMost = Segment::kAddresses / 8;
  if (lines == 0 || lines > 1024 || total > size) return false;
  for (uint64_t bytes : {job_bytes, flat_bytes, slots, staging_bytes, total})
    if (bytes > kMost) return false;
  const Plot same = plan(lines, job_bytes, flat_bytes, slots, staging_bytes);
  return same.job == job && same.gradients == gradients && same.parameters == parameters && same.present == present &&
         same.staging == staging && same.total == total;
}

Memory::Memory(std::shared_ptr<Segment> segment, const Plot& plot)
    : segment_(std::move(segment)),
      plot_(plot),
      base_(segment_->map(0, plot.total, "a worker's gradients and parameters")) {}

std::string door_name(const std::string& job, int server) {
  return own_name(fmt::format("ps/{:016x}/{}", space::hash_text(job), server));
}

}  // namespace trireme::ps::shm
