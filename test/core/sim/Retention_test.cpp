#include <c10/remat/sim/Retention.h>

#include <gtest/gtest.h>

#include <algorithm>

namespace c10::remat {
namespace {

// Layers that are read again in the reverse order: each op makes a value from
// the last one, and the last reads of all come after.
struct Layers {
  void add(CostNs cost, Bytes size) {
    Future::Op op;
    op.cost = cost;
    op.start = future.length();
    op.first_value = static_cast<uint32_t>(future.values.size());
    op.value_count = 1;
    const auto place = static_cast<uint32_t>(future.ops.size());
    if (place > 0) {
      future.values.back().uses.push_back(place);
    }
    future.ops.push_back(op);
    future.values.push_back({place, size, {}});
  }

  // The first op on the way back, which reads the last value.
  uint32_t turn() const {
    return static_cast<uint32_t>(future.values.size());
  }

  // The reads on the way back, by ops that make nothing.
  const Future& finished() {
    for (size_t i = future.values.size(); i-- > 0;) {
      Future::Op op;
      op.cost = 1;
      op.start = future.length();
      op.first_value = static_cast<uint32_t>(future.values.size());
      future.values[i].uses.push_back(static_cast<uint32_t>(future.ops.size()));
      future.ops.push_back(op);
    }
    return future;
  }

  Future future;
};

std::vector<size_t> places_of(const std::vector<Wish>& wishes, Wish wanted) {
  std::vector<size_t> places;
  for (size_t i = 0; i < wishes.size(); ++i) {
    if (wishes[i] == wanted) {
      places.push_back(i);
    }
  }
  return places;
}

using Places = std::vector<size_t>;

TEST(RetentionTest, LetsGoOfWhatCostsLeastForItsBytes) {
  Layers layers;
  layers.add(1000, 10);
  layers.add(10, 100);
  layers.add(1000, 10);
  layers.add(20, 100);
  layers.add(1000, 10);
  const Future& future = layers.finished();
  EXPECT_EQ(
      places_of(wishes_at_peak(future, layers.turn(), 230, 130), Wish::LetGo),
      Places{1});
  EXPECT_EQ(
      places_of(wishes_at_peak(future, layers.turn(), 230, 30), Wish::LetGo),
      (Places{1, 3}));
  EXPECT_EQ(
      places_of(wishes_at_peak(future, layers.turn(), 230, 30), Wish::Keep),
      (Places{0, 2, 4}));
}

// Without the first the second costs 110 for its 10 bytes, yet both together
// cost no more than that, for 20; the last costs 120 for 20.
TEST(RetentionTest, CountsWhatHasToRunForSeveralOnce) {
  Layers layers;
  layers.add(50, 10);
  layers.add(60, 10);
  layers.add(5000, 10);
  layers.add(120, 20);
  layers.add(5000, 10);
  const Future& future = layers.finished();
  EXPECT_EQ(
      places_of(wishes_at_peak(future, layers.turn(), 60, 40), Wish::LetGo),
      (Places{0, 1}));
}

TEST(RetentionTest, KeepsWhatIsReadAtThatMoment) {
  Layers layers;
  layers.add(1000, 10);
  layers.add(20, 100);
  layers.add(1, 100); // the cheapest, but what the op at the peak reads
  const Future& future = layers.finished();
  const auto wishes = wishes_at_peak(future, layers.turn(), 210, 110);
  EXPECT_EQ(places_of(wishes, Wish::LetGo), Places{1});
  EXPECT_EQ(places_of(wishes, Wish::Keep), (Places{0, 2}));
  // At the next one it is no longer read.
  EXPECT_TRUE(wishes_at_peak(future, layers.turn() + 1, 210, 100).empty());
}

TEST(RetentionTest, OfLayersThatAreAlikeTheFirstAreMadeAgain) {
  Layers layers;
  for (int i = 0; i < 10; ++i) {
    layers.add(5000, 10);
    layers.add(100, 10);
  }
  const auto wishes =
      wishes_at_peak(layers.finished(), layers.turn(), 200, 160);
  EXPECT_EQ(places_of(wishes, Wish::LetGo), (Places{1, 3, 5, 7}));
}

TEST(RetentionTest, WishesForNothingWhereAllFitsOrNothingHelps) {
  Layers layers;
  layers.add(10, 10);
  layers.add(10, 10);
  const Future& future = layers.finished();
  EXPECT_TRUE(wishes_at_peak(future, layers.turn(), 20, 20).empty());
  // A hundred bytes are of something else.
  EXPECT_TRUE(wishes_at_peak(future, layers.turn(), 120, 90).empty());
  EXPECT_TRUE(wishes_at_peak(Future(), 0, 120, 90).empty());
}

TEST(RetentionTest, EndsWhenItMayNotGoOn) {
  Layers layers;
  layers.add(10, 10);
  layers.add(10, 10);
  const std::function<bool()> no = [] { return false; };
  EXPECT_TRUE(
      wishes_at_peak(layers.finished(), layers.turn(), 20, 15, &no).empty());
}

} // namespace
} // namespace c10::remat
