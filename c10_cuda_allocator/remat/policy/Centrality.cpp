#include "Centrality.h"

#include <algorithm>
#include <limits>

namespace c10::remat {

namespace {

constexpr double kUnreached = std::numeric_limits<double>::infinity();

} // namespace

void Centrality::recompute(const OpGraph& graph) {
  values_.clear();
  graph.for_each_version([&](VersionId id) {
    values_.resize(id.index + 1);
    values_[id.index].created = graph[id].created;
  });
  collect_nodes(graph);
  const size_t count = nodes_.size() - 1;
  const size_t sources = std::min(count, kSources);
  for (size_t i = 0; i < sources; ++i) {
    accumulate(static_cast<uint32_t>(i * count / sources));
  }
  double highest = 0;
  for (const Value& value : values_) {
    highest = std::max(highest, value.share);
  }
  if (highest > 0) {
    for (Value& value : values_) {
      value.share /= highest;
    }
  }
}

double Centrality::operator()(const OpGraph& graph, VersionId id) const {
  return id.index < values_.size() &&
          values_[id.index].created == graph[id].created
      ? values_[id.index].share
      : 0;
}

void Centrality::collect_nodes(const OpGraph& graph) {
  std::vector<OpId> order;
  graph.for_each_op([&](OpId op) { order.push_back(op); });
  std::sort(order.begin(), order.end(), [&](OpId a, OpId b) {
    return graph[a].sequence < graph[b].sequence;
  });
  std::vector<uint32_t> place;
  for (uint32_t i = 0; i < order.size(); ++i) {
    place.resize(std::max<size_t>(place.size(), order[i].index + 1));
    place[order[i].index] = i;
  }
  nodes_.clear();
  links_.clear();
  for (const OpId op : order) {
    const OpRecord& record = graph[op];
    nodes_.push_back(
        {record.cost, static_cast<uint32_t>(links_.size()), 0, 0, 0});
    for (const VersionId output : record.outputs) {
      if (!output) {
        continue;
      }
      for (const OpId reader : graph[output].readers) {
        links_.push_back({place[reader.index], output});
      }
    }
  }
  nodes_.push_back({0, static_cast<uint32_t>(links_.size()), 0, 0, 0});
}

// See Note [Betweenness on a graph of op records].
void Centrality::accumulate(uint32_t source) {
  const auto count = static_cast<uint32_t>(nodes_.size() - 1);
  for (uint32_t i = source; i < count; ++i) {
    nodes_[i].distance = kUnreached;
    nodes_[i].paths = 0;
    nodes_[i].share = 0;
  }
  nodes_[source].distance = 0;
  nodes_[source].paths = 1;
  for (uint32_t i = source; i < count; ++i) {
    const Node& node = nodes_[i];
    if (node.paths == 0) {
      continue;
    }
    for (uint32_t k = node.first_link; k < nodes_[i + 1].first_link; ++k) {
      Node& reader = nodes_[links_[k].reader];
      const double distance = node.distance + static_cast<double>(reader.cost);
      if (distance < reader.distance) {
        reader.distance = distance;
        reader.paths = node.paths;
      } else if (distance == reader.distance) {
        reader.paths += node.paths;
      }
    }
  }
  for (uint32_t i = count; i-- > source;) {
    Node& node = nodes_[i];
    if (node.paths == 0) {
      continue;
    }
    for (uint32_t k = node.first_link; k < nodes_[i + 1].first_link; ++k) {
      const Node& reader = nodes_[links_[k].reader];
      if (node.distance + static_cast<double>(reader.cost) != reader.distance) {
        continue;
      }
      const double share = node.paths / reader.paths * (1 + reader.share);
      node.share += share;
      values_[links_[k].through.index].share += share;
    }
  }
}

} // namespace c10::remat
