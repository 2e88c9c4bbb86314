#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <iterator>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

namespace c10::remat {

// A vector whose first N elements need no allocation. Ops have few inputs and
// outputs, and several such lists are made for each of them. For plain data
// only; moving leaves the source empty.
template <class T, uint32_t N>
class InlineVector {
  static_assert(std::is_trivially_copyable_v<T>);
  static_assert(std::is_trivially_destructible_v<T>);

 public:
  using value_type = T;
  using iterator = T*;
  using const_iterator = const T*;

  InlineVector() = default;
  InlineVector(std::initializer_list<T> items) {
    append(items.begin(), items.size());
  }
  InlineVector(const std::vector<T>& items) {
    append(items.data(), items.size());
  }
  InlineVector(const InlineVector& other) {
    copy(other);
  }
  InlineVector(InlineVector&& other) noexcept {
    take(other);
  }
  InlineVector& operator=(const InlineVector& other) {
    if (this != &other) {
      copy(other);
    }
    return *this;
  }
  InlineVector& operator=(InlineVector&& other) noexcept {
    if (this != &other) {
      take(other);
    }
    return *this;
  }
  ~InlineVector() = default;

  operator std::vector<T>() const {
    return {begin(), end()};
  }

  size_t size() const {
    return size_;
  }
  bool empty() const {
    return size_ == 0;
  }
  T* data() {
    return heap_ ? reinterpret_cast<T*>(heap_.get())
                 : reinterpret_cast<T*>(local_);
  }
  const T* data() const {
    return const_cast<InlineVector*>(this)->data();
  }
  iterator begin() {
    return data();
  }
  iterator end() {
    return data() + size_;
  }
  const_iterator begin() const {
    return data();
  }
  const_iterator end() const {
    return data() + size_;
  }
  T& operator[](size_t i) {
    return data()[i];
  }
  const T& operator[](size_t i) const {
    return data()[i];
  }
  T& front() {
    return data()[0];
  }
  const T& front() const {
    return data()[0];
  }
  T& back() {
    return data()[size_ - 1];
  }
  const T& back() const {
    return data()[size_ - 1];
  }

  void push_back(const T& item) {
    const T copy = item; // may be one of ours
    reserve(size_ + 1);
    std::memcpy(static_cast<void*>(data() + size_), &copy, sizeof(T));
    ++size_;
  }
  void pop_back() {
    --size_;
  }
  void clear() {
    size_ = 0;
  }
  void append(const T* items, size_t count) {
    if (count == 0) {
      return;
    }
    reserve(size_ + count);
    std::memcpy(static_cast<void*>(data() + size_), items, count * sizeof(T));
    size_ += static_cast<uint32_t>(count);
  }
  void reserve(size_t wanted) {
    if (wanted <= capacity_) {
      return;
    }
    const size_t capacity = std::max<size_t>(wanted, 2 * size_t{capacity_});
    std::unique_ptr<char[]> grown(new char[capacity * sizeof(T)]);
    std::memcpy(grown.get(), data(), size_ * sizeof(T));
    heap_ = std::move(grown);
    capacity_ = static_cast<uint32_t>(capacity);
  }

  friend bool operator==(const InlineVector& a, const InlineVector& b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end());
  }
  friend bool operator!=(const InlineVector& a, const InlineVector& b) {
    return !(a == b);
  }

 private:
  // Copies all of local_, which takes a few instructions, since its size is
  // known to the compiler.
  void copy(const InlineVector& other) {
    if (other.size_ <= N && !other.heap_ && !heap_) {
      size_ = other.size_;
      std::memcpy(local_, other.local_, sizeof(local_));
    } else {
      clear();
      append(other.begin(), other.size());
    }
  }
  void take(InlineVector& other) noexcept {
    heap_ = std::move(other.heap_);
    capacity_ = std::exchange(other.capacity_, N);
    size_ = std::exchange(other.size_, 0);
    std::memcpy(local_, other.local_, sizeof(local_));
  }

  std::unique_ptr<char[]> heap_; // null: the elements are in local_
  uint32_t size_ = 0;
  uint32_t capacity_ = N;
  alignas(T) char local_[N * sizeof(T)] = {};
};

} // namespace c10::remat
