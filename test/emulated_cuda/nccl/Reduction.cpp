#include "Reduction.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <algorithm>
#include <cstdint>

namespace emulated_cuda {

namespace {

// What the elements of `T` are computed in.
template <class T>
struct WideOf {
  using Type = T;
};
template <>
struct WideOf<c10::Half> {
  using Type = float;
};
template <>
struct WideOf<c10::BFloat16> {
  using Type = float;
};
template <class T>
using Wide = typename WideOf<T>::Type;

template <class T>
struct Tag {
  using Type = T;
};

// Calls `function` with the tag of the C++ type.
template <class Function>
void with_type(ncclDataType_t type, Function&& function) {
  switch (type) {
  case ncclInt8:
    return function(Tag<int8_t>{});
  case ncclUint8:
    return function(Tag<uint8_t>{});
  case ncclInt32:
    return function(Tag<int32_t>{});
  case ncclUint32:
    return function(Tag<uint32_t>{});
  case ncclInt64:
    return function(Tag<int64_t>{});
  case ncclUint64:
    return function(Tag<uint64_t>{});
  case ncclFloat16:
    return function(Tag<c10::Half>{});
  case ncclFloat32:
    return function(Tag<float>{});
  case ncclFloat64:
    return function(Tag<double>{});
  case ncclBfloat16:
    return function(Tag<c10::BFloat16>{});
  default:
    return;
  }
}

template <class W>
W combine(W a, W b, ncclRedOp_t op) {
  switch (op) {
  case ncclProd:
    return static_cast<W>(a * b);
  case ncclMax:
    return std::max(a, b);
  case ncclMin:
    return std::min(a, b);
  default:
    return static_cast<W>(a + b);
  }
}

} // namespace

size_t size_of(ncclDataType_t type) {
  size_t size = 0;
  with_type(
      type, [&](auto tag) { size = sizeof(typename decltype(tag)::Type); });
  return size;
}

void accumulate(
    void* sum,
    const void* value,
    size_t count,
    ncclDataType_t type,
    ncclRedOp_t op) {
  with_type(type, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    auto* to = static_cast<T*>(sum);
    const auto* from = static_cast<const T*>(value);
    for (size_t i = 0; i < count; ++i) {
      to[i] = static_cast<T>(combine(
          static_cast<Wide<T>>(to[i]), static_cast<Wide<T>>(from[i]), op));
    }
  });
}

void divide(void* sum, size_t count, ncclDataType_t type, int by) {
  with_type(type, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    auto* values = static_cast<T*>(sum);
    for (size_t i = 0; i < count; ++i) {
      values[i] = static_cast<T>(
          static_cast<Wide<T>>(values[i]) / static_cast<Wide<T>>(by));
    }
  });
}

} // namespace emulated_cuda
