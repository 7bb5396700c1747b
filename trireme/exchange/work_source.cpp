#include <utility>

#include <trireme/base/error.h>
#include <trireme/exchange/work_source.h>

namespace trireme::exchange {

void WorkSource::begin(int64_t first_step, int64_t steps) {
  const bool goes_on = std::exchange(restored_, false) && first_step == course_.first_step;
  course_ = {course_.number + (goes_on ? 0 : 1), first_step, steps};
}

void WorkSource::restore(const Course& course) {
  course_ = course;
  restored_ = true;
}

void OwnShare::begin(int64_t first_step, int64_t steps) {
  WorkSource::begin(first_step, steps);
  next_ = 0;
  piece_ = 0;
}

ps::Lease OwnShare::take() {
  if (next_ >= course_.steps) return {ps::Lease::end};
  const int64_t step = next_, piece = step * pieces() + run_.begin + piece_;
  if (++piece_ == run_.size()) next_++, piece_ = 0;
  return {ps::Lease::piece, course_.first_step + step, piece};
}

void OwnShare::set_run(Pieces run) {
  if (piece_ != 0) fail<InvalidArgument>("a rank's pieces may change between steps, not in the middle of one");
  run_ = run;
}

ServersWork::ServersWork(ps::Client& client) : WorkSource(client.worker(), client.job().workers), client_(client) {}

ps::Lease ServersWork::take() {
  return client_.take(course_.number, course_.first_step, course_.steps * pieces(), pieces(), stop_wanted_);
}

}  // namespace trireme::exchange
