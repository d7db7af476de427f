// Not a test that passes: two replicas write one number without a lock.
// tests/unit/strategy/train/CMakeLists.txt runs it under ThreadSanitizer, which has to say so; then
// it would find such a race in a test, too.
#include <cstdio>

#include "strategy/kinds/mirrored_strategy.h"

int main() {
  muster::MirroredStrategy strategy({"CPU:0", "CPU:1"});
  int written_by_both_replicas = 0;
  strategy.run([&] { ++written_by_both_replicas; });
  std::printf("%d\n", written_by_both_replicas);
}
