#pragma once

#include "../policy/Future.h"

#include <functional>
#include <vector>

namespace c10::remat {

enum class Wish : int8_t { None, Keep, LetGo };

// What to keep, and what to make again, of the values that a program has when
// it needs the most memory, in the op at `place`: so that what is kept is at
// most `room` bytes less than `peak`, what it needs without a budget, is above
// it, and what is made again costs least. By value; empty if there is no need
// or no way.
//
// Note [What to keep at the peak]
// At the peak each value that is read later is either there, or the op that
// made it runs again, for which its operands are either there or made again.
// With a price per byte of what is there, the cheapest choice is a cut of least
// capacity:
//
//     source --(no limit)--> value that is read later
//     value --(price x size)--> its op --(no limit)--> each operand
//     op --(cost)--> sink
//
// What is on the source's side is wanted, and of that, values whose op is on
// the sink's side are kept. (PyTorch's compiler partitions graphs by a cut of
// the like; here the price is sought at which what is kept fits.) Where many
// layers are alike one price fits all of them or none: earlier ops are taken
// for a little cheaper than they are, so that what is made again is of the
// first layers, whose turn comes when most memory is free.
//
// It is a bound, and a guide: nothing is said of other moments than the peak.
REMAT_API std::vector<Wish> wishes_at_peak(
    const Future& future,
    uint32_t place,
    Bytes peak,
    Bytes room,
    const std::function<bool()>* may_go_on = nullptr);

} // namespace c10::remat
