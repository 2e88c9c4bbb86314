#include "Guests.h"

#include "MemoryPressure.h"

#include <algorithm>

namespace at::remat {

void Guests::add(StorageHandle& handle, bool written) {
  auto guests = std::find_if(
      engines_.begin(), engines_.end(), [&](const OfEngine& known) {
        return known.engine == handle.engine;
      });
  if (guests == engines_.end()) {
    engines_.push_back({handle.engine, handle.device});
    guests = std::prev(engines_.end());
  }
  const auto take_out = [&](std::vector<StorageHandle*>& handles) {
    const auto it = std::find(handles.begin(), handles.end(), &handle);
    const bool found = it != handles.end();
    if (found) {
      handles.erase(it);
    }
    return found;
  };
  written |= take_out(guests->written);
  take_out(guests->read);
  (written ? guests->written : guests->read).push_back(&handle);
}

void Guests::begin() {
  try {
    for (OfEngine& guests : engines_) {
      const c10::remat::Holders holders =
          holders_of(guests.read, guests.written);
      for (size_t i = 0; i < guests.written.size(); ++i) {
        guests.writes.push_back({});
      }
      with_memory_errors(*guests.engine, guests.device, [&] {
        guests.engine->begin_op(holders, guests.inputs, guests.writes);
      });
      guests.has_begun = true;
    }
  } catch (...) {
    abort();
    throw;
  }
}

void Guests::end(uint64_t signature, const char* name) noexcept {
  for (OfEngine& guests : engines_) {
    guests.has_begun = false;
    c10::remat::OpCapture capture;
    capture.signature = signature;
    capture.name = name;
    capture.inputs = std::move(guests.inputs);
    capture.writes = guests.writes;
    guests.engine->end_op(std::move(capture));
  }
}

void Guests::abort() noexcept {
  for (OfEngine& guests : engines_) {
    if (guests.has_begun) {
      guests.has_begun = false;
      guests.engine->abort_op(guests.inputs, guests.writes);
    }
  }
}

bool Guests::has(const Engine& engine) const {
  return std::any_of(
      engines_.begin(), engines_.end(), [&](const OfEngine& guests) {
        return guests.engine == &engine && guests.has_begun;
      });
}

} // namespace at::remat
