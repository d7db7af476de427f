// Several questions at a time to those who may take their time to answer.
#pragma once

#include <cstddef>
#include <functional>

namespace muster::process {

// Does `one` for each number below `count`, in their order, `most` at a time: on this thread and on
// others that end with the call. Where there are no more threads it takes longer. `one` blocks as
// long as it likes, and throws nothing.
// Threading: any; `one` runs on several threads at once.
void SeveralAtOnce(std::size_t count, std::size_t most,
                   const std::function<void(std::size_t)>& one);

}  // namespace muster::process
