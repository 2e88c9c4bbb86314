#pragma once

#include "../Export.h"
#include "../graph/OpGraph.h"

#include <cstdint>
#include <vector>

namespace c10::remat {

// How much replay goes through a version: its betweenness over the cheapest
// replay paths of the graph of op records.
//
// Note [Betweenness on a graph of op records]
// A path from record s to record t costs the recompute cost of the records on
// it after s. Betweenness of a version is the share of cheapest paths that go
// through it, summed over pairs (s, t). Records are in topological order by
// sequence, so Brandes' accumulation (A faster algorithm for betweenness
// centrality, 2001) needs neither a queue nor a heap: one pass forward for
// distances and path counts, one backward for the shares, O(records + links)
// per source. Sources are kSources records spread evenly over the order
// (Brandes and Pich, 2007), and every record where there are no more.
class REMAT_API Centrality {
 public:
  static constexpr size_t kSources = 16;

  void recompute(const OpGraph& graph);

  // Between 0 and 1, where 1 is the highest of all; 0 for versions that came
  // after the last `recompute`.
  double operator()(const OpGraph& graph, VersionId id) const;

 private:
  struct Value {
    uint64_t created = 0; // of the version: slots are reused
    double share = 0;
  };
  // Records in topological order, linked by their place in it.
  struct Link {
    uint32_t reader;
    VersionId through;
  };
  struct Node {
    CostNs cost;
    uint32_t first_link;
    double distance;
    double paths;
    double share;
  };

  void collect_nodes(const OpGraph& graph);
  void accumulate(uint32_t source);

  std::vector<Value> values_; // by VersionId::index
  std::vector<Node> nodes_; // scratch; one more at the end
  std::vector<Link> links_; // scratch
};

} // namespace c10::remat
