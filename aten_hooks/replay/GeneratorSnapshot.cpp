#include "GeneratorSnapshot.h"

#include <ATen/Context.h>

#include <mutex>

namespace at::remat {

GeneratorSnapshot snapshot_generator(
    const std::optional<at::Generator>& given,
    c10::Device device) {
  at::Generator generator = given.has_value() && given->defined()
      ? *given
      : at::globalContext().defaultGenerator(device);
  const std::lock_guard<std::mutex> lock(generator.mutex());
  if (generator.device().is_cpu()) {
    return {generator.clone()};
  }
  return {generator, generator.current_seed(), generator.get_offset()};
}

at::Generator make_generator(const GeneratorSnapshot& snapshot) {
  at::Generator source = snapshot.generator;
  const std::lock_guard<std::mutex> lock(source.mutex());
  at::Generator copy = source.clone();
  if (!copy.device().is_cpu()) {
    copy.set_current_seed(snapshot.seed);
    copy.set_offset(snapshot.offset);
  }
  return copy;
}

} // namespace at::remat
